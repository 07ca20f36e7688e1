#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No file anybody cannot hold in the head: 1,500 lines for code (data tables in *_tables.* apart),
# 60 lines for a lint script, 300 for the public header.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
bad=0
limit() { # file lines
    n=$(wc -l <"$1")
    if [ "$n" -gt "$2" ]; then
        echo "$1: $n lines, the limit is $2"
        bad=1
    fi
}
for f in $(list_files '\.(c|h|py|sh)$'); do
    case $f in
    *_tables.*) ;;
    tools/lint/*) limit "$f" 60 ;;
    include/splash.h) limit "$f" 400 ;;
    *) limit "$f" 1500 ;;
    esac
done
exit $bad
