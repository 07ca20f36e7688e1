# SPDX-License-Identifier: Apache-2.0
"""The DFlash 2 draft network: shapes, forward pass, selector, walk, export.

A draft proposes the next seven tokens of its target in one pass over a block of eight rows
(the anchor token and seven masks). Its keys and values also cover the past, which it sees
through hidden states tapped from the target. A selector then links neighbouring proposals.

Shape letters: B sequences, S context positions, N blocks per sequence, R rows per block (8),
H hidden width, V vocabulary, K candidates (16), D selector rank.
"""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


@dataclass
class Geometry:
    """Sizes of a draft; the defaults are those of nano's."""

    hidden: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    vocab: int = 8192
    block: int = 8
    window: int = 2048
    taps: tuple = (1, 4, 6)          # target layers whose outputs are read
    target_layers: int = 8
    group: int = 16                  # channels that share a dynamic coefficient
    rank: int = 64
    candidates: int = 16
    mask_token: int = 8185
    theta: float = 1e7
    eps: float = 1e-6


def geometry_of(path):
    """Sizes from a config.json of the published draft layout."""
    with open(path, encoding="utf-8") as f:
        c = json.load(f)
    d = c["dflash_config"]
    return Geometry(hidden=c["hidden_size"], layers=c["num_hidden_layers"], heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"],
                    head_dim=c["head_dim"], intermediate=c["intermediate_size"], vocab=c["vocab_size"], block=d["block_size"],
                    window=c["sliding_window"], taps=tuple(d["target_layer_ids"]), target_layers=c["num_target_layers"],
                    group=d["conv_group_size"], rank=d["selector_rank"], candidates=d["selector_top_k"], mask_token=d["mask_token_id"],
                    theta=c["rope_parameters"]["rope_theta"], eps=c["rms_norm_eps"])


class Norm(nn.Module):
    """RMS norm with a plain weight over the last axis."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class DynamicConv(nn.Module):
    """Two-tap convolution along the rows of a block with input-dependent group coefficients."""

    def __init__(self, g):
        super().__init__()
        self.groups, self.width = g.hidden // g.group, g.group
        self.base_kernel = nn.Parameter(torch.zeros(2, 2, g.hidden))       # [side, tap, channel]
        self.kernel_projection = nn.Linear(g.hidden, 4 * self.groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1
            self.kernel_projection.weight.zero_()

    def coefficients(self, n):
        """[.., R, H] normalised sublayer input -> [.., R, 2 sides, 2 taps, groups]."""
        return self.kernel_projection(n).unflatten(-1, (2, 2, self.groups))

    def forward(self, x, dyn, side):
        """Row t: x[t] times tap 0 plus x[t-1] times tap 1, both with row t's coefficients."""
        kernel = self.base_kernel[side] + dyn[..., side, :, :].repeat_interleave(self.width, -1)
        before = F.pad(x, (0, 0, 1, 0))[..., :-1, :]
        return x * kernel[..., 0, :] + before * kernel[..., 1, :]


