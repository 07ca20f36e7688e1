# SPDX-License-Identifier: Apache-2.0
"""The command-line tests share the fixtures of the HTTP tests."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
from importlib import util  # noqa: E402

_spec = util.spec_from_file_location("http_conftest", Path(__file__).resolve().parents[1] / "http/conftest.py")
_module = util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({k: v for k, v in vars(_module).items() if not k.startswith("__")})
