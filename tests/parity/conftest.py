# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the parity suites: random packages of every test shape, and the engine run on them.

SPLASH_BUILD names the build folder (default: build). The tools in it are made when they are missing or old."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402

import checkpoint  # noqa: E402
import drafts  # noqa: E402
import reference  # noqa: E402
import shapes  # noqa: E402
from package import Package  # noqa: E402

torch.set_num_threads(1)  # small matrices: a second thread costs more than it brings


class Engine:
    """logits_tool on packages; every run's files lie in one scratch folder."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = folder

    def _call(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def pack(self, source, target):
        self._call("pack", source, target)

    def logits(self, package, tokens, tier="oracle", chunk=32, captured=False):
        """[n][vocab], and with `captured` also [n][captures * hidden]."""
        n = len(tokens)
        words = ["--tier", tier, "--chunk", chunk, "--threads", 1]
        np.asarray(tokens, "<u4").tofile(self.folder / "tokens")
        if captured:
            words += ["--captured", self.folder / "captured"]
        self._call("run", package, self.folder / "tokens", self.folder / "logits", *words)
        out = np.fromfile(self.folder / "logits", "<f4").reshape(n, -1)
        return (out, np.fromfile(self.folder / "captured", "<f4").reshape(n, -1)) if captured else out

    def rotary(self, geometry, positions):
        """[n][2][pairs]: cosines, then sines."""
        np.asarray(positions, "<u4").tofile(self.folder / "positions")
        self._call("rotary", geometry, self.folder / "positions", self.folder / "rotary")
        return np.fromfile(self.folder / "rotary", "<f4").reshape(len(positions), 2, -1)


class Model:
    """A packed random checkpoint: the package, its weights widened to fp32, the published model on them."""

    def __init__(self, engine, folder, shape):
        self.shape = shape
        self.config = shapes.text_config(shape)
        checkpoint.write(folder / "checkpoint", shape, seed=11)
        self.package = folder / "package"
        engine.pack(folder / "checkpoint", self.package)
        self.weights = Package(self.package).published(self.config)
        self.reference = reference.model_of(self.config, self.weights)

    def tokens(self, n, seed=5):
        return np.random.default_rng(seed).integers(0, self.config["vocab_size"], n)


def _program(name):
    build = os.environ.get("SPLASH_BUILD", "build")
    target = f"{build}/tests/parity/{name}"
    made = subprocess.run(
        ["make", "-s", f"BUILD={build}", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"make {target} failed:\n{made.stdout}{made.stderr}"
    return ROOT / target


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    return Engine(_program("logits_tool"), tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="session")
def drafter(tmp_path_factory):
    return drafts.Drafter(_program("draft_tool"), tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="session")
def drafted(drafter, tmp_path_factory):
    """drafted(shape) gives the same drafts.Model on every call."""
    made = {}

    def get(shape):
        if shape not in made:
            made[shape] = drafts.Model(drafter, tmp_path_factory.mktemp(f"{shape}-drafted"), shape)
        return made[shape]

    return get


@pytest.fixture(scope="session")
def models(engine, tmp_path_factory):
    """models(shape) gives the same Model on every call."""
    made = {}

    def get(shape):
        if shape not in made:
            made[shape] = Model(engine, tmp_path_factory.mktemp(shape), shape)
        return made[shape]

    return get
