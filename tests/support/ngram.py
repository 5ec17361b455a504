"""n-gram drafting by brute force, texts that are hard for matchers, and walks of appends and truncations over them."""

import json
import random
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "data" / "ngram-cases.json"
_CASES = json.loads(_FILE.read_text())
PEER = [*_CASES["small"], *_CASES["large"]]

# Section 8.2. Context; smallest n, largest n, k, max_model_len; drafts at the earliest place, and at the latest.
ROWS = [
    ("1 2 3 4 2 3", 2, 3, 4, 100, "4 2 3", "4 2 3"),
    ("1 2 3 4 1 2 3 5 6", 2, 2, 2, 100, "", ""),
    ("1 2 3 4 1 2 3", 2, 2, 3, 100, "4 1 2", "4 1 2"),
    ("1 2 3 4 1 2 3", 1, 1, 2, 100, "4 1", "4 1"),
    ("1 2 3 4 1 2 3", 4, 4, 2, 100, "", ""),
    ("1 2 3 4 1 2 3", 3, 4, 2, 100, "4 1", "4 1"),
    ("1 3 6 2 3 4 1 2 3", 2, 2, 3, 100, "4 1 2", "4 1 2"),
    ("1 3 6 2 3 4 1 2 3", 1, 1, 2, 100, "6 2", "4 1"),
    ("2 3 4 5 1 2 3 4 1 2 3 4", 3, 4, 2, 100, "1 2", "1 2"),
    ("3 4 5 2 3 4 1 2 3 4", 2, 4, 2, 100, "1 2", "1 2"),
    ("1 2 3 100 1 2 3 200 1 2 3 300 1 2 3", 3, 3, 2, 100, "100 1", "300 1"),
    ("10 11 12 10 11 13 10 11", 2, 2, 2, 100, "12 10", "13 10"),
    ("1 2 1 2", 2, 2, 3, 100, "1 2", "1 2"),
    ("4 1 4 1 4", 1, 4, 3, 100, "1 4", "1 4"),
    ("7 7 7 7 7", 1, 3, 4, 100, "7 7", "7"),
    ("7 7", 1, 5, 4, 100, "7", "7"),
    ("1 1 1 1 2 1 1", 1, 5, 3, 100, "1 1 2", "2 1 1"),
    ("5 6", 2, 2, 2, 100, "", ""),
    ("9", 1, 1, 3, 100, "", ""),
    ("", 1, 1, 3, 100, "", ""),
    ("1 2 3 4 5", 2, 2, 2, 100, "", ""),
    ("1 2 3 4 5 6 1 2 3 4 5 6", 2, 2, 4, 100, "1 2 3 4", "1 2 3 4"),
    ("1 2 3 4 5 6 1 2 3 4 5 6", 2, 2, 1, 100, "1", "1"),
    ("1 2 3 1 2", 2, 2, 4, 7, "3 1", "3 1"),
    ("1 2 3 1 2", 2, 2, 4, 6, "3", "3"),
    ("1 2 3 1 2", 2, 2, 4, 5, "", ""),
]


def ids(text):
    """``"4 2 3"`` as a list of ids."""
    return [int(t) for t in text.split()]


def brute_force(t, min_n, max_n, k, max_model_len, tie="earliest"):
    """Section 8.1: the largest n with an earlier occurrence, the smallest (or largest) start, what follows it."""
    length = len(t)
    depth = min(k, max_model_len - length)
    if length < min_n or depth <= 0:
        return []
    for n in range(min(max_n, length), 0, -1):
        suffix = t[length - n :]
        starts = [s for s in range(length - n) if t[s : s + n] == suffix]
        if starts:
            after = (starts[0] if tie == "earliest" else starts[-1]) + n
            return t[after : after + depth] if n >= min_n else []
    return []


def fibonacci(length, a=0, b=1):
    """The Fibonacci word: many borders of many lengths, the hard case of prefix functions."""
    word, previous = [a], [a, b]
    while len(word) < length:
        word, previous = previous, previous + word
    return word[:length]


def thue_morse(length):
    """No piece of it comes three times in a row."""
    return [i.bit_count() % 2 for i in range(length)]


def text(draw, length):
    """A context of one of the kinds that make matches long, overlapping, broken or rare."""
    kind = draw.choice(["few", "period", "broken", "fibonacci", "thue", "equal", "many", "large"])
    if kind == "few":
        return [draw.randrange(2) for _ in range(length)]
    if kind in ("period", "broken"):
        piece = [draw.randrange(4) for _ in range(draw.randint(1, 7))]
        out = [piece[i % len(piece)] for i in range(length)]
        if kind == "broken":
            for _ in range(1 + length // 20):
                out[draw.randrange(length)] = draw.randrange(5)
        return out
    if kind == "fibonacci":
        return fibonacci(length, *draw.sample(range(5), 2))
    if kind == "thue":
        return thue_morse(length)
    if kind == "equal":
        return [draw.randrange(3)] * length
    if kind == "many":
        return [draw.randrange(1 + length // 2) for _ in range(length)]
    return [draw.choice([0, 1, 2**16, 2**24, 2**24 + 1, 2**31 - 1]) for _ in range(length)]


def walk(seed):
    """One request's life: settings, and actions ("append", ids), ("truncate", length), ("reset",) that lead through it."""
    draw = random.Random(seed)
    longest = draw.randint(1, 70)
    min_n = draw.randint(1, 5)
    settings = {
        "min_n": min_n,
        "max_n": min_n + draw.randint(0, 5),
        "k": draw.randint(1, 8),
        "max_model_len": longest,
    }
    have, actions = 0, []
    for _ in range(24):
        what = draw.random()
        if what < 0.65 and have < longest:
            new = text(draw, draw.choice([1, 1, 1, 2, 4, draw.randint(1, longest)]))
            new = new[: longest - have]
            actions.append(("append", new))
            have += len(new)
        elif what < 0.95 and have:
            have = max(0, have - draw.choice([1, 2, 3, draw.randint(1, have)]))
            actions.append(("truncate", have))
        elif have:
            have = 0
            actions.append(("reset",))
    return settings, actions
