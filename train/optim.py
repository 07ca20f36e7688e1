# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices of the layers, AdamW for everything else."""

import torch


def orthogonalise(g, steps=5):
    """Approximate U V^T of each matrix of a stack [S, N, K] by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(steps):
        square = x @ x.transpose(-1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x.transpose(-1, -2) if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal; matrices of one shape are treated as a stack."""

    def __init__(self, params, lr, momentum=0.95, decay=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                directions = []
                for p in params:
                    state = self.state[p]
                    if "m" not in state:
                        state["m"] = torch.zeros_like(p)
                    state["m"].lerp_(p.grad, 1 - group["momentum"])
                    directions.append(p.grad.lerp(state["m"], group["momentum"]))
                update = orthogonalise(torch.stack(directions))
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, u in zip(params, update):
                    p.mul_(1 - group["lr"] * group["decay"]).add_(u, alpha=-rate)


def make(net, scale=1.0):
    """(muon, adam) with base learning rates stored as `base` in every group."""
    matrices, embedding, head, rest = [], [], [], []
    for name, p in net.named_parameters():
        if "embed_tokens" in name:
            embedding.append(p)
        elif "lm_head" in name:
            head.append(p)
        elif p.dim() == 2 and min(p.shape) >= 64:
            matrices.append(p)
        else:
            rest.append(p)
    muon = Muon([{"params": matrices}], lr=0.008 * scale)
    adam = torch.optim.AdamW([{"params": embedding, "lr": 2.5e-3 * scale}, {"params": head, "lr": 1.2e-3 * scale},
                              {"params": rest, "lr": 2e-3 * scale}], betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return remember_rates(muon, adam)


def remember_rates(*optimisers):
    """Store every group's learning rate as its `base`; returns the optimisers."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["base"] = group["lr"]
    return optimisers


def set_rates(optimisers, factor):
    """Learning rates of all groups: `factor` times their base."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["base"] * factor


def update(net, muon, adam):
    """One step of both with the gradients at hand, AdamW's clipped to length 1; then the gradients are gone."""
    torch.nn.utils.clip_grad_norm_([p for g in adam.param_groups for p in g["params"]], 1.0)
    muon.step()
    adam.step()
    net.zero_grad(set_to_none=True)
