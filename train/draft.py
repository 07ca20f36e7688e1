# SPDX-License-Identifier: Apache-2.0
"""Train nano's DFlash 2 draft: sample answers from the target, fit the draft, measure tau, export.

    python train/draft.py --target CHECKPOINT --work DIR --out DIR [--minutes 20]
    python train/draft.py ... --no-conv --no-selector      (ablations)

tau is the mean number of tokens committed per draft-and-verify step in greedy decoding, the
verifier's own token included (1 to 8).
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import chatdata
import dflash2
import model
import pyfunctions
import quality
import quant
import template

GAMMA = 4.0            # depth weight exp(-(k - 1) / GAMMA) of row k
BATCH, ANCHORS = 12, 16
LIMIT = 384            # longest sequence, prompt and answer


# ---- answers of the target -------------------------------------------------------------------

def prompts(rng, tok, count):
    """`count` prompts as id lists: chats up to the assistant's turn, and starts of functions."""
    out = []
    while len(out) < count:
        if rng.random() < 0.75:
            messages, tools = chatdata.conversation(rng)
            while messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            text = template.render(messages, tools, prompt=True, thinking=rng.random() < 0.5)
        else:
            f = pyfunctions.Function(rng)
            text = f'{f.signature()}\n    """{f.doc}"""\n'
        ids = tok.encode(text).ids
        if len(ids) <= LIMIT - 96:
            out.append(ids)
    return out


def pick(logits, temperature):
    """Next tokens [B] from logits [B, V]; temperatures [B] with 0 for greedy; top-k 20, top-p 0.95."""
    top, ids = logits.topk(20, -1)
    p = (top / temperature.clamp_min(1e-3)[:, None]).softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p > 0.95, 0)
    chosen = torch.multinomial(p, 1).squeeze(1)
    return ids.gather(1, torch.where(temperature > 0, chosen, torch.zeros_like(chosen))[:, None]).squeeze(1)


@torch.no_grad()
def answer_group(net, group, temperature, new=160):
    """Sample answers to prompts of one length; returns [(ids, prompt length)]."""
    feed, cache, start = torch.tensor(group), None, len(group[0])
    out, alive = [list(ids) for ids in group], [True] * len(group)
    for _ in range(min(new, LIMIT - start)):
        result = net(input_ids=feed, cache=cache, use_cache=True, logits_to_keep=1)
        cache, token = result.cache, pick(result.logits[:, -1].float(), temperature)
        for i, t in enumerate(token.tolist()):
            if alive[i]:
                out[i].append(t)
                alive[i] = t not in (model.EOT, model.IM_END)
        if not any(alive):
            break
        feed = token[:, None]
    return [(ids, start) for ids in out]


