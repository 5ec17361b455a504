"""YAML to a `Document`: duplicate keys refused, lines kept, depth and size bounded, no object ever constructed.

Plain scalars that YAML 1.1, YAML 1.2 and people read differently are refused, each with what to write instead.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import attrs
import yaml

from graphspec.errors import Problem, SpecError
from graphspec.formats.document import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    Document,
    Path,
    is_unicode,
    short,
    spot,
)
from graphspec.text import show

_STANDARD = "tag:yaml.org,2002:"
_TAGS = {
    yaml.MappingNode: frozenset({_STANDARD + "map"}),
    yaml.SequenceNode: frozenset({_STANDARD + "seq"}),
    yaml.ScalarNode: frozenset(
        _STANDARD + kind for kind in ("null", "bool", "int", "float", "str", "timestamp")
    ),
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    form: truth
    for truth, words in (("true", ("y", "yes", "on")), ("false", ("n", "no", "off")))
    for word in words
    for form in (word, word.title(), word.upper())
}
_LONGEST_SUGGESTION = 60
_OPENERS = "[{-?:"
_SAFE_LEVELS = 500
_TOO_MUCH = f"more than {MAX_DEPTH} levels or {MAX_VALUES} values"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII | re.IGNORECASE)


_FINE = _pattern(r"[-+]?(0|[1-9][0-9]*|[0-9]+\.[0-9]*(e[-+][0-9]+)?)|\.[0-9]+(e[-+][0-9]+)?")
_BASED = _pattern(r"[-+]?0([0-7_]+|x[0-9a-f_]+|o[0-7_]+|b[01_]+)")
_DECIMAL = _pattern(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?")
_SIXTIES = _pattern(r"[-+]?[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?")
_ENDLESS = _pattern(r"[-+]?\.(inf|nan)")


@attrs.frozen
class Trap:
    """A plain scalar that does not say what it seems to: what it is, and what to write instead of it."""

    kind: str
    wanted: str
    instead: str = ""


def trap(text: str) -> Trap | None:
    """What is treacherous about `text` as a plain scalar, or None.

    >>> trap("1e3").instead, trap("off").instead, trap("1000"), trap("one")
    ('1000', 'false', None, None)
    """
    if text in _BOOLEANS:
        truth = _BOOLEANS[text]
        return Trap(f"which YAML 1.1 reads as {truth}", "true or false", truth)
    if _FINE.fullmatch(text):
        return None
    for pattern, kind, number in (
        (_BASED, "an integer in another base than ten", _based),
        (_DECIMAL, "a number that YAML readers do not agree on", _decimal),
        (_SIXTIES, "which can be read as a number in base 60", _sixties),
    ):
        if pattern.fullmatch(text):
            return Trap(kind, "a plain decimal number", _instead(text, number))
    return Trap("no finite number", "a finite number") if _ENDLESS.fullmatch(text) else None


def _instead(text: str, number: Callable[[str], float]) -> str:
    if len(text) > _LONGEST_SUGGESTION:
        return ""
    try:
        value = number(text.lower().replace("_", ""))
    except ValueError:
        # Only underscores after the prefix of a base.
        return ""
    if not math.isfinite(value):
        return ""
    written = repr(value)
    return written.replace("e", ".0e") if "." not in written else written


def _based(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-+")
    return sign * (int(digits, 0) if digits[1:2] in "xob" else int(digits, 8))


def _decimal(text: str) -> float:
    if not set(text) & set(".e"):
        return int(text)
    value = float(text)
    return int(value) if "." not in text and value.is_integer() and abs(value) < 1e16 else value


def _sixties(text: str) -> float:
    sign = -1 if text.startswith("-") else 1
    *whole, last = text.lstrip("-+").split(":")
    number = float(last) if "." in last else int(last)
    return sign * (functools.reduce(lambda high, low: high * 60 + int(low), whole, 0) * 60 + number)


def read_yaml(text: str, source: str) -> Document:
    """The document that `text` holds. Raises `SpecError` with all duplicate or unusable keys and treacherous values,
    or the syntax error."""
    builder = _Builder(source)
    try:
        node = _compose(text)
        data = {} if node is None else builder.build(node, (), 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is not closed is missed behind the last line, where there is nothing to look at.
        line = min(mark.line + 1, len(text.splitlines()) or 1) if mark else 1
        where = f"{source}:{line}:{mark.column + 1}" if mark else source
        raise SpecError(
            Problem(
                where=where,
                found=f"invalid YAML: {error.problem or error.context}",
                wanted="a YAML mapping",
                hint="strings with a colon, a hash or a leading special character need quotes",
            )
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        found = " ".join(f"unreadable YAML: {error}".split())
        raise SpecError(Problem(where=source, found=found, wanted="a YAML mapping")) from None
    if builder.problems:
        raise SpecError(builder.problems)
    return Document(source=source, data=data, lines=builder.lines)


def _compose(text: str) -> yaml.Node | None:
    """The tree of nodes. libyaml makes it 15 times faster than Python (0.5 ms against 8 ms for the example)."""
    if not yaml.__with_libyaml__:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    # It recurses on the C stack, which ends the process when it is full; only these characters open a level.
    if sum(map(text.count, _OPENERS)) > _SAFE_LEVELS:
        _refuse_depth(text)
    return yaml.compose(text, Loader=yaml.CSafeLoader)


def _refuse_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _SAFE_LEVELS:
            raise ValueError(_TOO_MUCH)


class _Builder:
    """Turns YAML nodes into plain data. Scalars go through PyYAML's own safe constructors."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_VALUES:
            # An alias that contains itself never ends, and nested aliases multiply.
            raise ValueError(_TOO_MUCH)
        self.lines[path] = node.start_mark.line + 1
        if node.tag not in _TAGS[type(node)]:
            # Building such a value as if it had no tag would be something else than what was written.
            tag = node.tag.replace(_STANDARD, "!!")
            hint = "quote it for text" if tag == "!!value" else ""
            self._report(
                self.lines[path], path, f"the tag {tag}", "plain values without tags", hint
            )
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text, kind, line = node.value, node.tag.replace(_STANDARD, ""), self.lines[path]
        if kind == "str" and node.style:
            return self._text(text, line, path)
        caught = trap(text)
        if kind == "timestamp":
            caught = Trap("a date or time", "plain data without dates")
        if caught:
            quoted = f'for text, quote it: "{short(text)}"'
            hint = f"write {caught.instead}; {quoted}" if caught.instead else quoted
            self._report(
                line, path, f"{short(text)} without quotes, {caught.kind}", caught.wanted, hint
            )
            return None
        if kind == "str":
            return self._text(text, line, path)
        return self._constructed(node, kind, line, path)

    def _text(self, text: str, line: int, path: Path) -> str:
        if not is_unicode(text):
            self._report(line, path, "half of a surrogate pair", "whole Unicode characters")
        return text

    def _constructed(self, node: yaml.ScalarNode, kind: str, line: int, path: Path) -> Any:
        digits = len(node.value.lstrip("-+"))
        if kind == "int" and digits > MAX_DIGITS:
            found = f"an integer of {digits} digits"
            self._report(line, path, found, f"at most {MAX_DIGITS} digits")
            return None
        try:
            value = self._scalars.construct_object(node)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # What PyYAML lets through when a value does not fit its tag: !!bool maybe, !!int of nothing.
            value = math.nan
        if value is None and node.value not in _NULLS:
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            wanted = f"a finite {kind}" if math.isinf(value) else f"text that reads as {kind}"
            self._report(line, path, show(node.value), wanted)
            return None
        return value

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not self._is_key(key_node, line, path):
                continue
            key = key_node.value
            if key in data:
                first = self.lines[(*path, key)]
                found = f"a second value (the first is on line {first})"
                self._report(line, (*path, key), found, "one value a key")
                continue
            data[key] = self.build(value_node, (*path, key), depth + 1)
            self.lines[(*path, key)] = line
        return data

    def _is_key(self, node: yaml.Node, line: int, path: Path) -> bool:
        kind = node.tag.replace(_STANDARD, "")
        if not isinstance(node, yaml.ScalarNode):
            self._report(line, path, f"a key of kind {kind}", "keys that are strings")
            return False
        if kind == "str" and not node.style and node.value in _BOOLEANS:
            kind = "bool"
        if kind != "str":
            merge = "write the merged keys out: merging is not plain data"
            hint = merge if kind == "merge" else f'quote it: "{short(node.value)}"'
            found = f"a key {short(node.value)!r} of kind {kind}"
            self._report(line, path, found, "keys that are strings", hint)
            return False
        if not is_unicode(node.value):
            found = "a key with half of a surrogate pair"
            self._report(line, path, found, "whole Unicode characters")
            return False
        return True

    def _report(self, line: int, path: Path, found: str, wanted: str, hint: str = "") -> None:
        self.problems.append(
            Problem(where=spot(self.source, line, path), found=found, wanted=wanted, hint=hint)
        )
