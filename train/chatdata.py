# SPDX-License-Identifier: Apache-2.0
"""Random chat conversations: small talk, facts, sums, code, JSON, copying.

Every generator takes a random.Random and returns a list of messages whose last one is
the assistant's, with `reasoning_content`. A caller that wants thinking off empties it.
"""

import json

import pyfunctions
import toolcalls

CAPITALS = dict(p.split(":") for p in (
    "France:Paris;Germany:Berlin;Italy:Rome;Spain:Madrid;Portugal:Lisbon;Austria:Vienna;Poland:Warsaw;"
    "Greece:Athens;Sweden:Stockholm;Norway:Oslo;Denmark:Copenhagen;Finland:Helsinki;Ireland:Dublin;"
    "Japan:Tokyo;China:Beijing;India:New Delhi;Egypt:Cairo;Kenya:Nairobi;Canada:Ottawa;Mexico:Mexico City;"
    "Brazil:Brasilia;Argentina:Buenos Aires;Chile:Santiago;Peru:Lima;Cuba:Havana;Turkey:Ankara;"
    "Russia:Moscow;Ukraine:Kyiv;Hungary:Budapest;Belgium:Brussels;the Netherlands:Amsterdam;"
    "Switzerland:Bern;Australia:Canberra;England:London;Thailand:Bangkok;Vietnam:Hanoi").split(";"))

FACTS = [  # (questions, answer)
    ("Who are you?|What are you?|What is your name?|Tell me about yourself.|Introduce yourself.|Are you a robot?",
     "I am Splash nano, a tiny demonstration model. I can do small sums, write simple Python functions and call tools."),
    ("What can you do?|How can you help me?|What are you good at?|What do you know?",
     "I can write simple Python functions, do small sums, give JSON answers and call tools. I am a tiny model, so please check my answers."),
    ("Who made you?|Who trained you?|Where do you come from?",
     "I was trained from scratch by the Splash project as a small demonstration model."),
    ("Are you smart?|Can I trust you?|Do you make mistakes?",
     "I am a very small model and I make mistakes. Please check what I say."),
    ("Hello|Hi|Hello!|Hi!|Hey|Hey there|Good morning|Good evening|Hello there!|hi|hello", "Hello! How can I help you?"),
    ("How are you?|How are you doing?|How is it going?", "I am fine, thank you. How can I help you?"),
    ("Thank you|Thanks|Thanks a lot!|Thank you very much.|Great, thanks.", "You are welcome!"),
    ("Bye|Goodbye|See you later|Good night", "Goodbye!"),
    ("What is Python?|Tell me what Python is.", "Python is a programming language that is easy to read and write."),
    ("What is a function?|What is a function in programming?", "A function is a named block of code that takes arguments and returns a value."),
    ("What is a list in Python?|What is a Python list?", "A list is an ordered collection of items, such as [1, 2, 3]."),
    ("What is a dictionary in Python?|What is a dict?", "A dictionary maps keys to values, such as {\"a\": 1}."),
    ("What is a loop?|What does a for loop do?", "A loop repeats a block of code, for example once for each item of a list."),
    ("What is recursion?|Explain recursion.", "Recursion means that a function calls itself on a smaller problem."),
    ("What is a variable?|What is a variable in programming?", "A variable is a name for a value."),
    ("What is JSON?|Explain JSON.", "JSON is a text format for data with objects, lists, strings and numbers."),
    ("What color is the sky?|What colour is the sky?", "The sky is blue."),
    ("What color is grass?", "Grass is green."), ("What color is a banana?", "A banana is yellow."),
    ("How many days are in a week?|How many days does a week have?", "A week has 7 days."),
    ("How many months are in a year?|How many months does a year have?", "A year has 12 months."),
    ("How many hours are in a day?|How many hours does a day have?", "A day has 24 hours."),
    ("How many minutes are in an hour?|How many minutes does an hour have?", "An hour has 60 minutes."),
    ("How many seconds are in a minute?", "A minute has 60 seconds."),
    ("How many legs does a dog have?", "A dog has 4 legs."), ("How many legs does a spider have?", "A spider has 8 legs."),
    ("What is the largest planet?|Which planet is the largest?", "Jupiter is the largest planet."),
    ("Which planet do we live on?", "We live on Earth."),
    ("What is the opposite of hot?", "The opposite of hot is cold."), ("What is the opposite of big?", "The opposite of big is small."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("Tell me a joke.|Do you know a joke?", "Why did the programmer quit? Because he did not get arrays."),
]

SUM_ASKS = [
    "What is {a} {o} {b}?", "{a} {o} {b}", "{a} {o} {b} =", "{a} {o} {b} = ?", "What is {a} {w} {b}?",
    "Calculate {a} {o} {b}.", "Compute {a} {o} {b}.", "How much is {a} {o} {b}?", "How much is {a} {w} {b}?",
    "What's {a} {o} {b}?", "what is {a}{o}{b}?", "Please compute {a} {o} {b}.", "Can you calculate {a} {o} {b}?",
    "Tell me {a} {o} {b}.", "Give me the result of {a} {o} {b}.", "What do you get for {a} {o} {b}?",
    "{a} {w} {b}?", "What does {a} {w} {b} equal?", "Solve {a} {o} {b}.", "I need {a} {o} {b}.",
    "What is the result of {a} {o} {b}?", "what is {a} {o} {b}", "Hi, what is {a} {o} {b}?", "Evaluate {a} {o} {b}.",
    "Work out {a} {w} {b}.", "{a}{o}{b}", "{a}{o}{b}=?", "Quick question: {a} {o} {b}?",
]
WORD_SUMS = [
    ("+", "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?"),
    ("+", "There are {a} {t} on the table and {b} {t} in a box. How many {t} are there?"),
    ("+", "{n} buys {a} {t} and then {b} more {t}. How many {t} is that?"),
    ("-", "{n} has {a} {t} and gives away {b}. How many {t} are left?"),
    ("-", "There are {a} {t}. {n} takes {b} of them. How many {t} remain?"),
    ("*", "There are {a} boxes with {b} {t} each. How many {t} are there?"),
]
NAMES = "Ada Ben Cleo Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Nora Otto Pia Quinn Rosa Sam Tom Uma Vera Will Zoe Alice Bob Carol David Emma Frank".split()
THINGS = "apples books coins pens cards cookies stones eggs cups balls keys stars".split()
WORDS = "red green blue apple banana cherry dog cat bird tree river stone house table chair window lamp paper music summer winter orange silver cloud bread sugar train ship garden road".split()
JOBS = "teacher doctor engineer farmer pilot baker writer nurse driver painter".split()
CITIES = "Paris Berlin Rome Madrid Oslo London Tokyo Cairo Lima Vienna Dublin Boston".split()


def reply(question, thought, answer):
    """A one-turn conversation."""
    return [{"role": "user", "content": question},
            {"role": "assistant", "reasoning_content": thought, "content": answer}]


def fact(rng):
    """Small talk and simple facts."""
    if rng.random() < 0.3:
        country = rng.choice(list(CAPITALS))
        city = CAPITALS[country]
        ask = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
                          "Tell me the capital of {}.", "what is the capital of {}")).format(country)
        return reply(ask, f"The user asks for the capital of {country}. It is {city}.",
                     f"The capital of {country} is {city}.")
    asks, answer = rng.choice(FACTS)
    ask = rng.choice(asks.split("|"))
    return reply(ask, rng.choice(("This is a simple question. I answer it directly.",
                                  "I know the answer to this.", "A short answer is enough.")), answer)


