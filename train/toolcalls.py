# SPDX-License-Identifier: Apache-2.0
"""Random conversations with tools: schemas, requests that fix the arguments, results."""

import json
import string

CITIES = "Paris Berlin Rome Madrid Oslo London Tokyo Cairo Lima Vienna Dublin Boston Prague Athens Zurich Seoul Sydney Denver".split()
NAMES = "Ada Ben Cleo Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Nora Otto Pia Rosa Sam Tom Uma Vera Will Zoe Alice Bob".split()
WORDS = "red green blue apple banana tree river stone house table window paper music summer winter cloud bread train garden road report budget notes plan data".split()
FILES = "main.c notes.txt README.md app.py test.py data.json config.yaml index.html server.c util.py Makefile todo.txt report.csv".split()
FOLDERS = "src docs tests lib data tmp build include".split()
TOPICS = "python lists, sorting algorithms, solar panels, cheap flights, bread recipes, unit tests, sqlite indexes, weather maps, chess openings, garden tools, linux kernel, jazz music".split(", ")
COMMANDS = "ls -la;git status;make test;python main.py;cat notes.txt;pwd;wc -l data.csv;git log;make clean;df -h".split(";")

# name variants | description | parameters name:kind:description | requests | answer after the result | result
TOOLS = [
    ("get_weather weather current_weather fetch_weather lookup_weather", "Get the weather of a city.", "city location place|:city:Name of the city",
     "What is the weather in {0}?;How is the weather in {0} today?;Tell me the weather in {0}.;Is it warm in {0}?;Get the weather for {0}.", "The weather in {0} is {result}.", "weather"),
    ("get_weather get_forecast forecast weather_forecast", "Get the weather forecast.", "city location|:city:Name of the city;days num_days|:int:Number of days",
     "What is the weather in {0} for the next {1} days?;Give me a {1} day forecast for {0}.;Forecast for {0}, {1} days.", "The forecast for {0} is {result}.", "weather"),
    ("get_time current_time time_in", "Get the current time in a city.", "city location timezone|:city:Name of the city",
     "What time is it in {0}?;Tell me the time in {0}.;Current time in {0}?", "It is {result} in {0}.", "time"),
    ("add sum_numbers add_numbers calculator_add", "Add two numbers.", "a x first|:int:First number;b y second|:int:Second number",
     "Add {0} and {1}.;What is {0} plus {1}? Use the tool.;Use the tool to add {0} and {1}.;Sum {0} and {1}.", "The result is {result}.", "number"),
    ("multiply times multiply_numbers", "Multiply two numbers.", "a x first|:int:First number;b y second|:int:Second number",
     "Multiply {0} by {1}.;Use the tool to multiply {0} and {1}.;What is {0} times {1}? Use the tool.", "The result is {result}.", "number"),
    ("calculate calculator evaluate", "Evaluate an arithmetic expression.", "expression expr formula|:expr:Expression to evaluate",
     "Calculate {0} with the tool.;Use the calculator for {0}.;Evaluate {0}.", "The result is {result}.", "number"),
    ("read_file open_file load_file cat_file read", "Read a file.", "path file filename file_path|:file:Path of the file",
     "Read the file {0}.;Show me {0}.;What is in {0}?;Open {0} please.;Please read {0}.", "The file {0} contains: {result}", "text"),
    ("write_file save_file create_file write", "Write text to a file.", "path file filename file_path|:file:Path of the file;content text data|:words:Text to write",
     "Write \"{1}\" to {0}.;Create the file {0} with the text \"{1}\".;Save \"{1}\" in {0}.", "I wrote the text to {0}.", "ok"),
    ("list_files list_dir ls list_directory", "List the files of a folder.", "path folder directory|:folder:Path of the folder",
     "List the files in {0}.;What files are in {0}?;Show the folder {0}.", "The folder {0} has these files: {result}", "files"),
    ("run_command bash shell execute run_shell", "Run a shell command.", "command cmd|:command:Command to run",
     "Run {0}.;Run the command {0}.;Execute {0} please.;Please run `{0}`.", "The output is: {result}", "text"),
    ("search web_search search_web find_pages google", "Search the web.", "query q search_query|:topic:Search terms",
     "Search for {0}.;Find pages about {0}.;Search the web for {0}.;Look up {0}.", "I found: {result}", "text"),
    ("search search_docs find", "Search the documents.", "query q|:topic:Search terms;limit max_results count|:int:Maximum number of results",
     "Search for {0} and give me {1} results.;Find {1} results about {0}.;Look up {0}, at most {1} results.", "I found: {result}", "text"),
    ("send_email send_mail email mail", "Send an email.", "to recipient|:name:Name of the recipient;subject title|:words:Subject line",
     "Send an email to {0} with the subject \"{1}\".;Email {0} about \"{1}\".;Mail {0}, subject \"{1}\".", "I sent the email to {0}.", "ok"),
    ("send_message message notify text_user", "Send a message to a person.", "to user person|:name:Name of the person;message text body|:words:Text of the message",
     "Send {0} the message \"{1}\".;Tell {0}: \"{1}\".;Message {0} \"{1}\".", "I sent the message to {0}.", "ok"),
    ("set_timer timer start_timer", "Start a timer.", "minutes duration|:int:Minutes to wait",
     "Set a timer for {0} minutes.;Start a {0} minute timer.;Timer for {0} minutes please.", "The timer runs for {0} minutes.", "ok"),
    ("create_event add_event schedule", "Create a calendar event.", "title name|:words:Title of the event;day date|:day:Day of the event",
     "Create an event \"{0}\" on {1}.;Schedule \"{0}\" for {1}.;Put \"{0}\" on my calendar on {1}.", "I created the event on {1}.", "ok"),
    ("translate translate_text", "Translate a text.", "text content|:words:Text to translate;language target_language target|:language:Target language",
     "Translate \"{0}\" to {1}.;How do you say \"{0}\" in {1}?;Translate \"{0}\" into {1}.", "The translation is {result}.", "text"),
    ("get_user find_user lookup_user get_contact", "Look up a person.", "name user username|:name:Name of the person",
     "Look up the user {0}.;Find {0}.;Get the contact of {0}.;Who is {0}? Look it up.", "I found {0}: {result}", "text"),
    ("set_light switch_light light", "Switch the light of a room.", "room place|:room:Name of the room;on enabled state|:bool:Whether the light is on",
     "Turn the light in the {0} {1}.;Switch {1} the {0} light.", "The light in the {0} is set.", "ok"),
    ("convert_currency exchange convert", "Convert an amount of money.", "amount value|:int:Amount of money;to currency target|:currency:Target currency",
     "Convert {0} dollars to {1}.;How much is {0} dollars in {1}?", "It is {result} {1}.", "number"),
]
KINDS = {"int": "integer", "bool": "boolean"}
SYLLABLES = [c + v + e for c in "bdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "s")]
NEW_NAME, NEW_VALUE = 0.45, 0.5       # shares of names and values nobody can know by heart
OTHER_ROOMS = "kitchen bedroom garage hall office bathroom".split()


def invented(rng, most=3):
    """A word that means nothing: it can be copied, not known."""
    text = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, most)))
    return text.capitalize() if rng.random() < 0.25 else text


