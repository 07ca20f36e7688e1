#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-format 14 agrees with every C file (other versions format differently). `make format` mends.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
. tools/clang_format.sh
if ! clang_format=$(find_clang_format); then
    echo "clang-format 14 is not installed: tools/setup-tests.sh brings it"
    exit 1
fi
bad=0
for f in $(list_files "$C_FILES"); do
    if ! "$clang_format" --dry-run --Werror "$f" >/dev/null 2>&1; then
        echo "$f: not formatted (make format)"
        bad=1
    fi
done
exit $bad