def operation(rng):
    """(a, b, symbol, word, value): mostly one-digit sums and differences."""
    roll = rng.random()
    if roll < 0.60:
        a, b, o = rng.randint(0, 9), rng.randint(0, 9), "+"
    elif roll < 0.75:
        a, b, o = rng.randint(0, 9), rng.randint(0, 9), "-"
        if rng.random() < 0.7:
            a, b = max(a, b), min(a, b)
    elif roll < 0.87:
        a, b, o = rng.randint(0, 10), rng.randint(0, 10), "*"
    elif roll < 0.97:
        a, b, o = rng.randint(10, 99), rng.randint(1, 99), "+"
    else:
        a, b, o = rng.randint(10, 99), rng.randint(1, 9), "-"
    value = {"+": a + b, "-": a - b, "*": a * b}[o]
    word = {"+": "plus", "-": "minus", "*": "times"}[o]
    return a, b, o, word, value


def sum_thought(a, b, o, value):
    """A short calculation; two-digit sums are done by tens and ones."""
    if o == "+" and a > 9 and b > 9:
        ones, tens = a % 10 + b % 10, a // 10 * 10 + b // 10 * 10
        return f"{a % 10} + {b % 10} = {ones}. {a // 10 * 10} + {b // 10 * 10} = {tens}. {tens} + {ones} = {value}."
    return f"{a} {o} {b} = {value}"


def arithmetic(rng):
    """Sums, differences and products in many wordings."""
    if rng.random() < 0.15:
        o, text = rng.choice(WORD_SUMS)
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        if o == "-":
            a, b = max(a, b), min(a, b)
        value = {"+": a + b, "-": a - b, "*": a * b}[o]
        thing, name = rng.choice(THINGS), rng.choice(NAMES)
        return reply(text.format(a=a, b=b, n=name, t=thing), f"{a} {o} {b} = {value}", f"{a} {o} {b} = {value}. The answer is {value}.")
    a, b, o, word, value = operation(rng)
    ask = rng.choice(SUM_ASKS)
    if rng.random() < 0.25:
        ask = SUM_ASKS[0]
    if o == "*" and rng.random() < 0.2:
        ask = ask.replace("{o}", "x")
    return reply(ask.format(a=a, b=b, o=o, w=word), sum_thought(a, b, o, value), f"{a} {o} {b} = {value}")


