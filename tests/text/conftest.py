# SPDX-License-Identifier: Apache-2.0
"""Shared by the comparisons of src/text with Python packages: builds the driver program once and
talks to it, one JSON request per line. BUILD names the build folder (default: build); TEXT_TOOL
names a program that was built already."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("BUILD", "build")


class Tool:
    def __init__(self, *arguments):
        program = os.environ.get("TEXT_TOOL", ROOT / BUILD / "tests/text/text_tool")
        self.process = subprocess.Popen(
            [str(program), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "text_tool ended"
        answer = json.loads(line)
        assert "bad" not in answer, (answer, request)
        return answer

    def encode(self, text, added=True):
        return self.ask(op="encode", text=text, added=added)["ids"]

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture(scope="session")
def program():
    if "TEXT_TOOL" not in os.environ:
        subprocess.run(["make", "-s", f"BUILD={BUILD}", f"{BUILD}/tests/text/text_tool"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def tool(program):
    t = Tool()
    yield t
    t.close()


@pytest.fixture(scope="session")
def qwen_folder():
    import qwen_vocab

    return qwen_vocab.build(ROOT / BUILD / "text/qwen35")


@pytest.fixture(scope="session")
def qwen_tool(program, qwen_folder):
    t = Tool(qwen_folder / "tokenizer.json", qwen_folder / "tokenizer_config.json")
    yield t
    t.close()
