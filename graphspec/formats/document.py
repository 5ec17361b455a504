"""`Document`: plain data, and where in the file each part of it stands."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from graphspec.errors import Problem, SpecError

Path = tuple[str | int, ...]


@attrs.frozen(kw_only=True)
class Document:
    """What a file says: `data` is plain, `lines` gives the line number (from 1) of each path in it."""

    source: str
    data: Any
    lines: Mapping[Path, int]

    def locate(self, problems: Iterable[Problem]) -> SpecError:
        """The problems with file and line in front of their dotted paths, in the order of the file."""
        by_text = {".".join(map(str, path)): line for path, line in self.lines.items() if path}
        # A key that itself holds a dot is found by its text; any other path by its parts.
        found = [(by_text.get(p.where) or self._line(p.where), p) for p in problems]
        found.sort(key=lambda pair: pair[0])
        return SpecError(
            attrs.evolve(
                p, where=f"{self.source}:{line}: {p.where}" if p.where else f"{self.source}:{line}"
            )
            for line, p in found
        )

    def _line(self, where: str) -> int:
        path = _split(where.partition(": ")[0])
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def _split(where: str) -> Path:
    parts: Sequence[tuple[str, str]] = re.findall(r"([^.\[\]]+)|\[(\d+)\]", where)
    return tuple(int(index) if index else name for name, index in parts)
