#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, with both compilers; the public one also as C++ where a C++ compiler is.
# Apart: kernel bodies, which an ISA file includes after it has chosen its vector type.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
flags="-std=c11 -D_GNU_SOURCE -Iinclude -Isrc -I. -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-unused-function -fsyntax-only"
flags="$flags $(pkg-config --cflags jansson libpcre2-8 libmicrohttpd libedit cmocka 2>/dev/null || true)"
bad=0
for cc in gcc clang; do
    command -v "$cc" >/dev/null 2>&1 || continue
    for h in $(list_files '^(include|src|server|cli|bench|tests)/.*\.h$' | grep -vE '^(src/kernels|bench)/(body|x86|arm)/|/emulated'); do
        case $h in
        tests/*) before='#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>' ;;
        *) before= ;;
        esac
        if ! printf '%s\n#include "%s"\n' "$before" "$h" | $cc $flags -x c - 2>/tmp/header.$$; then
            echo "$h does not compile alone with $cc:"
            head -n 6 /tmp/header.$$
            bad=1
        fi
    done
done
if command -v c++ >/dev/null 2>&1; then
    printf '#include "splash.h"\n' | c++ -Iinclude -Wall -Wextra -Werror -fsyntax-only -x c++ - || bad=1
fi
rm -f /tmp/header.$$
exit $bad
