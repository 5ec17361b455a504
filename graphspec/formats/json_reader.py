"""JSON to a `Document`: RFC 8259 and nothing beside it, duplicate keys refused, lines kept, depth and size bounded."""

import json
import math
import re
from typing import Any, NoReturn

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

_BLANK = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_LITERALS = {"true": True, "false": False, "null": None}
_NEAR_LITERALS = {"True": "true", "False": "false", "None": "null", "nil": "null"}
_ENDLESS = frozenset({"NaN", "Infinity", "-Infinity", "+Infinity"})
_SHOWN = 100
# It reads one string at a time here, so that its recursion and its leniency have no part.
_STRINGS = json.JSONDecoder()


def read_json(text: str, source: str) -> Document:
    """The document that `text` holds. Raises `SpecError` with all duplicate keys and unusable values, or the first
    syntax error."""
    parser = _Parser(text, source)
    data = parser.document()
    if parser.problems:
        raise SpecError(parser.problems)
    return Document(source=source, data=data, lines=parser.lines)


class _Parser:
    """Reads by recursive descent, at most `MAX_DEPTH` levels deep."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._at = 0
        self._line, self._counted = 1, 0
        self._values = 0

    def document(self) -> Any:
        if not self._next():
            self._fail("a JSON object", "an empty config is {}")
        data = self._value(())
        if self._next():
            self._fail("the end of the text", "a JSON file holds one value")
        return data

    def _value(self, path: Path) -> Any:
        char = self._next()
        self.lines.setdefault(path, self._line)
        self._values += 1
        if len(path) > MAX_DEPTH or self._values > MAX_VALUES:
            found = f"more than {MAX_DEPTH} levels or {MAX_VALUES} values"
            raise SpecError(Problem(where=self._here(), found=found, wanted="a config"))
        if char == "{":
            return self._object(path)
        if char == "[":
            return self._array(path)
        if char == '"':
            return self._string(path)
        return self._word(path)

    def _object(self, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return data
        while True:
            if self._next() != '"':
                self._fail("a key in double quotes", self._key_hint())
            line = self._line
            key = self._string(path)
            below = (*path, key)
            if key in data:
                found = f"a second value (the first is on line {first[key]})"
                self._report(line, below, found, "one value a key")
            first.setdefault(key, line)
            self.lines.setdefault(below, line)
            if self._next() != ":":
                self._fail("a colon after the key")
            self._at += 1
            value = self._value(below)
            data.setdefault(key, value)
            if not self._more("}"):
                return data

    def _array(self, path: Path) -> list[Any]:
        data: list[Any] = []
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return data
        while True:
            data.append(self._value((*path, len(data))))
            if not self._more("]"):
                return data

    def _more(self, end: str) -> bool:
        """True after a comma, False after `end`."""
        char = self._next()
        if char not in (",", end):
            self._fail(f"a comma or {end}")
        comma = self._at
        self._at += 1
        if char == "," and self._next() == end:
            self._at = comma
            self._fail("no comma after the last value", "remove the comma")
        return char == ","

    def _string(self, path: Path) -> str:
        try:
            value, self._at = _STRINGS.raw_decode(self.text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            if error.msg.startswith("Unterminated"):
                self._fail("text with a closing quote")
            hint = r"write \n for an end of line, \t for a tab, \\ for a backslash"
            self._fail("an escape that JSON knows", hint)
        if not is_unicode(value):
            found = "half of a surrogate pair"
            self._report(self._line, path, found, "whole Unicode characters")
        return str(value)

    def _word(self, path: Path) -> Any:
        match = _WORD.match(self.text, self._at)
        word = match.group() if match else ""
        number = _NUMBER.fullmatch(word)
        if number:
            self._at += len(word)
            return self._number(path, *number.groups())
        if word in _LITERALS:
            self._at += len(word)
            return _LITERALS[word]
        if word not in _ENDLESS:
            hint = "text takes double quotes, numbers are written as in 12, -0.5 or 1e-5"
            if word in _NEAR_LITERALS:
                hint = f"write {_NEAR_LITERALS[word]}"
            self._fail("a JSON value", hint if word else "")
        self._at += len(word)
        self._report(self._line, path, word, "a finite number", "JSON has no such number")
        return None

    def _number(self, path: Path, whole: str, rest: str) -> int | float | None:
        if not rest:
            digits = len(whole.lstrip("-"))
            if digits <= MAX_DIGITS:
                return int(whole)
            found = f"an integer of {digits} digits"
            self._report(self._line, path, found, f"at most {MAX_DIGITS} digits")
            return None
        value = float(whole + rest)
        if not math.isfinite(value):
            self._report(self._line, path, short(whole + rest), "a number that a float can hold")
            return None
        return value

    def _next(self) -> str:
        """The next character that is not blank, or nothing at the end."""
        match = _BLANK.match(self.text, self._at)
        self._at = match.end() if match else self._at
        self._line += self.text.count("\n", self._counted, self._at)
        self._counted = max(self._at, self._counted)
        return self.text[self._at : self._at + 1]

    def _key_hint(self) -> str:
        match = _WORD.match(self.text, self._at)
        if not match:
            return ""
        return f'write "{short(match.group())}"; a config in YAML has the suffix .yaml'

    def _here(self) -> str:
        line = self.text.count("\n", 0, self._at) + 1
        return f"{self.source}:{line}:{self._at - self.text.rfind(chr(10), 0, self._at)}"

    def _fail(self, wanted: str, hint: str = "") -> NoReturn:
        """Raises for what stands at the current place."""
        rest = self.text[self._at : self._at + _SHOWN + 1]
        word = _WORD.match(rest)
        if not rest:
            found = "the end of the text"
        else:
            found = short(word.group()) if word else repr(rest[0])
        if rest.startswith(("//", "/*", "#")):
            hint = "JSON has no comments: remove it, or write the config as YAML or TOML"
        elif rest.startswith("'"):
            hint = "text takes double quotes"
        raise SpecError(
            Problem(where=self._here(), found=f"invalid JSON: {found}", wanted=wanted, hint=hint)
        )

    def _report(self, line: int, path: Path, found: str, wanted: str, hint: str = "") -> None:
        self.problems.append(
            Problem(where=spot(self.source, line, path), found=found, wanted=wanted, hint=hint)
        )
