# SPDX-License-Identifier: Apache-2.0
"""Edits packages and sources for tests, keeping checksums true where the test is about something else."""
import hashlib
import json
import pathlib
import shutil

from package_reader import Package


def copy(package, to):
    shutil.copytree(package, to)
    return pathlib.Path(to)


def edit_manifest(package, change, resign=True):
    path = package / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    if resign:
        sign(package)


def sign(package):
    """Makes digests, identity and weight headers agree with what the files now hold."""
    path = package / "manifest.json"
    manifest = json.loads(path.read_text())
    for f in manifest["files"]:
        if isinstance(f.get("path"), str) and (package / f["path"]).is_file():
            data = (package / f["path"]).read_bytes()
            f["sha256"] = hashlib.sha256(data[f.get("hash_from", 0):]).hexdigest()
    blank = Package.__new__(Package)
    blank.manifest, blank.files = manifest, {f["path"]: f for f in manifest["files"]}
    try:
        manifest["identity"] = blank.identity()
    except (KeyError, TypeError, IndexError):
        pass
    path.write_text(json.dumps(manifest))
    for name in ("target.bin", "draft.bin"):
        if (package / name).is_file():
            with open(package / name, "r+b") as f:
                f.seek(16)
                f.write(manifest["identity"].encode())


def poke(path, offset, data):
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(data)


def read_header(path):
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + n]), data[8 + n:]


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)
