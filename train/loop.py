# SPDX-License-Identifier: Apache-2.0
"""The training loop: a wall-clock budget, resumable, with a quantisation-aware tail."""

import os
import time

import numpy as np
import torch

import corpus
import loss as heads
import model
import optim
import quant

WARM, DECAY, TAIL = 0.015, 0.27, 0.87   # fractions of the budget: warm-up end, decay start, 4-bit start
FLOOR = 0.03                            # last learning rate as a fraction of the first
CHECKPOINT_SECONDS, EXPORT_SECONDS = 300, 1200


def rate(fraction):
    """Learning-rate factor at a fraction of the time budget: warm-up, constant, linear decay."""
    if fraction < WARM:
        return max(fraction / WARM, 0.02)
    if fraction < DECAY:
        return 1.0
    return max(FLOOR, 1 - (1 - FLOOR) * (fraction - DECAY) / (1 - DECAY))


class Windows:
    """Endless shuffled passes over the packed windows; the order depends on the seed only."""

    def __init__(self, ids, flags, batch, seed=11):
        self.ids, self.flags, self.batch, self.seed = ids, flags, batch, seed

    def get(self, step):
        """(ids [B, W+1] int64, learn [B, W] bool) of a step."""
        per_pass = len(self.ids) // self.batch
        order = np.random.default_rng(self.seed + step // per_pass).permutation(len(self.ids))
        at = step % per_pass * self.batch
        rows = np.sort(order[at:at + self.batch])
        ids = torch.from_numpy(self.ids[rows].astype(np.int64))
        return ids, torch.from_numpy(self.flags[rows, 1:].astype(bool))


def batch_loss(net, ids, learn):
    """Mean loss of the learned positions; the body in bf16 autocast, the softmax in fp32."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    keep = learn.flatten()
    return heads.head_loss(hidden.flatten(0, 1)[keep], net.lm_head.weight, ids[:, 1:].flatten()[keep])


def compile_layers(net):
    """Compile each layer; the two kinds of layer share their code."""
    for layer in net.model.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False)


def save_atomic(value, path):
    """torch.save under a temporary name, then rename."""
    torch.save(value, path + ".tmp")
    os.replace(path + ".tmp", path)


def train(work, minutes, batch, export, compiled=True, until=None, start=None, scale=1.0):
    """Train until the time budget is spent; returns (network, steps, tokens).

    start: a state.pt whose network is where training begins (None = random); scale: factor of the learning rates.

    work holds ids.npy and flags.npy and receives loss.tsv and state.pt. export(net) writes a
    checkpoint and is called every 20 minutes and at the end.
    """
    net = model.build()
    if start:
        net.load_state_dict(torch.load(start, weights_only=True)["net"])
    net.train()
    muon, adam = optim.make(net, scale)
    data = Windows(np.load(os.path.join(work, "ids.npy"), mmap_mode="r"),
                   np.load(os.path.join(work, "flags.npy"), mmap_mode="r"), batch)
    step, spent, state_path = 0, 0.0, os.path.join(work, "state.pt")
    if os.path.exists(state_path):
        state = torch.load(state_path, weights_only=True)
        net.load_state_dict(state["net"])
        for name, optimiser in (("muon", muon), ("adam", adam)):
            bases = [group["base"] for group in optimiser.param_groups]
            optimiser.load_state_dict(state[name])
            for group, base in zip(optimiser.param_groups, bases):
                group["base"] = base          # rates come from the code, not from the file
        step, spent = state["step"], state["spent"]
    if compiled:
        compile_layers(net)
    rule = torch.compile(quant.dequantised, dynamic=False) if compiled else quant.dequantised
    log = open(os.path.join(work, "loss.tsv"), "a")
    begin = time.time() - spent
    saved = exported = time.time()
    sums, since = [], time.time()
    while (spent := time.time() - begin) < minutes * 60 and (until is None or step < until):
        fraction = spent / (minutes * 60)
        optim.set_rates((muon, adam), rate(fraction))
        ids, learn = data.get(step)
        if fraction > TAIL:
            with quant.Swapped(net, rule):
                value = batch_loss(net, ids, learn)
                value.backward()
        else:
            value = batch_loss(net, ids, learn)
            value.backward()
        optim.update(net, muon, adam)
        step += 1
        sums.append(value.item())
        if step % 20 == 0:
            speed = 20 * batch * corpus.WINDOW / (time.time() - since)
            log.write(f"{step}\t{step * batch * corpus.WINDOW}\t{spent:.0f}\t{np.mean(sums):.4f}\t{rate(fraction):.3f}\t{speed:.0f}\t{int(fraction > TAIL)}\n")
            log.flush()
            sums, since = [], time.time()
        if time.time() - saved > CHECKPOINT_SECONDS:
            save_atomic({"net": net.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "step": step, "spent": spent}, state_path)
            saved = time.time()
        if time.time() - exported > EXPORT_SECONDS:
            export(net)
            exported = time.time()
    save_atomic({"net": net.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "step": step, "spent": spent}, state_path)
    return net, step, step * batch * corpus.WINDOW
