# SPDX-License-Identifier: Apache-2.0
"""Make the nano checkpoint: corpus -> tokenizer -> training -> 4-bit tail -> export.

    python train/nano.py --work DIR --out DIR --minutes 50 --start INDUCED.pt --scale 0.7

Every stage that has already left its files in --work is skipped; training resumes.
"""

import argparse
import os
import random

import numpy as np
import torch
from tokenizers import Tokenizer

import corpus
import loop
import maketokenizer
import model

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = os.path.join(HERE, "..", "models", "nano", "quality_prompts.jsonl")
SIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def arguments():
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True, help="folder for the corpus, the optimiser state and the log")
    p.add_argument("--out", required=True, help="folder of the exported checkpoint")
    p.add_argument("--minutes", type=float, default=50, help="training time; the schedule is fitted to it")
    p.add_argument("--characters", type=int, default=26_000_000, help="size of the corpus")
    p.add_argument("--batch", type=int, default=8, help="windows of 512 tokens per step")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--gsm8k", help="GSM8K train.jsonl (optional)")
    p.add_argument("--manual", help="folder with *.rst.txt documentation sources (optional)")
    p.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    p.add_argument("--steps", type=int, help="stop after this many steps (smoke tests)")
    p.add_argument("--start", help="network the first step starts from: the file of induce.py")
    p.add_argument("--scale", type=float, default=1.0, help="factor of all learning rates")
    p.add_argument("--prepare-only", action="store_true")
    return p.parse_args()


def prepare(args):
    """Corpus and tokenizer; leaves the side files, ids.npy and flags.npy in --work."""
    if os.path.exists(os.path.join(args.work, "flags.npy")):
        return
    os.makedirs(args.work, exist_ok=True)
    docs = corpus.documents(args.characters, 1, corpus.held_prompts(PROMPTS), args.gsm8k, args.manual)
    if not os.path.exists(os.path.join(args.work, SIDE[0])):
        maketokenizer.write(maketokenizer.from_documents(docs), args.work)
    tok = Tokenizer.from_file(os.path.join(args.work, SIDE[0]))
    ids, flags = corpus.pack(corpus.encode(tok, docs, model.EOT), model.EOT)
    drill = corpus.repeated_tokens(int(len(ids) * corpus.REPEATED), model.ORDINARY, np.random.default_rng(2))
    ids, flags = np.concatenate((ids, drill[0])), np.concatenate((flags, drill[1]))
    np.save(os.path.join(args.work, "ids.npy"), ids)
    np.save(os.path.join(args.work, "flags.npy"), flags)
    print(f"corpus: {len(docs)} documents, {len(ids)} windows, {ids.size} tokens, {flags.mean():.2f} learned", flush=True)


def main():
    """All stages."""
    args = arguments()
    torch.set_num_threads(args.threads)
    prepare(args)
    sides = [os.path.join(args.work, name) for name in SIDE]

    def export(net):
        model.export(net, args.out, sides)

    if not os.path.exists(args.out):
        export(model.build())
    if args.prepare_only:
        return
    net, steps, tokens = loop.train(args.work, args.minutes, args.batch, export, not args.no_compile, args.steps,
                                    args.start, args.scale)
    export(net)
    print(f"done: {steps} steps, {tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