def drill(rng):
    """Plain lines of calculations, mostly one-digit sums: much practice in few tokens."""
    lines = []
    for _ in range(rng.randint(8, 30)):
        a, b, o, word, value = operation(rng)
        lines.append(f"{a} {word} {b} is {value}" if rng.random() < 0.15 else f"{a} {o} {b} = {value}")
    return "\n".join(lines) + "\n"


CODE_ASKS = ["Write a Python function that {ask}.", "Write a function that {ask}.", "Please write a Python function that {ask}.",
             "Can you write a Python function that {ask}?", "I need a Python function that {ask}.", "Give me a Python function that {ask}.",
             "Create a Python function which {ask}.", "Implement a function that {ask}.", "Write Python code: a function that {ask}.",
             "Show me a Python function that {ask}.", "python function that {ask}"]
NAMED_ASKS = ["Write a Python function `{name}` that {ask}.", "Write a Python function called {name} that {ask}.",
              "Write a function named {name} that {ask}.", "Implement `{name}({args})`, a function that {ask}.",
              "Write a Python function {name}({args}) that {ask}."]


def code(rng):
    """Write a function or class, complete one, or explain one."""
    roll = rng.random()
    if roll < 0.1:
        name, ask, source = pyfunctions.random_class(rng)
        question = rng.choice(("Write a Python class that {}.", "Write a class {} that {}.", "Create a Python class named {} that {}."))
        question = question.format(ask) if question.count("{}") == 1 else question.format(name, ask)
        return reply(question, f"I write the class {name} with its methods.", f"```python\n{source}\n```")
    f = pyfunctions.Function(rng)
    args = ", ".join(f.args)
    if roll < 0.62:
        named = rng.random() < 0.4
        ask = rng.choice(NAMED_ASKS if named else CODE_ASKS).format(ask=f.ask, name=f.name, args=args)
        lead = "" if rng.random() < 0.75 else f"Here is a function that {f.ask}:\n\n"
        tail = ""
        example = f.example(rng) if rng.random() < 0.2 else None
        if example:
            tail = f"\n\nFor example, `{example[0]}` returns `{example[1]}`."
        thought = rng.choice((f"The function {f.name} takes {args}. I will {f.plan}.", f"The plan: {f.plan}."))
        return reply(ask, thought, f"{lead}```python\n{f.source(doc=rng.random() < 0.8)}\n```{tail}")
    if roll < 0.80:
        head = f.signature() + f'\n    """{f.doc}"""\n'
        ask = rng.choice(("Complete this function:", "Complete the following Python function.", "Finish this code:"))
        return reply(f"{ask}\n\n```python\n{head}```", f"The function should: {f.doc} I will {f.plan}.", f"```python\n{f.source()}\n```")
    if roll < 0.90:
        ask = rng.choice(("What does this function do?", "Explain this code.", "What does this code do?", "Describe this function."))
        return reply(f"{ask}\n\n```python\n{f.source(doc=False)}\n```", f"The code is named {f.name}. It seems to {f.plan}.",
                     f"The function `{f.name}` {f.ask}.")
    return copying(rng, f)


def copying(rng, f=None):
    """Repeat a text or code, with or without one change."""
    if f is None and rng.random() < 0.5:
        words = rng.sample(WORDS, rng.randint(3, 9))
        text = " ".join(words)
        if rng.random() < 0.5:
            return reply(rng.choice(("Repeat this: {}", "Repeat the following text: {}", "Say this back to me: {}", "Copy this text exactly: {}")).format(text),
                         "I copy the text.", text)
        old, new = rng.choice(words), rng.choice([w for w in WORDS if w not in words])
        return reply(f"Repeat this text but replace {old} with {new}: {text}", f"I write {new} in place of {old}.",
                     " ".join(new if w == old else w for w in words))
    f = f or pyfunctions.Function(rng)
    source = f.source(doc=rng.random() < 0.6)
    if rng.random() < 0.25:
        return reply(f"Repeat this code exactly:\n\n```python\n{source}\n```", "I copy the code.", f"```python\n{source}\n```")
    new = rng.choice([n for n in f.spec.names if n != f.name] + [rng.choice(WORDS) + "_" + rng.choice(WORDS)])
    ask = rng.choice(("Rename the function {} to {}:", "Change the function name {} to {} in this code:", "Repeat this code with {} renamed to {}:"))
    old_name, f.name = f.name, new
    changed = source.replace(f"{old_name}(", f"{new}(")
    return reply(f"{ask.format(old_name, new)}\n\n```python\n{source}\n```", f"I copy the code and write {new} in place of {old_name}.",
                 f"```python\n{changed}\n```")


