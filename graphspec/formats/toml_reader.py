"""TOML to a `Document`: data by `tomllib`, lines by a scanner of ours, depth and size bounded.

Dates, times, inf and nan are refused, for they are not plain data. TOML has no null: leave a field out instead.
"""

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

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

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TWICE = re.compile(r"Cannot (overwrite|declare|mutate|redefine)|Duplicate")
# Each alternative consumes what it began even where its end is missing, so one pass is enough for any text.
_TOKEN = re.compile(
    r'''
    [ \t\r]++ | \#[^\n]*+
    | (?P<token>
        """ (?: [^"\\]++ | \\.?+ | "{1,2}+(?!") )*+ (?: "{3,5}+ | \Z )
        | \'\'\' (?: [^']++ | '{1,2}+(?!') )*+ (?: '{3,5}+ | \Z )
        | " (?: [^"\\\n]++ | \\[^\n]?+ )*+ "?+
        | ' [^'\n]*+ '?+
        | [\w+:-]++
        | .
      )
    ''',
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"[\w-]+")
_ENDS = frozenset({",", "]", "}", "\n", ""})


def read_toml(text: str, source: str) -> Document:
    """The document that `text` holds. Raises `SpecError` with all values that are not plain data, or the first
    syntax error or duplicate."""
    if not is_unicode(text):
        found = "half of a surrogate pair"
        raise SpecError(Problem(where=source, found=found, wanted="whole Unicode characters"))
    scan = _Scan(text, source)
    if scan.problem:
        raise SpecError(scan.problem)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(str(error), text, scan) from None
    except (RecursionError, ValueError) as error:
        raise SpecError(
            Problem(where=source, found=f"unreadable TOML: {error}", wanted="a TOML document")
        ) from None
    checked = _Checked(source, scan.lines)
    checked.visit(data, (), 1)
    if checked.problems:
        raise SpecError(checked.problems)
    return Document(source=source, data=data, lines=checked.lines)


def _invalid(message: str, text: str, scan: "_Scan") -> SpecError:
    position = _POSITION.search(message)
    words = message[: position.start()] if position else message
    if _TWICE.match(words) and scan.twice:
        return SpecError(scan.twice)
    line, column = position.groups() if position else (None, None)
    end = text.rstrip().count("\n") + 1
    hint = "each key and each table is written once" if _TWICE.match(words) else ""
    if words == "Invalid value":
        hint = "text takes quotes, true and false are lower case; a field without value is left out"
    return SpecError(
        Problem(
            where=f"{scan.source}:{line}:{column}" if line else f"{scan.source}:{end}",
            found=f"invalid TOML: {short(words)}",
            wanted="a TOML document",
            hint=hint or 'TOML has lines such as key = "text" below headers such as [section]',
        )
    )


class _Checked:
    """Goes through plain data: gives every path a line, and finds what is not plain."""

    def __init__(self, source: str, known: Mapping[Path, int]) -> None:
        self.source, self.known = source, known
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def visit(self, value: Any, path: Path, around: int) -> None:
        line = self.lines[path] = self.known.get(path, around)
        if len(path) > MAX_DEPTH:
            self._report(line, path[:1], f"more than {MAX_DEPTH} levels", "a config")
        elif isinstance(value, dict):
            for key, inner in value.items():
                self.visit(inner, (*path, key), line)
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                self.visit(inner, (*path, i), line)
        elif isinstance(value, datetime.date | datetime.time):
            hint = f'for text, quote it: "{value}"'
            self._report(line, path, f"{value}, a date or time", "plain data without dates", hint)
        elif isinstance(value, float) and not math.isfinite(value):
            self._report(line, path, show(value), "a finite number")

    def _report(self, line: int, path: Path, found: str, wanted: str, hint: str = "") -> None:
        self.problems.append(
            Problem(where=spot(self.source, line, path), found=found, wanted=wanted, hint=hint)
        )


