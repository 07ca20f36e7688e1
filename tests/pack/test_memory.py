# SPDX-License-Identifier: Apache-2.0
"""Every allocation of our own code fails once, in turn (sampled where there are thousands): the run
ends with an error line or a good package, never with a crash or half a package."""
import os
import pathlib
import platform
import shutil
import subprocess

import pytest

from conftest import PROGRAM

HERE = pathlib.Path(__file__).parent
DENSE, SAMPLES = 60, 60


@pytest.fixture(scope="module")
def shim(tmp_path_factory, program):
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    if b"__asan_init" in pathlib.Path(PROGRAM).read_bytes() or b"__tsan_init" in pathlib.Path(PROGRAM).read_bytes():
        pytest.skip("sanitizers bring their own malloc")
    out = tmp_path_factory.mktemp("shim") / "fail_malloc.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(out), str(HERE / "fail_malloc.c")], check=True)
    return out


def run(shim, arguments, **variables):
    env = dict(os.environ, LD_PRELOAD=str(shim), **variables)
    return subprocess.run([PROGRAM, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("form", ["hf", "mlx", "splash-packed", "verify"])
def test_each_allocation(shim, driver, checkpoints, tmp_path, form):
    work = tmp_path / "work"
    work.mkdir()
    if form == "verify":
        assert driver.pack(checkpoints("toy"), tmp_path / "p") is None
        arguments = ["verify", tmp_path / "p"]
    else:
        arguments = ["pack", checkpoints("toy", form), work / "out"]
        if form == "hf":
            arguments += ["--draft", checkpoints("toy", "draft")]
    done = run(shim, arguments, FAIL_COUNT="1")
    assert done.returncode == 0
    total, failures = int(done.stderr.split()[-1]), 0
    assert total > 15
    places = set(range(1, DENSE)) | set(range(DENSE, total, max(1, total // SAMPLES))) | set(range(total - DENSE, total))
    places = {n for n in places if 0 < n <= total}
    for at in sorted(places):
        shutil.rmtree(work / "out", ignore_errors=True)
        done = run(shim, arguments, FAIL_AT=str(at))
        assert done.returncode in (0, 1), (at, done.returncode)
        assert not [p.name for p in work.iterdir() if p.name != "out"], at
        if done.returncode == 1:
            failures += 1
            assert not (work / "out").exists(), at
            assert any(line.startswith("-") for line in done.stdout.splitlines()), at
        elif form != "verify":
            assert driver.verify(work / "out") is None, at
    assert failures > len(places) // 2
