#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The library never exits, prints or reads the environment; unbounded string calls are not used
# anywhere. Comments and strings are stripped first. src/base/status.c may stop a debug build.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
strip() { # comments and string contents, line numbers kept
    awk '{
        line = $0; out = ""
        while (line != "") {
            if (inside) {
                i = index(line, "*/")
                if (!i) { line = ""; break }
                line = substr(line, i + 2); inside = 0
            } else if (match(line, /"([^"\\]|\\.)*"|'"'"'([^'"'"'\\]|\\.)*'"'"'|\/\*|\/\//)) {
                token = substr(line, RSTART, RLENGTH)
                out = out substr(line, 1, RSTART - 1)
                line = substr(line, RSTART + RLENGTH)
                if (token == "//") line = ""
                else if (token == "/*") inside = 1
                else out = out "\"\""
            } else { out = out line; line = "" }
        }
        print out
    }' "$1"
}
everywhere='strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|alloca|rand|srand|tmpnam|mktemp'
library='exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts|putchar|perror|getenv|secure_getenv|setenv|putenv|system|popen|assert'
bad=0
for f in $(list_files '^(src|server|cli|bench)/.*\.[ch]$'); do
    case $f in
    src/base/status.c) words="$everywhere|exit|printf|puts|getenv|system" ;;
    src/*) words="$everywhere|$library" ;;
    server/*) words="$everywhere|exit|_exit|abort|getenv|system|popen" ;;
    *) words=$everywhere ;;
    esac
    found=$(strip "$f" | grep -nE "(^|[^A-Za-z0-9_.>])($words)[[:space:]]*\(" || true)
    case $f in
    src/base/status.c) ;;
    src/*) found="$found$(strip "$f" | grep -nE '(^|[^A-Za-z0-9_])(stdout|stderr|environ)([^A-Za-z0-9_]|$)' || true)" ;;
    esac
    if [ -n "$found" ]; then
        echo "$found" | sed "s|^|$f:|"
        bad=1
    fi
done
exit $bad
