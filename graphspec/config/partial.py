"""`Partial`: what could be read of a section with problems, so that checks of the rest still run."""

from collections.abc import Mapping
from typing import Any

from graphspec.errors import Problem
from graphspec.fields import rules_of


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


def readable(section: Any, name: str, default: Any = None) -> Any:
    """The field's value, or `default` where it has a problem of its own."""
    try:
        return getattr(section, name)
    except UnreadableError:
        return default


def broken_rules(cls: type, section: Any) -> list[Problem]:
    """What the rules of `cls` say of `section`, those left out that need a field with a problem of its own."""
    problems: list[Problem] = []
    for rule in rules_of(cls):
        try:
            problems.extend(rule(section))
        except UnreadableError:
            continue
    return problems
