#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every symbol the library exports starts with spl_ or splash_, and an ISA file exports its fill
# functions only: code built with wider instructions can never replace a baseline function.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
[ -f "$build/libsplash.a" ] || ${MAKE:-make} -s BUILD="$build" lib
bad=0
wrong=$(nm -g --defined-only "$build/libsplash.a" 2>/dev/null |
    awk 'NF == 3 && $2 ~ /^[A-Z]$/ { sub(/^_/, "", $3); if ($3 !~ /^(spl_|splash_)/) print $3 }')
if [ -n "$wrong" ]; then
    echo "$build/libsplash.a exports symbols without the prefix:" $wrong
    bad=1
fi
for o in $(find "$build/src/kernels" -name 'kernels_*.o' ! -name 'kernels_ref.o' 2>/dev/null | sort); do
    wrong=$(nm -g --defined-only "$o" | awk 'NF == 3 { sub(/^_/, "", $3); if ($3 !~ /^spl_kernels_fill_/) print $3 }')
    if [ -n "$wrong" ]; then
        echo "$o exports more than its fill function:" $wrong
        bad=1
    fi
done
exit $bad
