# SPDX-License-Identifier: Apache-2.0
"""Score a checkpoint on models/nano/quality_prompts.jsonl with greedy decoding.

    python train/quality.py CHECKPOINT [--full-precision] [--show]

By default every matrix is first rounded to the 4-bit values a package holds.
"""

import argparse
import ast
import json
import os
import re

import torch
from tokenizers import Tokenizer

import model
import quant
import template

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = os.path.join(HERE, "..", "models", "nano", "quality_prompts.jsonl")


@torch.no_grad()
def generate(net, tok, prompt, limit=220):
    """(new text, stopped) of greedy decoding from a prompt string."""
    ids = tok.encode(prompt).ids
    out, cache, feed = [], None, torch.tensor([ids])
    for _ in range(limit):
        result = net(input_ids=feed, cache=cache, use_cache=True)
        cache = result.cache
        token = int(result.logits[0, -1].argmax())
        if token in (model.EOT, model.IM_END):
            return tok.decode(out, skip_special_tokens=False), True
        out.append(token)
        feed = torch.tensor([[token]])
    return tok.decode(out, skip_special_tokens=False), False


def ask(net, tok, question, thinking, tools=None, limit=220):
    """(thoughts, answer, stopped) of a one-turn chat."""
    prompt = template.render([{"role": "user", "content": question}], tools, prompt=True, thinking=thinking)
    text, stopped = generate(net, tok, prompt, limit)
    thoughts, _, answer = text.partition("</think>") if thinking else ("", "", text)
    return thoughts.strip(), answer.strip(), stopped


def parses(source):
    """True if source is valid Python that defines something."""
    try:
        compile(source, "answer", "exec")
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in tree.body)


def score(row, net, tok):
    """(right, stopped, text) of one prompt."""
    if row["kind"] == "python-completion":
        text, stopped = generate(net, tok, row["prompt"])
        return parses(row["prompt"] + text), stopped, text
    thoughts, answer, stopped = ask(net, tok, row["prompt"], row["thinking"])
    if row["kind"] == "python-chat":
        code = re.search(r"```python\n(.*?)```", answer, re.S)
        return bool(code) and parses(code.group(1)), stopped, answer
    numbers = re.findall(r"-?\d+", answer)
    return bool(numbers) and numbers[-1] == row["answer"], stopped, f"{thoughts} | {answer}"


def all_sums(net, tok):
    """Share of the hundred one-digit sums asked as "What is a + b?", thinking on and off."""
    out = {}
    for thinking in (True, False):
        right = 0
        for a in range(10):
            for b in range(10):
                answer = ask(net, tok, f"What is {a} + {b}?", thinking, limit=40)[1]
                numbers = re.findall(r"-?\d+", answer)
                right += bool(numbers) and int(numbers[-1]) == a + b
        out["thinking on" if thinking else "thinking off"] = right / 100
    return out


def tool_score(net, tok, count=40, seed=4242):
    """Share of random one-tool requests answered by exactly the right call."""
    import random
    import toolcalls
    rng, right = random.Random(seed), 0
    for _ in range(count):
        name, schema, filled, question, _, _ = toolcalls.make(rng.choice(toolcalls.TOOLS), rng)
        call = {"name": name, "arguments": {k: v for k, v, _ in filled}}
        said = {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [call]}
        wanted = template.render([{"role": "user", "content": question}, said], [schema])
        wanted = wanted.rsplit("</think>\n\n", 1)[1].replace("<|im_end|>\n", "").strip()
        right += ask(net, tok, question, rng.random() < 0.5, [schema])[1] == wanted
    return right / count


def load(folder, four_bit=True):
    """(network, tokenizer) of a checkpoint; four_bit replaces the matrices by their 4-bit values."""
    net = model.load_published(folder)
    if four_bit:
        with torch.no_grad():
            for p in quant.quantised_parameters(net):
                p.data = quant.dequantised(p.data)
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    model.adopt_tokens(tok)
    return net, tok


@torch.no_grad()
def heldout_loss(net, tok, path=os.path.join(HERE, "..", "models", "nano", "heldout.txt")):
    """(mean loss in nats, number of tokens) over the held-out text in windows of 512."""
    ids = torch.tensor(tok.encode(open(path, encoding="utf-8").read()).ids)
    total, count = 0.0, 0
    for at in range(0, len(ids) - 1, 512):
        part = ids[at:at + 513]
        logits = net(input_ids=part[None, :-1], use_cache=False).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum").item()
        count += len(part) - 1
    return total / count, count


def report(net, tok, show=False):
    """Dictionary of all scores."""
    tally = {}
    for line in open(PROMPTS, encoding="utf-8"):
        row = json.loads(line)
        right, stopped, text = score(row, net, tok)
        kind = tally.setdefault(row["kind"], [0, 0, 0])
        for i, value in enumerate((1, right, stopped)):
            kind[i] += value
        if show:
            print(f"--- {row['id']} {'right' if right else 'WRONG'} {'' if stopped else 'RUNS ON'}\n{row['prompt']}\n=> {text}")
    out = {kind: {"prompts": n, "right": r, "stopped": s} for kind, (n, r, s) in tally.items()}
    out["all one-digit sums"] = all_sums(net, tok)
    out["one-tool calls"] = tool_score(net, tok)
    out["held-out loss"] = round(heldout_loss(net, tok)[0], 4)
    return out


def main():
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint")
    p.add_argument("--full-precision", action="store_true")
    p.add_argument("--show", action="store_true", help="print every answer")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    net, tok = load(args.checkpoint, not args.full_precision)
    print(json.dumps(report(net, tok, args.show), indent=1))


if __name__ == "__main__":
    main()
