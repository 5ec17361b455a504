"""Prompts to train and to measure draft heads on: instructions, edits of code, extraction, and plain continuation.

Templates filled from lists, all written for this purpose. Every eighth subject (topic, function, name, city, thing) is held
out: no training prompt is about it.
"""

import random

HELD_EVERY = 8

TOPICS = """how rainbows form; the water cycle; why leaves change colour in autumn; how bees make honey; the history of the bicycle;
how a lighthouse works; the phases of the moon; growing tomatoes on a balcony; learning to swim as an adult; the invention of
the printing press; how vaccines work; the life of a sea turtle; making bread at home; the Silk Road; how batteries store
energy; saving water in the garden; the rules of chess; why the sky is blue; public libraries; electric cars; the Roman
aqueducts; how to write a good letter; the food of Japan; sleeping well; the desert at night; how volcanoes erupt; the Great
Barrier Reef; planning a small wedding; how computers store numbers; the life of Marie Curie; training a young dog; how
glaciers move; the history of tea; solar panels on a roof; good manners on a train; how bridges carry weight; the planets of
the solar system; reading to children; keeping a diary; the first flight of the Wright brothers; how cheese is made; why we
dream; a budget for students; the human heart; recycling glass; how maps are drawn; the Olympic Games in ancient Greece; wind
turbines; the migration of birds; a visit to the dentist; how to prepare for an interview; the forests of Canada; caring for a
cactus; the discovery of penicillin; how search engines find pages; working from home; the history of jazz; earthquakes; the
octopus; how to apologise; a healthy breakfast; the city of Venice; machine learning; why ice floats; planting a tree; the
Moon landing of 1969; how a bill becomes a law; photography for beginners; the camel; stress before exams; how tides work; the
Berlin Wall; choosing a bicycle; the ozone layer; the story of coffee; teamwork; bats; how to make a cup of green tea; the
French Revolution; cleaning a kitchen; the theory of evolution; the violin; walking in the mountains; how money was invented;
black holes; a good night in a tent; the Amazon river; writing clear emails; how an aeroplane stays in the air; penguins;
customer service; the Industrial Revolution; fresh vegetables in winter; the speed of light; a school garden; the Pyramids;
learning a language; clouds; the telephone; elephants; a rainy Sunday; how noise harms us; the human eye; moving to a new
city; artificial intelligence in hospitals; a lost umbrella; an old clock; the colour green; trust between friends; the ocean
floor; a small bakery; the number zero; how soap cleans; remote villages; the wheel; cats and their whiskers; the smell of
rain; folding paper; a train across Siberia; the first snow; a museum of toys""".replace(
    "\n", " "
).split("; ")

TASKS = """Explain {t} to a ten year old.; Write a short paragraph about {t}.; List five facts about {t}.; What are the main
points one should know about {t}?; Write a short poem about {t}.; Give me three pieces of advice concerning {t}.; Write a
dialogue between two friends about {t}.; Summarise the subject of {t} in two sentences.; Write an email to a colleague about
{t}.; Describe {t} step by step.; What questions would you ask an expert on {t}?; Write the introduction of an essay on {t}.;
Tell a short story that has to do with {t}.; What do people often get wrong about {t}?; Compare {t} with something from daily
life.; Make a plan for a lesson on {t}.; Why does {t} matter?; Give a definition and two examples for {t}.""".replace(
    "\n", " "
).split("; ")

OPENINGS = [
    "In this chapter we look at {t}. ",
    "The most surprising thing about {t} is ",
    "A reader asked us about {t}. Here is our answer: ",
    "Notes on {t}:\n\n1. ",
    "Yesterday I learned something about {t}. ",
    "Question: what is there to say about {t}?\nAnswer: ",
]

