# SPDX-License-Identifier: Apache-2.0
"""A package read in Python and widened to fp32, tensor by tensor, under the published names.

Written from docs/FORMATS.md, not from the C reader: it is the other side of the comparison."""

import json
from pathlib import Path

import numpy as np

GROUP, TILE_ROWS, TILE_BYTES = 64, 16, 576


def _bf16(raw):
    """uint16 patterns to fp32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def _affine(codes, scales, biases):
    """scale * code + bias, both steps in fp32, as the engine's oracle forms a weight."""
    rows, cols = codes.shape
    grouped = codes.reshape(rows, cols // GROUP, GROUP).astype(np.float32)
    return (grouped * scales[:, :, None] + biases[:, :, None]).reshape(rows, cols)


def _rows_q4(raw, rows, cols):
    row = raw.reshape(rows, cols // 2 + cols // GROUP * 4)
    pairs = row[:, : cols // 2]
    codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(rows, cols)
    parameters = _bf16(np.ascontiguousarray(row[:, cols // 2 :]).view("<u2"))
    return _affine(codes, parameters[:, : cols // GROUP], parameters[:, cols // GROUP :])


def _tiles_q4(raw, rows, cols):
    panels, groups = (rows + TILE_ROWS - 1) // TILE_ROWS, cols // GROUP
    tiles = raw.reshape(panels, groups, TILE_BYTES)
    scales = _bf16(np.ascontiguousarray(tiles[:, :, :32]).view("<u2")).transpose(0, 2, 1)
    biases = _bf16(np.ascontiguousarray(tiles[:, :, 32:64]).view("<u2")).transpose(0, 2, 1)
    lines = tiles[:, :, 64:].reshape(panels, groups, 8, TILE_ROWS, 4)  # line, row, byte
    nibbles = np.stack([lines & 15, lines >> 4], axis=4)  # line, row, high, byte
    codes = nibbles.transpose(0, 3, 1, 2, 4, 5).reshape(panels * TILE_ROWS, cols)
    weights = _affine(codes, scales.reshape(-1, groups), biases.reshape(-1, groups))
    return weights[:rows]


def _tensor(entry, data):
    raw = np.frombuffer(data, np.uint8, entry["bytes"], entry["offset"])
    rows, cols = entry["shape"]
    encoding = entry["encoding"]
    if encoding == "f32":
        return raw.view("<f4").reshape(rows, cols).copy()
    if encoding == "bf16":
        return _bf16(raw.view("<u2")).reshape(rows, cols)
    if encoding == "q4g64row":
        return _rows_q4(raw, rows, cols)
    if encoding == "q4g64r16":
        return _tiles_q4(raw, rows, cols)
    raise ValueError(f"{entry['name']}: encoding {encoding} is not read here")


class Package:
    """Tensors by the package's own names, and the model's weights by the published names."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        self.geometry = self.manifest["geometry"]
        files = {t["file"] for t in self.manifest["tensors"]}
        self.data = {name: (self.folder / name).read_bytes() for name in files}
        self.tensors = {t["name"]: _tensor(t, self.data[t["file"]]) for t in self.manifest["tensors"]}

    def published(self, config):
        """fp32 arrays under the names of the published text model ("model.layers.0...", "lm_head.weight").

        `config` is the text_config: it says how the joined matrices come apart."""
        out = {
            "model.embed_tokens.weight": self.tensors["target.embed"],
            "model.norm.weight": self.tensors["target.final_norm"].reshape(-1) - 1,
            "lm_head.weight": self.tensors["target.head"],
        }
        for layer, kind in enumerate(config["layer_types"]):
            t = {n.split(".")[-1]: v for n, v in self.tensors.items() if n.startswith(f"target.layers.{layer}.")}
            part = _attention(t, config) if kind == "full_attention" else _delta(t, config)
            pairs = t["gate_up"].reshape(-1, 2, TILE_ROWS, t["gate_up"].shape[1])
            width = config["intermediate_size"]
            part["input_layernorm.weight"] = t["input_norm"].reshape(-1) - 1
            part["post_attention_layernorm.weight"] = t["post_norm"].reshape(-1) - 1
            part["mlp.gate_proj.weight"] = pairs[:, 0].reshape(width, -1)
            part["mlp.up_proj.weight"] = pairs[:, 1].reshape(width, -1)
            part["mlp.down_proj.weight"] = t["down"]
            out.update({f"model.layers.{layer}.{name}": value for name, value in part.items()})
        return out

    def published_draft(self):
        """fp32 arrays under the names of a published DFlash 2 checkpoint."""
        d = self.geometry["draft"]
        t = self.tensors
        out = {
            "fc.weight": t["draft.context"],
            "hidden_norm.weight": t["draft.hidden_norm"].reshape(-1),
            "norm.weight": t["draft.final_norm"].reshape(-1),
            "candidate_selector.hidden_projection.weight": t["draft.selector"],
            "candidate_selector.predecessor_codebook": t["draft.predecessor"],
            "candidate_selector.successor_codebook": t["draft.successor"],
        }
        for layer in range(d["n_layers"]):
            part = {n.split(".")[-1]: v for n, v in t.items() if n.startswith(f"draft.layers.{layer}.")}
            out.update({f"layers.{layer}.{name}": value for name, value in _draft_layer(part, d).items()})
        return out


def _draft_layer(t, d):
    q, kv = d["n_q_heads"] * d["head_dim"], d["n_kv_heads"] * d["head_dim"]
    base = (2, d["conv_taps"], d["hidden"])
    pairs = t["gate_up"].reshape(-1, 2, TILE_ROWS, d["hidden"])
    return {
        "input_layernorm.weight": t["input_norm"].reshape(-1),
        "post_attention_layernorm.weight": t["post_norm"].reshape(-1),
        "attention_conv.base_kernel": t["attn_conv_base"].reshape(base),
        "attention_conv.kernel_projection.weight": t["attn_conv_proj"],
        "mlp_conv.base_kernel": t["ffn_conv_base"].reshape(base),
        "mlp_conv.kernel_projection.weight": t["ffn_conv_proj"],
        "self_attn.q_proj.weight": t["qkv"][:q],
        "self_attn.k_proj.weight": t["qkv"][q : q + kv],
        "self_attn.v_proj.weight": t["qkv"][q + kv : q + 2 * kv],
        "self_attn.q_norm.weight": t["q_norm"].reshape(-1),
        "self_attn.k_norm.weight": t["k_norm"].reshape(-1),
        "self_attn.o_proj.weight": t["attn_out"],
        "mlp.gate_proj.weight": pairs[:, 0].reshape(d["ffn_width"], -1),
        "mlp.up_proj.weight": pairs[:, 1].reshape(d["ffn_width"], -1),
        "mlp.down_proj.weight": t["down"],
    }


def _attention(t, c):
    q = 2 * c["num_attention_heads"] * c["head_dim"]
    kv = c["num_key_value_heads"] * c["head_dim"]
    rows = t["attn_in"]
    return {
        "self_attn.q_proj.weight": rows[:q],
        "self_attn.k_proj.weight": rows[q : q + kv],
        "self_attn.v_proj.weight": rows[q + kv : q + 2 * kv],
        "self_attn.o_proj.weight": t["attn_out"],
        "self_attn.q_norm.weight": t["q_norm"].reshape(-1) - 1,
        "self_attn.k_norm.weight": t["k_norm"].reshape(-1) - 1,
    }


def _delta(t, c):
    heads, dim = c["linear_num_value_heads"], c["linear_value_head_dim"]
    channels = 2 * c["linear_num_key_heads"] * dim + heads * dim
    z = channels + heads * dim
    rows = t["gdn_in"]
    return {
        "linear_attn.in_proj_qkv.weight": rows[:channels],
        "linear_attn.in_proj_z.weight": rows[channels:z],
        "linear_attn.in_proj_b.weight": rows[z : z + heads],
        "linear_attn.in_proj_a.weight": rows[z + heads : z + 2 * heads],
        "linear_attn.conv1d.weight": t["gdn_conv"].reshape(channels, 1, 4),
        "linear_attn.A_log": np.log(-t["gdn_decay"].astype(np.float64)).astype(np.float32).reshape(-1),
        "linear_attn.dt_bias": t["gdn_dt_bias"].reshape(-1),
        "linear_attn.norm.weight": t["gdn_norm"].reshape(-1),
        "linear_attn.out_proj.weight": t["gdn_out"],
    }
