# SPDX-License-Identifier: Apache-2.0
"""Documents of the training corpus and their packing into windows of token ids.

A document is (kind, text, spans): spans is None when every token is learned, or the
character ranges that are. Sources, all permissive: our generators, CPython's standard
library and its documentation sources (PSF-2.0), GSM8K train (MIT).
"""

import ast
import glob
import hashlib
import json
import os
import random
import re
import sysconfig

import numpy as np

import chatdata
import pyfunctions
import recall
import template
import toolcalls

WINDOW = 512                          # positions per training window
SHARES = {"tool": 0.34, "recall": 0.09, "chat": 0.29, "code": 0.25, "drill": 0.025}   # of the documents' characters
REPEATED = 0.05                                           # windows of repeated random tokens
LIBRARY_SHARE, GSM8K_SHARE, MANUAL_SHARE = 0.4, 0.4, 0.3  # of those sources
SKIP_FOLDERS = ("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "turtledemo", "encodings", "pydoc_data")


def withheld(text):
    """True for about one document in a hundred; those are never trained on."""
    return hashlib.sha256(text.encode()).digest()[0] < 3


def library_documents():
    """Functions, classes and small files of the running Python's standard library."""
    root = sysconfig.get_paths()["stdlib"]
    for path in sorted(glob.glob(os.path.join(root, "**", "*.py"), recursive=True)):
        if any(part in SKIP_FOLDERS for part in path[len(root):].split(os.sep)):
            continue
        try:
            text = open(path, encoding="utf-8").read()
            tree = ast.parse(text)
        except (UnicodeDecodeError, SyntaxError):
            continue
        if 300 < len(text) < 5000:
            yield text
            continue
        lines = text.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                part = lines[node.lineno - 1:node.end_lineno]
                if 3 <= len(part) <= 45:
                    indent = len(part[0]) - len(part[0].lstrip())
                    yield "\n".join(l[indent:] for l in part) + "\n"


def manual_documents(folder):
    """Sections of the Python documentation sources (reST text), if the folder is there."""
    for path in sorted(glob.glob(os.path.join(folder or "/nonexistent", "**", "*.rst.txt"), recursive=True)):
        if any(word in path for word in ("tutorial", "library/functions", "library/stdtypes", "faq/programming", "library/json", "library/collections")):
            text = open(path, encoding="utf-8").read()
            for part in re.split(r"\n(?=[^\n]{3,70}\n[=\-*^]{3,}\n)", text):
                for at in range(0, len(part), 1600):
                    if len(part) - at > 200:
                        yield part[at:at + 1600].strip() + "\n"


def gsm8k_documents(path, rng):
    """GSM8K train questions as chats: the worked steps are the thoughts."""
    if not path or not os.path.exists(path):
        return
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        steps, answer = row["answer"].split("####")
        steps = re.sub(r"<<[^>]*>>", "", steps).strip()
        answer = answer.strip()
        if rng.random() < 0.6:
            yield chatdata.reply(row["question"], steps, f"The answer is {answer}.")
        else:
            yield chatdata.reply(row["question"], "", f"{steps}\n\nThe answer is {answer}.")


def chat_document(messages, tools=None):
    """(text, learned character ranges) of a conversation."""
    text = template.render(messages, tools)
    return text, template.learned_spans(text)


def held_prompts(path):
    """Texts that must not occur in the corpus: the quality prompts."""
    return [json.loads(line)["prompt"].strip() for line in open(path, encoding="utf-8")]


def make_document(kind, rng):
    """(text, learned character ranges or None) of one generated document."""
    if kind == "chat":
        return chat_document(*chatdata.conversation(rng))
    if kind == "tool":
        return chat_document(*toolcalls.conversation(rng))
    makers = {"code": pyfunctions.completion_text, "drill": chatdata.drill, "recall": recall.document}
    return makers[kind](rng), None


def documents(characters, seed, prompts, gsm8k=None, manual=None):
    """All documents in random order; `characters` is the wanted total size of the generated ones."""
    rng = random.Random(seed)
    docs = [("library", t, None) for t in library_documents() if not withheld(t) and rng.random() < LIBRARY_SHARE]
    docs += [("manual", t, None) for t in manual_documents(manual)
             if not withheld(t) and rng.random() < MANUAL_SHARE]
    docs += [("gsm8k", *chat_document(m)) for m in gsm8k_documents(gsm8k, rng) if rng.random() < GSM8K_SHARE]
    docs += generated(characters, SHARES, rng, prompts)
    rng.shuffle(docs)
    return docs


def generated(characters, shares, rng, prompts):
    """Generated documents of every kind up to its share of `characters`."""
    docs = []
    for kind, share in shares.items():
        size = 0
        while size < share * characters:
            text, spans = make_document(kind, rng)
            if not any(p in text for p in prompts):
                docs.append((kind, text, spans))
                size += len(text)
    return docs


def encode(tokenizer, docs, end_id, batch=2000):
    """Yield (kind, ids, learn flags) per document, both closed by the end token."""
    for at in range(0, len(docs), batch):
        part = docs[at:at + batch]
        for (kind, text, spans), enc in zip(part, tokenizer.encode_batch([d[1] for d in part])):
            flags = np.ones(len(enc.ids), np.uint8)
            if spans is not None:
                starts = np.array([o[0] for o in enc.offsets])
                flags[:] = 0
                for a, b in spans:
                    flags |= ((starts >= a) & (starts < b)).astype(np.uint8)
            ids = np.array(enc.ids + [end_id], np.uint16)
            yield kind, ids, np.append(flags, np.uint8(spans is None))


def pack(encoded, end_id, open_windows=48):
    """First-fit packing into windows of WINDOW + 1 ids; long documents are cut.

    Returns ids [N, WINDOW + 1] uint16 and learn flags [N, WINDOW + 1] uint8; padding is the
    end token, not learned.
    """
    full, room = [], WINDOW + 1
    windows = [[[], [], 0] for _ in range(open_windows)]
    for _, ids, flags in encoded:
        for at in range(0, len(ids), room):
            a, b = ids[at:at + room], flags[at:at + room]
            fit = next((w for w in windows if w[2] + len(a) <= room), None)
            if fit is None:
                fullest = max(range(open_windows), key=lambda i: windows[i][2])
                full.append(windows[fullest])
                fit = windows[fullest] = [[], [], 0]
            fit[0].append(a)
            fit[1].append(b)
            fit[2] += len(a)
    full += [w for w in windows if w[2]]
    out_ids = np.full((len(full), room), end_id, np.uint16)
    out_flags = np.zeros((len(full), room), np.uint8)
    for row, (ids, flags, size) in enumerate(full):
        out_ids[row, :size] = np.concatenate(ids)
        out_flags[row, :size] = np.concatenate(flags)
    return out_ids, out_flags


def repeated_tokens(count, ordinary, rng):
    """`count` windows of random segments of 4 to 45 tokens, each written two or three times: ids and learn flags as of pack().

    Only the copies are learned, from their second token on: nothing predicts them but the copied text.
    ordinary: number of token ids to draw from.
    """
    ids, flags = np.zeros((count, WINDOW + 1), np.uint16), np.zeros((count, WINDOW + 1), np.uint8)
    for row, learn in zip(ids, flags):
        pool = rng.choice(ordinary, int(2 ** rng.uniform(5, 12)), replace=False)
        at = 0
        while at <= WINDOW:
            segment = rng.choice(pool, int(2 ** rng.uniform(2, 5.5)))
            for copy in range(rng.integers(2, 4)):
                end = min(at + len(segment), WINDOW + 1)
                row[at:end] = segment[:end - at]
                learn[at + 1:end] = copy > 0
                at = end
    return ids, flags


def heldout_text(docs, seed=987654321):
    """About 12 kB of text in about the corpus's own mix, none of whose documents is in docs."""
    rng, known = random.Random(seed), {text for _, text, _ in docs}
    library = [t for t in library_documents() if withheld(t) and len(t) < 900]
    rng.shuffle(library)
    code = (pyfunctions.completion_text(rng) for _ in range(10_000))
    chat = (chat_document(*chatdata.conversation(rng))[0] for _ in range(10_000))
    tool = (chat_document(*toolcalls.conversation(rng))[0] for _ in range(10_000))
    parts = library[:1]
    for source, count in ((code, 10), (chat, 12), (tool, 3)):
        fresh = (t for t in source if t not in known)
        parts += [next(fresh) for _ in range(count)]
    rng.shuffle(parts)
    return "\n".join(parts)
