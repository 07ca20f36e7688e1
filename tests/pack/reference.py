# SPDX-License-Identifier: Apache-2.0
"""The quantiser and number formats in numpy, written from docs/FORMATS.md, for comparison."""
import numpy as np

GROUP = 64


def to_bf16(values):
    """float32 to bf16 bit patterns, round to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_half_away(x):
    """Exact for |x| < 2^22 in float32."""
    magnitude = np.abs(x)
    whole = np.trunc(magnitude)
    return np.copysign(whole + (magnitude - whole >= np.float32(0.5)), x).astype(np.float32)


def quantise(values, bits):
    """float32 [.., cols] to (codes uint8 [.., cols], scales, biases bf16 bits [.., cols/64])."""
    top = np.float32(2 ** bits - 1)
    w = values.astype(np.float32).reshape(values.shape[:-1] + (-1, GROUP))
    lo = w.min(-1)
    hi = np.maximum(np.float32(0), w.max(-1))
    low_edge = np.abs(lo) > np.abs(hi)
    scale = np.maximum((hi - lo) / top, np.float32(1e-7))
    scale = np.where(low_edge, scale, -scale)
    edge = np.where(low_edge, lo, hi)
    steps = round_half_away(edge / scale)
    nonzero = steps != 0
    scale = np.where(nonzero, edge / np.where(nonzero, steps, np.float32(1)), scale).astype(np.float32)
    bias = np.where(nonzero, edge, np.float32(0)).astype(np.float32)
    codes = np.clip(round_half_away((w - bias[..., None]) / scale[..., None]), 0, top).astype(np.uint8)
    return codes.reshape(values.shape), to_bf16(scale), to_bf16(bias)


def pack_codes(codes, bits):
    """uint8 codes to bytes in input order, even input in the low nibble."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
