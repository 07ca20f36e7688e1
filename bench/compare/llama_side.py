# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as the other side: builds llama_bench.c against the pinned packages and drives it over a pipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "parity"))

import llama  # noqa: E402

HERE = Path(__file__).resolve().parent
PACKAGES = json.loads((HERE.parents[1] / "tests" / "parity" / "package.json").read_text())["dependencies"]


def build(folder):
    """Compiles llama_bench into `folder`; returns the program and the folder of its libraries."""
    libraries, source = llama._modules()
    program = folder / "llama_bench"
    if program.exists() and program.stat().st_mtime > (HERE / "llama_bench.c").stat().st_mtime:
        return program, libraries
    include = folder / "include"
    headers = [include, folder / "ggml" / "include"]
    if not include.exists():
        headers = llama._headers(source, folder)
    names = [p for p in sorted(libraries.iterdir()) if p.name.startswith(("libllama.", "libggml.", "libggml-base."))]
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra"]
        + [word for path in headers for word in ("-isystem", path)]
        + [HERE / "llama_bench.c", "-o", program, *names, f"-Wl,-rpath,{libraries}"],
        check=True,
    )
    return program, libraries


class Llama:
    """One loaded model; every method returns the seconds of each repetition."""

    def __init__(self, program, libraries, model, draft, features, n_ctx, options):
        words = [program, libraries, model, draft or "-", n_ctx, options.threads, options.kv, options.flash, features]
        self.log = program.with_name("llama_bench.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(w) for w in words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        self.about = self._line().removeprefix("ready ")
        self.version, self.system = self.about.split(" | ", 1)

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama_bench ended: {self.log.read_text('utf-8')[-2000:]}")
        return line.strip()

    def _ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        answer = self._line()
        word, _, rest = answer.partition(" ")
        if word != "ok" or "error" in rest:
            raise RuntimeError(f"llama_bench {' '.join(map(str, words))}: {answer}")
        return [float(w) for w in rest.split()]

    def fill(self, tokens):
        self._ask("fill", tokens)

    def prefill(self, tokens, runs):
        return self._ask("prefill", tokens, runs)

    def rows(self, n_rows, steps):
        return self._ask("rows", n_rows, steps)

    def verify(self, steps, tau):
        """Rows stand in turn so that the mean over two steps is the nearest half to tau."""
        twice = round(2 * tau)
        return self._ask("verify", steps, twice - twice // 2, twice // 2)

    def draft(self, steps, tau):
        return self._ask("draft", steps, round(tau))

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
