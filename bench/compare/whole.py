#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole model from two depths: whole.py SHALLOW/report.json DEEP/report.json. The time of a step is taken as a
constant (head, draft, sampling) plus a part proportional to the layers, and drawn out to all layers. Derived, not
measured: the brackets draw the line through the most distant corners of both measurements."""

import json
import sys
from pathlib import Path


def whole_speed(shallow, deep, layers, total, pick=("median", "median")):
    """Speeds at layers = (a, b) to the speed at `total`; pick: which member of each summary."""
    a, b = (1 / s[which] for s, which in zip((shallow, deep), pick))
    seconds = a + (b - a) * (total - layers[0]) / (layers[1] - layers[0])
    return 1 / seconds if seconds > 0 else float("inf")


def table(shallow, deep):
    for key in ("model", "context_tokens", "prefill_tokens", "acceptance", "threads"):
        if shallow[key] != deep[key]:
            raise SystemExit(f"whole: {key} is {shallow[key]} in one run and {deep[key]} in the other")
    layers, total = (shallow["layers"], deep["layers"]), deep["layers_of_model"]
    if layers[0] >= layers[1]:
        raise SystemExit(
            f"whole: the first run has {layers[0]} layers, the second {layers[1]}; the second must be deeper"
        )
    lines = [
        f"{deep['model']}, all {total} layers, derived from measurements at {layers[0]} and {layers[1]} layers:",
        "",
        "| | ours | llama.cpp | roof | ours / llama.cpp |",
        "|---|---:|---:|---:|---:|",
    ]
    by_name = {m["name"]: m for m in shallow["measures"]}
    for m in deep["measures"]:
        if m["name"] not in by_name:
            continue
        first, cells, speeds = by_name[m["name"]], [], []
        for side in ("ours", "theirs"):
            pair = first[side], m[side]
            speed, low, high = (
                whole_speed(*pair, layers, total, pick)
                for pick in (("median", "median"), ("max", "min"), ("min", "max"))
            )
            speeds.append(speed)
            cells.append(f"{speed:.3g} ({low:.3g} to {high:.3g})")
        roof = whole_speed({"r": first["roof"]}, {"r": m["roof"]}, layers, total, ("r", "r"))
        star = " (*)" if m["derived"] else ""
        lines.append(
            f"| {m['label']}, {m['unit']}{star} | {cells[0]} | {cells[1]} | {roof:.3g} | {speeds[0] / speeds[1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: whole.py SHALLOW/report.json DEEP/report.json")
    print(table(*(json.loads(Path(path).read_text("utf-8")) for path in sys.argv[1:])), end="")


if __name__ == "__main__":
    main()
