"""Why a program's units would miss: the nearest stored entry, what differs from it, and whether that had to matter."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import first_of_each_key, keyed_units
from graphspec.cache.location import cache_folder
from graphspec.cache.store import Lookup, Outcome
from graphspec.cache.units import CompileUnit, EntryKey
from graphspec.errors import KeyFactorError, OfflineMissError, Problem
from graphspec.keys.compare import Difference, compare, parts
from graphspec.keys.encoding import decode
from graphspec.resolve.spec import EngineSpec

_CLASS = ":class"


@attrs.frozen(kw_only=True)
class KeyDifference:
    """One factor in which a stored entry's key differs from the wanted one.

    `part` is the key's part: ``scope`` for fields of the spec, ``source``, ``signature``, ``toolchain``, ``device``,
    ``options``. `read` says of a field of the spec whether the stored trace read it; None: that cannot be told, as for
    the class of a section, or it is no field of the spec.
    """

    part: str
    difference: Difference
    read: bool | None = None

    @property
    def needed(self) -> bool:
        """False exactly for a field that the stored trace is known not to have read."""
        return self.read is not False


@attrs.frozen(kw_only=True)
class Nearest:
    """The stored entry that a unit comes closest to hitting."""

    key: str
    unit: str
    differences: tuple[KeyDifference, ...]

    @property
    def needed(self) -> bool:
        """Whether the miss had to be: False when the stored trace read none of what differs.

        A trace decides by what it reads. With equal values of all that, it would have made the same graph.
        """
        return any(d.needed for d in self.differences)


@attrs.frozen(kw_only=True)
class UnitExplanation:
    """One unit: how its lookup would end, and for a miss the nearest entry, if any entry is there."""

    unit: str
    key: str
    outcome: Outcome
    reason: str
    nearest: Nearest | None = None

    @property
    def needless(self) -> bool:
        """True for a miss that only fields caused which the stored trace did not read."""
        return self.nearest is not None and not self.nearest.needed

    @property
    def verdict(self) -> str:
        """What to make of it, in a sentence."""
        if self.outcome is Outcome.HIT:
            return "it would be loaded"
        if self.nearest is None:
            return f"it would be compiled: {self.reason}"
        if self.nearest.unit != self.unit:
            return "it would be compiled: no entry of this unit is stored"
        if not self.nearest.needed:
            return (
                "it would be compiled, needlessly: the stored trace read none of the fields that differ, so a narrower "
                "scope would have hit"
            )
        return "it would be compiled, and must be: what differs can change the code"


@attrs.frozen(kw_only=True)
class Explanation:
    """Every unit of a program against one cache folder. `unreadable` files were passed over and left as they are."""

    folder: str
    entries: int
    unreadable: int
    units: tuple[UnitExplanation, ...]

    @property
    def missing(self) -> int:
        """Units that would be compiled."""
        return sum(u.outcome is not Outcome.HIT for u in self.units)

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``explain --json`` prints."""
        return {
            "folder": self.folder,
            "entries": self.entries,
            "unreadable": self.unreadable,
            "missing": self.missing,
            "units": [_unit_as_dict(u) for u in self.units],
        }


def explain(
    units: Sequence[CompileUnit], spec: EngineSpec, *, cache_dir: str | None = None
) -> Explanation:
    """What the cache holds for each unit, and why not. Nothing is traced, compiled, written or moved. Of units that are
    equal the first is explained.

    The nearest of several stored entries is of the same unit if there is one. One that would have served, had the
    scope been narrower, comes first, and then the one with the fewest differing factors.
    """
    store = DiskStore(cache_folder(cache_dir))
    firsts = first_of_each_key(keyed_units(units, spec))
    return _explained([(k.unit.name, key, store.look(key)) for key, k in firsts.items()], store)


def offline_miss(found: Sequence[tuple[str, EntryKey, Lookup]], folder: str) -> OfflineMissError:
    """The error for units, by name and key, that had to be compiled and may not be: each with what came nearest to it."""
    return OfflineMissError(
        Problem(
            where=f"unit {unit.unit}",
            found=f"no usable entry under {unit.key} in {folder}: {unit.reason}",
            wanted="an entry that was made ahead of time",
            hint=f"{_nearest_in_words(unit)}; run graphspec warmup where compiling is allowed, or import a bundle",
        )
        for unit in _explained(found, DiskStore(folder)).units
    )


_SHOWN = 3


