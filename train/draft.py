# SPDX-License-Identifier: Apache-2.0
"""Train the DFlash 2 draft of a checkpoint of the family (nano's by default): sample answers from the target, fit the draft, measure tau, export.

    python train/draft.py --target CHECKPOINT --work DIR --out DIR [--minutes 20] [--server URL]
    python train/draft.py ... --no-conv --no-selector      (ablations)
    python train/draft.py --target CHECKPOINT --out DIR --measure bench/prompts/python.jsonl ...

With --server the answers come from a running `splash serve` of the packed target, which is much faster than the network
in Python and gives exactly the text the packed target writes. The tapped states of all answers are computed once and
kept in --work (2 bytes a number), so that a training step runs the draft alone.

tau is the mean number of tokens committed per draft-and-verify step in greedy decoding, the
verifier's own token included (1 to 8).
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import time
import urllib.request

import numpy as np
import torch
import torch.nn.functional as F

import chatdata
import corpus
import dflash2
import model
import optim
import pyfunctions
import quality
import quant
import template

GAMMA = 4.0            # depth weight exp(-(k - 1) / GAMMA) of row k
BATCH, ANCHORS = 12, 16
LIMIT = 384            # longest sequence, prompt and answer


# ---- answers of the target -------------------------------------------------------------------

def library_starts():
    """First lines of the standard library's functions, up to the end of the docstring: code the target has hardly seen."""
    out = []
    for text in corpus.library_documents():
        for quotes in ('"""', "'''"):
            first = text.find(quotes)
            last = text.find(quotes, first + 3)
            if text.startswith(("def ", "class ")) and 0 < first < 200 and last > 0:
                out.append(text[:last + 3] + "\n")
                break
    return out


def file_to_repeat(rng):
    """A request to repeat a file of code with one change, worded in several ways."""
    function = pyfunctions.Function(rng)
    source = "\n\n".join([function.source(doc=rng.random() < 0.6)] + [pyfunctions.Function(rng).source(doc=False) for _ in range(rng.randint(0, 1))])
    new = f"{rng.choice(chatdata.WORDS)}_{rng.choice(chatdata.WORDS)}"
    ask = rng.choice(("Repeat this file with one change: rename {} to {}.", "Repeat this file with one change: rename the function {} to {}. Print the whole file and nothing else.",
                      "Print this file with {} renamed to {}.", "Repeat this code with {} renamed to {}:")).format(function.name, new)
    fence = rng.choice(("```python", "```"))
    return [{"role": "user", "content": f"{ask}\n\n{fence}\n{source.strip()}\n```"}]


def prompts(rng, tok, count):
    """`count` prompts as id lists: chats up to the assistant's turn, files to repeat, and starts of functions."""
    out, library = [], library_starts()
    while len(out) < count:
        roll = rng.random()
        if roll < 0.6:
            messages, tools = chatdata.conversation(rng) if roll < 0.4 else (file_to_repeat(rng) if roll < 0.53 else chatdata.copying(rng), None)
            while messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            text = template.render(messages, tools, prompt=True, thinking=rng.random() < 0.5)
        elif roll < 0.82:
            f = pyfunctions.Function(rng)
            text = f'{f.signature()}\n    """{f.doc}"""\n'
        else:
            text = rng.choice(library)
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
def answer_group(net, group, temperature, new=160, limit=LIMIT):
    """Sample answers to prompts of one length; returns [(ids, prompt length)]."""
    feed, cache, start = torch.tensor(group), None, len(group[0])
    out, alive = [list(ids) for ids in group], [True] * len(group)
    for _ in range(min(new, limit - start)):
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


def served(url, tok, count, seed, greedy_share=0.5, new=200, deadline=None):
    """As sample(), with the answers of a running server of the target; answers are tokenised again."""
    rng = random.Random(seed)
    jobs = [(ids, 0.0 if rng.random() < greedy_share else 1.0, i) for i, ids in enumerate(prompts(rng, tok, count))]

    def one(job):
        ids, temperature, number = job
        if deadline and time.time() > deadline:
            return None
        ask = {"prompt": ids, "max_tokens": min(new, LIMIT - len(ids)), "temperature": temperature, "top_k": 20, "top_p": 0.95,
               "seed": number}
        head = {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", json.dumps(ask).encode(), head)) as reply:
            choice = json.load(reply)["choices"][0]
        out = tok.encode(choice["text"]).ids
        if choice["finish_reason"] == "stop":
            out.append(model.IM_END if model.IM_START in ids else model.EOT)
        return list(ids) + out, len(ids)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return [row for row in pool.map(one, jobs) if row]


# ---- one training batch ----------------------------------------------------------------------

@torch.no_grad()
def tap(net, ids, taps):
    """Target states after the tapped layers, [B, S, taps * H]."""
    states = net.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[i + 1] for i in taps], -1)


