#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every file says its licence in its first lines, and every C file opens with what it owns.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
bad=0
for f in $(list_files '\.(c|h|py|sh)$|^(Makefile|splash|\.ci/run)$'); do
    [ -f "$f" ] || continue
    case $f in
    *.c | *.h)
        if [ "$(head -n 1 "$f")" != '/* SPDX-License-Identifier: Apache-2.0' ]; then
            echo "$f:1: the first line is not the licence line"
            bad=1
        elif ! awk 'NR <= 60 && /\*\// { found = NR } END { exit !(found >= 2) }' "$f"; then
            echo "$f: no opening comment of 2 to 60 lines"
            bad=1
        fi
        ;;
    *)
        if ! head -n 3 "$f" | grep -q '^# SPDX-License-Identifier: Apache-2.0$'; then
            [ ! -s "$f" ] || { echo "$f: no licence line in the first three"; bad=1; }
        fi
        ;;
    esac
done
exit $bad
