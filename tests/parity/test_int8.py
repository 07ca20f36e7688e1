# SPDX-License-Identifier: Apache-2.0
"""The shipped arithmetic (int8 activations and KV) against the oracle on the embedded model.

Bar: mean KL divergence at most 0.002 nats and the same first token at 99 % of 2,000 held-out positions.
SPLASH_NANO names another package of the nano shape (default: models/nano)."""

import os
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from conftest import ROOT

N_TOKENS = 2000
MEAN_KL, TOP_1 = 0.002, 0.99


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_nano(engine):
    package = Path(os.environ.get("SPLASH_NANO", ROOT / "models" / "nano"))
    assert (package / "manifest.json").exists(), f"no package in {package}"
    text = (ROOT / "models" / "nano" / "heldout.txt").read_text(encoding="utf-8")
    tokens = Tokenizer.from_file(str(package / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert len(tokens) >= N_TOKENS, f"heldout.txt has {len(tokens)} tokens"
    tokens = tokens[:N_TOKENS]
    oracle = log_softmax(engine.logits(package, tokens, chunk=128))
    int8 = log_softmax(engine.logits(package, tokens, tier="int8", chunk=128))

    surprise = -oracle[np.arange(N_TOKENS - 1), tokens[1:]].mean()
    kl = (np.exp(oracle) * (oracle - int8)).sum(axis=1)
    agreement = (oracle.argmax(axis=1) == int8.argmax(axis=1)).mean()
    print(
        f"mean KL {kl.mean():.6f} nats, median {np.median(kl):.6f}, largest {kl.max():.4f}; "
        f"first token agrees at {agreement:.2%}; the text costs {surprise:.3f} nats a token"
    )
    # An untrained model would make the comparison empty: log(8192) is 9.01.
    assert surprise < 5
    assert kl.mean() > 0, "both tiers gave the same logits: the int8 path did not run"
    assert kl.mean() <= MEAN_KL
    assert agreement >= TOP_1