# (name, what it does, arguments, body)
FUNCTIONS = [
    ("average", "returns the mean of a list of numbers", "values", "    return sum(values) / len(values)\n"),
    ("count_words", "counts the words of a text", "text", "    return len(text.split())\n"),
    ("largest", "returns the largest of a list of numbers", "values", "    best = values[0]\n    for value in values:\n        if value > best:\n            best = value\n    return best\n"),
    ("reverse", "reverses a string", "text", '    result = ""\n    for letter in text:\n        result = letter + result\n    return result\n'),
    ("is_even", "says whether a number is even", "number", "    return number % 2 == 0\n"),
    ("factorial", "returns the factorial of a number", "n", "    if n <= 1:\n        return 1\n    return n * factorial(n - 1)\n"),
    ("fibonacci", "returns the first n Fibonacci numbers", "n", "    numbers = [0, 1]\n    while len(numbers) < n:\n        numbers.append(numbers[-1] + numbers[-2])\n    return numbers[:n]\n"),
    ("unique", "removes duplicates and keeps the order", "items", "    seen = set()\n    result = []\n    for item in items:\n        if item not in seen:\n            seen.add(item)\n            result.append(item)\n    return result\n"),
    ("to_celsius", "turns Fahrenheit into Celsius", "degrees", "    return (degrees - 32) * 5 / 9\n"),
    ("total_price", "adds up the prices of all orders", "orders", '    total = 0\n    for order in orders:\n        total += order["price"] * order["count"]\n    return total\n'),
    ("read_lines", "reads a file and returns its lines", "path", "    with open(path) as file:\n        return [line.strip() for line in file]\n"),
    ("is_palindrome", "says whether a word reads the same backwards", "word", "    word = word.lower()\n    return word == word[::-1]\n"),
    ("count_vowels", "counts the vowels of a text", "text", '    return sum(1 for letter in text.lower() if letter in "aeiou")\n'),
    ("merge", "merges two sorted lists", "left, right", "    result = []\n    while left and right:\n        if left[0] < right[0]:\n            result.append(left.pop(0))\n        else:\n            result.append(right.pop(0))\n    return result + left + right\n"),
    ("gcd", "returns the greatest common divisor", "a, b", "    while b:\n        a, b = b, a % b\n    return a\n"),
    ("is_prime", "says whether a number is prime", "n", "    if n < 2:\n        return False\n    for i in range(2, int(n ** 0.5) + 1):\n        if n % i == 0:\n            return False\n    return True\n"),
    ("flatten", "flattens a list of lists", "lists", "    return [item for part in lists for item in part]\n"),
    ("by_age", "sorts people by their age", "people", "    return sorted(people, key=lambda person: person.age)\n"),
    ("word_lengths", "maps each word to its length", "words", "    return {word: len(word) for word in words}\n"),
    ("area", "returns the area of a rectangle", "width, height", "    return width * height\n"),
    ("find", "returns the index of an item, or -1", "items, wanted", "    for i in range(len(items)):\n        if items[i] == wanted:\n            return i\n    return -1\n"),
    ("squares", "returns the squares of the numbers below n", "n", "    return [i * i for i in range(n)]\n"),
    ("initials", "returns the initials of a name", "name", '    return "".join(part[0].upper() for part in name.split())\n'),
    ("clamp", "keeps a value between two limits", "value, low, high", "    return max(low, min(value, high))\n"),
    ("bubble_sort", "sorts a list of numbers", "values", "    for i in range(len(values)):\n        for j in range(len(values) - 1 - i):\n            if values[j] > values[j + 1]:\n                values[j], values[j + 1] = values[j + 1], values[j]\n    return values\n"),
    ("binary", "writes a number in binary digits", "n", '    digits = ""\n    while n > 0:\n        digits = str(n % 2) + digits\n        n = n // 2\n    return digits\n'),
    ("common", "returns the items that two lists share", "first, second", "    return [item for item in first if item in second]\n"),
    ("histogram", "counts how often each letter occurs", "text", "    counts = {}\n    for letter in text:\n        counts[letter] = counts.get(letter, 0) + 1\n    return counts\n"),
    ("shout", "writes a text in capitals with an exclamation mark", "text", '    return text.upper() + "!"\n'),
    ("leap_year", "says whether a year is a leap year", "year", "    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"),
    ("chunks", "splits a list into parts of a size", "items, size", "    return [items[i : i + size] for i in range(0, len(items), size)]\n"),
    ("save", "writes a dictionary to a JSON file", "data, path", '    with open(path, "w") as file:\n        json.dump(data, file)\n'),
]  # fmt: skip

EDITS = """Add a docstring to this function.; Add type hints to this function.; Rename the function to compute_{n} and show the
whole code.; Write a test for this function.; Explain this code line by line.; Repeat this code exactly.; Add a check of the
arguments to this function.; Rewrite this function so that it is easier to read.; Translate this function to JavaScript.; Add a
comment to each line of this code.; What does this function return?; Write a main program that calls this function and prints
the result.""".replace("\n", " ").split("; ")

NAMES = "Anna Keller; Bruno Costa; Chen Wei; Dora Novak; Emil Larsen; Fatima Haddad; George Adams; Hana Sato; Ivan Petrov; Julia Brown; Karim Aziz; Laura Rossi; Mark Jensen; Nina Weber; Omar Farah; Paula Silva; Quentin Dubois; Rosa Marin; Samuel Clarke; Tara Singh; Umberto Gallo; Vera Horvat; William Hughes; Yara Nasser".split("; ")  # fmt: skip
CITIES = "Zurich; Lisbon; Shanghai; Prague; Oslo; Beirut; Boston; Kyoto; Sofia; Dublin; Cairo; Milan; Aarhus; Vienna; Nairobi; Recife; Lyon; Seville; Leeds; Delhi; Turin; Zagreb; Perth; Amman".split("; ")  # fmt: skip
JOBS = "engineer; baker; teacher; nurse; carpenter; lawyer; pilot; painter; farmer; librarian; chemist; driver; cook; translator; musician; gardener".split("; ")  # fmt: skip
GOODS = "a desk lamp; two chairs; a garden hose; a pair of boots; three notebooks; a coffee machine; a winter coat; a tent; four batteries; a bicycle bell; a set of knives; a carpet; a radio; a rucksack; six glasses; a ladder".split("; ")  # fmt: skip
MONTHS = (
    "January February March April May June July August September October November December".split()
)

