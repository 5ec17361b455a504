"""Small helpers for messages: nearest names, readable values, lists of choices."""

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import Any

_SHOWN_CHARACTERS = 60
_ALSO_CALLED: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float8": "fp8",
    "gpu": "cuda",
    "flash_attention": "flash_attn",
    "flash_attention_2": "flash_attn",
}
"""Other names of things, which look more like something else: gpu is no misspelt cpu."""


def show(value: Any) -> str:
    """A short, typed rendering of a value in the words of a config file, not of Python.

    >>> show("7"), show(True), show((1, None))
    ("'7' (a string)", 'true (a boolean)', '[1, null] (a list)')
    """
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
    if value is None:
        return "nothing (null)"
    if isinstance(value, enum.Enum):
        value = value.value
    kind = kinds.get(
        type(value), "a mapping" if isinstance(value, Mapping) else type(value).__name__
    )
    try:
        text = _written(value)
    except (ValueError, RecursionError):
        # An int of more digits, or a nesting of more levels, than Python agrees to print.
        text = "a value too large to show"
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"{text} ({kind})"


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_written(k)}: {_written(v)}' for k, v in value.items())}}}"
    return repr(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that means or looks most like `name`, or None when nothing is close."""
    folded = {n.lower().replace("-", "_"): n for n in known}
    word = name.lower().replace("-", "_")
    if _ALSO_CALLED.get(word) in folded:
        return folded[_ALSO_CALLED[word]]
    close = difflib.get_close_matches(word, folded, n=1, cutoff=0.6)
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
    return nearest_hint(name, names) or f"known: {', '.join(names)}"


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, else nothing: for messages that list them all already."""
    close = nearest(name, known)
    return f"did you mean {close!r}?" if close else ""


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
