# SPDX-License-Identifier: Apache-2.0
"""Affine 4-bit quantisation in groups of 64 inputs, as the packages store it."""

import torch

GROUP = 64


def round_half_away(x):
    """Round to the nearest integer, halves away from zero."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def quantise(weight):
    """(codes 0..15, scale, bias) of a [N, K] matrix, K a multiple of 64.

    codes: [N, K/64, 64] fp32; scale and bias: [N, K/64, 1] fp32, already rounded to bf16.
    Codes are formed with the unrounded scale and bias. Zero is always exactly on a code when
    the group straddles it, because the bias is a whole number of steps.
    """
    w = weight.to(torch.bfloat16).float().reshape(weight.shape[0], -1, GROUP)
    low = w.amin(-1, keepdim=True)
    high = w.amax(-1, keepdim=True).clamp_min(0)
    low_edge = low.abs() > high.abs()
    step = ((high - low) / 15).clamp_min(1e-7)
    step = torch.where(low_edge, step, -step)
    edge = torch.where(low_edge, low, high)
    count = round_half_away(edge / step)
    whole = count != 0
    bias = torch.where(whole, edge, torch.zeros_like(edge))
    step = torch.where(whole, edge / torch.where(whole, count, torch.ones_like(count)), step)
    codes = round_half_away((w - bias) / step).clamp(0, 15)
    return codes, step.to(torch.bfloat16).float(), bias.to(torch.bfloat16).float()


def dequantised(weight):
    """The matrix as the 4-bit package holds it, fp32, same shape."""
    codes, scale, bias = quantise(weight)
    return (codes * scale + bias).reshape(weight.shape)


def quantised_parameters(net):
    """The parameters a package stores in 4 bits: every matrix, the embedding and the head."""
    return [p for name, p in net.named_parameters() if p.dim() == 2]


class Swapped:
    """While active, the 4-bit parameters hold their dequantised values.

    Gradients taken inside belong to the full-precision values that come back afterwards:
    this is the straight-through estimator.
    """

    def __init__(self, net, fast=None):
        self.params = quantised_parameters(net)
        self.rule = fast or dequantised

    def __enter__(self):
        self.saved = [p.data for p in self.params]
        for p in self.params:
            p.data = self.rule(p.data)

    def __exit__(self, *_):
        for p, data in zip(self.params, self.saved):
            p.data = data


def self_check():
    """The rule on four groups with known scales and codes."""
    i = torch.arange(64, dtype=torch.float32)
    cases = [((i - 20) / 64, 0xBD8A, 0x3F2C, None), ((-(i + 33) / 64), 0x3DCD, 0xBFC0, None),
             ((-1.0) ** i * (i % 7) / 8, 0xBDC0, 0x3F40, None), (-(i % 31) / 32, 0x3D80, 0xBF70, None)]
    words = {0: 0xDDDEEEEF, 1: 0x99999AAA, 2: 0x80F3C598, 3: 0xCCDDEEFF}
    for n, (w, s, b, _) in enumerate(cases):
        codes, scale, bias = quantise(w[None])
        bits = [int(v.to(torch.bfloat16).view(torch.int16)) & 0xFFFF for v in (scale.flatten(), bias.flatten())]
        word = sum(int(c) << (4 * j) for j, c in enumerate(codes.flatten()[:8]))
        assert bits == [s, b] and word == words[n], (n, [hex(v) for v in bits], hex(word))
    print("quant: known groups agree")


if __name__ == "__main__":
    self_check()
