# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of random weights in the shape of a registered model.

    make_checkpoint.py GEOMETRY OUT --format hf|mlx|splash-packed|draft [--layers N] [--seed S]

Weights are plausible (deviation 0.02, norms near one, slow and fast decays), so a forward pass stays
in range. Tensors are written a few rows at a time: a 27B-shaped folder needs little memory. The mlx
and splash-packed forms of one seed hold the same numbers; so do draft and the draft inside
splash-packed.
"""
import argparse
import hashlib
import json
import os
import shutil
import zlib

import numpy as np

from geometries import GEOMETRIES, draft_config, draft_tensors, is_attention, matrices, published_config, smalls
from reference import GROUP, from_bf16, pack_codes, quantise, to_bf16

CHUNK_VALUES = 1 << 22
ALIGN = 16384
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def rng_of(seed, name):
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def row_chunks(rows, cols, multiple=1):
    step = max(multiple, CHUNK_VALUES // cols // multiple * multiple)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def normal_rows(seed, name, rows, cols, deviation=0.02):
    """bf16 bit patterns [n, cols] in chunks. Long tensors reuse a pool of normals at random offsets."""
    rng = rng_of(seed, name)
    pool = rng.standard_normal(min(rows * cols, CHUNK_VALUES) * 2, dtype=np.float32) * np.float32(deviation)
    pool = to_bf16(pool)
    for _, n in row_chunks(rows, cols):
        start = int(rng.integers(0, len(pool) - n * cols + 1))
        yield pool[start:start + n * cols].reshape(n, cols)


def quantised_rows(seed, name, rows, cols, bits, multiple=1):
    """(packed code bytes [n, cols*bits/8], scale bits, bias bits [n, cols/64]) in chunks."""
    rng = rng_of(seed, name)
    top = 2 ** bits - 1
    for _, n in row_chunks(rows, cols, multiple):
        codes = np.frombuffer(rng.bytes(n * cols * bits // 8), np.uint8).reshape(n, cols * bits // 8)
        scale = rng.uniform(0.5, 1.5, (n, cols // GROUP)).astype(np.float32) * np.float32(0.02 / (0.289 * top))
        scale *= rng.choice(np.array([-1, 1], np.float32), scale.shape)
        scale = to_bf16(scale)
        yield codes, scale, to_bf16(from_bf16(scale) * np.float32(-top / 2))


def small_values(seed, name, shape, kind):
    """float32 values as the published checkpoint means them."""
    rng = rng_of(seed, name)
    if kind == "norm":
        v = rng.normal(0, 0.05, shape)
    elif kind == "plain":
        v = rng.normal(1, 0.05, shape)
    elif kind == "conv":
        v = rng.uniform(-0.5, 0.5, shape)
    elif kind == "a_log":
        v = np.log(rng.uniform(0.02, 8.0, shape))
    elif kind == "dt_bias":
        y = np.exp(rng.uniform(-6.9, -2.3, shape))
        v = y + np.log(-np.expm1(-y))
    else:
        v = rng.normal(0, 0.1, shape)
    return from_bf16(to_bf16(v.astype(np.float32)))


class Safetensors:
    """Collects (name, dtype, shape, producer of byte strings), then writes one file."""
    SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4}

    def __init__(self):
        self.entries = []

    def add(self, name, dtype, shape, producer):
        self.entries.append((name, dtype, list(shape), producer))

    def write(self, path, metadata, pad):
        header, at = {"__metadata__": dict(metadata)}, 0
        for name, dtype, shape, _ in self.entries:
            n = int(np.prod(shape)) * self.SIZES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header, separators=(",", ":")).encode()
        if pad:
            text += b" " * (-len(text) % 8)
        elif len(text) % 2 == 0:            # an odd start is legal, and the hardest
            header["__metadata__"]["odd"] = "x" if len(header["__metadata__"]) else "xx"
            text = json.dumps(header, separators=(",", ":")).encode()
            if len(text) % 2 == 0:
                header["__metadata__"]["odd"] += "x"
                text = json.dumps(header, separators=(",", ":")).encode()
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for _, _, _, producer in self.entries:
                for piece in producer():
                    f.write(piece)


def write_shards(folder, entries, n_shards, metadata, pad):
    if n_shards == 1:
        st = Safetensors()
        st.entries = entries
        st.write(os.path.join(folder, "model.safetensors"), metadata, pad)
        return
    names, per = {}, -(-len(entries) // n_shards)
    for i in range(n_shards):
        st = Safetensors()
        st.entries = entries[i * per:(i + 1) * per]
        file = f"model-{i + 1:05d}-of-{n_shards:05d}.safetensors"
        st.write(os.path.join(folder, file), metadata, pad)
        names.update({e[0]: file for e in st.entries})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": names}, f)


def value_bytes(values, dtype):
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    return to_bf16(values).astype("<u2").tobytes()


def bf16_producer(seed, name, rows, cols, dtype="BF16", deviation=0.02):
    def produce():
        for bits in normal_rows(seed, name, rows, cols, deviation):
            yield bits.astype("<u2").tobytes() if dtype == "BF16" else value_bytes(from_bf16(bits), dtype)
    return produce


def hf_entries(g, layers, seed, dtype, prefix):
    st = Safetensors()
    for name, shape, _ in matrices(g, layers):
        if ".switch_mlp.up_proj" in name:
            continue
        if ".switch_mlp.gate_proj" in name:
            name, shape = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj"), (shape[0], 2 * shape[1], shape[2])
        name = name.replace("switch_mlp.down_proj.weight", "experts.down_proj")
        rows, cols = int(np.prod(shape[:-1])), shape[-1]
        full = name if name.startswith("lm_head") else prefix + name
        st.add(full, dtype, shape, bf16_producer(seed, name, rows, cols, dtype))
    for name, shape, kind in smalls(g, layers):
        st.add(prefix + name, dtype, shape, lambda n=name, s=shape, k=kind: [value_bytes(small_values(seed, n, s, k), dtype)])
    return st.entries


def mlx_entries(g, layers, seed):
    st = Safetensors()
    for name, shape, bits in matrices(g, layers):
        rows, cols = int(np.prod(shape[:-1])), shape[-1]
        full = "language_model." + name if name.startswith("lm_head") else "language_model.model." + name
        stem = full[:-len(".weight")]

        def produce(part, name=name, rows=rows, cols=cols, bits=bits):
            for chunk in quantised_rows(seed, name, rows, cols, bits, 256):
                yield chunk[part].tobytes() if part == 0 else chunk[part].astype("<u2").tobytes()
        lead = list(shape[:-1])
        st.add(full, "U32", lead + [cols * bits // 32], lambda p=produce: p(0))
        st.add(stem + ".scales", "BF16", lead + [cols // GROUP], lambda p=produce: p(1))
        st.add(stem + ".biases", "BF16", lead + [cols // GROUP], lambda p=produce: p(2))
    for name, shape, kind in smalls(g, layers):
        dtype = "F32" if kind == "a_log" else "BF16"
        shape = (shape[0], 4, 1) if kind == "conv" else shape

        def produce_small(name=name, shape=shape, kind=kind, dtype=dtype):
            v = small_values(seed, name, shape, kind)
            return [value_bytes(v + np.float32(1) if kind == "norm" else v, dtype)]
        st.add("language_model.model." + name, dtype, shape, produce_small)
    order = np.random.default_rng(seed).permutation(len(st.entries))     # hash order
    return [st.entries[i] for i in order]


def mlx_config(g, layers):
    config = published_config(g, layers)
    quantization = {"group_size": 64, "bits": 4, "mode": "affine"}
    for name, _, bits in matrices(g, layers):
        if bits == 8:
            quantization["language_model.model." + name[:-len(".weight")]] = {"group_size": 64, "bits": 8}
    config["quantization"] = config["quantization_config"] = quantization
    return config


def draft_entries(g, seed, dtype="BF16"):
    st = Safetensors()
    for name, shape, kind in draft_tensors(g):
        if kind in ("matrix", "codebook"):
            st.add(name, dtype, shape, bf16_producer(seed, "draft." + name, shape[0], shape[1], dtype))
        else:
            st.add(name, dtype, shape,
                   lambda n=name, s=shape, k=kind: [value_bytes(small_values(seed, "draft." + n, s, k), dtype)])
    return st.entries


# ---- splash-packed-q4 ----

def tile_planes(codes, scales, biases):
    """Row form (bytes [N, ..], bits [N, G]) to the three 256-row planes, N padded with zeros."""
    rows, groups = scales.shape
    pad = -rows % 256
    codes, scales, biases = (np.pad(a, ((0, pad), (0, 0))) for a in (codes, scales, biases))
    n = (rows + pad) // 256
    planes = [codes.reshape(n, 256, groups, -1).transpose(0, 2, 1, 3)]
    planes += [p.reshape(n, 256, groups).transpose(0, 2, 1).astype("<u2") for p in (scales, biases)]
    return b"".join(np.ascontiguousarray(p).tobytes() for p in planes)


class PackedFolder:
    def __init__(self, folder, g, layers, seed):
        self.folder, self.g, self.layers, self.seed, self.artifacts = folder, g, layers, seed, []

    def rows(self, name, shape, bits):
        rows, cols = int(np.prod(shape[:-1])), shape[-1]
        chunks = list(quantised_rows(self.seed, name, rows, cols, bits, 256))
        return [np.concatenate([c[i] for c in chunks]) for i in range(3)]

    def tiles(self, names):
        """Concatenated rows of several published matrices as one section."""
        shapes = {n: (s, b) for n, s, b in matrices(self.g, self.layers)}
        parts = [self.rows(n, *shapes[n]) for n in names]
        return tile_planes(*(np.concatenate([p[i] for p in parts]) for i in range(3)))

    def slabs(self, name):
        shape = {n: s for n, s, _ in matrices(self.g, self.layers)}[name]
        rows = self.rows(name, shape, 4)
        return b"".join(tile_planes(*(a.reshape(shape[0], shape[1], -1)[e] for a in rows)) for e in range(shape[0]))

    def small(self, name):
        shape, kind = {n: (s, k) for n, s, k in smalls(self.g, self.layers)}[name]
        v = small_values(self.seed, name, shape, kind)
        if kind == "a_log":
            return (-np.exp(v.astype(np.float64))).astype("<f4").tobytes()
        return value_bytes(v + np.float32(1) if kind == "norm" else v, "BF16")

    def draft(self, names):
        tensors = {n: (s, k) for n, s, k in draft_tensors(self.g)}
        shape, kind = tensors[names[0]]
        if kind in ("matrix", "codebook"):
            bits = [np.concatenate(list(normal_rows(self.seed, "draft." + n, *tensors[n][0]))) for n in names]
            values = np.concatenate(bits)
            if kind == "codebook":
                return values.astype("<u2").tobytes()
            codes, scales, biases = quantise(from_bf16(values), 4)
            return tile_planes(pack_codes(codes, 4), scales, biases)
        return value_bytes(small_values(self.seed, "draft." + names[0], shape, kind), "BF16")

    def write(self, path, magic, layer, kind, sections):
        data = bytearray(magic.encode() + layer.to_bytes(4, "little") + kind.to_bytes(4, "little"))
        for section in sections:
            data += b"\0" * (-len(data) % ALIGN) + section
        data += b"\0" * (-len(data) % ALIGN)
        self.add(path, bytes(data))

    def add(self, path, data):
        full = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as f:
            f.write(data)
        self.artifacts.append({"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})

    def layer(self, n):
        g, p = self.g, f"layers.{n}."
        s = [self.small(p + "input_layernorm.weight")]
        if is_attention(g, n):
            s += [self.tiles([p + f"self_attn.{x}_proj.weight" for x in "qkv"]), self.small(p + "self_attn.q_norm.weight"),
                  self.small(p + "self_attn.k_norm.weight"), self.tiles([p + "self_attn.o_proj.weight"])]
        else:
            a = p + "linear_attn."
            s += [self.tiles([a + f"in_proj_{x}.weight" for x in ("qkv", "z", "b", "a")]), self.small(a + "conv1d.weight"),
                  self.small(a + "A_log"), self.small(a + "dt_bias"), self.small(a + "norm.weight"),
                  self.tiles([a + "out_proj.weight"])]
        s.append(self.small(p + "post_attention_layernorm.weight"))
        if g["n_experts"] == 0:
            s += [self.tiles([p + f"mlp.{x}_proj.weight"]) for x in ("gate", "up", "down")]
        else:
            s.append(self.tiles([p + "mlp.gate.weight"]))
            s += [self.slabs(p + f"mlp.switch_mlp.{x}_proj.weight") for x in ("gate", "up", "down")]
            s += [self.tiles([p + f"mlp.shared_expert.{x}_proj.weight"]) for x in ("gate", "up", "down")]
            s.append(self.tiles([p + "mlp.shared_expert_gate.weight"]))
        self.write(f"target/layer-{n}.bin", "MDFM0001" if g["n_experts"] else "MDFL0006", n, int(is_attention(g, n)), s)

    def draft_layer(self, n):
        p = f"layers.{n}."
        names = [[p + "input_layernorm.weight"], [p + "attention_conv.base_kernel"],
                 [p + "attention_conv.kernel_projection.weight"], [p + f"self_attn.{x}_proj.weight" for x in "qkv"],
                 [p + "self_attn.q_norm.weight"], [p + "self_attn.k_norm.weight"], [p + "self_attn.o_proj.weight"],
                 [p + "post_attention_layernorm.weight"], [p + "mlp_conv.base_kernel"],
                 [p + "mlp_conv.kernel_projection.weight"], [p + "mlp.gate_proj.weight"], [p + "mlp.up_proj.weight"],
                 [p + "mlp.down_proj.weight"]]
        self.write(f"draft/layer-{n}.bin", "MDFD0004", n, 0, [self.draft(x) for x in names])

    def build(self, tokenizer):
        g, moe = self.g, self.g["n_experts"] > 0
        for n in range(self.layers):
            self.layer(n)
        self.write("target/head.bin", "MDFM0002" if moe else "MDFL0002", g["n_layers"], 2,
                   [self.small("norm.weight"), self.tiles(["lm_head.weight"])])
        codes, scales, biases = self.rows("embed_tokens.weight", (g["vocab"], g["hidden"]), 4)
        self.write("target/embedding.bin", "MDFE0001", g["vocab"], g["hidden"],
                   [codes.tobytes(), scales.astype("<u2").tobytes(), biases.astype("<u2").tobytes()])
        if "draft" in g:
            d = g["draft"]
            for n in range(d["n_layers"]):
                self.draft_layer(n)
            names = ["fc.weight", "hidden_norm.weight", "norm.weight", "candidate_selector.hidden_projection.weight",
                     "candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"]
            self.write("draft/model.bin", "MDFD0004", d["n_layers"], 1, [self.draft([x]) for x in names])
        if g["vocab"] > 100000:
            self.write("vision/model.bin", "MDFV0001", 27, 0, [])
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json"):
            path = os.path.join(tokenizer, name) if tokenizer else ""
            data = open(path, "rb").read() if os.path.exists(path) else b"{}"
            self.add("tokenizer/" + name, data)
        self.add("tokenizer/config.json", json.dumps(published_config(g, g["n_layers"])).encode())
        with open(os.path.join(self.folder, "manifest.json"), "w") as f:
            json.dump(self.manifest(moe), f, indent=1)

    def manifest(self, moe):
        g = self.g
        form = {"name": "splash-packed-q4-moe" if moe else "splash-packed-q4", "section_alignment_bytes": ALIGN,
                "target_layer_magic": "MDFM0001" if moe else "MDFL0006", "draft_layer_magic": "MDFD0004",
                "vision_magic": "MDFV0001", "q4_bits": 4}
        form.update({"q8_bits": 8, "quant_group_size": 64, "storage_n": 256} if moe else
                    {"q4_group_size": 64, "q4_storage_n": 256})
        window = g["draft"]["window_tokens"] if "draft" in g else 2048
        out = {"schema_version": 4 if moe else 3, "model": "a test", "format": form, "artifacts": self.artifacts,
               "execution_geometry": {"allocation_extent_target_bytes": 134217728, "draft_proposal_tokens": 7,
                                      "draft_query_rows": 8, "draft_sliding_window": window, "maximum_batch_width": 4,
                                      "prefill_token_budget": 2048, "target_kv_block_tokens": 32, "target_verify_rows": 8}}
        if moe:
            value = g["gdn_value_heads"] * g["gdn_head_dim"]
            width = 2 * g["gdn_key_heads"] * g["gdn_head_dim"] + 2 * value + 2 * g["gdn_value_heads"]
            out["target"] = {
                "architecture": "qwen3_5_moe", "layers": g["n_layers"], "hidden_size": g["hidden"],
                "vocabulary_size": g["vocab"], "gdn_actual_width": width, "gdn_packed_width": -(-width // 256) * 256,
                "attention_packed_width": 2 * (g["n_q_heads"] + g["n_kv_heads"]) * g["head_dim"],
                "experts": g["n_experts"], "experts_per_token": g["experts_per_token"],
                "moe_intermediate_size": g["expert_width"],
                "shared_expert_intermediate_size": g["shared_expert_width"],
                "layer_types": ["attention" if is_attention(g, n) else "gdn" for n in range(g["n_layers"])]}
            d = g["draft"]
            out["draft"] = {
                "architecture": "DFlash2DraftModel", "layers": d["n_layers"], "hidden_size": d["hidden"],
                "intermediate_size": d["ffn_width"], "sliding_window": d["window_tokens"], "block_size": d["block_rows"],
                "dynamic_conv_group_size": d["conv_group"], "dynamic_conv_kernel_size": d["conv_taps"],
                "selector_rank": d["selector_rank"], "selector_top_k": d["selector_top_k"],
                "target_capture_layers": d["capture"]}
        return out


def make(geometry, out, form="hf", layers=0, seed=1, shards=1, dtype="BF16", text_only=False, tokenizer=None):
    g = GEOMETRIES[geometry]
    layers = layers or g["n_layers"]
    os.makedirs(out, exist_ok=True)
    if form == "splash-packed":
        PackedFolder(out, g, layers, seed).build(tokenizer)
        return
    if form == "draft":
        config, entries, metadata, pad = draft_config(g), draft_entries(g, seed, dtype), {"format": "pt"}, True
    elif form == "mlx":
        config, entries, metadata, pad = mlx_config(g, layers), mlx_entries(g, layers, seed), {"format": "mlx"}, False
    else:
        config, pad, metadata = published_config(g, layers), True, {"format": "pt"}
        entries = hf_entries(g, layers, seed, dtype, "model." if text_only else "model.language_model.")
        if text_only:
            config = dict(config["text_config"], architectures=[config["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")])
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    write_shards(out, entries, shards, metadata, pad)
    if tokenizer and form != "draft":
        for name in SIDE_FILES:
            if os.path.exists(os.path.join(tokenizer, name)):
                shutil.copy(os.path.join(tokenizer, name), out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("out")
    parser.add_argument("--format", default="hf", choices=["hf", "mlx", "splash-packed", "draft"])
    parser.add_argument("--layers", type=int, default=0, help="first layers only (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--dtype", default="BF16", choices=["BF16", "F16", "F32"])
    parser.add_argument("--text-only", action="store_true", help="names without 'language_model'")
    parser.add_argument("--tokenizer", help="folder to copy tokenizer files from")
    a = parser.parse_args()
    make(a.geometry, a.out, a.format, a.layers, a.seed, a.shards, a.dtype, a.text_only, a.tokenizer)


if __name__ == "__main__":
    main()
