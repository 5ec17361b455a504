"""`Partial`: what could be read of a section with problems, so that checks of the rest still run."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from graphspec.errors import Problem, SpecError
from graphspec.fields import rules_of

T = TypeVar("T")
_FIELD = re.compile(r"[^.\[]*")


class UnreadableError(Exception):
    """A check asked for a field that has a problem of its own. The problem is already in the report."""


class Partial:
    """Stands in for a section: fields that were read give their value, all others raise `UnreadableError`."""

    __slots__ = ("_readable",)

    def __init__(self, readable: Mapping[str, Any]) -> None:
        self._readable = dict(readable)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._readable[name]
        except KeyError:
            raise UnreadableError(name) from None

    def replaced(self, values: Mapping[str, Any]) -> Any:
        """The same with other values of some fields."""
        return Partial({**self._readable, **values})

    def without(self, problems: Iterable[Problem]) -> "Partial":
        """The same less the fields that `problems` name: what follows from them must not be reported too."""
        named = {found.group() for p in problems if (found := _FIELD.match(p.where))}
        return Partial({n: v for n, v in self._readable.items() if n not in named})


def readable(section: Any, name: str, default: Any = None) -> Any:
    """The field's value, or `default` where it has a problem of its own."""
    try:
        return getattr(section, name)
    except UnreadableError:
        return default


def broken_rules(cls: type, section: Any) -> list[Problem]:
    """What the rules of `cls` say of `section`, those left out that need a field with a problem of its own."""
    return [problem for rule in rules_of(cls) for problem in found(partial(rule, section))]


def found(rule: Callable[[], Iterable[Problem]]) -> Iterator[Problem]:
    """What a rule yields, up to where it asks for a field with a problem of its own."""
    try:
        yield from rule()
    except UnreadableError:
        return


def attempt(step: Callable[[], T], problems: list[Problem]) -> T | None:
    """What a step gives; None where it lacks a field, or raises `SpecError`, whose problems join `problems`."""
    try:
        return step()
    except UnreadableError:
        return None
    except SpecError as error:
        problems.extend(error.problems)
        return None
