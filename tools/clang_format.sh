# SPDX-License-Identifier: Apache-2.0
# Sourced by shell scripts: find_clang_format prints the path of a clang-format 14, or fails.
find_clang_format() {
    for candidate in clang-format-14 build/venv/bin/clang-format clang-format; do
        if command -v "$candidate" >/dev/null 2>&1 && "$candidate" --version | grep -q 'version 14\.'; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}
