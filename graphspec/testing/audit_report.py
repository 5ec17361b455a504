"""What an audit found: one row a changed field, one cell a unit, and the counts over them."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.keys.compare import describe


def shown(value: Any, name: str = "") -> str:
    """A value in a few characters: a section by its class. `name` is the field's.

    >>> shown(None), shown((0, 4, 4), "dense"), shown("llama"), shown(Verdict.QUIET)
    ('none', '1 to 2: 4', 'llama', 'quiet')
    """
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if attrs.has(type(value)):
        return type(value).__name__
    text = value if isinstance(value, str) else describe(value, name, limit=1 << 16)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    half = _MOST_SHOWN // 2
    return text if len(text) <= _MOST_SHOWN else f"{text[:half]}...{text[-half:]}"


_MOST_SHOWN = 40


class Verdict(enum.Enum):
    """What became of one unit's key and graph when one field was changed."""

    SOUND = "sound"
    QUIET = "quiet"
    NEEDLESS = "needless"
    UNSOUND = "unsound"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def symbol(self) -> str:
        """One character that a table shows."""
        return {"sound": "+", "quiet": ".", "needless": "o", "unsound": "X"}.get(
            self.value, "!" if self is Verdict.FAILED else "r"
        )

    @property
    def meaning(self) -> str:
        """What the verdict says, in a legend's words."""
        return _MEANINGS[self]

    @property
    def is_bad(self) -> bool:
        """True for verdicts that make the audit fail."""
        return self in (Verdict.UNSOUND, Verdict.FAILED)


_MEANINGS: Mapping[Verdict, str] = {
    Verdict.SOUND: "the key moves, and what the compiler is given moves",
    Verdict.QUIET: "the key stays, and the graph stays",
    Verdict.NEEDLESS: "the key moves and the graph stays: a compile for nothing",
    Verdict.UNSOUND: "the graph moves and its key, or the spec's COMPILE hash, does not: a wrong graph",
    Verdict.REFUSED: "the trace reads what its key does not cover, and stops: caught",
    Verdict.FAILED: "no trace could be made, so nothing is known",
}


class Method(enum.Enum):
    """How it is known whether a graph moves: by a trace, or without one.

    What no code has read changes no graph. Inputs of other shapes, bounds or dtypes are another graph.
    """

    TRACED = "traced"
    UNREAD = "not read"
    INPUTS = "other inputs"


@attrs.frozen(kw_only=True)
class Cell:
    """One unit under one changed field. `moved`: whether the unit's key is another. `diff`: of the graphs, if unsound."""

    verdict: Verdict
    method: Method
    moved: bool = False
    reason: str = ""
    diff: Sequence[str] = ()


@attrs.frozen(kw_only=True)
class Row:
    """One field with one other value.

    `stage` is compile, capture or unkeyed. `inside` names the absent section whose example the field lies in, if any.
    `skipped` says why the field has no other value; then there are no cells.
    """

    path: str
    stage: str
    inside: str = ""
    old: str
    new: str = ""
    skipped: str = ""
    cells: Mapping[str, Cell] = attrs.field(factory=dict)

    @property
    def methods(self) -> str:
        """How the row's cells are known."""
        return ", ".join(dict.fromkeys(cell.method.value for cell in self.cells.values()))


@attrs.frozen(kw_only=True)
class Unit:
    """A unit of the program, with its key and the fingerprint of its graph; empty where it does not trace."""

    name: str
    key: str
    fingerprint: str


@attrs.frozen(kw_only=True)
class Finding:
    """Something that makes the audit fail. `kind`: unsound, failed, or unstable: a graph that differs by itself."""

    kind: str
    where: str
    text: str
    diff: Sequence[str] = ()


@attrs.frozen(kw_only=True)
class Report:
    """The whole matrix. `traces` counts how often a unit was traced; `notes` say how much was taken as proven."""

    spec_hash: str
    device: str
    units: Sequence[Unit]
    rows: Sequence[Row]
    unstable: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    traces: int
    seconds: float

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything that makes the audit fail, unsound cells first."""
        unsound: list[Finding] = []
        failed: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            for name, cell in row.cells.items():
                where = _where(row, name)
                if cell.verdict is Verdict.UNSOUND:
                    unsound.append(
                        Finding(kind="unsound", where=where, text=cell.reason, diff=cell.diff)
                    )
                elif cell.verdict is Verdict.FAILED:
                    failed.setdefault((name, cell.reason), []).append(where)
        # What fails before any change fails in every row, and is said once.
        broken = [
            Finding(
                kind="failed",
                where=places[0] if len(places) == 1 else f"unit {name}, {len(places)} fields",
                text=reason,
            )
            for (name, reason), places in failed.items()
        ]
        return [*unsound, *broken, *self.unstable]

    @property
    def caught(self) -> Sequence[tuple[str, str]]:
        """Where the watch over traces refused a change, and what it says."""
        return [
            (_where(row, name), cell.reason)
            for row in self.rows
            for name, cell in row.cells.items()
            if cell.verdict is Verdict.REFUSED
        ]

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells by verdict."""
        found = [cell.verdict for row in self.rows for cell in row.cells.values()]
        return {verdict.value: found.count(verdict) for verdict in Verdict}

    @property
    def columns(self) -> Sequence[str]:
        """Names of the units, and of those that only a changed spec has."""
        names = [unit.name for unit in self.units]
        return list(dict.fromkeys([*names, *(name for row in self.rows for name in row.cells)]))

    def misses(self, path: str | None = None) -> tuple[int, int]:
        """How many misses of a field, or of all, were needless, and how many there were."""
        moved = [
            cell
            for row in self.rows
            if path in (None, row.path)
            for cell in row.cells.values()
            if cell.moved
        ]
        return sum(cell.verdict is Verdict.NEEDLESS for cell in moved), len(moved)

    @property
    def needless_rates(self) -> Mapping[str, float]:
        """By field that moves a key: the share of its misses that was needless."""
        rates = {}
        for path in dict.fromkeys(row.path for row in self.rows):
            needless, moved = self.misses(path)
            if moved:
                rates[path] = needless / moved
        return rates

    def as_dict(self) -> Mapping[str, Any]:
        """The report as plain data, as ``graphspec audit --json`` prints it."""
        needless, moved = self.misses()
        return {
            "spec_hash": self.spec_hash,
            "device": self.device,
            "units": [attrs.asdict(unit) for unit in self.units],
            "fields": [_row(row) for row in self.rows],
            "needless_rates": dict(self.needless_rates),
            "counts": dict(self.counts),
            "misses": moved,
            "needless_misses": needless,
            "not_perturbed": sum(bool(row.skipped) for row in self.rows),
            "findings": [{**attrs.asdict(f), "diff": list(f.diff)} for f in self.findings],
            "notes": list(self.notes),
            "traces": self.traces,
            "seconds": self.seconds,
        }


def _where(row: Row, unit: str) -> str:
    return f"{row.path} ({row.old} -> {row.new}), unit {unit}"


def _row(row: Row) -> Mapping[str, Any]:
    return {
        "path": row.path,
        "stage": row.stage,
        "inside": row.inside,
        "old": row.old,
        "new": row.new,
        "not_perturbed": row.skipped,
        "cells": {
            name: {
                "verdict": cell.verdict.value,
                "key_moved": cell.moved,
                "checked": cell.method.value,
                "reason": cell.reason,
            }
            for name, cell in row.cells.items()
        },
    }