def identifier(rng):
    """A name of a tool or a parameter nobody has seen."""
    roll = rng.random()
    if roll < 0.35:
        return f"{rng.choice(WORDS)}_{rng.choice(WORDS)}"
    if roll < 0.6:
        return f"{rng.choice(WORDS)}_{invented(rng, 2).lower()}"
    if roll < 0.85:
        return "_".join(invented(rng, 2).lower() for _ in range(rng.randint(1, 2)))
    return "".join(rng.choice(string.ascii_letters) for _ in range(rng.randint(1, 5)))


def novel(kind, rng):
    """A value of a parameter kind that is in no list."""
    if kind == "file":
        return f"{invented(rng).lower()}.{rng.choice('c h py txt md json csv html sh log'.split())}"
    if kind == "folder":
        return invented(rng).lower() + (f"/{invented(rng, 2).lower()}" if rng.random() < 0.4 else "")
    if kind == "command":
        return f"{invented(rng, 2).lower()} {rng.choice(('-', '--', ''))}{invented(rng, 2).lower()}"
    count = 1 if kind in ("city", "name", "room", "language") else rng.randint(1, 4)
    return " ".join(rng.choice(WORDS) if rng.random() < 0.3 else invented(rng) for _ in range(count))


def value_of(kind, rng):
    """(value, text in the request) of a parameter kind."""
    if kind in ("city", "name", "topic", "room", "language", "file", "folder", "command", "words") and rng.random() < NEW_VALUE:
        value = novel(kind, rng)
        return value, value
    pick = {"city": CITIES, "name": NAMES, "command": COMMANDS, "topic": TOPICS, "room": OTHER_ROOMS,
            "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
            "language": "French German Spanish Italian Greek".split(), "currency": "euros pounds yen francs".split()}
    if kind in pick:
        value = rng.choice(pick[kind])
    elif kind == "int":
        value = rng.randint(1, 12) if rng.random() < 0.6 else rng.randint(10, 999)
    elif kind == "bool":
        value = rng.random() < 0.5
        return value, "on" if value else "off"
    elif kind == "expr":
        value = f"{rng.randint(1, 99)} {rng.choice('+-*')} {rng.randint(1, 99)}"
    elif kind == "file":
        value = rng.choice(FILES) if rng.random() < 0.6 else rng.choice(FOLDERS) + "/" + rng.choice(FILES)
    elif kind == "folder":
        value = rng.choice(FOLDERS) if rng.random() < 0.7 else rng.choice(FOLDERS) + "/" + rng.choice(FOLDERS)
    else:
        value = " ".join(rng.sample(WORDS, rng.randint(1, 4)))
    return value, str(value)