def sample(net, tok, count, seed, greedy_share=0.5, batch=48, deadline=None):
    """Answers of the target to `count` prompts; prompts of equal length run together."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    by_length = {}
    for ids in prompts(rng, tok, count):
        by_length.setdefault(len(ids), []).append(ids)
    groups = [rows[i:i + batch] for rows in by_length.values() for i in range(0, len(rows), batch)]
    rng.shuffle(groups)
    out = []
    for group in groups:
        if deadline and time.time() > deadline:
            break
        temperature = torch.tensor([0.0 if rng.random() < greedy_share else 1.0 for _ in group])
        out += answer_group(net, group, temperature)
    return out


# ---- one training batch ----------------------------------------------------------------------

@torch.no_grad()
def tap(net, ids, taps):
    """Target states after the tapped layers, [B, S, taps * H]."""
    states = net.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[i + 1] for i in taps], -1)


def batch_tensors(rows, block):
    """Padded ids [B, S], usable labels [B, S] (True on answers), and random anchors [B, N].

    A row's anchors are answer positions with at least one answer token after them.
    """
    size = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), size), model.EOT)
    learn = torch.zeros(len(rows), size + block, dtype=torch.bool)
    anchors = torch.zeros(len(rows), ANCHORS, dtype=torch.long)
    for i, (row, start) in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
        learn[i, start:len(row)] = True
        choices = torch.arange(start, len(row) - 1)
        anchors[i] = choices[torch.randperm(len(choices))[:ANCHORS]] if len(choices) >= ANCHORS \
            else choices[torch.randint(len(choices), (ANCHORS,))]
    return ids, learn, anchors


def losses(draft, net, features, ids, learn, anchors, selector=True):
    """(base loss, selector loss, metrics) of a batch; shapes as in batch_tensors."""
    g = draft.g
    steps = torch.arange(g.block)
    spots = anchors[..., None] + steps                                       # [B, N, R]
    padded = F.pad(ids, (0, g.block), value=model.EOT)
    tokens = padded.gather(1, spots.flatten(1)).view_as(spots)
    usable = learn.gather(1, spots.flatten(1)).view_as(spots)
    rows = dflash2.block_rows(net.model.embed_tokens, tokens[..., 0], g)
    hidden = draft(features, anchors, rows)[:, :, 1:]                        # [B, N, R-1, H]
    logits = hidden @ net.lm_head.weight.t()
    label, before = tokens[..., 1:], tokens[..., :-1]
    weight = torch.exp(-(steps[1:] - 1) / GAMMA) * usable[..., 1:]
    entropy = F.cross_entropy(logits.flatten(0, 2), label.flatten(), reduction="none").view_as(weight)
    base = (entropy * weight).sum() / weight.sum()
    unary, ids16 = logits.topk(g.candidates, -1)
    hit = ids16 == label[..., None]
    found = hit.any(-1)
    counted = weight * found
    if selector:
        score = unary + draft.candidate_selector(hidden, before, ids16)
        choice = F.cross_entropy(score.flatten(0, 2), hit.float().argmax(-1).flatten(), reduction="none").view_as(weight)
        extra = (choice * counted).sum() / counted.sum().clamp_min(1)
        best = ids16.gather(-1, score.argmax(-1, keepdim=True)).squeeze(-1)
    else:
        extra, best = base.new_zeros(()), ids16[..., 0]
    good = usable[..., 1:]
    right = (best == label) & good
    metrics = {"top1": ((ids16[..., 0] == label) & good).sum() / good.sum(), "recall": (found & good).sum() / good.sum(),
               "chosen": right.sum() / good.sum(), "length": 1 + right.cumprod(-1).sum(-1).float().mean()}
    return base, extra, {k: v.item() for k, v in metrics.items()}


# ---- measurement -----------------------------------------------------------------------------

@torch.no_grad()
def tau(draft, net, rows, selector=True):
    """(tau, share accepted at each depth) of greedy decoding along the target's own greedy answers.

    Greedy drafting never changes the text, so the answers are known beforehand: the proposals
    of every position are computed at once and the accepted steps are then walked.
    """
    steps, committed, depth = 0, 0, torch.zeros(draft.g.block - 1)
    for ids, start in rows:
        spots = torch.arange(start, len(ids) - 1)
        if len(spots) == 0:
            continue
        row = torch.tensor([ids])
        anchors = spots[None]
        features = tap(net, row, draft.g.taps)
        blocks = dflash2.block_rows(net.model.embed_tokens, row[0, spots][None], draft.g)
        hidden = draft(features, anchors, blocks)[0]
        proposed = dflash2.walk(draft, net.lm_head.weight, hidden, row[0, spots], selector).tolist()
        at = start
        while at < len(ids) - 1:
            taken = 0
            rest = ids[at + 1:]
            while taken < draft.g.block - 1 and taken < len(rest) and proposed[at - start][taken] == rest[taken]:
                depth[taken] += 1
                taken += 1
            steps += 1
            gain = min(taken + 1, len(rest))
            committed += gain
            at += gain
    return committed / max(steps, 1), (depth / max(steps, 1)).tolist()


# ---- training --------------------------------------------------------------------------------

def trained_parameters(draft, conv, selector):
    """Parameters of the chosen parts; the others keep their neutral initial values."""
    skip = () if conv else ("base_kernel", "kernel_projection")
    skip += () if selector else ("candidate_selector",)
    return [p for name, p in draft.named_parameters() if not any(word in name for word in skip)]


def four_bit(draft):
    """The draft's matrices that packages store in 4 bits (codebooks and kernels stay bf16)."""
    return [p for name, p in draft.named_parameters() if name.endswith("weight") and p.dim() == 2]


