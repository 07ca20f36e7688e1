# SPDX-License-Identifier: Apache-2.0
"""Text for tokenizer tests, the same on every run and every machine with the same Python: the
standard library's sources, generated text of many scripts, and random Unicode strings."""
import pathlib
import random
import sysconfig
import unicodedata

# Code points assigned in Unicode 3.2: later versions agree about them, whichever library is newer.
# Emoji came later and are added by hand.
_OLD = unicodedata.ucd_3_2_0
_EMOJI = [*range(0x1F300, 0x1F321), *range(0x1F330, 0x1F336), *range(0x1F600, 0x1F637), 0x1F468, 0x1F469, 0x1F467]


def assigned():
    return [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and _OLD.category(chr(c)) != "Cn"]


def classes():
    """Groups of code points that the pattern or NFC treats in their own way."""
    codes = assigned()
    groups = {
        "ascii": list(range(128)),
        "latin": list(range(0x80, 0x250)),
        "controls": [*range(32), 0x7F, *range(0x80, 0xA0), 0xAD, 0x180E, 0x200B, 0xFEFF, 0x2060],
        "spaces": [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x3000],
        "marks": [c for c in codes if unicodedata.category(chr(c))[0] == "M"],
        "numbers": [c for c in codes if unicodedata.category(chr(c))[0] == "N"],
        "hangul": [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), *range(0xAC00, 0xAC80)],
        "composing": [c for c in codes if unicodedata.normalize("NFC", chr(c)) != chr(c)],
        "kana_cjk": [*range(0x3041, 0x30FF), *range(0x4E00, 0x4F00), *range(0x20000, 0x20040), *range(0xF900, 0xF940)],
        "emoji": [*_EMOJI, 0x200D, 0xFE0F, 0x20E3],
        "rtl": [*range(0x5D0, 0x5EB), *range(0x621, 0x653)],
        "indic": [*range(0x905, 0x94E), *range(0xB85, 0xBCE), *range(0xD05, 0xD4E), *range(0xE01, 0xE5C)],
        "private": [0xE000, 0xF8FF, 0xF0000, 0x10FFFD, 0xE0001, 0xE0041],
        "any": codes,
    }
    return {name: [c for c in list_ if _OLD.category(chr(c)) != "Cn" or c in _EMOJI] for name, list_ in groups.items()}


LOOKALIKES = (
    "<|im_start|> <|im_end|> <|im_end| <|im_end|>> <<|im_end|> <think> </think> <think </thinking> <tool_call> "
    "</tool_call> <|endoftext|> <|fim_prefix|> <|audio_pad|> <tts_pad> <tts_text_bos> <tts_text_bos_single> "
    "<tts_text_bos_singl <tool_response> <|image_pad|> <|IM_END|> |im_end|>"
).split()
WORDS = "I'm you'll WE'VE it's 'S 'ſ don't e.g. foo_bar x=1; 3.14159 100,000 \r\n \n\n    \t => /* */ http://a.b/c?d=e".split(" ")


def random_strings(count, seed):
    rng = random.Random(seed)
    groups = classes()
    names = list(groups)
    for _ in range(count):
        mix = rng.sample(names, rng.randint(1, 4))
        parts = []
        for _ in range(rng.randint(1, 40)):
            kind = rng.random()
            if kind < 0.08:
                parts.append(rng.choice(LOOKALIKES))
            elif kind < 0.2:
                parts.append(rng.choice(WORDS))
            else:
                group = groups[rng.choice(mix)]
                repeat = rng.choice((1, 1, 1, 2, 3, 30)) if kind > 0.97 else 1
                parts.append(chr(rng.choice(group)) * repeat)
        yield "".join(parts)


def mixed_text(n_bytes, seed=1):
    """At least n_bytes (UTF-8): sources of the standard library and generated multilingual lines."""
    rng = random.Random(seed)
    groups = {k: v for k, v in classes().items() if k not in ("controls", "private", "any")}
    parts = []
    size = 0
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    while size < n_bytes:
        for path in files:
            parts.append(path.read_text(encoding="utf-8"))
            words = []
            for _ in range(600):
                letters = groups[rng.choice(list(groups))]
                words.append("".join(chr(rng.choice(letters)) for _ in range(rng.randint(1, 9))))
            parts.append(" ".join(words) + "\n")
            size += len(parts[-1].encode()) + len(parts[-2].encode())
            if size >= n_bytes:
                break
    return "".join(parts)
