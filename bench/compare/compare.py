#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""This engine and llama.cpp side by side: same machine, same cores, same geometry with random 4-bit weights, same
context, in the order A B B A. Writes report.md, report.json and report.png; README.md beside this file says how to
read them.

Our side is `splash bench` (one process per block), the other side one process that keeps its model (llama_side.py).
Nothing of the two runs at the same time."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

try:
    import random_gguf
except ModuleNotFoundError as missing:  # numpy: the tests' environment has it
    python = ROOT / "build" / "venv" / "bin" / "python"
    if __name__ != "__main__" or sys.prefix == str(python.parents[1]) or not python.exists():
        raise SystemExit(f"compare: {missing}; pip install -r bench/compare/requirements.txt") from missing
    os.execv(python, [str(python), *sys.argv])

import llama_side  # noqa: E402
import report  # noqa: E402

BLOCK_ROWS = 8
MEASURES = ("decode", "batch", "speculative", "prefill")
MIN_STEPS, MAX_STEPS = 3, 50
SPARE_CONTEXT = 512  # more than MAX_STEPS steps advance


def median(values):
    v = sorted(values)
    n = len(v)
    return (v[(n - 1) // 2] + v[n // 2]) / 2


def summary(values):
    """Of the blocks of one side: what a verdict needs."""
    m = median(values)
    return {
        "median": m,
        "min": min(values),
        "max": max(values),
        "spread": (max(values) - min(values)) / m,
        "blocks": values,
    }


def verdict(ours, theirs):
    """ours, theirs: summaries of speeds. A spread above 5 % decides nothing; a difference counts when it exceeds both
    2 % and twice the larger spread."""
    spread = max(ours["spread"], theirs["spread"])
    ratio = ours["median"] / theirs["median"]
    if spread > 0.05:
        return "inconclusive"
    if abs(ratio - 1) <= max(0.02, 2 * spread):
        return "equal"
    return "faster" if ratio > 1 else "slower"


class Splash:
    def __init__(self, options):
        self.options = options

    def _call(self, *words):
        done = subprocess.run([self.options.splash, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"splash {' '.join(map(str, words))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def explain(self):
        return self._call("explain", "--model", self.options.model, "--json")

    def roof(self):
        return self._call("bench", "roof", "--threads", self.options.threads, "--json")

    def bench(self, kind, *words):
        o = self.options
        common = ["--model", o.model, "--random-weights", "--threads", o.threads, "--seconds", o.seconds, "--json"]
        if o.layers:
            common += ["--layers", o.layers]
        return self._call("bench", kind, *common, *words)


class Measure:
    """One quantity on both sides. ours() gives a result of `splash bench`, seconds(result) its time; theirs(steps)
    the time of each step. Speed is `work` over seconds."""

    def __init__(self, name, label, unit, work, ours, seconds, theirs, derived=None):
        self.name, self.label, self.unit, self.work = name, label, unit, work
        self.ours, self.seconds, self.theirs, self.derived = ours, seconds, theirs, derived
        self.steps = MIN_STEPS

    def calibrate(self, wanted_seconds):
        first = median(self.theirs(1))
        self.steps = int(min(MAX_STEPS, max(MIN_STEPS, wanted_seconds / first)))

    def run(self, rounds):
        ours, theirs = [], []
        for side in "ABBA" * rounds:
            if side == "A":
                ours.append(self.ours())
            else:
                theirs.append(median(self.theirs(self.steps)))
            seconds = self.seconds(ours[-1]) if side == "A" else theirs[-1]
            print(f"  {self.name}: {side} {self.work / seconds:.4g} {self.unit}", file=sys.stderr)
        return ours, theirs


def measures(o, splash, llama, with_draft):
    step, context = "step", ("--context", o.context)
    tau = o.acceptance
    yield Measure(
        "decode",
        f"plain decode, 1 row at context {o.context}",
        "tokens/s",
        1,
        lambda: splash.bench(step, "--rows", 1, *context),
        lambda r: r["step_seconds"],
        lambda n: llama.rows(1, n),
    )
    yield Measure(
        "batch",
        f"{BLOCK_ROWS} rows of one sequence at context {o.context}",
        "rows/s",
        BLOCK_ROWS,
        lambda: splash.bench(step, "--rows", BLOCK_ROWS, *context),
        lambda r: r["step_seconds"],
        lambda n: llama.rows(BLOCK_ROWS, n),
    )
    if with_draft:
        yield Measure(
            "speculative",
            f"drafted decode, {tau} tokens a step assumed",
            "tokens/s",
            tau,
            lambda: splash.bench(step, "--rows", BLOCK_ROWS, "--draft", "--synthetic-acceptance", tau, *context),
            lambda r: r["step_seconds"],
            lambda n: [median(llama.verify(n, tau)) + median(llama.draft(n, tau))],
            "llama.cpp: time of its 8-row batch with states kept for taking rows back, plus time of its draft "
            "(features in, one block of 8 rows, head, selector), both measured, added; ours: one measured step that "
            "does all of it",
        )
    yield Measure(
        "prefill",
        f"prompt of {o.tokens} tokens",
        "tokens/s",
        o.tokens,
        lambda: splash.bench("prefill", "--tokens", o.tokens),
        lambda r: r["prefill_seconds"],
        lambda n: llama.prefill(o.tokens, max(1, min(n, 3))),
    )


def result(m, ours, theirs):
    a = summary([m.work / m.seconds(r) for r in ours])
    b = summary([m.work / t for t in theirs])
    roof = m.work / median([r["roof_seconds"] for r in ours])
    return {
        "name": m.name,
        "label": m.label,
        "unit": m.unit,
        "ours": a,
        "theirs": b,
        "roof": roof,
        "ours_of_roof": a["median"] / roof,
        "theirs_of_roof": b["median"] / roof,
        "ratio": a["median"] / b["median"],
        "ratio_min": a["min"] / b["max"],
        "ratio_max": a["max"] / b["min"],
        "verdict": verdict(a, b),
        "derived": m.derived,
        "steps_per_block_theirs": m.steps,
    }


def rates(runs):
    """Both roofs over everything measured: median of the runs, extremes of all readings."""
    out = {}
    for key in ("read_gb_per_second", "int8_gmac_per_second"):
        out[key] = median([r[key] for r in runs])
        out[key + "_min"] = min(r[key + "_min"] for r in runs)
        out[key + "_max"] = max(r[key + "_max"] for r in runs)
    return out


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", default="qwen3.8-27b", choices=sorted(random_gguf.DRAFTS), help="geometry id")
    p.add_argument("--layers", type=int, default=8, help="first layers of the target only; 0: all (default 8)")
    p.add_argument("--context", type=int, default=512, help="tokens before the measured rows (default 512)")
    p.add_argument("--tokens", type=int, default=256, help="prompt length of the prefill measurement (default 256)")
    p.add_argument("--acceptance", type=float, default=4.8, help="tokens a drafted step yields, assumed (default 4.8)")
    p.add_argument("--threads", type=int, default=0, help="of both sides; 0: one per usable core")
    p.add_argument("--cores", help="pin both sides to these cores: 0,1 or 0-7")
    p.add_argument("--rounds", type=int, default=2, help="A B B A this often (default 2)")
    p.add_argument("--seconds", type=float, default=2.0, help="wanted length of a block (default 2)")
    p.add_argument("--only", nargs="*", choices=MEASURES, help="these measurements only")
    p.add_argument(
        "--kv", choices=("q8_0", "f16"), default="q8_0", help="llama.cpp's KV type (default q8_0; ours is int8)"
    )
    p.add_argument("--flash", choices=("on", "off"), default="on", help="llama.cpp's flash attention (default on)")
    p.add_argument("--splash", default=str(ROOT / "build" / "splash"), help="our program")
    p.add_argument(
        "--scratch", default=str(ROOT / "build" / "compare"), help="folder for the GGUF files and the report"
    )
    p.add_argument("--keep", action="store_true", help="keep the GGUF files, and use those of an earlier run")
    p.add_argument("--json", action="store_true", help="print the report as JSON, not as Markdown")
    o = p.parse_args(argv)
    if o.cores:
        cores = set()
        for part in o.cores.split(","):
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
        os.sched_setaffinity(0, cores)
    o.usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
    o.threads = o.threads or len(o.usable)
    if not 1 <= o.acceptance <= BLOCK_ROWS:
        p.error(f"--acceptance {o.acceptance}: a step of {BLOCK_ROWS} rows yields 1 to {BLOCK_ROWS} tokens")
    if o.rounds < 1 or o.tokens < 1 or o.context < 1:
        p.error("rounds, tokens and context are at least 1")
    return o


def room(needed):
    """Refuses before anything large is written or touched."""
    free = next(
        int(l.split()[1]) * 1024 for l in open("/proc/meminfo", encoding="ascii") if l.startswith("MemAvailable")
    )
    if needed > 0.85 * free:
        needs = f"both models take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise SystemExit(f"compare: {needs}; use fewer --layers")


def prepare(o, splash, folder):
    """Writes the GGUF files; returns their paths, bytes, and why there is no draft, if so."""
    geometry = splash.explain()["geometry"]
    layers = min(o.layers or geometry["layers"], geometry["layers"])
    interval = geometry["layers"] // geometry["attention_layers"]
    if layers < interval:
        raise SystemExit(
            f"compare: --layers {layers}: llama.cpp needs an attention layer, the first is number {interval}"
        )
    d = random_gguf.DRAFTS[o.model]
    target = list(random_gguf.target_tensors(random_gguf.target_config(geometry, layers)))
    shape = d, geometry["draft_layers"], geometry["hidden"], geometry["vocab"]
    draft = list(random_gguf.draft_tensors(*shape))
    n_bytes = [sum(random_gguf.tensor_bytes(form, dims) for _, form, dims in t) for t in (target, draft)]
    no_draft = None
    if geometry["hidden"] < d["top_k"] * (d["top_k"] + 1):
        no_draft = "llama.cpp refuses a DFlash 2 draft this narrow"
        n_bytes[1] = 0
    if hasattr(os, "sysconf") and Path("/proc/meminfo").exists():
        room(2 * sum(n_bytes) + (1 << 30))
    paths = [folder / f"{o.model}-{layers}.gguf", None if no_draft else folder / f"{o.model}-draft.gguf"]
    for path in filter(None, paths):
        if o.keep and path.exists():
            continue
        print(f"writing {path.name}", file=sys.stderr)
        part = path.with_suffix(".part")
        if path == paths[0]:
            random_gguf.write_target(part, geometry, layers)
        else:
            random_gguf.write_draft(part, geometry)
        part.rename(path)
    features = len(d["capture"]) * geometry["hidden"]
    return paths, n_bytes, no_draft, (layers, geometry["layers"]), features


def run(o):
    folder = Path(o.scratch)
    folder.mkdir(parents=True, exist_ok=True)
    splash = Splash(o)
    load = os.getloadavg()[0]
    (target, draft), n_bytes, no_draft, layers, features = prepare(o, splash, folder)
    roofs = [splash.roof()]
    program, libraries = llama_side.build(folder)
    n_ctx = -(-(max(o.context, o.tokens) + SPARE_CONTEXT) // 256) * 256
    llama = llama_side.Llama(program, libraries, target, draft, features, n_ctx, o)
    results, ours_said = [], {}
    try:
        llama.fill(o.context)
        for m in measures(o, splash, llama, draft is not None):
            if o.only and m.name not in o.only:
                continue
            m.calibrate(o.seconds)
            ours, theirs = m.run(o.rounds)
            ours_said[m.name] = ours[-1]
            roofs += ours
            results.append(result(m, ours, theirs))
    finally:
        llama.close()
        if not o.keep:
            for path in (target, draft):
                if path:
                    path.unlink()
    roofs.append(splash.roof())
    return {
        "kind": "compare",
        "machine": roofs[0]["machine"],
        "cores": o.usable,
        "threads": o.threads,
        "load_average_before": load,
        "load_average_after": os.getloadavg()[0],
        "model": o.model,
        "layers": layers[0],
        "layers_of_model": layers[1],
        "context_tokens": o.context,
        "prefill_tokens": o.tokens,
        "acceptance": o.acceptance,
        "order": "ABBA" * o.rounds,
        "seconds_per_block": o.seconds,
        "ours": {"commit": roofs[0]["commit"], "cpu_tier": roofs[0]["cpu_tier"], "last_results": ours_said},
        "theirs": {
            "engine": "llama.cpp",
            "version": llama.version,
            "packages": llama_side.PACKAGES,
            "system": llama.system,
            "kv_type": o.kv,
            "flash_attention": o.flash,
            "ubatch": 512,
            "target_bytes": n_bytes[0],
            "draft_bytes": n_bytes[1],
        },
        "no_draft": no_draft,
        "roofs": rates(roofs),
        "measures": results,
    }


def main(argv=None):
    o = parse(argv)
    try:
        done = run(o)
    except (RuntimeError, FileNotFoundError) as e:
        raise SystemExit(f"compare: {e}") from e
    folder = Path(o.scratch)
    (folder / "report.json").write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    drawn = report.draw(done, folder / "report.png")
    text = report.markdown(done, "report.png" if drawn else None)
    (folder / "report.md").write_text(text, encoding="utf-8")
    print(json.dumps(done, indent=1) if o.json else text.rstrip())
    picture = ", report.png" if drawn else "; no picture: matplotlib is not installed"
    print(f"compare: {folder}/report.md, report.json{picture}", file=sys.stderr)


if __name__ == "__main__":
    main()
