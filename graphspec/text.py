"""Small helpers for messages: nearest names, readable values, lists of choices."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_SHOWN_CHARACTERS = 60


def show(value: Any) -> str:
    """A short, typed rendering of a value that a user wrote: ``"7" (a string)``."""
    kinds = {
        type(None): "nothing",
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        str: "a string",
        list: "a list",
        tuple: "a list",
        dict: "a mapping",
    }
    kind = kinds.get(
        type(value), "a mapping" if isinstance(value, Mapping) else type(value).__name__
    )
    if value is None:
        return "nothing (null)"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # An int of more digits, or a nesting of more levels, than Python agrees to print.
        text = "a value too large to show"
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"{text} ({kind})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, or None when nothing is close."""
    names = list(known)
    folded = {n.lower().replace("-", "_"): n for n in names}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def one_of(names: Iterable[str]) -> str:
    """``one of a, b or c``."""
    items = list(names)
    if len(items) == 1:
        return items[0]
    return f"one of {', '.join(items[:-1])} or {items[-1]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, else the list of all of them."""
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
