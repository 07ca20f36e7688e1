# SPDX-License-Identifier: Apache-2.0
"""The launcher ./splash on a stub project: builds once, rebuilds when a source is newer, passes arguments
and exit codes on, installs only what is missing, says why a build failed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAKEFILE = """all:
\t@echo built >>made
\t@mkdir -p build
\t@printf '#!/bin/sh\\necho "program: $$*"\\nexit 7\\n' >build/splash
\t@chmod +x build/splash
"""


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "a project"  # with a space
    for folder in ("src/base", "include", "server", "cli", "bench", "tools"):
        (root / folder).mkdir(parents=True)
    shutil.copy(ROOT / "splash", root / "splash")
    for name in ("setup.sh", "packages.sh"):
        shutil.copy(ROOT / "tools" / name, root / "tools" / name)
    (root / "Makefile").write_text(MAKEFILE)
    (root / "src/base/a.c").write_text("int x;\n")
    return root


def run(program, *arguments, cwd="/", env=None):
    return subprocess.run([program, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def builds(project):
    made = project / "made"
    return made.read_text().count("built") if made.exists() else 0


def test_builds_once_and_passes_arguments_on(project):
    first = run(project / "splash", "serve", "--name", "two words")
    assert first.returncode == 7
    assert first.stdout == "program: serve --name two words\n"
    assert "building" in first.stderr
    second = run(project / "splash", "explain")
    assert (second.returncode, second.stdout, second.stderr) == (7, "program: explain\n", "")
    assert builds(project) == 1


def test_works_through_links_from_anywhere(project, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hop").symlink_to(Path("..") / project.name / "splash")
    (tmp_path / "link").symlink_to(tmp_path / "bin/hop")
    assert run(tmp_path / "link", "x", cwd=tmp_path).stdout == "program: x\n"
    assert (project / "build/splash").exists()


@pytest.mark.parametrize("name", ["src/base/a.c", "Makefile", "include/new.h"])
def test_a_newer_source_is_built(project, name):
    run(project / "splash")
    (project / name).touch()
    built = (project / "build/.built").stat().st_mtime
    os.utime(project / name, (built + 5, built + 5))
    run(project / "splash")
    assert builds(project) == 2


def test_a_failed_build_says_why_and_is_tried_again(project):
    (project / "Makefile").write_text("all:\n\t@echo the reason; exit 3\n")
    done = run(project / "splash", "serve")
    assert done.returncode == 1
    assert "the reason" in done.stderr and "build.log" in done.stderr
    assert done.stdout == ""
    (project / "Makefile").write_text(MAKEFILE)
    assert run(project / "splash", "serve").returncode == 7


def stub_path(tmp_path, have, **scripts):
    """A PATH of links to the real tools in `have` and of small scripts."""
    folder = tmp_path / "path"
    folder.mkdir()
    for tool in have:
        real = shutil.which(tool)
        if real:
            (folder / tool).symlink_to(real)
    for name, text in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text("#!/bin/sh\n" + text)
        file.chmod(0o755)
    return {"PATH": str(folder), "HOME": str(tmp_path)}


TOOLS = "sh dirname readlink find head mkdir flock getconf make tail mv touch chmod cc gcc id env cat".split()


def test_installs_exactly_what_is_missing(project, tmp_path):
    log = tmp_path / "apt.log"
    env = stub_path(
        tmp_path, TOOLS, sudo='exec "$@"\n', apt_get=f'echo "$@" >>"{log}"\n',
        pkg_config='case "$2" in libmicrohttpd | jansson) exit 1 ;; esac\n')
    done = run(project / "splash", "serve", env=env)
    assert done.returncode == 7, done.stderr
    assert "installing with apt-get: libjansson-dev libmicrohttpd-dev\n" in done.stderr
    assert log.read_text().split()[0] == "install"
    assert log.read_text().split()[-2:] == ["libjansson-dev", "libmicrohttpd-dev"]


def test_installs_nothing_when_all_is_there(project, tmp_path):
    env = stub_path(tmp_path, TOOLS, apt_get="echo no >&2; exit 1\n", pkg_config="exit 0\n")
    done = run(project / "splash", "serve", env=env)
    assert done.returncode == 7
    assert done.stderr == "splash: building\n"


def test_names_the_packages_where_nothing_can_install_them(project, tmp_path):
    env = stub_path(tmp_path, TOOLS, pkg_config='[ "$2" != libedit ]\n')
    done = run(project / "splash", "serve", env=env)
    assert done.returncode == 1
    assert "libedit-dev" in done.stderr
    assert builds(project) == 0
