"""What a cache folder holds, in numbers: by unit and by device, with what it saves, and what lies beside the entries."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.folder.evict import Total, total_of
from graphspec.cache.folder.glance import glance
from graphspec.cache.folder.history import Run, read_runs
from graphspec.cache.folder.listing import SUFFIX, entry_paths, facts_of, quarantined_files

UNNAMED = "(unnamed)"
"""Stands for the unit or device of an entry that does not say it."""


@attrs.frozen(kw_only=True)
class Share:
    """Some of the entries together. `compile_seconds` is what they took to make, and save whoever loads them all."""

    entries: int
    bytes: int
    compile_seconds: float


@attrs.frozen(kw_only=True)
class Past:
    """What the runs on record did, together. `since` and `last` are in seconds since the epoch."""

    runs: int
    outcomes: Mapping[str, int]
    compiled: int
    seconds: float
    seconds_saved: float
    since: float | None
    last: float | None


@attrs.frozen(kw_only=True)
class Holdings:
    """What lies in a cache folder.

    `unreadable` files are no entries, as far as their headers tell; those of `other_formats` belong to another version of
    graphspec. Both count in `entries`. `temporaries` are being written, or were left by a process that died.
    `oldest_use` and `newest_use` are in seconds since the epoch, None without entries.
    """

    folder: str
    entries: Share
    units: Mapping[str, Share]
    devices: Mapping[str, Share]
    signed: int
    unreadable: int
    other_formats: int
    quarantine: Total
    temporaries: Total
    locks: int
    oldest_use: float | None
    newest_use: float | None
    past: Past

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``cache stats --json`` prints."""
        return {
            "folder": self.folder,
            **attrs.asdict(self.entries),
            "units": {name: attrs.asdict(share) for name, share in self.units.items()},
            "devices": {name: attrs.asdict(share) for name, share in self.devices.items()},
            "signed": self.signed,
            "unreadable": self.unreadable,
            "other_formats": self.other_formats,
            "quarantine": attrs.asdict(self.quarantine),
            "temporaries": attrs.asdict(self.temporaries),
            "locks": self.locks,
            "oldest_use": self.oldest_use,
            "newest_use": self.newest_use,
            "history": attrs.asdict(self.past),
        }


def holdings(root: str) -> Holdings:
    """Counts what lies in a folder. Nothing is changed, and of the entries only the headers are read."""
    units: dict[str, list[tuple[int, float]]] = {}
    devices: dict[str, list[tuple[int, float]]] = {}
    signed = unreadable = other_formats = 0
    sizes: list[int] = []
    uses: list[float] = []
    for path in entry_paths(root):
        seen = glance(path) if path.endswith(SUFFIX) else None
        if seen is None:
            file = facts_of(path)
            if file is not None:
                sizes.append(file.bytes)
                uses.append(file.last_used)
                other_formats += not file.readable_format
                unreadable += file.readable_format
            continue
        sizes.append(seen.size)
        uses.append(seen.last_used)
        signed += seen.public_key is not None
        part = (seen.size, seen.compile_seconds or 0.0)
        units.setdefault(seen.unit or UNNAMED, []).append(part)
        devices.setdefault(seen.device or UNNAMED, []).append(part)
    by_unit, by_device = _shares(units), _shares(devices)
    return Holdings(
        folder=root,
        entries=Share(
            entries=len(sizes),
            bytes=sum(sizes),
            compile_seconds=sum(s.compile_seconds for s in by_unit.values()),
        ),
        units=by_unit,
        devices=by_device,
        signed=signed,
        unreadable=unreadable,
        other_formats=other_formats,
        quarantine=total_of(list(quarantined_files(root))),
        temporaries=_lying_in(os.path.join(root, "tmp")),
        locks=_lying_in(os.path.join(root, "locks")).files,
        oldest_use=min(uses, default=None),
        newest_use=max(uses, default=None),
        past=past_of(read_runs(root)),
    )


def past_of(runs: Sequence[Run]) -> Past:
    """What runs did together."""
    outcomes: dict[str, int] = {}
    for run in runs:
        for name, count in run.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return Past(
        runs=len(runs),
        outcomes=outcomes,
        compiled=sum(r.compiled for r in runs),
        seconds=sum(r.seconds for r in runs),
        seconds_saved=sum(r.seconds_saved for r in runs),
        since=min((r.at for r in runs), default=None),
        last=max((r.at for r in runs), default=None),
    )


def _shares(parts: Mapping[str, Sequence[tuple[int, float]]]) -> Mapping[str, Share]:
    return {
        name: Share(
            entries=len(parts[name]),
            bytes=sum(b for b, _ in parts[name]),
            compile_seconds=sum(s for _, s in parts[name]),
        )
        for name in sorted(parts)
    }


def _lying_in(folder: str) -> Total:
    """Files and bytes below a folder."""
    total = Total()
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                size = os.lstat(os.path.join(above, name)).st_size
            except OSError:
                continue
            total += Total(bytes=size, files=1)
    return total
