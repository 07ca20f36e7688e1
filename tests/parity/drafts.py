# SPDX-License-Identifier: Apache-2.0
"""Random DFlash 2 drafts, decode steps played by draft_tool, and the same steps by the PyTorch draft.

The draft is train/dflash2.py as it stands, in double and on the package's own weights. Outside the oracle tier the
engine keeps context keys and values as int8; the ring is then compared by itself (Reference.block returns what it
should hold), and the block is computed over what the ring holds."""

import importlib.util
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import checkpoint
import reference
import shapes
from package import Package

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK, CANDIDATES = 8, 16


def _dflash2():
    spec = importlib.util.spec_from_file_location("dflash2", ROOT / "train" / "dflash2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dflash2 = _dflash2()

_TOY = dict(hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=192, vocab=512, window=64)
GEOMETRIES = {
    "toy": dflash2.Geometry(**_TOY, mask_token=506),
    "nano": dflash2.Geometry(),
}


def _randomise(draft, generator):
    """Weights far from the identity that training starts with: every term of the formulas counts."""
    for name, p in draft.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("base_kernel"):
            p += 0.3 * noise
        elif name.endswith("kernel_projection.weight"):
            p.copy_(0.3 * noise / p.shape[1] ** 0.5)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            p.copy_(1.4 + 0.2 * noise)
        elif name.endswith("norm.weight"):
            p.copy_(1 + 0.2 * noise)
        elif name.endswith("codebook"):
            p.copy_(0.6 * noise)
        else:
            p.copy_(noise / p.shape[1] ** 0.5)


def write(folder, shape, seed=23):
    """A draft checkpoint with random weights, by the exporter that trained drafts go through."""
    draft = dflash2.DFlash2(GEOMETRIES[shape])
    with torch.no_grad():
        _randomise(draft, torch.Generator().manual_seed(seed))
    dflash2.export(draft, folder)


@dataclass
class Script:
    """One lane: a prompt, then steps of (anchor, rows, retained); temperature 0 walks greedily."""

    prompt: list
    steps: list
    temperature: float = 0.0
    seed: int = 1

    def uniforms(self):
        return np.random.default_rng(self.seed).random((len(self.steps), 16))

    def pack(self):
        out = struct.pack("<IIf", len(self.prompt), len(self.steps), self.temperature)
        out += np.asarray(self.prompt, "<u4").tobytes()
        for step, uniforms in zip(self.steps, self.uniforms()):
            out += struct.pack("<III", *(int(v) for v in step)) + uniforms.astype("<f8").tobytes()
        return out


def _record(g):
    width = len(g.taps) * g.hidden
    return np.dtype(
        [
            ("position", "<u4"),
            ("tokens", "<u4", BLOCK),
            ("n_q", "<u4", BLOCK - 1),
            ("result", "<u4", BLOCK),
            ("retained", "<u4"),
            ("hidden", "<f4", (BLOCK, g.hidden)),
            ("selector", "<f4", (BLOCK, g.rank)),
            ("candidates", "<u4", (BLOCK, CANDIDATES)),
            ("scores", "<f4", (BLOCK, CANDIDATES)),
            ("q", "<f4", (BLOCK - 1, CANDIDATES)),
            ("features", "<f4", (BLOCK, width)),
            ("ring", "<f4", (g.layers, 2, g.kv_heads, g.window, g.head_dim)),
        ]
    )


class Drafter:
    """draft_tool; every run's files lie in one scratch folder."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = folder

    def call(self, *words):
        """None, or the tool's complaint."""
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.stderr.strip().removeprefix("draft_tool: ") if done.returncode else None

    def play(self, model, scripts, tier="oracle", chunk=32, threads=1):
        """[lane] -> array of one record per step; lanes run side by side."""
        paths = [self.folder / f"script{i}" for i in range(len(scripts))]
        for path, script in zip(paths, scripts):
            path.write_bytes(script.pack())
        assert self.call("run", model.package, tier, chunk, threads, *paths) is None
        return [np.fromfile(f"{path}.out", _record(model.g)) for path in paths]


class Model:
    """A packed random pair: the package, target and draft in PyTorch on the package's weights."""

    def __init__(self, drafter, folder, shape):
        self.shape, self.g = shape, GEOMETRIES[shape]
        self.config = shapes.text_config(shape)
        checkpoint.write(folder / "checkpoint", shape, seed=11)
        write(folder / "draft", shape)
        self.package = folder / "package"
        complaint = drafter.call("pack", folder / "checkpoint", folder / "draft", self.package)
        assert complaint is None, complaint
        package = Package(self.package)
        self.weights, self.draft_weights = package.published(self.config), package.published_draft()
        self.reference = Reference(self)

    def tokens(self, n, seed=5):
        return np.random.default_rng(seed).integers(0, self.config["vocab_size"], n)


@dataclass
class Block:
    """What the formulas say of one block; rows 0..7, proposals from rows 1..7."""

    hidden: np.ndarray  # [8][H] after the draft's layers
    selector: np.ndarray  # [8][rank]
    logits: np.ndarray  # [8][V]
    context: np.ndarray  # [layers][k, v][kv heads][L][dim], not rounded


class _Ring:
    """torch.nn.functional as dflash2.py sees it; attention finds the ring's numbers in the place of the context's."""

    def __init__(self, real, ring, group):
        self.real, self.ring, self.group = real, ring, group
        self.seen = []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def scaled_dot_product_attention(self, q, k, v, attn_mask):
        layer = len(self.seen)
        n = k.shape[2] - q.shape[2]
        self.seen.append(torch.stack([x[0, :: self.group, :n] for x in (k, v)]))
        if self.ring is not None:
            held = torch.from_numpy(self.ring[layer]).repeat_interleave(self.group, 1)[:, None]
            k, v = (torch.cat((h, x[:, :, n:]), 2) for h, x in zip(held, (k, v)))
        return self.real.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


class Reference:
    """Target and draft in double."""

    def __init__(self, model):
        self.g = model.g
        self.target = reference.model_of(model.config, model.weights)
        self.draft = dflash2.DFlash2(model.g)
        self.draft.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in model.draft_weights.items()})
        self.draft.double().eval()
        self.embed = torch.from_numpy(model.weights["model.embed_tokens.weight"]).double()
        self.head = torch.from_numpy(model.weights["lm_head.weight"]).double()

    def features(self, tokens):
        """[n][taps * H] of a text."""
        return reference.hidden_after(self.target, tokens, self.g.taps)

    def block(self, features, anchor, ring=None):
        """Context of len(features) positions; ring: [layers][k, v][kv heads][L][dim] to use in the context's place."""
        g, held = self.g, _Ring(torch.nn.functional, ring, self.g.heads // self.g.kv_heads)
        inputs = []
        hook = self.draft.norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        before, dflash2.F = dflash2.F, held
        try:
            with torch.no_grad():
                rows = dflash2.block_rows(lambda ids: self.embed[ids], torch.tensor([[int(anchor)]]), g)
                where = torch.tensor([[len(features)]])
                out = self.draft(torch.from_numpy(features)[None], where, rows)[0, 0]
                selector = self.draft.candidate_selector.hidden_projection(out)
        finally:
            dflash2.F = before
            hook.remove()
        self.last = out
        return Block(
            inputs[0][0, 0].numpy(), selector.numpy(), (out @ self.head.T).numpy(), torch.stack(held.seen).numpy()
        )

    def walk(self, anchor):
        """Greedy proposals of the last block, by the training code's walk."""
        return dflash2.walk(self.draft, self.head, self.last[None], torch.tensor([int(anchor)]))[0].numpy()

    def edges(self, before, selector, ids, unary):
        """Scores of candidates ids after the token `before`."""
        selector_module = self.draft.candidate_selector
        context = selector_module.predecessor_codebook[int(before)].detach().numpy() * selector
        return unary + selector_module.successor_codebook[ids.astype(np.int64)].detach().numpy() @ context
