"""`Document`: plain data, and where in the file, or on the command line, each part of it stands."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from graphspec.errors import Problem, SpecError

Path = tuple[str | int, ...]

MAX_DEPTH = 32
MAX_VALUES = 100_000
# Below 640, the lowest limit that Python can be told to refuse longer integers at.
MAX_DIGITS = 600
_SHOWN = 80


@attrs.frozen(kw_only=True)
class Document:
    """What a file says: `data` is plain, `lines` gives the line number (from 1) of each path in it.

    `origins` has the paths that no line of the file gave, with what gave them: ``--set speculative.method=ngram``.
    """

    source: str
    data: Any
    lines: Mapping[Path, int]
    origins: Mapping[Path, str] = attrs.field(factory=dict)

    def locate(self, problems: Iterable[Problem]) -> SpecError:
        """The problems with file and line in front of their dotted paths, in the order of the file."""
        names = self._names()
        found = [(_nearest(problem.where, names), problem) for problem in problems]
        found.sort(key=lambda pair: self._order(pair[0]))
        return SpecError(attrs.evolve(p, where=self._place(path, p.where)) for path, p in found)

    def origin(self, where: str) -> str | None:
        """What gave the value at a dotted path: a file's line or a setting. None for what nobody wrote."""
        path = self._names().get(where)
        return None if path is None else self._place(path, "")

    def _names(self) -> Mapping[str, Path]:
        paths = [*self.lines, *self.origins]
        # Sections know their fields with underscores, whatever the file wrote. What it wrote comes first.
        names = {dotted(path).replace("-", "_"): path for path in paths}
        return names | {dotted(path): path for path in paths}

    def _order(self, path: Path) -> float:
        return math.inf if path in self.origins else self.lines.get(path, 1)

    def _place(self, path: Path, where: str) -> str:
        place = self.origins.get(path) or f"{self.source}:{self.lines.get(path, 1)}"
        return f"{place}: {where}" if where else place


def _nearest(where: str, names: Mapping[str, Path]) -> Path:
    """The path of `where`, or of the nearest part around it that is written somewhere."""
    while where:
        path = names.get(where) or names.get(where.replace("-", "_"))
        if path is not None:
            return path
        where = where[: max(0, *(where.rfind(mark) for mark in ".[: "))]
    return ()


def dotted(path: Path) -> str:
    """A path as problems write it.

    >>> dotted(("speculative", "table", 0, 2))
    'speculative.table[0][2]'
    """
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def spot(source: str, line: int, path: Path) -> str:
    """Where a reader found a problem: ``engine.yaml:4: model.dtype``."""
    return f"{source}:{line}: {dotted(path)}" if path else f"{source}:{line}"


def short(text: str) -> str:
    """The text, or as much of its beginning as a message has room for."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def is_unicode(text: str) -> bool:
    """False for text with half of a surrogate pair, which no file in UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
