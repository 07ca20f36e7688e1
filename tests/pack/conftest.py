# SPDX-License-Identifier: Apache-2.0
"""Builds the driver around spl_pack once and runs it. BUILD names the build folder (default: build);
PACK_DRIVER names a program that was built already."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("BUILD", "build")
PROGRAM = os.environ.get("PACK_DRIVER", str(ROOT / BUILD / "tests/pack/pack_driver"))


class Driver:
    """Runs pack_driver; `pack` and `verify` return the error line, or None on success."""

    def start(self, *arguments):
        return subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, 1), (done.returncode, done.stdout, done.stderr)
        self.notes = [line[6:] for line in done.stdout.splitlines() if line.startswith("note: ")]
        errors = [line for line in done.stdout.splitlines() if line.startswith("-")]
        assert (done.returncode == 1) == bool(errors), done.stdout
        self.output = done.stdout
        return errors[0].split(" ", 1)[1] if errors else None

    def pack(self, source, out, *arguments):
        return self.run("pack", source, out, *arguments)

    def verify(self, package):
        return self.run("verify", package)

    def open(self, package):
        return self.run("open", package)


@pytest.fixture(scope="session")
def program():
    if "PACK_DRIVER" not in os.environ:
        subprocess.run(["make", "-s", f"BUILD={BUILD}", f"{BUILD}/tests/pack/pack_driver"], cwd=ROOT, check=True)


@pytest.fixture()
def driver(program):
    return Driver()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """make(geometry, form, ...) -> folder, made once per set of arguments."""
    import make_checkpoint

    made = {}

    def make(geometry, form="hf", **options):
        key = (geometry, form, tuple(sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{geometry}-{form}")
            make_checkpoint.make(geometry, str(folder), form, **options)
            made[key] = folder
        return made[key]

    return make