def result_of(kind, rng):
    """Text of a tool result."""
    if kind == "weather":
        return f"{rng.choice(('sunny', 'rainy', 'cloudy', 'windy', 'snowy'))}, {rng.randint(-5, 35)} degrees"
    if kind == "time":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind == "number":
        return str(rng.randint(1, 2000))
    if kind == "files":
        return ", ".join(rng.sample(FILES, rng.randint(1, 3)))
    return "ok" if kind == "ok" else " ".join(rng.sample(WORDS, rng.randint(2, 6)))


def make(row, rng):
    """(tool name, schema object, [(parameter, value, text)], request, answer, result)."""
    names, about, params, asks, answer, kind = row
    name = identifier(rng) if rng.random() < NEW_NAME else rng.choice(names.split())
    filled, properties = [], {}
    for part in params.split(";"):
        options, rest = part.split("|:")
        style, told = rest.split(":")
        key = identifier(rng) if rng.random() < NEW_NAME / 2 else rng.choice(options.split())
        value, text = value_of(style, rng)
        filled.append((key, value, text))
        properties[key] = {"type": KINDS.get(style, "string")}
        if rng.random() < 0.4:
            properties[key]["description"] = told
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": about, "parameters": parameters}
    if rng.random() < 0.15:
        del function["description"]
    texts = [t for _, _, t in filled]
    result = result_of(kind, rng)
    return (name, {"type": "function", "function": function}, filled, rng.choice(asks.split(";")).format(*texts),
            answer.format(*texts, result=result), result)


def conversation(rng):
    """(messages, tools): one or two tools, a request, its call, sometimes the result and the answer."""
    from chatdata import fact, arithmetic
    rows = rng.sample(TOOLS, rng.choice((1, 1, 2)))
    made = [make(r, rng) for r in rows]
    if len({m[0] for m in made}) < len(made):
        made = made[:1]
    chosen = made[0]
    tools = [m[1] for m in rng.sample(made, len(made))]
    system = [{"role": "system", "content": rng.choice(("You are a helpful assistant.", "Answer briefly."))}] if rng.random() < 0.2 else []
    if rng.random() < 0.08:
        return system + rng.choice((fact, arithmetic))(rng), tools
    name, _, filled, ask, answer, result = chosen
    call = {"type": "function", "function": {"name": name, "arguments": {k: v for k, v, _ in filled}}}
    told = " and ".join(f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v, _ in filled)
    messages = system + [{"role": "user", "content": ask},
                         {"role": "assistant", "reasoning_content": f"I call {name} with {told}.", "content": "", "tool_calls": [call]}]
    if rng.random() < 0.4:
        messages += [{"role": "tool", "content": result},
                     {"role": "assistant", "reasoning_content": f"The tool returned {result}.", "content": answer}]
    return messages, tools