def fit(draft, net, rows, args, log):
    """AdamW with warm-up and cosine decay over a wall-clock budget; 4-bit weights at the end."""
    params = trained_parameters(draft, not args.no_conv, not args.no_selector)
    adam = torch.optim.AdamW(params, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    swap = quant.Swapped(draft)
    swap.params = four_bit(draft)
    rng, begin, step, seen = random.Random(args.seed), time.time(), 0, []
    order = []
    while (fraction := (time.time() - begin) / (args.minutes * 60)) < 1 and (args.steps is None or step < args.steps):
        if len(order) < min(BATCH, len(rows)):
            order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + rng.random() * 40)
            order = [order[i:i + BATCH] for i in range(0, max(1, len(order) - BATCH + 1), BATCH)]
            rng.shuffle(order)
            order = [i for part in order for i in part]
        picked, order = order[:BATCH], order[BATCH:]
        ids, learn, anchors = batch_tensors([rows[i] for i in picked], draft.g.block)
        for group in adam.param_groups:
            group["lr"] = args.rate * min(1, fraction / 0.04 + 0.02) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * fraction)))
        features = tap(net, ids, draft.g.taps)
        with swap if fraction > 0.8 else torch.enable_grad():
            base, extra, metrics = losses(draft, net, features, ids, learn, anchors, not args.no_selector)
            (base + args.selector_weight * extra).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        adam.step()
        draft.zero_grad(set_to_none=True)
        step += 1
        seen.append((base.item(), extra.item(), *metrics.values()))
        if step % 50 == 0:
            mean = [sum(c) / len(c) for c in zip(*seen)]
            log.write("\t".join([str(step), f"{time.time() - begin:.0f}"] + [f"{v:.4f}" for v in mean]) + "\n")
            log.flush()
            seen = []
    return step


def arguments():
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", required=True, help="exported checkpoint of the target")
    p.add_argument("--work", required=True, help="folder for the sampled answers and the log")
    p.add_argument("--out", required=True, help="folder of the exported draft")
    p.add_argument("--minutes", type=float, default=20, help="training time")
    p.add_argument("--sample-minutes", type=float, default=10, help="time limit for sampling answers")
    p.add_argument("--answers", type=int, default=12000)
    p.add_argument("--rate", type=float, default=1.5e-3)
    p.add_argument("--selector-weight", type=float, default=1.0)
    p.add_argument("--steps", type=int)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--no-conv", action="store_true")
    p.add_argument("--no-selector", action="store_true")
    return p.parse_args()


def answers(net, tok, args):
    """(training rows, validation rows); validation prompts use another seed and greedy answers."""
    path = os.path.join(args.work, "answers.json")
    if not os.path.exists(path):
        os.makedirs(args.work, exist_ok=True)
        held = sample(net, tok, min(120, args.answers), 77, greedy_share=1.0)
        known = {tuple(ids[:start]) for ids, start in held}
        rows = sample(net, tok, args.answers, 78, deadline=time.time() + args.sample_minutes * 60)
        rows = [r for r in rows if tuple(r[0][:r[1]]) not in known and len(r[0]) - r[1] >= 3]
        with open(path + ".tmp", "w") as f:
            json.dump({"train": rows, "held": held}, f)
        os.replace(path + ".tmp", path)
    data = json.load(open(path))
    return data["train"], data["held"]


def main():
    """Sample, train, measure, export."""
    args = arguments()
    torch.set_num_threads(args.threads)
    net, tok = quality.load(args.target)
    net.requires_grad_(False)
    rows, held = answers(net, tok, args)
    print(f"{len(rows)} answers, {sum(len(r[0]) - r[1] for r in rows)} tokens; {len(held)} held out", flush=True)
    draft = dflash2.DFlash2(dflash2.Geometry(), args.seed)
    with open(os.path.join(args.work, "draft.tsv"), "a") as log:
        steps = fit(draft, net, rows, args, log)
    draft.eval()
    before, _ = tau(draft, net, held, not args.no_selector)
    swap = quant.Swapped(draft)
    swap.params = four_bit(draft)
    with swap:
        after, depth = tau(draft, net, held, not args.no_selector)
    print(json.dumps({"steps": steps, "tau": round(before, 3), "tau four bits": round(after, 3),
                      "accepted by depth": [round(d, 3) for d in depth]}))
    dflash2.export(draft, args.out)


if __name__ == "__main__":
    main()
