# SPDX-License-Identifier: Apache-2.0
"""Reads a package of this engine, written from docs/FORMATS.md alone and sharing no code with it.

    package = Package("models/nano")
    w = package.dequantise("target.layers.3.attn_in")    # float32 [rows, cols], stored order
    state = package.published_state()                    # tensors under the published names

`dequantise` gives scale * code + bias in float32, exact before one rounding. `published_state`
undoes the concatenations, so that the weights can be loaded into another implementation.
"""
import hashlib
import json
import os

import numpy as np

GROUP = 64
ROWS = 16
MAGIC = b"SPLR16PK"


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Package:
    def __init__(self, folder, check_hashes=False):
        self.folder = folder
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
            self.manifest = json.load(f)
        form = self.manifest["format"]
        assert (form["name"], form["major"], form["byte_order"]) == ("r16-pack", 1, "little"), form
        assert self.manifest["requires"] == []
        self.geometry = self.manifest["geometry"]
        self.tensors = {t["name"]: t for t in self.manifest["tensors"]}
        self.files = {f["path"]: f for f in self.manifest["files"]}
        assert self.identity() == self.manifest["identity"], "identity"
        self.maps = {}
        for number, name in enumerate(("target.bin", "draft.bin", "vision.bin")):
            if name not in self.files:
                continue
            path = os.path.join(folder, name)
            assert os.path.getsize(path) == self.files[name]["bytes"], name
            data = np.memmap(path, dtype=np.uint8, mode="r")
            head = bytes(data[:4096])
            want = MAGIC + (1).to_bytes(4, "little") + number.to_bytes(4, "little")
            want += self.manifest["identity"].encode()
            assert head == want.ljust(4096, b"\0"), f"header of {name}"
            self.maps[name] = data
        if check_hashes:
            for f in self.manifest["files"]:
                with open(os.path.join(folder, f["path"]), "rb") as handle:
                    handle.seek(f.get("hash_from", 0))
                    assert hashlib.sha256(handle.read()).hexdigest() == f["sha256"], f["path"]

    def identity(self):
        model = self.manifest["model"]
        lines = ["r16-pack 1", f"geometry {model['geometry']} {model['n_layers']}"]
        for t in self.manifest["tensors"]:
            shape = t["shape"] if len(t["shape"]) == 3 else [1] + t["shape"]
            lines.append(f"tensor {t['name']} {t['file']} {t['offset']} {t['bytes']} {t['encoding']} {t['order']} "
                         f"{shape[0]} {shape[1]} {shape[2]}")
        for name in ("target.bin", "draft.bin", "vision.bin"):
            if name in self.files:
                lines.append(f"file {name} {self.files[name]['bytes']} {self.files[name]['sha256']}")
        return hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest()

    def raw(self, name):
        t = self.tensors[name]
        return self.maps[t["file"]][t["offset"]:t["offset"] + t["bytes"]]

    def codes(self, name):
        """(codes uint8 [n, rows, cols], scales f32 [n, rows, cols/64], biases likewise), stored row order."""
        t = self.tensors[name]
        n, rows, cols = t["shape"] if len(t["shape"]) == 3 else [1] + t["shape"]
        groups = cols // GROUP
        data = np.asarray(self.raw(name))
        if t["encoding"] == "q4g64row":
            data = data.reshape(rows, cols // 2 + 4 * groups)
            packed = data[:, :cols // 2]
            codes = np.empty((rows, cols), np.uint8)
            codes[:, 0::2] = packed & 15
            codes[:, 1::2] = packed >> 4
            params = np.ascontiguousarray(data[:, cols // 2:]).view("<u2")
            return codes[None], bf16_to_f32(params[:, :groups])[None], bf16_to_f32(params[:, groups:])[None]
        panels = -(-rows // ROWS)
        wide = t["encoding"] == "q8g64r16"
        tiles = data.reshape(n, panels, groups, 1088 if wide else 576)
        params = np.ascontiguousarray(tiles[..., :64]).view("<u2")        # 16 scales, 16 biases
        codes = np.empty((n, panels, groups, ROWS, GROUP), np.uint8)
        if wide:        # line j, dword r: inputs 4j .. 4j+3 of row r
            lines = tiles[..., 64:].reshape(n, panels, groups, 16, ROWS, 4)
            codes[...] = lines.transpose(0, 1, 2, 4, 3, 5).reshape(codes.shape)
        else:           # line j, dword r, byte i: inputs 8j+i (low nibble) and 8j+4+i (high) of row r
            lines = tiles[..., 64:].reshape(n, panels, groups, 8, ROWS, 4).transpose(0, 1, 2, 4, 3, 5)
            split = codes.reshape(n, panels, groups, ROWS, 8, 8)
            split[..., :4] = lines & 15
            split[..., 4:] = lines >> 4
        codes = codes.transpose(0, 1, 3, 2, 4).reshape(n, panels * ROWS, cols)[:, :rows]
        scales = bf16_to_f32(params[..., :ROWS]).transpose(0, 1, 3, 2).reshape(n, panels * ROWS, groups)[:, :rows]
        biases = bf16_to_f32(params[..., ROWS:]).transpose(0, 1, 3, 2).reshape(n, panels * ROWS, groups)[:, :rows]
        return codes, scales, biases

    def dequantise(self, name):
        """float32, shape as in the manifest."""
        t = self.tensors[name]
        if t["encoding"] == "f32":
            return np.array(self.raw(name)).view("<f4").reshape(t["shape"])
        if t["encoding"] == "bf16":
            return bf16_to_f32(np.array(self.raw(name)).view("<u2")).reshape(t["shape"])
        codes, scales, biases = self.codes(name)
        scales, biases = np.repeat(scales, GROUP, axis=2), np.repeat(biases, GROUP, axis=2)
        return (scales * codes.astype(np.float32) + biases).reshape(t["shape"])

    @staticmethod
    def split_pairs(rows):
        """Stored [.., 2w, cols] of alternating 16-row gate and up panels to (gate, up)."""
        lead, (n, cols) = rows.shape[:-2], rows.shape[-2:]
        panels = rows.reshape(lead + (n // 32, 2, ROWS, cols))
        return (panels[..., 0, :, :].reshape(lead + (n // 2, cols)), panels[..., 1, :, :].reshape(lead + (n // 2, cols)))

    def published_state(self, prefix="model.language_model."):
        """{published tensor name: float32 array}. Norms are zero-centred again (value - 1), conv1d is
        [C, 1, 4], A_log is log(-decay): both are inverses up to float32 rounding."""
        g, out = self.geometry, {}

        def norm(to, name):
            out[to] = self.dequantise(name).reshape(-1) - np.float32(1)

        out[prefix + "embed_tokens.weight"] = self.dequantise("target.embed")
        norm(prefix + "norm.weight", "target.final_norm")
        out["lm_head.weight"] = self.dequantise("target.head")
        for layer in range(self.manifest["model"]["n_layers"]):
            p, s = f"{prefix}layers.{layer}.", f"target.layers.{layer}."
            norm(p + "input_layernorm.weight", s + "input_norm")
            norm(p + "post_attention_layernorm.weight", s + "post_norm")
            if (layer + 1) % g["attention_interval"] == 0:
                q, kv = 2 * g["n_q_heads"] * g["head_dim"], g["n_kv_heads"] * g["head_dim"]
                w = self.dequantise(s + "attn_in")
                out[p + "self_attn.q_proj.weight"] = w[:q]
                out[p + "self_attn.k_proj.weight"] = w[q:q + kv]
                out[p + "self_attn.v_proj.weight"] = w[q + kv:]
                norm(p + "self_attn.q_norm.weight", s + "q_norm")
                norm(p + "self_attn.k_norm.weight", s + "k_norm")
                out[p + "self_attn.o_proj.weight"] = self.dequantise(s + "attn_out")
            else:
                value = g["gdn_value_heads"] * g["gdn_head_dim"]
                channels, heads = 2 * g["gdn_key_heads"] * g["gdn_head_dim"] + value, g["gdn_value_heads"]
                w = self.dequantise(s + "gdn_in")
                parts = np.split(w, np.cumsum([channels, value, heads]))
                for leaf, part in zip(("qkv", "z", "b", "a"), parts):
                    out[p + f"linear_attn.in_proj_{leaf}.weight"] = part
                out[p + "linear_attn.conv1d.weight"] = self.dequantise(s + "gdn_conv").reshape(channels, 1, 4)
                out[p + "linear_attn.A_log"] = np.log(-self.dequantise(s + "gdn_decay").reshape(-1))
                out[p + "linear_attn.dt_bias"] = self.dequantise(s + "gdn_dt_bias").reshape(-1)
                out[p + "linear_attn.norm.weight"] = self.dequantise(s + "gdn_norm").reshape(-1)
                out[p + "linear_attn.out_proj.weight"] = self.dequantise(s + "gdn_out")
            if g["n_experts"] == 0:
                gate, up = self.split_pairs(self.dequantise(s + "gate_up"))
                out[p + "mlp.gate_proj.weight"], out[p + "mlp.up_proj.weight"] = gate, up
                out[p + "mlp.down_proj.weight"] = self.dequantise(s + "down")
                continue
            out[p + "mlp.gate.weight"] = self.dequantise(s + "router")
            gate, up = self.split_pairs(self.dequantise(s + "expert_gate_up"))
            out[p + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            out[p + "mlp.experts.down_proj"] = self.dequantise(s + "expert_down")
            gate, up = self.split_pairs(self.dequantise(s + "shared_gate_up"))
            out[p + "mlp.shared_expert.gate_proj.weight"], out[p + "mlp.shared_expert.up_proj.weight"] = gate, up
            out[p + "mlp.shared_expert.down_proj.weight"] = self.dequantise(s + "shared_down")
            out[p + "mlp.shared_expert_gate.weight"] = self.dequantise(s + "shared_gate")
        return out

    def published_draft_state(self):
        """The draft's tensors under the names of its checkpoint, float32."""
        d, out = self.geometry["draft"], {}
        q, kv = d["n_q_heads"] * d["head_dim"], d["n_kv_heads"] * d["head_dim"]
        out["fc.weight"] = self.dequantise("draft.context")
        out["hidden_norm.weight"] = self.dequantise("draft.hidden_norm").reshape(-1)
        out["norm.weight"] = self.dequantise("draft.final_norm").reshape(-1)
        out["candidate_selector.hidden_projection.weight"] = self.dequantise("draft.selector")
        out["candidate_selector.predecessor_codebook"] = self.dequantise("draft.predecessor")
        out["candidate_selector.successor_codebook"] = self.dequantise("draft.successor")
        for layer in range(d["n_layers"]):
            p, s = f"layers.{layer}.", f"draft.layers.{layer}."
            out[p + "input_layernorm.weight"] = self.dequantise(s + "input_norm").reshape(-1)
            out[p + "post_attention_layernorm.weight"] = self.dequantise(s + "post_norm").reshape(-1)
            for ours, theirs in (("attn_conv", "attention_conv"), ("ffn_conv", "mlp_conv")):
                out[p + theirs + ".base_kernel"] = self.dequantise(s + ours + "_base").reshape(2, d["conv_taps"], -1)
                out[p + theirs + ".kernel_projection.weight"] = self.dequantise(s + ours + "_proj")
            w = self.dequantise(s + "qkv")
            out[p + "self_attn.q_proj.weight"], out[p + "self_attn.k_proj.weight"] = w[:q], w[q:q + kv]
            out[p + "self_attn.v_proj.weight"] = w[q + kv:]
            for leaf in ("q_norm", "k_norm"):
                out[p + f"self_attn.{leaf}.weight"] = self.dequantise(s + leaf).reshape(-1)
            out[p + "self_attn.o_proj.weight"] = self.dequantise(s + "attn_out")
            gate, up = self.split_pairs(self.dequantise(s + "gate_up"))
            out[p + "mlp.gate_proj.weight"], out[p + "mlp.up_proj.weight"] = gate, up
            out[p + "mlp.down_proj.weight"] = self.dequantise(s + "down")
        return out