def rotary(x, positions, theta):
    """Rotate pairs (i, i + d/2) of [B, heads, T, d]; positions is [B, T]."""
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * freq
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class Attention(nn.Module):
    """Block rows attend to the context and to all rows of their own block."""

    def __init__(self, g):
        super().__init__()
        self.g = g
        self.q_proj = nn.Linear(g.hidden, g.heads * g.head_dim, bias=False)
        self.k_proj = nn.Linear(g.hidden, g.kv_heads * g.head_dim, bias=False)
        self.v_proj = nn.Linear(g.hidden, g.kv_heads * g.head_dim, bias=False)
        self.o_proj = nn.Linear(g.heads * g.head_dim, g.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(g.head_dim, g.eps), Norm(g.head_dim, g.eps)

    def _heads(self, x, count):
        """[B, T, count * d] -> [B, T, count, d]."""
        return x.unflatten(-1, (count, self.g.head_dim))

    def forward(self, y, context, where, past, mask):
        """y: [B, N, R, H] rows at positions where [B, N*R]; context: [B, S, H] at past [B, S].

        mask: [B, 1, N*R, S + N*R], True where a key is visible.
        """
        g, rows = self.g, y.flatten(1, 2)
        both = torch.cat((context, rows), 1)
        spots = torch.cat((past, where), 1)
        q = rotary(self.q_norm(self._heads(self.q_proj(rows), g.heads)).transpose(1, 2), where, g.theta)
        k = rotary(self.k_norm(self._heads(self.k_proj(both), g.kv_heads)).transpose(1, 2), spots, g.theta)
        v = self._heads(self.v_proj(both), g.kv_heads).transpose(1, 2)
        k, v = (x.repeat_interleave(g.heads // g.kv_heads, 1) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(-2)).unflatten(1, y.shape[1:3])


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, g):
        super().__init__()
        self.gate_proj = nn.Linear(g.hidden, g.intermediate, bias=False)
        self.up_proj = nn.Linear(g.hidden, g.intermediate, bias=False)
        self.down_proj = nn.Linear(g.intermediate, g.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and SwiGLU, each between the two sides of its convolution."""

    def __init__(self, g):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(g.hidden, g.eps), Norm(g.hidden, g.eps)
        self.attention_conv, self.mlp_conv = DynamicConv(g), DynamicConv(g)
        self.self_attn, self.mlp = Attention(g), Mlp(g)

    def forward(self, x, context, where, past, mask):
        n = self.input_layernorm(x)
        dyn = self.attention_conv.coefficients(n)
        mixed = self.self_attn(self.attention_conv(n, dyn, 0), context, where, past, mask)
        x = x + self.attention_conv(mixed, dyn, 1)
        n = self.post_attention_layernorm(x)
        dyn = self.mlp_conv.coefficients(n)
        return x + self.mlp_conv(self.mlp(self.mlp_conv(n, dyn, 0)), dyn, 1)


class Selector(nn.Module):
    """Low-rank scores of a candidate given the token before it."""

    def __init__(self, g):
        super().__init__()
        self.hidden_projection = nn.Linear(g.hidden, g.rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(g.vocab, g.rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.zeros(g.vocab, g.rank))

    def forward(self, hidden, before, candidates):
        """hidden [.., H], before [..] token ids, candidates [.., K] -> edge scores [.., K]."""
        context = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        return (self.successor_codebook[candidates] @ context.unsqueeze(-1)).squeeze(-1)


class DFlash2(nn.Module):
    """The trainable part: no embedding and no head, both belong to the target."""

    def __init__(self, g=None, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.g = g = g or Geometry()
        self.fc = nn.Linear(len(g.taps) * g.hidden, g.hidden, bias=False)
        self.hidden_norm, self.norm = Norm(g.hidden, g.eps), Norm(g.hidden, g.eps)
        self.layers = nn.ModuleList(Layer(g) for _ in range(g.layers))
        self.candidate_selector = Selector(g)
        for name, p in self.named_parameters():
            if name.endswith("weight") and p.dim() == 2 and "kernel_projection" not in name:
                nn.init.normal_(p, std=0.02)

    def context(self, features):
        """Tapped target states [B, S, taps * H] -> [B, S, H]."""
        return self.hidden_norm(self.fc(features))

    def forward(self, features, anchors, rows):
        """Normalised hidden rows [B, N, R, H].

        features: [B, S, taps * H]; anchors: [B, N] positions; rows: [B, N, R, H] embeddings
        of the anchor tokens and masks.
        """
        b, s = features.shape[:2]
        steps = torch.arange(rows.shape[2])
        where = (anchors[..., None] + steps).flatten(1)
        past = torch.arange(s).expand(b, s)
        mask = visibility(anchors, s, rows.shape[2], self.g.window)
        context, x = self.context(features), rows
        for layer in self.layers:
            x = layer(x, context, where, past, mask)
        return self.norm(x)


def visibility(anchors, s, r, window):
    """[B, 1, N*R, S + N*R] mask: strictly before the anchor and in the window, or the same block."""
    n = anchors.shape[1]
    start = anchors.repeat_interleave(r, 1)[..., None]                  # [B, N*R, 1]
    where = start + torch.arange(r).repeat(n)[None, :, None]
    j = torch.arange(s)
    past = (j < start) & (where - j < window)
    block = torch.arange(n).repeat_interleave(r)
    own = (block[:, None] == block[None, :]).expand(len(anchors), -1, -1)
    return torch.cat((past, own), -1)[:, None]


def block_rows(embedding, tokens, g):
    """Input rows [B, N, R, H] of blocks whose first tokens are tokens [B, N]."""
    ids = torch.full((*tokens.shape, g.block), g.mask_token)
    ids[..., 0] = tokens
    return embedding(ids)


@torch.no_grad()
def walk(draft, head, hidden, tokens, selector=True):
    """Greedy proposals [N, R-1] of blocks with hidden rows [N, R, H] and anchor tokens [N]."""
    unary, ids = (hidden[:, 1:] @ head.t()).topk(draft.g.candidates, -1)
    if not selector:
        return ids[..., 0]
    out, before = [], tokens
    for r in range(ids.shape[1]):
        score = unary[:, r] + draft.candidate_selector(hidden[:, r + 1], before, ids[:, r])
        before = ids[:, r].gather(1, score.argmax(1, keepdim=True)).squeeze(1)
        out.append(before)
    return torch.stack(out, 1)


def published_config(g):
    """config.json of a draft checkpoint."""
    return {
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
        "hidden_size": g.hidden, "num_hidden_layers": g.layers, "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads, "head_dim": g.head_dim, "intermediate_size": g.intermediate,
        "hidden_act": "silu", "vocab_size": g.vocab, "rms_norm_eps": g.eps, "attention_bias": False,
        "tie_word_embeddings": False, "max_position_embeddings": 65536, "is_causal": False,
        "layer_types": ["sliding_attention"] * g.layers, "sliding_window": g.window, "use_sliding_window": True,
        "num_target_layers": g.target_layers,
        "rope_parameters": {"rope_theta": g.theta, "rope_type": "default"},
        "dflash_config": {"block_size": g.block, "mask_token_id": g.mask_token, "target_layer_ids": list(g.taps),
                          "conv_kernel_size": 2, "conv_group_size": g.group, "selector_rank": g.rank,
                          "selector_top_k": g.candidates},
    }


def export(draft, folder):
    """Write config.json and model.safetensors (bf16) to a temporary sibling, then move it into place."""
    folder = os.path.abspath(folder)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    temp = tempfile.mkdtemp(prefix=".export-", dir=os.path.dirname(folder))
    os.chmod(temp, 0o755)
    with open(os.path.join(temp, "config.json"), "w") as f:
        json.dump(published_config(draft.g), f, indent=2)
        f.write("\n")
    weights = os.path.join(temp, "model.safetensors")
    save_file({k: v.detach().to(torch.bfloat16).contiguous() for k, v in draft.state_dict().items()}, weights, metadata={"format": "pt"})
    os.chmod(weights, 0o644)
    old = folder + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(folder):
        os.rename(folder, old)
    os.rename(temp, folder)
    shutil.rmtree(old, ignore_errors=True)


def load(folder):
    """Draft in fp32 from an exported checkpoint."""
    draft = DFlash2(geometry_of(os.path.join(folder, "config.json")))
    draft.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()})
    return draft.eval()