def features_of(net, rows, taps, path, batch=24):
    """Tapped states of all rows, one after the other, [tokens, taps * H] bf16 in a file mapped into memory."""
    total, width = sum(len(ids) for ids, _ in rows), len(taps) * net.config.hidden_size
    if not os.path.exists(path):
        store = torch.from_file(path + ".tmp", shared=True, size=total * width, dtype=torch.bfloat16, device="cpu").view(total, width)
        starts = np.cumsum([0] + [len(ids) for ids, _ in rows])
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
        for at in range(0, len(rows), batch):
            part = by_length[at:at + batch]
            ids = torch.full((len(part), max(len(rows[i][0]) for i in part)), model.EOT)
            for row, i in zip(ids, part):
                row[:len(rows[i][0])] = torch.tensor(rows[i][0])
            with torch.autocast(ids.device.type, torch.bfloat16):
                states = tap(net, ids, taps)
            for row, i in zip(states, part):
                store[starts[i]:starts[i + 1]] = row[:len(rows[i][0])].to(torch.bfloat16)
        del store
        os.replace(path + ".tmp", path)
    return torch.from_file(path, shared=True, size=total * width, dtype=torch.bfloat16, device="cpu").view(total, width)


def batch_features(store, starts, picked, size):
    """[B, size, taps * H] fp32 of the picked rows, zero behind their ends."""
    out = torch.zeros(len(picked), size, store.shape[1])
    for row, i in zip(out, picked):
        row[:starts[i + 1] - starts[i]] = store[starts[i]:starts[i + 1]].float()
    return out


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
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = draft(features, anchors, rows)[:, :, 1:]                    # [B, N, R-1, H]
        logits = hidden @ net.lm_head.weight.t()
    hidden, logits = hidden.float(), logits.float()
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


def optimisers(draft, args):
    """Muon for the matrices, AdamW for the rest, of the parts that are trained; base rates in every group."""
    params = trained_parameters(draft, not args.no_conv, not args.no_selector)
    tables = {id(draft.candidate_selector.predecessor_codebook), id(draft.candidate_selector.successor_codebook)}
    matrices = [p for p in params if p.dim() == 2 and min(p.shape) >= 64 and id(p) not in tables]
    chosen = {id(p) for p in matrices}
    muon = optim.Muon([{"params": matrices}], lr=args.rate * 5)
    adam = torch.optim.AdamW([p for p in params if id(p) not in chosen], lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    return params, optim.remember_rates(muon, adam)


def fit(draft, net, rows, store, args, log):
    """Warm-up and cosine decay over a budget of time, or of steps when given; 4-bit weights at the end."""
    params, optims = optimisers(draft, args)
    swap = four_bit_values(draft)
    starts = np.cumsum([0] + [len(ids) for ids, _ in rows])
    rng, begin, step, seen = random.Random(args.seed), time.time(), 0, []
    order = []
    while (fraction := step / args.steps if args.steps else (time.time() - begin) / (args.minutes * 60)) < 1:
        if len(order) < min(BATCH, len(rows)):
            order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + rng.random() * 40)
            order = [order[i:i + BATCH] for i in range(0, max(1, len(order) - BATCH + 1), BATCH)]
            rng.shuffle(order)
            order = [i for part in order for i in part]
        picked, order = order[:BATCH], order[BATCH:]
        ids, learn, anchors = batch_tensors([rows[i] for i in picked], draft.g.block)
        features = batch_features(store, starts, picked, ids.shape[1])
        optim.set_rates(optims, min(1, fraction / 0.04 + 0.02) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * fraction))))
        with swap if fraction > 0.8 else torch.enable_grad():
            base, extra, metrics = losses(draft, net, features, ids, learn, anchors, not args.no_selector)
            (base + args.selector_weight * extra).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for optimiser in optims:
            optimiser.step()
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
    p.add_argument("--work", help="folder for the sampled answers, their tapped states and the log")
    p.add_argument("--server", help="address of a running server of the packed target, to sample from")
    p.add_argument("--measure", nargs="+", metavar="PROMPTS", help="only measure the draft in --out on prompt files")
    p.add_argument("--out", required=True, help="folder of the exported draft")
    p.add_argument("--minutes", type=float, default=20, help="training time")
    p.add_argument("--sample-minutes", type=float, default=10, help="time limit for sampling answers")
    p.add_argument("--answers", type=int, default=12000)
    p.add_argument("--rate", type=float, default=1.5e-3)
    p.add_argument("--selector-weight", type=float, default=1.0)
    p.add_argument("--steps", type=int, help="train this many steps instead (to compare variants fairly)")
    p.add_argument("--start", help="folder of an exported draft to go on from")
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", default="cpu", help="where target and draft run: cpu, cuda, mps")
    p.add_argument("--geometry", help="config.json of the published draft layout with the wanted sizes (default: nano's draft)")
    p.add_argument("--no-conv", action="store_true")
    p.add_argument("--no-selector", action="store_true")
    args = p.parse_args()
    if not args.measure and not args.work:
        p.error("training needs --work, the folder for answers, tapped states and log")
    return args


