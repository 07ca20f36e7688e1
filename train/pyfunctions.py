# SPDX-License-Identifier: Apache-2.0
"""Random simple Python functions with docstrings, built from pyspecs.txt."""

import os
import re

LOCAL_RESULTS = ["result", "total", "output", "answer", "res", "out"]
LOCAL_ITEMS = ["item", "x", "value", "element", "num", "v"]
LOCAL_INDEXES = ["i", "index", "k", "pos", "idx"]
LIST_HINTS = {"list": "list", "list[int]": "list[int]", "list[float]": "list[float]",
              "list[str]": "list[str]"}


class Spec:
    """One task: names, argument lists, types, samples, docstrings, requests, plan, bodies."""

    def __init__(self, block):
        lines = block.strip().split("\n")
        names, args, types, samples = (part.strip() for part in lines[0].split("|"))
        self.names = names.split()
        self.args = [a.split() for a in args.split(";")]
        left, right = types.split("->")
        self.types, self.returns = left.split(), right.strip()
        self.samples = [eval(s) for s in re.findall(r"\((?:[^()]|\([^()]*\))*\)", samples)]
        self.docs, self.asks, self.plans, self.bodies = [], [], [], []
        kinds = {"D": self.docs, "A": self.asks, "P": self.plans, "B": self.bodies}
        for line in lines[1:]:
            text = line[2:].replace("\\\\n", "\0").replace("\\n", "\n").replace("\0", "\\n")
            kinds[line[0]].append(text)


