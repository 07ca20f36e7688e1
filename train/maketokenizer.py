# SPDX-License-Identifier: Apache-2.0
"""Train the byte-level BPE tokenizer and write its two files."""

import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import model
import template

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(texts):
    """Tokenizer with model.VOCAB ids: 256 bytes, merges, then the family's added tokens."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=model.ORDINARY, show_progress=False, special_tokens=[],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(texts, trainer)
    assert tok.get_vocab_size() == model.ORDINARY, tok.get_vocab_size()
    for text, special in model.ADDED:
        token = AddedToken(text, special=special, normalized=False)
        (tok.add_special_tokens if special else tok.add_tokens)([token])
    for i, (text, _) in enumerate(model.ADDED):
        assert tok.token_to_id(text) == model.ORDINARY + i, text
    return tok


def plain(text):
    """Text without added-token strings, which BPE must not see."""
    for name, _ in model.ADDED:
        text = text.replace(name, "\n")
    return text


def write(tok, folder):
    """tokenizer.json, tokenizer_config.json and chat_template.jinja in folder."""
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"))
    source = open(template.PATH, encoding="utf-8").read()
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "add_bos_token": False,
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "model_max_length": model.TEXT["max_position_embeddings"], "clean_up_tokenization_spaces": False,
        "errors": "replace", "split_special_tokens": False,
        "added_tokens_decoder": {str(model.ORDINARY + i): {
            "content": text, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": special} for i, (text, special) in enumerate(model.ADDED)},
        "chat_template": source,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, ensure_ascii=False)
        f.write("\n")
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(source)


def from_documents(docs, seed=5, limit=14_000_000):
    """Train on a random sample of the documents of at most `limit` characters."""
    order = list(docs)
    random.Random(seed).shuffle(order)
    size, texts = 0, []
    for _, text, _ in order:
        if size < limit:
            texts.append(plain(text))
            size += len(text)
    return train(texts)
