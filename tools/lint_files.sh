# SPDX-License-Identifier: Apache-2.0
# Sourced by the lint scripts: list_files REGEX prints the project's own files whose path matches, also new
# ones that git does not know yet, never ignored ones. Without git it falls back to find.
list_files() {
    { git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path '*/node_modules/*' \
        -not -path './build*' -not -path './.git/*' | sed 's|^\./||'; } | grep -E "$1" | sort -u |
        while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}
C_FILES='^(src|server|cli|bench|include|tests)/.*\.[ch]$'
