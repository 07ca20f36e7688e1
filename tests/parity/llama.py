# SPDX-License-Identifier: Apache-2.0
"""llama.cpp from the pinned npm packages (package.json beside this file), driven by llama_driver.c.

SPLASH_NODE_MODULES names the node_modules folder; default: the one beside this file."""

import os
import platform
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL = "run: cd tests/parity && npm install --ignore-scripts --omit=optional"


def _modules():
    folder = Path(os.environ.get("SPLASH_NODE_MODULES", HERE / "node_modules"))
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"{'mac' if platform.system() == 'Darwin' else 'linux'}-{machine}"
    libraries = folder / "@node-llama-cpp" / name / "bins" / name
    source = folder / "node-llama-cpp" / "llama" / "gitRelease.bundle"
    for needed in (libraries, source):
        if not needed.exists():
            raise FileNotFoundError(f"llama.cpp is not installed: {needed} is missing; {INSTALL}")
    return libraries, source


def _headers(source, folder):
    """The public headers of exactly this build, out of the source bundle inside the package."""
    repository = folder / "source.git"
    subprocess.run(["git", "clone", "-q", "--bare", source, repository], check=True)
    packed = subprocess.run(
        ["git", "--git-dir", repository, "archive", "HEAD", "include", "ggml/include", "src/llama-ext.h"], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return [folder / "include", folder / "ggml" / "include", folder / "src"]


def build(folder, source="llama_driver.c"):
    """Compiles a driver into `folder`; returns a command prefix. The draft's is C++: so is that interface."""
    libraries, bundle = _modules()
    program = folder / Path(source).stem
    names = [p for p in sorted(libraries.iterdir()) if p.name.startswith(("libllama.", "libggml.", "libggml-base."))]
    plain = source.endswith(".c")
    compiler = [os.environ.get("CC", "cc"), "-std=c11"] if plain else [os.environ.get("CXX", "c++"), "-std=c++17"]
    subprocess.run(
        [*compiler, "-O1", "-Wall", "-Wextra"]
        + [word for path in _headers(bundle, folder) for word in ("-isystem", path)]
        + [HERE / source, "-o", program, *names, f"-Wl,-rpath,{libraries}"],
        check=True,
    )
    return [program, libraries]