def _nearest_in_words(unit: UnitExplanation) -> str:
    nearest = unit.nearest
    if nearest is None:
        return "nothing like it is stored"
    shown = [
        f"{d.part} {d.difference.path}: stored {d.difference.texts[0]}, wanted {d.difference.texts[1]}"
        for d in nearest.differences[:_SHOWN]
    ]
    more = len(nearest.differences) - len(shown)
    rest = f" and {more} more" if more else ""
    return f"the nearest entry, {nearest.key} of unit {nearest.unit}, differs in {'; '.join(shown)}{rest}"


def _explained(found: Sequence[tuple[str, EntryKey, Lookup]], store: DiskStore) -> Explanation:
    stored, unreadable = _stored(store)
    return Explanation(
        folder=store.root,
        entries=len(stored),
        unreadable=unreadable,
        units=tuple(
            UnitExplanation(
                unit=name,
                key=key.digest,
                outcome=lookup.outcome,
                reason=lookup.reason,
                nearest=_nearest(key, stored) if lookup.outcome is Outcome.MISS else None,
            )
            for name, key, lookup in found
        ),
    )


_Stored = tuple[Entry, Mapping[str, Any]]


def _stored(store: DiskStore) -> tuple[Sequence[_Stored], int]:
    stored, unreadable = [], 0
    for _, entry, _ in store.entries():
        key = _unit_key(entry) if entry is not None else None
        if entry is None or key is None:
            unreadable += 1
        else:
            stored.append((entry, key))
    return stored, unreadable


def _unit_key(entry: Entry) -> Mapping[str, Any] | None:
    try:
        key = decode(entry.key.text)
    except KeyFactorError:
        return None
    return key if isinstance(key, Mapping) and "unit" in key else None


def _nearest(wanted_key: EntryKey, stored: Sequence[_Stored]) -> Nearest | None:
    wanted = decode(wanted_key.text)
    candidates = [s for s in stored if s[1]["unit"] == wanted["unit"]] or stored
    made = [
        Nearest(
            key=entry.key.digest,
            unit=str(key["unit"]),
            differences=tuple(_differences(key, wanted, entry.metadata.get("reads"))),
        )
        for entry, key in candidates
    ]
    return min(made, key=lambda n: (n.needed, len(n.differences), n.key), default=None)


def _differences(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], reads: Any
) -> Iterator[KeyDifference]:
    for part in dict.fromkeys((*wanted, *stored)):
        for difference in _in_part(part, stored, wanted):
            read = None
            if part == "scope" and isinstance(reads, list | tuple):
                read = _was_read(difference.path, stored.get(part, {}), reads)
            yield KeyDifference(part=part, difference=difference, read=read)


def _in_part(
    part: str, stored: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[Difference, ...]:
    one, other = stored.get(part), wanted.get(part)
    if parts(one) is not None and parts(other) is not None:
        return compare(one, other)
    return compare({part: one} if part in stored else {}, {part: other} if part in wanted else {})


def _was_read(path: str, scope: Mapping[str, Any], reads: Sequence[str]) -> bool | None:
    plain = path.removesuffix(_CLASS)
    if plain != path and not any(_lies_at(plain, p) for p in scope if not p.endswith(_CLASS)):
        # The section was there. Of which class it was, and class variables, are no fields: no read set has them.
        return None
    return any(_lies_at(plain, r) or _lies_at(r, plain) for r in reads)


def _lies_at(path: str, other: str) -> bool:
    """True when `path` is the other path or below it, as a value inside a field is."""
    return path == other or path.startswith((f"{other}.", f"{other}["))


def _unit_as_dict(unit: UnitExplanation) -> Mapping[str, Any]:
    data: dict[str, Any] = {
        "unit": unit.unit,
        "key": unit.key,
        "outcome": unit.outcome.value,
        "reason": unit.reason,
        "verdict": unit.verdict,
        "needless": unit.needless,
        "nearest": None,
    }
    if unit.nearest is not None:
        data["nearest"] = {
            "key": unit.nearest.key,
            "unit": unit.nearest.unit,
            "differences": [_difference_as_dict(d) for d in unit.nearest.differences],
        }
    return data


def _difference_as_dict(found: KeyDifference) -> Mapping[str, Any]:
    before, after = found.difference.texts
    return {
        "part": found.part,
        "path": found.difference.path,
        "kind": found.difference.kind.value,
        "stored": before,
        "wanted": after,
        "read": found.read,
    }
