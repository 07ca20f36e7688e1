#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the tests need beyond a build: cmocka, clang with its sanitizers, clang-format 14, an Arm
# compiler and emulator for the NEON kernels, and one Python environment (build/venv) with the pinned
# requirements of every Python suite. Looks first; a stamp makes the second run free and offline.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
. tools/clang_format.sh
tools/setup.sh

debian=
brew=
need() {
    debian="$debian $1"
    brew="$brew $2"
}
sanitizers() { # does clang link AddressSanitizer?
    has clang || return 1
    printf 'int main(void) { return 0; }\n' | clang -fsanitize=address,undefined -x c - -o /dev/null 2>/dev/null
}
pkg-config --exists cmocka || need "libcmocka-dev" "cmocka"
has clang || need "clang" ""
has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null || need "python3-venv" "python3"
has git || need "git" "git"
case $(uname -s)-$(uname -m) in
Linux-x86_64)
    has qemu-aarch64-static || need "qemu-user-static" ""
    has aarch64-linux-gnu-gcc || need "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ""
    ;;
esac
if [ -n "$(find tests -name package.json -not -path '*/node_modules/*' | head -n 1)" ]; then
    has node && has npm || need "nodejs npm" "node"
fi
[ -z "$debian$brew" ] || install_packages "$debian" "$brew"
# clang's runtime is a package of its own, named after clang's version.
if ! sanitizers && has apt-get; then
    major=$(clang -dumpversion | cut -d. -f1)
    install_packages "libclang-rt-$major-dev" ""
fi

# Node packages of a suite, pinned in its package.json; install scripts do not run.
find tests -name package.json -not -path '*/node_modules/*' | sort | while read -r package; do
    folder=$(dirname "$package")
    wanted=$(cat "$package" "$folder/package-lock.json" 2>/dev/null | cksum)
    [ "$(cat "$folder/node_modules/.stamp" 2>/dev/null || true)" != "$wanted" ] || continue
    say "installing the Node packages of $folder"
    command=install
    [ ! -f "$folder/package-lock.json" ] || command=ci
    mkdir -p build
    (cd "$folder" && npm "$command" --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error) \
        >build/npm.log 2>&1 || {
        tail -n 20 build/npm.log >&2
        say "npm failed in $folder; all of it: build/npm.log"
        exit 1
    }
    echo "$wanted" >"$folder/node_modules/.stamp"
done

requirements=$(find tests -name requirements.txt -not -path '*/node_modules/*' | sort)
format_package=
find_clang_format >/dev/null || format_package="clang-format==14.0.6"
loose=$(grep -hvE '^[[:space:]]*(#|$)|==' $requirements /dev/null || true)
if [ -n "$loose" ]; then
    say "requirements must be pinned with ==: $loose"
    exit 1
fi
stamp=build/venv/.stamp
wanted=$({ python3 --version && echo "$format_package" && cat $requirements /dev/null; } | cksum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    say "making the Python environment build/venv"
    mkdir -p build
    [ -x build/venv/bin/python ] && build/venv/bin/python -c '' 2>/dev/null || python3 -m venv --clear build/venv
    set --
    for file in $requirements; do set -- "$@" -r "$file"; done
    build/venv/bin/python -m pip install -q --disable-pip-version-check "$@" $format_package >build/pip.log 2>&1 || {
        tail -n 20 build/pip.log >&2
        say "pip failed; all of it: build/pip.log"
        exit 1
    }
    echo "$wanted" >"$stamp"
fi
