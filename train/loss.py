# SPDX-License-Identifier: Apache-2.0
"""Cross entropy over a large vocabulary that never keeps the logits."""

import torch

ROWS = 1024   # rows of logits alive at a time


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy of a linear head; gradients are formed in the forward pass.

    hidden: [R, D] fp32, weight: [V, D] fp32, target: [R] int64. The matrix products run in
    `dtype`, the softmax in fp32.
    """

    @staticmethod
    def forward(ctx, hidden, weight, target, dtype):
        rows = hidden.shape[0]
        head, low = weight.to(dtype), hidden.to(dtype)
        grad_h, grad_w = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for i in range(0, rows, ROWS):
            x, y = low[i:i + ROWS], target[i:i + ROWS, None]
            logits = (x @ head.t()).float()
            top = logits.amax(1, keepdim=True)
            picked = logits.gather(1, y) - top
            logits.sub_(top).exp_()
            norm = logits.sum(1, keepdim=True)
            total += (norm.log() - picked).sum()
            logits.div_(norm).scatter_add_(1, y, torch.full_like(norm, -1.0))
            delta = logits.to(dtype)
            grad_h[i:i + ROWS] = (delta @ head).float()
            grad_w += (delta.t() @ x).float()
        ctx.save_for_backward(grad_h / rows, grad_w / rows)
        return total / rows

    @staticmethod
    def backward(ctx, grad):
        grad_h, grad_w = ctx.saved_tensors
        return grad * grad_h, grad * grad_w, None, None


def head_loss(hidden, weight, target, dtype=torch.bfloat16):
    """Scalar loss of `weight` applied to hidden rows against target ids."""
    return HeadLoss.apply(hidden.float(), weight, target, dtype)