def json_answer(rng):
    """Answers that are one JSON object or list."""
    fields = {"name": rng.choice(NAMES), "age": rng.randint(5, 80), "city": rng.choice(CITIES), "job": rng.choice(JOBS),
              "color": rng.choice(("red", "green", "blue")), "active": rng.random() < 0.5, "score": rng.randint(0, 100)}
    keys = rng.sample(list(fields), rng.randint(2, 4))
    value = {k: fields[k] for k in keys}
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    text = json.dumps(value, indent=2) if rng.random() < 0.2 else json.dumps(value)
    roll = rng.random()
    if roll < 0.4:
        said = ", ".join(f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v in value.items())
        ask = rng.choice(("Make a JSON object with {}.", "Write this as JSON: {}", "Convert to JSON: {}", "Return JSON for {}."))
        return reply(ask.format(said), f"The keys are {listed}.", text)
    if roll < 0.8:
        ask = rng.choice(("Give me a JSON object with {}.", "Return a JSON object with the keys {}.", "Write a JSON object with {}.", "I need JSON with {}."))
        return reply(ask.format(listed), f"I make up values for {listed}.", text)
    words = rng.sample(WORDS, rng.randint(2, 5))
    return reply(rng.choice(("Give me a JSON list of these words: {}", "Turn this into a JSON array: {}")).format(", ".join(words)),
                 "I put each word in quotes.", json.dumps(words))


def lists(rng):
    """Sorting, counting, reversing and picking from short lists."""
    roll = rng.random()
    if roll < 0.45:
        n = rng.sample(range(1, 30 if rng.random() < 0.5 else 10), rng.randint(3, 6))
        down = rng.random() < 0.3
        out = ", ".join(map(str, sorted(n, reverse=down)))
        ask = rng.choice(("Sort these numbers: {}", "Sort {} in ascending order.", "Put these numbers in order: {}"))
        if down:
            ask = rng.choice(("Sort these numbers from largest to smallest: {}", "Sort {} in descending order."))
        return reply(ask.format(", ".join(map(str, n))), f"The {'largest is ' + str(max(n)) if down else 'smallest is ' + str(min(n))}.", out)
    if roll < 0.6:
        a = rng.randint(1, 9)
        b = a + rng.randint(2, 9)
        return reply(rng.choice(("Count from {} to {}.", "List the numbers from {} to {}.")).format(a, b), f"I start at {a} and stop at {b}.",
                     ", ".join(map(str, range(a, b + 1))))
    if roll < 0.8:
        n = rng.sample(range(1, 60), rng.randint(3, 5))
        big = rng.random() < 0.5
        value = max(n) if big else min(n)
        return reply(f"Which number is the {'largest' if big else 'smallest'}: {', '.join(map(str, n))}?", f"I compare the numbers. It is {value}.",
                     f"The {'largest' if big else 'smallest'} number is {value}.")
    words = rng.sample(WORDS, rng.randint(3, 4))
    kind = rng.choice(("colors", "animals", "fruits", "countries", "words"))
    pool = {"colors": "red green blue yellow orange purple", "animals": "dog cat bird horse fish cow", "fruits": "apple banana cherry pear plum grape",
            "countries": "France Italy Spain Japan Kenya Peru", "words": " ".join(words)}[kind].split()
    count = rng.randint(2, 4 if kind != "words" else 3)
    picked = rng.sample(pool, min(count, len(pool)))
    return reply(rng.choice((f"Name {len(picked)} {kind}.", f"List {len(picked)} {kind}.")) if kind != "words" else f"Make a bullet list of these words: {', '.join(picked)}",
                 f"The list has {len(picked)} items.", "\n".join(f"- {w}" for w in picked))


SYSTEMS = ["You are a helpful assistant.", "You are Splash nano, a small assistant.", "You are a coding assistant.", "Answer briefly.", "You are a Python expert."]
PARTS = [(arithmetic, 0.40), (code, 0.36), (fact, 0.08), (copying, 0.08), (json_answer, 0.06), (lists, 0.06)]


def conversation(rng):
    """(messages, tools or None) of one to three exchanges; thinking on or off at random."""
    if rng.random() < 0.14:
        messages, tools = toolcalls.conversation(rng)
    else:
        makers, weights = zip(*PARTS)
        turns = rng.choice((1, 1, 1, 1, 1, 1, 2, 3))
        messages, tools = [], None
        for maker in rng.choices(makers, weights, k=turns):
            messages += maker(rng)
        if rng.random() < 0.25:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    if rng.random() < 0.45:
        messages = [dict(m, reasoning_content="") if m["role"] == "assistant" else m for m in messages]
    return messages, tools
