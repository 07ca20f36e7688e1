#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tree speaks of itself alone: no machine paths, no notes to oneself, no ticket numbers, no
# registry hosts, no conflict marks.
set -eu
cd "$(dirname "$0")/../.."
. tools/lint_files.sh
pattern='/work/|/root/|/home/[a-z]|/Users/|TODO|FIXME|(^|[^X])XXX([^X]|$)|HACK|issue #[0-9]|as an AI|(pypi|npmjs|pythonhosted|debian)\.(org|com)|^(<<<<<<<|>>>>>>>) '
files=$(list_files . | grep -vE '^(models/|LICENSE$|tools/lint/words\.sh$|.*/corpus/|.*\.(bin|json|jsonl|txt|tsv)$)')
found=$(grep -nIE "$pattern" $files /dev/null || true)
if [ -n "$found" ]; then
    echo "$found" | cut -c 1-200
    exit 1
fi
