# SPDX-License-Identifier: Apache-2.0
"""The first minutes of nano: a fresh network learns to look back before it learns anything else.

    python train/induce.py --out INDUCED.pt

A model of this size does not come upon copying by itself in ten million tokens of text. So it starts with the weights of
a lookup (model.recall_start) and continues repeated random tokens for a few minutes. The rates are low because nothing
but the copies can be predicted: at high ones the noise of the rest moves every weight further than the signal does.
"""

import argparse
import time

import numpy as np
import torch

import corpus
import loop
import model
import optim

SCALE, WARM_STEPS = 0.25, 30          # learning rates against those of optim.make; steps of warm-up


def arguments():
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="file of the network")
    p.add_argument("--minutes", type=float, default=4)
    p.add_argument("--batch", type=int, default=4, help="windows of 512 tokens per step")
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def fit(net, minutes, batch):
    """Train on repeated random tokens; prints the mean loss of every 20 steps."""
    muon, adam = optim.make(net, SCALE)
    rng = np.random.default_rng(5)
    begin, seen, step = time.time(), [], 0
    while time.time() - begin < minutes * 60:
        optim.set_rates((muon, adam), min(1, (step + 1) / WARM_STEPS))
        ids, flags = corpus.repeated_tokens(batch, model.ORDINARY, rng)
        value = loop.batch_loss(net, torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(flags[:, 1:].astype(bool)))
        value.backward()
        optim.update(net, muon, adam)
        step += 1
        seen.append(value.item())
        if step % 20 == 0:
            print(f"{step}\t{time.time() - begin:.0f}\t{np.mean(seen):.4f}", flush=True)
            seen = []


def main():
    """Start, train, save."""
    args = arguments()
    torch.set_num_threads(args.threads)
    net = model.build()
    model.recall_start(net)
    net.train()
    loop.compile_layers(net)
    fit(net, args.minutes, args.batch)
    loop.save_atomic({"net": net.state_dict()}, args.out)


if __name__ == "__main__":
    main()