class _Scan:
    """Goes through the tokens of a TOML text and notes on which line each key and item stands.

    It is right about valid TOML. For any other text it ends without an error, in time linear in its length.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.twice: Problem | None = None
        self.problem: Problem | None = None
        self._written: dict[Path, int] = {}
        self._last: dict[Path, int] = {}
        self._tokens = _TOKEN.finditer(text)
        self._token, self._line, self._after = "", 1, 1
        self._next()
        self._document()

    def _next(self) -> None:
        for match in self._tokens:
            token = match["token"]
            if token is not None:
                self._token, self._line = token, self._after
                self._after += token.count("\n")
                return
        self._token, self._line = "", self._after

    def _document(self) -> None:
        table: Path = ()
        while self._token:
            if self._token == "[":
                table = self._header()
            elif self._token != "\n":
                self._pair(table)
            while self._token not in ("\n", ""):
                self._next()
            self._next()

    def _header(self) -> Path:
        self._next()
        many, line = self._token == "[", self._line
        if many:
            self._next()
        *around, name = self._key() or [""]
        path: Path = ()
        for part in around:
            path = self._inside((*path, part), line)
        path = (*path, name)
        if many:
            self._note(path, line)
            self._last[path] = self._last.get(path, -1) + 1
            path = (*path, self._last[path])
        self._once(path, line, self._written)
        self._note(path, line)
        # A header says more than a mention of the table in an earlier header of something in it.
        self.lines[path] = line
        return path

    def _inside(self, path: Path, line: int) -> Path:
        self._note(path, line)
        return (*path, self._last[path]) if path in self._last else path

    def _pair(self, path: Path) -> None:
        line, parts = self._line, self._key()
        for i, part in enumerate(parts, 1):
            path = (*path, part)
            if i == len(parts):
                self._once(path, line, self.lines)
            self._note(path, line)
        if not parts:
            self._next()
        elif self._token == "=":
            self._next()
            self._value(path)

    def _value(self, path: Path) -> None:
        opener, index = self._token, 0
        if opener not in ("[", "{"):
            self._scalar(path)
            return
        end = "]" if opener == "[" else "}"
        self._next()
        while self._token not in (end, ""):
            if self._token in (",", "\n"):
                self._next()
            elif opener == "{":
                self._pair(path)
            else:
                below = (*path, index)
                self._note(below, self._line)
                self._value(below)
                index += 1
        self._next()

    def _scalar(self, path: Path) -> None:
        digits = len(self._token.lstrip("-+"))
        if digits > MAX_DIGITS and self._token[0] not in "\"'":
            found = f"{digits} characters without quotes"
            self._refuse(path, found, f"at most {MAX_DIGITS} digits")
        self._next()
        while self._token not in _ENDS:
            self._next()

    def _key(self) -> list[str]:
        """The parts of a dotted key, one at least unless no key stands here."""
        parts: list[str] = []
        while self._token == "." or self._token[:1] in ('"', "'") or _BARE.fullmatch(self._token):
            if self._token != ".":
                parts.append(_unquoted(self._token))
            self._next()
            if len(parts) > MAX_DEPTH:
                self._refuse((), f"a key of more than {MAX_DEPTH} parts", "a config")
        return parts

    def _once(self, path: Path, line: int, known: Mapping[Path, int]) -> None:
        if path in known and path:
            where = spot(self.source, line, path)
            found = f"a second value (the first is on line {known[path]})"
            self.twice = Problem(where=where, found=found, wanted="one value a key")
            self._stop()
        self._written.setdefault(path, line)

    def _note(self, path: Path, line: int) -> None:
        self.lines.setdefault(path, line)
        self.lines.setdefault((), line)
        if len(path) > MAX_DEPTH or len(self.lines) > MAX_VALUES:
            self._refuse((), f"more than {MAX_DEPTH} levels or {MAX_VALUES} values", "a config")

    def _refuse(self, path: Path, found: str, wanted: str) -> None:
        where = spot(self.source, self._line, path)
        self.problem = self.problem or Problem(where=where, found=found, wanted=wanted)
        self._stop()

    def _stop(self) -> None:
        """Ends the walk: the text is refused whatever comes after this."""
        self._tokens = iter(())
        self._token = ""


def _unquoted(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    if token[0] != '"' or "\\" not in token:
        return token.strip('"')
    try:
        return str(tomllib.loads(f"key = {token}")["key"])
    except ValueError:
        return token
