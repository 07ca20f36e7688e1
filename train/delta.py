# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule and causal convolution for training on a CPU.

The recurrence of one value head (state S is [d key, d value], decay exp(g)):

    S = exp(g_t) S;  delta = beta_t (v_t - S^T k_t);  S = S + k_t delta^T;  o_t = S^T q_t

is evaluated chunk by chunk. Everything inside a chunk is a batched matrix
product over all chunks at once; only the state passes from chunk to chunk.
"""

import torch
import torch.nn.functional as F

CHUNK = 32


def unit(x, eps=1e-6):
    """Scale the last axis to length one: x / sqrt(sum x^2 + eps)."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + L for strictly lower triangular L [..., c, c], c a power of two >= 8.

    Diagonal blocks of 8 are inverted by (I + N)(I + N^2)(I + N^4) with N = -L of the block;
    the blocks below them by the same product over block columns. Matrix products only.
    """

    @staticmethod
    def forward(ctx, low):
        c = low.shape[-1]
        eye = torch.eye(c, dtype=low.dtype)
        block = torch.arange(c) // 8
        near = (block[:, None] == block[None, :]).to(low.dtype)
        inner = _power_sum(-low * near, eye, 8)
        outer = _power_sum(-(inner @ (low * (1 - near))), eye, c // 8)
        inverse = outer @ inner
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        flipped = ctx.saved_tensors[0].transpose(-1, -2)
        return -(flipped @ grad @ flipped).tril(-1)


def _power_sum(n, eye, count):
    """I + n + n^2 + ... + n^(count - 1), count a power of two."""
    out, power = eye + n, n
    for _ in range(count.bit_length() - 2):
        power = power @ power
        out = out + out @ power
    return out


def _chunks(x, c):
    """[B, T, H, ...] -> [B, H, T/c, c, ...], T already a multiple of c."""
    x = x.transpose(1, 2)
    return x.reshape(*x.shape[:2], -1, c, *x.shape[3:])


def chunk_gated_delta_rule(query, key, value, g, beta, chunk_size=CHUNK, initial_state=None,
                           output_final_state=False, use_qk_l2norm_in_kernel=False, **_):
    """Chunked gated delta rule in fp32, same contract as the function it replaces.

    query, key: [B, T, Hk, dk]; value: [B, T, Hv, dv]; g (log decay, <= 0), beta: [B, T, Hv].
    Returns (o [B, T, Hv, dv] in the dtype of query, final state [B, Hv, dk, dv] or None).
    """
    with torch.autocast("cpu", enabled=False):
        return _delta_rule(query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel)


def _delta_rule(query, key, value, g, beta, initial_state, output_final_state, normalise):
    """The computation itself, shapes as above."""
    c, dtype = CHUNK, query.dtype
    b, t, hk, dk = key.shape
    hv, dv = value.shape[-2:]
    q, k, v, g, beta = (x.float() for x in (query, key, value, g, beta))
    if normalise:
        q, k = unit(q), unit(k)
    q = q * dk ** -0.5
    if hk != hv:
        q, k = (x.repeat_interleave(hv // hk, dim=2) for x in (q, k))
    pad = -t % c
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    q, k, v, g, beta = (_chunks(x, c) for x in (q, k, v, g, beta))

    total = g.cumsum(-1)                                         # [B, H, N, c]
    lower = torch.ones(c, c, dtype=torch.bool, device=q.device).tril()
    gap = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    bk = k * beta.unsqueeze(-1)
    system = (bk @ k.transpose(-1, -2)) * gap
    right = torch.cat((v * beta.unsqueeze(-1), bk * total.exp().unsqueeze(-1)), -1)
    solved = UnitLowerInverse.apply(system.tril(-1)) @ right
    u, w = solved[..., :dv], solved[..., dv:]                    # [B, H, N, c, d]
    inside = (q @ k.transpose(-1, -2)) * gap
    q_in = q * total.exp().unsqueeze(-1)
    last = total[..., -1:]
    k_out = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    keep = last.exp().unsqueeze(-1)                              # [B, H, N, 1, 1]

    state = initial_state.float() if initial_state is not None else q.new_zeros(b, hv, dk, dv)
    news, carried = [], []
    for un, wn, qn, kn, dn in zip(*(x.unbind(2) for x in (u, w, q_in, k_out, keep))):
        new = un - wn @ state
        carried.append(qn @ state)
        news.append(new)
        state = dn * state + kn @ new
    out = torch.stack(carried, 2) + inside @ torch.stack(news, 2)
    out = out.reshape(b, hv, -1, dv)[:, :, :t].transpose(1, 2)
    return out.to(dtype), state if output_final_state else None


def causal_conv(x, weight, bias=None, activation="silu", **_):
    """Depthwise causal convolution of width 4, then SiLU; x: [B, C, T], weight: [C, 4]."""
    rows = x.transpose(1, 2)
    taps, t = weight.shape[1], rows.shape[1]
    padded = F.pad(rows, (0, 0, taps - 1, 0))
    out = sum(padded[:, j:j + t] * weight[:, j] for j in range(taps))
    return F.silu(out).transpose(1, 2)


def install(module):
    """Put the two functions above into transformers' modelling module."""
    module.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
    module.causal_conv1d_fn = causal_conv
