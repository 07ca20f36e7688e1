#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Paths that the documents name in `back quotes` or as link targets exist.
set -eu
cd "$(dirname "$0")/../.."
bad=0
for doc in README.md CONTRIBUTING.md docs/*.md; do
    [ -f "$doc" ] || continue
    folder=$(dirname "$doc")
    for path in $(grep -oE '`(src|server|cli|bench|tests|tools|docs|include|models|train)/[A-Za-z0-9_./-]+`' "$doc" | tr -d '`' | sort -u); do
        [ -e "$path" ] || { echo "$doc: $path does not exist"; bad=1; }
    done
    for path in $(grep -oE '\]\([A-Za-z0-9_./-]+\)' "$doc" | sed 's/^](//; s/)$//' | sort -u); do
        [ -e "$folder/$path" ] || { echo "$doc: link to $path, which does not exist"; bad=1; }
    done
done
exit $bad