def load_specs(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyspecs.txt")):
    """All specs of the table file."""
    text = "\n".join(l for l in open(path).read().split("\n") if not l.startswith("#"))
    return [Spec(block) for block in re.split(r"\n\s*\n", text.strip())]


SPECS = load_specs()


def choose(rng, pool, taken):
    """A name of the pool that is not yet taken; the first ones are the likelier ones."""
    free = [name for name in pool if name not in taken]
    return free[min(int(rng.expovariate(0.8)), len(free) - 1)]


class Function:
    """A concrete function: spec plus chosen name, arguments, local names, body, docstring."""

    def __init__(self, rng, spec=None, body=None):
        self.spec = spec = spec or rng.choice(SPECS)
        self.name = rng.choice(spec.names)
        self.args = list(rng.choice(spec.args))
        body = body if body is not None else rng.choice(spec.bodies)
        taken = set(self.args) | set(re.findall(r"[a-z_]\w*", body))
        self.locals = {}
        for key, pool in (("r", LOCAL_RESULTS), ("i", LOCAL_ITEMS), ("k", LOCAL_INDEXES)):
            self.locals[key] = choose(rng, pool, taken)
            taken.add(self.locals[key])
        self.body = self.fill(body)
        self.doc = self.fill(rng.choice(spec.docs))
        self.ask = self.fill(rng.choice(spec.asks))
        self.plan = self.fill(rng.choice(spec.plans))
        self.hints = rng.random() < 0.2

    def fill(self, text):
        """Replace $0.. by arguments, $r $i $k by local names and $F by the function name."""
        text = re.sub(r"\$(\d)", lambda m: self.args[int(m.group(1))], text)
        return re.sub(r"\$([rik])", lambda m: self.locals[m.group(1)], text).replace("$F", self.name)

    def signature(self):
        """The def line."""
        if not self.hints:
            return f"def {self.name}({', '.join(self.args)}):"
        typed = ", ".join(f"{a}: {t}" for a, t in zip(self.args, self.spec.types))
        return f"def {self.name}({typed}) -> {self.spec.returns}:"

    def source(self, doc=True, example=None):
        """The whole function as text; example is a (call, value) pair for the docstring."""
        lines = [self.signature()]
        if doc and example:
            lines += [f'    """{self.doc}', "", f"    >>> {example[0]}", f"    {example[1]}", '    """']
        elif doc:
            lines.append(f'    """{self.doc}"""')
        lines += ["    " + line if line else "" for line in self.body.split("\n")]
        return "\n".join(lines)

    def example(self, rng):
        """(call text, repr of its value), or None when the task has no sample or no value."""
        if not self.spec.samples:
            return None
        args = rng.choice(self.spec.samples)
        value = self.call(args)
        return (f"{self.name}({', '.join(map(repr, args))})", repr(value)) if value is not None else None

    def call(self, args):
        """Run the function on a copy of args."""
        space = {}
        exec(self.source(doc=False), space)
        return space[self.name](*eval(repr(tuple(args))))


CLASSES = [
    ("Counter Tally Clicker", "Count how often something happens.", "counts events",
     'def __init__(self):\n    self.$f = 0\n\ndef $m(self):\n    """Add one."""\n    self.$f += 1\n\n'
     'def reset(self):\n    """Set the count to zero."""\n    self.$f = 0',
     "count value total", "increment add step"),
    ("Stack LifoStack SimpleStack", "A last-in first-out stack.", "implements a stack",
     'def __init__(self):\n    self.$f = []\n\ndef push(self, item):\n    """Put an item on top."""\n'
     '    self.$f.append(item)\n\ndef pop(self):\n    """Remove and return the top item."""\n'
     '    return self.$f.pop()\n\ndef $m(self):\n    """Return True if there are no items."""\n'
     '    return len(self.$f) == 0', "items data values", "is_empty empty"),
    ("Queue FifoQueue SimpleQueue", "A first-in first-out queue.", "implements a queue",
     'def __init__(self):\n    self.$f = []\n\ndef enqueue(self, item):\n    """Add an item at the end."""\n'
     '    self.$f.append(item)\n\ndef dequeue(self):\n    """Remove and return the first item."""\n'
     '    return self.$f.pop(0)\n\ndef $m(self):\n    """Return the number of items."""\n'
     '    return len(self.$f)', "items data values", "size length __len__"),
    ("Point Point2D Vector", "A point with two coordinates.", "represents a point with x and y",
     'def __init__(self, x, y):\n    self.x = x\n    self.y = y\n\ndef $m(self, dx, dy):\n'
     '    """Return a point moved by dx and dy."""\n    return $C(self.x + dx, self.y + dy)',
     "x", "moved shifted translate"),
    ("BankAccount Account Wallet", "An account with a balance.", "represents a bank account",
     'def __init__(self, owner, $f=0):\n    self.owner = owner\n    self.$f = $f\n\ndef deposit(self, amount):\n'
     '    """Add money to the account."""\n    self.$f += amount\n\ndef $m(self, amount):\n'
     '    """Take money from the account."""\n    if amount > self.$f:\n'
     '        raise ValueError("not enough money")\n    self.$f -= amount',
     "balance money", "withdraw take"),
    ("Rectangle Rect Box", "A rectangle with width and height.", "represents a rectangle",
     'def __init__(self, width, height):\n    self.width = width\n    self.height = height\n\ndef area(self):\n'
     '    """Return the area."""\n    return self.width * self.height\n\ndef $m(self):\n'
     '    """Return the perimeter."""\n    return 2 * (self.width + self.height)', "x", "perimeter border"),
    ("Person User Student Employee", "A person with a name and an age.", "stores a name and an age",
     'def __init__(self, name, age):\n    self.name = name\n    self.age = age\n\ndef $m(self):\n'
     '    """Return a greeting."""\n    return f"Hello, my name is {self.name}."', "x", "greet introduce"),
    ("Dog Cat Animal Pet", "An animal with a name.", "represents an animal that can speak",
     'def __init__(self, name, $f):\n    self.name = name\n    self.$f = $f\n\ndef $m(self):\n'
     '    """Return the sound of the animal."""\n    return f"{self.name} says {self.$f}"',
     "sound noise", "speak talk"),
    ("Cache Store Registry", "A small key-value store.", "stores values by key",
     'def __init__(self):\n    self.$f = {}\n\ndef set(self, key, value):\n    """Store a value."""\n'
     '    self.$f[key] = value\n\ndef $m(self, key, default=None):\n    """Return the value of a key."""\n'
     '    return self.$f.get(key, default)', "data items values", "get lookup"),
    ("Node ListNode LinkedNode", "A node of a linked list.", "represents a linked list node",
     'def __init__(self, $f, next=None):\n    self.$f = $f\n    self.next = next\n\ndef $m(self):\n'
     '    """Return the values from this node on as a list."""\n    result = []\n    node = self\n'
     '    while node:\n        result.append(node.$f)\n        node = node.next\n    return result',
     "value data", "to_list values"),
]


def random_class(rng):
    """(name, request, source) of a small class."""
    names, doc, ask, body, fields, methods = rng.choice(CLASSES)
    name = rng.choice(names.split())
    body = body.replace("$C", name).replace("$f", rng.choice(fields.split())).replace("$m", rng.choice(methods.split()))
    lines = [f"class {name}:", f'    """{doc}"""', ""]
    lines += ["    " + line if line else "" for line in body.split("\n")]
    return name, ask, "\n".join(lines)


def completion_text(rng):
    """One plain-text document of Python: a function, a class or a small module."""
    roll = rng.random()
    if roll < 0.70:
        f = Function(rng)
        example = f.example(rng) if rng.random() < 0.2 else None
        head = "from typing import List\n\n\n" if rng.random() < 0.06 else ""
        return head + f.source(doc=rng.random() < 0.93, example=example) + "\n"
    if roll < 0.82:
        return random_class(rng)[2] + "\n"
    count = rng.choice((2, 2, 3))
    parts = [f'"""{rng.choice(("Small helpers.", "Utility functions.", "Helper functions."))}"""'] if rng.random() < 0.3 else []
    functions = [Function(rng, spec) for spec in rng.sample(SPECS, count)]
    parts += [f.source() for f in functions]
    if rng.random() < 0.3:
        calls = [f.example(rng) for f in functions]
        calls = [c for c in calls if c]
        if calls:
            parts.append('if __name__ == "__main__":\n' + "\n".join(f"    print({c[0]})" for c in calls))
    return "\n\n\n".join(parts) + "\n"


def self_check():
    """Every body of a spec parses and all bodies agree on the samples."""
    import random
    rng = random.Random(1)
    for spec in SPECS:
        for args in spec.samples or [None]:
            seen = []
            for body in spec.bodies:
                f = Function(rng, spec, body)
                compile(f.source(), spec.names[0], "exec")
                if args is not None and spec.returns != "None":
                    seen.append(f.call(args))
            assert all(repr(v) == repr(seen[0]) for v in seen), (spec.names[0], args, seen)
    for _ in range(300):
        compile(completion_text(rng), "doc", "exec")
        compile(random_class(rng)[2], "class", "exec")
    print(f"pyfunctions: {len(SPECS)} tasks, all bodies agree")


if __name__ == "__main__":
    self_check()
