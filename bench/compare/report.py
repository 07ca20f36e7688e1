# SPDX-License-Identifier: Apache-2.0
"""A comparison as Markdown and as a picture, made from its JSON alone."""

WORDS = {
    "faster": "ours is faster",
    "slower": "llama.cpp is faster",
    "equal": "no difference beyond the noise",
    "inconclusive": "inconclusive",
}

NOTES = (
    "Weights are random on both sides: same geometry, 4.5 bits a weight on both (ours: 4-bit codes with a bf16 scale "
    "and bias per 64; theirs: Q4_0, 4-bit codes with an fp16 scale per 32). Usual Q4_0 files keep the head in 6 bits, "
    "which would cost llama.cpp more.",
    "Arithmetic is not the same: llama.cpp rounds activations to int8 per 32 inputs, ours per 64. Neither accuracy is "
    "judged here; ours is measured against fp32 in tests/parity. Outputs cannot be compared on random weights of two "
    "formats.",
    "llama.cpp is the prebuilt package, not a native build of this machine; it picks its own processor backend (flags "
    "above) and repacks its weights when it loads them. Both sides use the same number of threads and may run on the "
    "same cores.",
    "Times of llama.cpp: llama_decode plus a search for the largest logit in every row. Ours: a whole step with "
    "sampling and the commit of what was accepted. Loading, filling the context and putting it back are not timed on "
    "either side.",
    "The roof is the larger of bytes/read rate and multiply-adds/int8 rate, for our layout and op list, with rates "
    "measured in the same run. llama.cpp's share is against the same roof.",
    "A model cut to its first layers gives the head more weight than the whole model does.",
)


def _speed(s):
    return f"{s['median']:.4g} ({s['min']:.4g} to {s['max']:.4g})"


def markdown(r, picture=None):
    rate = r["roofs"]
    whole = (
        "all layers" if r["layers"] == r["layers_of_model"] else f"first {r['layers']} of {r['layers_of_model']} layers"
    )
    theirs = r["theirs"]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(theirs["packages"].items()))
    lines = [
        f"# {r['model']}, {whole}: this engine beside llama.cpp",
        "",
        f"- machine: {r['machine']}; {r['threads']} threads on cores {', '.join(map(str, r['cores']))}; load average "
        f"{r['load_average_before']:.1f} before, {r['load_average_after']:.1f} after",
        f"- ours: commit {r['ours']['commit']}, kernels {r['ours']['cpu_tier']}",
        f"- llama.cpp {theirs['version']} ({packages}), Q4_0, KV {theirs['kv_type']}, flash attention "
        f"{theirs['flash_attention']}, ubatch {theirs['ubatch']}",
        f"- its processor flags: {theirs['system'].strip(' |')}",
        f"- order {r['order']} (A ours), about {r['seconds_per_block']:g} s a block; a block counts with its median",
        f"- plain read {rate['read_gb_per_second']:.1f} GB/s ({rate['read_gb_per_second_min']:.1f} to "
        f"{rate['read_gb_per_second_max']:.1f}), int8 {rate['int8_gmac_per_second']:.0f} GMAC/s "
        f"({rate['int8_gmac_per_second_min']:.0f} to {rate['int8_gmac_per_second_max']:.0f}), measured in this run",
        "",
    ]
    if r["load_average_before"] > 1:
        lines += ["**The machine was busy before the run began; these numbers decide nothing.**", ""]
    if picture:
        lines += [f"![speeds and roofs]({picture})", ""]
    lines += [
        "| | ours | llama.cpp | roof | ours of roof | llama.cpp of roof | ours / llama.cpp | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for m in r["measures"]:
        spread = max(m["ours"]["spread"], m["theirs"]["spread"])
        star = " (*)" if m["derived"] else ""
        lines.append(
            f"| {m['label']}, {m['unit']}{star} | {_speed(m['ours'])} | {_speed(m['theirs'])} "
            f"| {m['roof']:.4g} | {m['ours_of_roof']:.0%} | {m['theirs_of_roof']:.0%} "
            f"| {m['ratio']:.2f} ({m['ratio_min']:.2f} to {m['ratio_max']:.2f}) "
            f"| {WORDS[m['verdict']]} (spread {spread:.1%}) |"
        )
    lines += [
        "",
        "Medians of the blocks, slowest and fastest block in brackets. A spread above 5 % on either side is",
        "inconclusive, whatever the ratio; a difference counts beyond the larger of 2 % and twice the spread.",
        "",
    ]
    for m in r["measures"]:
        if m["derived"]:
            lines += [
                f"(*) {m['derived']}. The acceptance is an assumption and the same for both, not a measurement; taking "
                "the target's features out and walking the lattice are left out of llama.cpp's time.",
                "",
            ]
    if r["no_draft"]:
        lines += [f"No drafted decode: {r['no_draft']}.", ""]
    lines += ["What this does and does not compare:", ""] + [f"- {note}" for note in NOTES]
    return "\n".join(lines) + "\n"


def draw(r, path):
    """False when there is nothing to draw with."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ms = r["measures"]
    figure, axes = plt.subplots(1, len(ms), figsize=(3.1 * len(ms), 4.6), squeeze=False)
    for axis, m in zip(axes[0], ms):
        sides = [("ours", m["ours"], "#1f6fb4"), ("llama.cpp", m["theirs"], "#b0b0b0")]
        for x, (name, s, color) in enumerate(sides):
            reach = [[s["median"] - s["min"]], [s["max"] - s["median"]]]
            axis.bar(x, s["median"], 0.62, color=color, yerr=reach, capsize=4, ecolor="#404040")
            axis.annotate(
                f"{s['median']:.3g}", (x, s["max"]), (0, 5), textcoords="offset points", ha="center", fontsize=11
            )
        axis.axhline(m["roof"], color="#c03028", linestyle="--", linewidth=1.4)
        axis.text(1.45, m["roof"], f"roof {m['roof']:.3g}", color="#c03028", ha="right", va="bottom", fontsize=9)
        axis.set_xticks([0, 1], [name for name, _, _ in sides])
        axis.set_xlim(-0.5, 1.5)
        axis.set_ylim(0, 1.12 * max(m["roof"], m["ours"]["max"], m["theirs"]["max"]))
        axis.set_ylabel(m["unit"])
        note = "\ninconclusive (spread)" if m["verdict"] == "inconclusive" else ""
        axis.set_title(m["label"].replace(", ", ",\n", 1) + (" (*)" if m["derived"] else "") + note, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    rate = r["roofs"]
    figure.suptitle(
        f"{r['model']}, {r['layers']} of {r['layers_of_model']} layers, random 4-bit weights, {r['threads']} threads; "
        f"read {rate['read_gb_per_second']:.1f} GB/s, int8 {rate['int8_gmac_per_second']:.0f} GMAC/s in the same run",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True