def answers(net, tok, args):
    """(training rows, validation rows); validation prompts use another seed and greedy answers."""
    path = os.path.join(args.work, "answers.json")
    if not os.path.exists(path):
        os.makedirs(args.work, exist_ok=True)
        draw = (lambda *a, **k: served(args.server, tok, *a, **k)) if args.server else (lambda *a, **k: sample(net, tok, *a, **k))
        held = draw(min(120, args.answers), 77, greedy_share=1.0)
        known = {tuple(ids[:start]) for ids, start in held}
        rows = draw(args.answers, args.seed + 75, deadline=time.time() + args.sample_minutes * 60)
        rows = [r for r in rows if tuple(r[0][:r[1]]) not in known and len(r[0]) - r[1] >= 3]
        with open(path + ".tmp", "w") as f:
            json.dump({"train": rows, "held": held}, f)
        os.replace(path + ".tmp", path)
    data = json.load(open(path))
    return data["train"], data["held"]


def four_bit_values(draft):
    """Context in which the draft's matrices hold the values of a package."""
    swap = quant.Swapped(draft)
    swap.params = four_bit(draft)
    return swap


def prompt_answers(net, tok, path, new=128):
    """Greedy answers to a file of bench/prompts: [(ids, prompt length)]."""
    out = []
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        text = row["prompt"] if row.get("raw") else template.render(
            [{"role": "user", "content": row["prompt"]}], None, prompt=True, thinking=row.get("thinking", True))
        ids = tok.encode(text).ids
        out += answer_group(net, [ids], torch.zeros(1), new, limit=len(ids) + new)
    return out


def measure(args, net, tok):
    """Print tau of an exported draft, with 4-bit matrices, on every prompt file."""
    draft = dflash2.load(args.out)
    with four_bit_values(draft):
        for path in args.measure:
            value, depth = tau(draft, net, prompt_answers(net, tok, path), not args.no_selector)
            print(json.dumps({"prompts": os.path.basename(path), "tau": round(value, 3), "accepted by depth": [round(d, 3) for d in depth]}), flush=True)


def main():
    """Sample, train, measure, export."""
    args = arguments()
    torch.set_num_threads(args.threads)
    net, tok = quality.load(args.target)
    net.to(args.device).requires_grad_(False)
    torch.set_default_device(args.device)       # everything made from here on lies there
    if args.measure:
        measure(args, net, tok)
        return
    rows, held = answers(net, tok, args)
    print(f"{len(rows)} answers, {sum(len(r[0]) - r[1] for r in rows)} tokens; {len(held)} held out", flush=True)
    draft = dflash2.load(args.start).train() if args.start else dflash2.DFlash2(dflash2.geometry_of(args.geometry) if args.geometry else None, args.seed)
    store = features_of(net, rows, draft.g.taps, os.path.join(args.work, "features.bin"))
    with open(os.path.join(args.work, "draft.tsv"), "a") as log:
        steps = fit(draft, net, rows, store, args, log)
    draft.eval()
    before, _ = tau(draft, net, held, not args.no_selector)
    with four_bit_values(draft):
        after, depth = tau(draft, net, held, not args.no_selector)
    print(json.dumps({"steps": steps, "tau": round(before, 3), "tau four bits": round(after, 3),
                      "accepted by depth": [round(d, 3) for d in depth]}))
    dflash2.export(draft, args.out)


if __name__ == "__main__":
    main()