EXTRACTIONS = """List all names in the text.; Give the data as a table with one line a person.; Write the data as JSON.; Which
cities are mentioned? Answer with a list.; Copy the text word for word.; Extract every number from the text.; Who is the oldest
person?; Rewrite the text as one sentence for each person.; Write the names in alphabetical order.; Write the text again with
the jobs left out.""".replace("\n", " ").split("; ")

LETTER_TASKS = """Extract the order number, the date and the name of the customer.; Summarise this letter in one sentence.; Write
a polite answer to this letter.; List all dates in this letter.; Repeat this letter word for word.; Rewrite this letter in a
friendlier tone.; What does the customer want?; Write the facts of this letter as JSON.""".replace(
    "\n", " "
).split("; ")


def pick(made: random.Random, items: list, held: bool):
    """An entry that is held out, or one that is not."""
    return made.choice([item for at, item in enumerate(items) if (at % HELD_EVERY == 0) == held])


def instruction(made: random.Random, held: bool) -> str:
    return made.choice(TASKS).format(t=pick(made, TOPICS, held))


def opening(made: random.Random, held: bool) -> str:
    return made.choice(OPENINGS).format(t=pick(made, TOPICS, held)).rstrip(" ")


def edit(made: random.Random, held: bool) -> str:
    name, _, arguments, body = pick(made, FUNCTIONS, held)
    task = made.choice(EDITS).format(n=name)
    return f"{task}\n\ndef {name}({arguments}):\n{body}"


def program(made: random.Random, held: bool) -> str:
    name, does, arguments, _ = pick(made, FUNCTIONS, held)
    return made.choice(
        (
            f"Write a Python function that {does}.",
            f"Write a function {name}({arguments}) in Python that {does}, with an example of its use.",
            f"How would you write a function that {does}? Explain your code.",
        )
    )


def completion(made: random.Random, held: bool) -> str:
    name, does, arguments, _ = pick(made, FUNCTIONS, held)
    return f'def {name}({arguments}):\n    """{does[0].upper()}{does[1:]}."""\n'


def people(made: random.Random, held: bool) -> str:
    lines = [
        f"{pick(made, NAMES, held)}, {made.choice(JOBS)}, born in {made.randint(1950, 2002)}, lives in {pick(made, CITIES, held)}."
        for _ in range(made.randint(2, 3))
    ]
    return f"{made.choice(EXTRACTIONS)}\n\n" + "\n".join(lines)


def letter(made: random.Random, held: bool) -> str:
    name = pick(made, NAMES, held)
    day, month = made.randint(1, 28), made.choice(MONTHS)
    return (
        f"{made.choice(LETTER_TASKS)}\n\nDear Sir or Madam, on {day} {month} I ordered {pick(made, GOODS, held)} "
        f"(order {made.randint(10000, 99999)}) for {made.randint(10, 400)} euros. The parcel arrived in {pick(made, CITIES, held)} "
        f"{made.choice(('too late', 'damaged', 'without the bill', 'at the wrong address'))}. "
        f"Please {made.choice(('send a new one', 'give me my money back', 'tell me what to do'))}. Yours, {name}"
    )


# What asks as a user would is wrapped in the model's chat template; the rest is continued as it is.
KINDS = {
    "instruction": (instruction, True, 8),
    "opening": (opening, False, 3),
    "edit": (edit, True, 4),
    "program": (program, True, 3),
    "completion": (completion, False, 2),
    "people": (people, True, 3),
    "letter": (letter, True, 3),
}


def prompts(count: int, seed: int, *, held: bool) -> list[tuple[str, str, bool]]:
    """Kind, text, and whether it is a user's message, of `count` different prompts; the same for the same seed."""
    made, found = random.Random(f"{seed} {held}"), {}
    kinds, weights = list(KINDS), [weight for _, _, weight in KINDS.values()]
    while len(found) < count:
        kind = made.choices(kinds, weights)[0]
        write, chat, _ = KINDS[kind]
        found.setdefault(write(made, held), (kind, chat))
    return [(kind, text, chat) for text, (kind, chat) in found.items()]
