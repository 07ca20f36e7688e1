#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A folder includes only the folders below it. The table is the architecture; change it only with a
# paragraph in docs/DECISIONS.md. An entry ending in .h allows that one header.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh

table='
src/base     base
src/model    base model
src/kernels  base kernels model/geometry.h model/layout.h
src/sample   base model sample
src/step     base model kernels sample step
src/cache    base model cache
src/sched    base sched model/geometry.h
src/engine   base model kernels/kernels.h step cache sched sample engine
src/text     base text
src/pack     base model pack
src/api      base model kernels sample step cache sched engine text pack api splash.h
server       server splash.h base/compiler.h base/json.h base/dynbuf.h base/log.h base/clock.h base/status.h
cli          cli server base/compiler.h base/file_map.h base/hash.h splash.h bench/bench.h base/json.h base/dynbuf.h base/log.h base/clock.h base/status.h
include      none
'
list_files '^(src|server|cli|include)/.*\.[ch]$' | xargs grep -n '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' /dev/null |
    awk -v table="$table" '
BEGIN {
    n = split(table, line, "\n")
    for (i = 1; i <= n; i++) {
        m = split(line[i], word, " ")
        for (j = 2; j <= m; j++) allowed[word[1] " " word[j]] = 1
        if (m > 1) known[word[1]] = 1
    }
}
{
    split($0, at, ":")
    path = at[1]
    target = $0
    sub(/^[^"]*"/, "", target)
    sub(/".*/, "", target)
    m = split(path, part, "/")
    folder = part[1] == "src" ? part[1] "/" part[2] : part[1]
    top = target
    sub(/\/.*/, "", top)
    if (!(folder in known)) { print path ": folder " folder " is not in the include table"; bad = 1; next }
    if (index(target, "/") == 0 && target != "splash.h") top = part[1] == "src" ? part[2] : part[1]
    if (!((folder " " top) in allowed) && !((folder " " target) in allowed)) {
        print path ":" at[2] ": " folder " must not include \"" target "\""
        bad = 1
    }
}
END { exit bad }'
