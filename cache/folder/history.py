"""What past runs found in a cache folder: one short line of JSON a run, appended in one write. It is only a record.

The file ``history`` is halved when it reaches a limit, so it is bounded, and a line that is damaged is left out.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.folder.listing import make_folder
from graphspec.cache.folder.publish import write_new
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome

NAME = "history"
MOST_BYTES = 256 << 10
_LINE_BYTES = 4096


@attrs.frozen(kw_only=True)
class Run:
    """One run: when it ended (seconds since the epoch), how its lookups ended, and what compiling took and was spared.

    `seconds` is what its compiles took, `seconds_saved` what those had taken that it loaded.
    """

    at: float
    outcomes: Mapping[str, int]
    compiled: int
    seconds: float
    seconds_saved: float


def append_run(root: str, run: Run) -> None:
    """Adds a run to the record of a folder that is there. Never raises for what storage does."""
    known = {o.value for o in Outcome}
    data = {
        "at": round(run.at, 3),
        "outcomes": {name: n for name, n in run.outcomes.items() if name in known},
        "compiled": run.compiled,
        "seconds": round(run.seconds, 3),
        "saved": round(run.seconds_saved, 3),
    }
    line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    path = os.path.join(root, NAME)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > MOST_BYTES:
            _halve(root, path)
    except OSError:
        return


def read_runs(root: str) -> Sequence[Run]:
    """The runs on record, oldest first."""
    try:
        with open(os.path.join(root, NAME), "rb") as file:
            data = file.read(2 * MOST_BYTES)
    except OSError:
        return ()
    return tuple(_runs(data))


def _runs(data: bytes) -> Iterator[Run]:
    for line in data.split(b"\n"):
        if not 0 < len(line) <= _LINE_BYTES:
            continue
        try:
            yield _run(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue


def _run(data: Mapping[str, Any]) -> Run:
    known = [o.value for o in Outcome]
    outcomes = data["outcomes"]
    at, seconds, saved = (_finite(data[name]) for name in ("at", "seconds", "saved"))
    return Run(
        at=at,
        outcomes={name: int(outcomes[name]) for name in known if name in outcomes},
        compiled=int(data["compiled"]),
        seconds=seconds,
        seconds_saved=saved,
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} stands where a number should be")
    return number


def _halve(root: str, path: str) -> None:
    # A run that appends in between is lost from the record. Nothing is decided by it.
    with open(path, "rb") as file:
        file.seek(-MOST_BYTES // 2, os.SEEK_END)
        kept = file.read().partition(b"\n")[2]
    temporary = os.path.join(make_folder(root, "tmp"), unique_name())
    try:
        write_new(temporary, kept)
        os.rename(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
