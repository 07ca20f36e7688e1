#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One command for the nano checkpoint: virtual environment, lookup start, corpus, tokenizer, training, 4-bit tail, export.
# usage: train/run.sh WORK_DIR OUT_DIR [MINUTES]   (set GSM8K and MANUAL to the optional sources)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?work folder} out=${2:?output folder} minutes=${3:-50}
mkdir -p "$work"
if [ ! -x "$work/venv/bin/python" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q -r "$here/requirements.txt"
fi
export OMP_WAIT_POLICY=passive TORCHINDUCTOR_CACHE_DIR="$work/inductor"
[ -e "$work/induced.pt" ] || "$work/venv/bin/python" "$here/induce.py" --out "$work/induced.pt" --minutes 3
exec "$work/venv/bin/python" "$here/nano.py" --work "$work" --out "$out" --minutes "$minutes" --start "$work/induced.pt" --scale 0.7 \
    ${GSM8K:+--gsm8k "$GSM8K"} ${MANUAL:+--manual "$MANUAL"}
