#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# File names are unique in the whole tree, so that a name alone says where to look; own types have no
# _t; a .c file of the library has a header of its name or stays private to its folder.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
bad=0
twice=$(list_files "$C_FILES" | sed 's|.*/||' | sort | uniq -d)
for name in $twice; do
    echo "$name: used by" $(list_files "/$name\$")
    bad=1
done
types=$(list_files "$C_FILES" | xargs grep -nE '^[[:space:]]*(typedef[^(]*[[:space:]*]|\})[[:space:]]*[a-z][a-z0-9_]*_t[[:space:]]*;' || true)
if [ -n "$types" ]; then
    echo "$types" | sed 's/$/  <- a type ending in _t/'
    bad=1
fi
upper=$(list_files '/[^/]*[A-Z][^/]*\.(c|h|py|sh)$' || true)
if [ -n "$upper" ]; then
    echo "file names are lower case:" $upper
    bad=1
fi
exit $bad
