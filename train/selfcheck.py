# SPDX-License-Identifier: Apache-2.0
"""Quick checks of the data generators, the packing, the delta rule and the draft's mask."""

import random

import numpy as np
import torch

import chatdata
import corpus
import delta
import dflash2
import loss
import pyfunctions
import quant
import template


def check_chats():
    """Every conversation renders, ends with a learned assistant turn and learns nothing else."""
    rng = random.Random(5)
    for _ in range(400):
        messages, tools = chatdata.conversation(rng)
        assert messages[-1]["role"] == "assistant"
        text, spans = corpus.chat_document(messages, tools)
        assert len(spans) == sum(m["role"] == "assistant" for m in messages)
        assert text[spans[-1][0]:].startswith("<think>\n") and text[:spans[-1][1]].endswith("<|im_end|>")


def check_sums():
    """Answers of the arithmetic generator are right."""
    rng = random.Random(6)
    for _ in range(500):
        left, right = chatdata.arithmetic(rng)[-1]["content"].split(".")[0].split(" = ")
        assert eval(left) == int(right)


def check_packing():
    """Windows hold every token once, in document order, and padding is not learned."""
    docs = [("x", np.arange(n, dtype=np.uint16), np.ones(n, np.uint8)) for n in (3, 600, 40, 513, 1)]
    ids, flags = corpus.pack(iter(docs), end_id=9, open_windows=2)
    assert ids.shape[1] == corpus.WINDOW + 1 and flags.sum() == sum(len(d[1]) for d in docs)


def recurrent(q, k, v, g, beta):
    """The delta rule token by token in double precision, the definition."""
    q, k = delta.unit(q.double()) * q.shape[-1] ** -0.5, delta.unit(k.double())
    r = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(r, 2), k.repeat_interleave(r, 2)
    state = torch.zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1], dtype=torch.float64)
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t].double().exp()[..., None, None]
        memory = (state * k[:, t, ..., None]).sum(-2)
        change = (v[:, t].double() - memory) * beta[:, t, :, None].double()
        state = state + k[:, t, ..., None] * change[..., None, :]
        out.append((state * q[:, t, ..., None]).sum(-2))
    return torch.stack(out, 1), state


def check_delta():
    """The chunked form equals the recurrence, also for equal keys and a short last chunk."""
    torch.manual_seed(0)
    for t, same in ((70, False), (64, True)):
        q, k, v = torch.randn(2, t, 2, 16), torch.randn(2, t, 2, 16), torch.randn(2, t, 4, 16)
        if same:
            k = k[:, :1].expand(-1, t, -1, -1)
        g, beta = -torch.rand(2, t, 4) * 0.3, torch.rand(2, t, 4)
        out, state = delta.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
        wanted, last = recurrent(q, k, v, g, beta)
        assert (out - wanted).abs().max() < 1e-4 and (state - last).abs().max() < 1e-4


def check_head_loss():
    """Loss and gradients equal those of the plain formula."""
    torch.manual_seed(0)
    x, w = torch.randn(50, 32, requires_grad=True), torch.randn(90, 32, requires_grad=True)
    y = torch.randint(0, 90, (50,))
    ours = loss.head_loss(x, w, y, torch.float32)
    plain = torch.nn.functional.cross_entropy(x @ w.t(), y)
    for a, b in zip(torch.autograd.grad(ours, (x, w)), torch.autograd.grad(plain, (x, w))):
        assert (a - b).abs().max() < 1e-5
    assert abs(ours - plain) < 1e-5


def check_draft():
    """Identity start, no leak from the anchor's own state or from later ones, blocks apart."""
    torch.manual_seed(0)
    g = dflash2.Geometry()
    draft = dflash2.DFlash2(g)
    features, anchors = torch.randn(1, 40, 3 * g.hidden), torch.tensor([[5, 20]])
    rows = torch.randn(1, 2, g.block, g.hidden)
    base = draft(features, anchors, rows)
    changed = features.clone()
    changed[:, 20:] += 1
    assert (draft(changed, anchors, rows) - base).abs().max() == 0
    other = rows.clone()
    other[:, 0] += 1
    moved = (draft(features, anchors, other) - base).abs().amax((0, 2, 3))
    assert moved[0] > 0 and moved[1] == 0
    conv = draft.layers[0].attention_conv
    x = torch.randn(1, 2, g.block, g.hidden)
    assert torch.equal(conv(x, conv.coefficients(x), 0), x)


def main():
    """All checks."""
    pyfunctions.self_check()
    template.self_check()
    quant.self_check()
    for check in (check_chats, check_sums, check_packing, check_delta, check_head_loss, check_draft):
        check()
        print(check.__name__, "ok")


if __name__ == "__main__":
    main()
