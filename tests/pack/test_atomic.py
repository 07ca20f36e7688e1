# SPDX-License-Identifier: Apache-2.0
"""A pack run that is killed, cancelled, or starved of disk leaves what was there before and nothing
else; a complete package is never lost to an incomplete one."""
import os
import shutil
import signal
import subprocess
import time

import pytest

POINTS = [1, 60_000, 140_000, 300_000]       # bytes into the weights of the toy
BEFORE_PUBLISH = 10 ** 9                     # the last report comes right before the rename


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def pause(driver, *arguments):
    process = driver.start(*arguments)
    for line in process.stdout:
        if line == "paused\n":
            return process
    raise AssertionError("the run ended before it paused")


def total_bytes(package):
    return os.path.getsize(package / "target.bin") - 4096


@pytest.mark.parametrize("point", POINTS + [BEFORE_PUBLISH])
@pytest.mark.parametrize("existing", [False, True])
def test_kill(driver, checkpoints, tmp_path, point, existing):
    work = tmp_path / "work"
    work.mkdir()
    out = work / "model"
    old = None
    if existing:
        assert driver.pack(checkpoints("toy", seed=2), out) is None
        old = (out / "manifest.json").read_bytes()
    if point == BEFORE_PUBLISH:
        assert driver.pack(checkpoints("toy"), tmp_path / "size") is None
        point = total_bytes(tmp_path / "size")
    process = pause(driver, "pack", checkpoints("toy"), out, "--overwrite", "--pause-at", point)
    process.send_signal(signal.SIGKILL)
    process.wait()
    partial = [n for n in names(work) if n != "model"]
    assert partial == [f"model.partial-{process.pid}"], "the killed run must have been in the middle"
    if existing:
        assert (out / "manifest.json").read_bytes() == old
        assert driver.verify(out) is None
    else:
        assert not out.exists()
    assert driver.pack(checkpoints("toy"), out, "--overwrite") is None      # cleans up and succeeds
    assert names(work) == ["model"]
    assert driver.verify(out) is None
    assert (out / "manifest.json").read_bytes() != old


def test_kill_at_any_moment(driver, checkpoints, tmp_path):
    """Random moments, replacing: whenever the run dies, one complete package is there."""
    out = tmp_path / "work" / "model"
    out.parent.mkdir()
    assert driver.pack(checkpoints("toy", seed=2), out) is None
    killed = 0
    for i in range(25):
        process = driver.start("pack", checkpoints("toy", seed=1 + i % 2), out, "--overwrite")
        time.sleep(0.002 * i)
        killed += process.poll() is None
        process.kill()
        process.wait()
        assert driver.verify(out) is None, i
    assert killed > 3
    assert driver.pack(checkpoints("toy"), out, "--overwrite") is None
    assert names(out.parent) == ["model"]


def test_running_neighbour_is_left_alone(driver, checkpoints, tmp_path):
    out = tmp_path / "model"
    first = pause(driver, "pack", checkpoints("toy"), out, "--pause-at", 1)
    assert driver.pack(checkpoints("toy", seed=2), out) is None
    assert len(names(tmp_path)) == 2                        # the paused run's folder is still there
    answer, _ = first.communicate("\n")
    assert first.returncode == 1 and f"'{out}' exists; ask for it to be replaced" in answer, answer
    assert driver.verify(out) is None
    assert names(tmp_path) == ["model"]


def test_cancel(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "model", "--cancel-at", 60_000) == "pack cancelled"
    assert names(tmp_path) == []


def test_existing_folders(driver, checkpoints, tmp_path):
    out = tmp_path / "model"
    assert driver.pack(checkpoints("toy"), out) is None
    before = (out / "manifest.json").read_bytes()
    assert driver.pack(checkpoints("toy", seed=2), out) == \
        f"'{out}' exists; ask for it to be replaced, or name another folder"
    assert (out / "manifest.json").read_bytes() == before
    assert driver.pack(checkpoints("toy", seed=2), str(out) + "/", "--overwrite") is None
    assert (out / "manifest.json").read_bytes() != before
    other = tmp_path / "photos"
    other.mkdir()
    (other / "a.jpg").write_text("x")
    assert driver.pack(checkpoints("toy"), other, "--overwrite") == \
        f"'{other}' exists and is not a package; it will not be replaced"
    empty = tmp_path / "deep" / "empty"
    empty.mkdir(parents=True)
    assert driver.pack(checkpoints("toy"), empty) is None
    assert driver.verify(empty) is None


def test_source_that_changes(driver, checkpoints, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(checkpoints("toy"), source)
    process = pause(driver, "pack", source, tmp_path / "model", "--pause-at", 1)
    os.utime(source / "model.safetensors")
    answer, _ = process.communicate("\n")
    assert f"source file '{source}/model.safetensors' changed while it was read; run pack again" in answer
    assert names(tmp_path) == ["source"]


def test_source_cut_short_while_it_is_read(driver, checkpoints, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(checkpoints("toy"), source)
    process = pause(driver, "pack", source, tmp_path / "model", "--pause-at", 1)
    os.truncate(source / "model.safetensors", 4096)
    answer, _ = process.communicate("\n")
    assert f"'{source}/model.safetensors' shrank while it was read" in answer or "changed while it was read" in answer
    assert names(tmp_path) == ["source"]


@pytest.fixture()
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)],
                                           capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_too_little_space_is_said_before_writing(driver, checkpoints, small_disk):
    (small_disk / "filler").write_bytes(b"x" * 2_500_000)
    error = driver.pack(checkpoints("toy"), small_disk / "model")
    assert error.startswith("the package needs ") and f"but '{small_disk}' has 0.6 MB free" in error, error
    assert names(small_disk) == ["filler"]


def test_disk_that_fills_up(driver, checkpoints, small_disk):
    process = pause(driver, "pack", checkpoints("toy"), small_disk / "model", "--pause-at", 1)
    with open(small_disk / "filler", "wb", buffering=0) as f:
        try:
            while f.write(b"x" * 65536) == 65536:
                pass
        except OSError:
            pass
    answer, _ = process.communicate("\n")
    assert "-11 cannot write" in answer and "No space left on device" in answer, answer
    assert names(small_disk) == ["filler"]


def test_package_moved_aside_by_a_dead_run_comes_back(driver, checkpoints, tmp_path):
    """Where names cannot be exchanged, a replace is two renames; a kill between them is undone."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    out = tmp_path / "model"
    assert driver.pack(checkpoints("toy"), out) is None
    out.rename(tmp_path / f"model.old-{dead.pid}")
    assert driver.pack(checkpoints("toy", seed=2), out) == \
        f"'{out}' exists; ask for it to be replaced, or name another folder"
    assert driver.verify(out) is None
    assert names(tmp_path) == ["model"]
