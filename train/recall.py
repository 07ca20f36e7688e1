# SPDX-License-Identifier: Apache-2.0
"""Drills in copying: text that can only be continued by looking back.

A small model learns facts long before it learns to look something up in its own context, and a tool call is
mostly looking up: the tool's name, its parameters, the values in the question. These documents have nothing
to know and everything to copy. Every token of them is learned.
"""

import random
import string

import toolcalls

KINDS = ("city", "name", "topic", "room", "day", "language", "file", "folder", "words")
SYLLABLES = toolcalls.SYLLABLES


def word(rng):
    """A made-up word, a number, a short identifier or a plain value of a tool argument."""
    kind = rng.random()
    if kind < 0.45:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))
    if kind < 0.6:
        return str(rng.randint(0, 10 ** rng.randint(1, 4)))
    if kind < 0.75:
        return "_".join("".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2))) for _ in range(2))
    if kind < 0.9:
        return toolcalls.value_of(rng.choice(KINDS), rng)[1]
    return "".join(rng.choice(string.ascii_letters) for _ in range(rng.randint(2, 6)))


def repeated(rng):
    """A line and the same line again, two to four times."""
    line = " ".join(word(rng) for _ in range(rng.randint(4, 16)))
    return "\n".join([line] * rng.randint(2, 4)) + "\n"


def table(rng):
    """`key: value` lines, then the same keys asked in another order."""
    keys = list({word(rng) for _ in range(rng.randint(3, 9))})
    pairs = {key: word(rng) for key in keys}
    text = "".join(f"{key}: {value}\n" for key, value in pairs.items()) + "\n"
    rng.shuffle(keys)
    return text + "".join(f"{key}: {pairs[key]}\n" for key in keys)


def parameters(rng):
    """An argument list as JSON, then the same arguments in the form of a tool call."""
    pairs = {word(rng).replace(" ", "_"): word(rng) for _ in range(rng.randint(1, 3))}
    name = word(rng).replace(" ", "_")
    given = ", ".join(f'"{key}": "{value}"' for key, value in pairs.items())
    called = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs.items())
    return f'{{"name": "{name}", {given}}}\n<tool_call>\n<function={name}>\n{called}</function>\n</tool_call>\n'


def document(rng):
    """A few drills of one kind."""
    maker = rng.choice((repeated, table, parameters))
    return "\n".join(maker(rng) for _ in range(rng.randint(2, 5)))


if __name__ == "__main__":
    drills = random.Random(1)
    for _ in range(6):
        print(document(drills), "-" * 40, sep="\n")
