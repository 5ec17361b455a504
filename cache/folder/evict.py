"""Eviction: which files go when a cache folder is above its caps, and how they go.

What an entry is worth is what GreedyDual-Size (Cao and Irani, 1997) ranks by, cost over size: seconds of compiling that
each byte saves. Age takes the place of its inflation term, and of a count of uses, which nobody records: worth halves
with each week since the last use. Cheap, large and forgotten entries go first.

Grace and caps can contradict each other. The caps win: within the grace period after its last use an entry goes only
when nothing older is left and the folder is still above a cap. Then it is the one that was used least recently.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from graphspec.cache.folder.glance import glance
from graphspec.cache.folder.listing import StoredFile, make_folder, stored_files
from graphspec.cache.folder.quarantine import noted
from graphspec.cache.leftovers import unique_name

if TYPE_CHECKING:
    from graphspec.cache.folder.disk import DiskStore

HALF_LIFE_S = 7 * 86_400.0
"""Time without use after which an entry is worth half."""
SPARE = 0.1
"""Share of a cap that is freed beyond it once it is reached, so that the next put does not have to look again."""
_UNKNOWN_SECONDS = 1.0
_ROUNDS = 3


@attrs.frozen(kw_only=True)
class Caps:
    """How large a cache folder may grow, what is set aside in its quarantine included.

    20 GiB hold 10,000 entries of 2 MB, which is more than a machine compiles in a day of compiling. 20,000 files are far
    below what a file system or a quota gives. A day of grace keeps what today's jobs made for today's restarts.
    """

    max_bytes: int = attrs.field(default=20 << 30, validator=attrs.validators.ge(0))
    max_entries: int = attrs.field(default=20_000, validator=attrs.validators.ge(0))
    grace_seconds: float = attrs.field(default=86_400.0, validator=attrs.validators.ge(0))


@attrs.frozen(kw_only=True)
class Total:
    """Bytes and number of files, held or to be."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: "Total") -> "Total":
        return Total(bytes=self.bytes + other.bytes, files=self.files + other.files)

    def __sub__(self, other: "Total") -> "Total":
        return Total(bytes=self.bytes - other.bytes, files=self.files - other.files)

    def within(self, caps: Caps) -> bool:
        """Whether a folder that holds this much is within its caps."""
        return self.bytes <= caps.max_bytes and self.files <= caps.max_entries


@attrs.frozen(kw_only=True)
class Eviction:
    """What an eviction did. `held` is what is in the folder now, without the room that was asked for.

    `young`: how many of the removed entries were within the grace period. `refused`: why a file could not be removed.
    """

    removed: tuple[StoredFile, ...]
    held: Total
    young: int = 0
    refused: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of the removed files."""
        return total_of(self.removed).bytes


def total_of(found: Sequence[StoredFile]) -> Total:
    """What files come to together."""
    return Total(bytes=sum(f.bytes for f in found), files=len(found))


def worth(file: StoredFile, now: float) -> float:
    """Seconds of compiling that a byte of the file saves, halved for each week since its last use."""
    seconds = _UNKNOWN_SECONDS if file.compile_seconds is None else file.compile_seconds
    return seconds / max(file.bytes, 1) * math.exp2(-_age(file, now) / HALF_LIFE_S)


def is_young(file: StoredFile, caps: Caps, now: float) -> bool:
    """Whether the file is within the grace period. What lies in the quarantine never is."""
    return not file.quarantined and _age(file, now) < caps.grace_seconds


def plan_eviction(
    found: Sequence[StoredFile],
    caps: Caps,
    now: float,
    *,
    room: Total = Total(),
    spare: float = 0.0,
) -> tuple[StoredFile, ...]:
    """The files to remove, in order, so that what stays and `room` for more are within the caps; none if they are.

    First what is in the quarantine, oldest first; then entries beyond the grace period, those of least worth first; then
    the others, the least recently used first. Where a cap is exceeded, older files go until the share `spare` of it
    is free, and younger ones until it is kept.
    """
    total = total_of(found) + room
    if total.within(caps):
        return ()
    low = attrs.evolve(
        caps,
        max_bytes=caps.max_bytes - int(caps.max_bytes * spare),
        max_entries=caps.max_entries - int(caps.max_entries * spare),
    )
    removed = []
    for file in sorted(found, key=lambda f: _order(f, caps, now)):
        if total.within(caps if is_young(file, caps, now) else low):
            break
        removed.append(file)
        total -= total_of((file,))
    return tuple(removed)


def evict(
    root: str,
    caps: Caps,
    *,
    now: float | None = None,
    room: Total = Total(),
    spare: float = SPARE,
    used: Mapping[str, float] | None = None,
    dry_run: bool = False,
) -> Eviction:
    """Makes a folder fit its caps, with `room` for what is to come. Never raises for what storage does.

    `used` has times of last use by path that are newer than the files tell. A file that is used while this decides
    stays. A file that is gone already counts as removed by somebody else.
    """
    now = time.time() if now is None else now
    if dry_run:
        found = _with_worth(root, caps, now, used or {}, room)
        planned = plan_eviction(found, caps, now, room=room, spare=spare)
        return Eviction(
            removed=planned,
            held=total_of(found) - total_of(planned),
            young=sum(is_young(f, caps, now) for f in planned),
        )
    removed: list[StoredFile] = []
    refused: dict[str, str] = {}
    for _ in range(_ROUNDS):
        found = _with_worth(root, caps, now, used or {}, room)
        stuck = total_of([f for f in found if f.path in refused])
        planned = plan_eviction(
            [f for f in found if f.path not in refused], caps, now, room=room + stuck, spare=spare
        )
        if not planned:
            break
        for file in planned:
            try:
                if discard(root, file):
                    removed.append(file)
            except OSError as error:
                refused[file.path] = f"{file.path}: {error.strerror}"
    return Eviction(
        removed=tuple(removed),
        held=total_of(list(stored_files(root))) if removed or refused else total_of(found),
        young=sum(is_young(f, caps, now) for f in removed),
        refused=next(iter(refused.values()), ""),
    )


def trim(store: "DiskStore", caps: Caps) -> Eviction:
    """Makes the folder of a store fit its caps now. A `graphspec.cache.folder.bounded.BoundedStore` does so at each put."""
    return evict(store.root, caps)


def discard(root: str, file: StoredFile) -> bool:
    """Removes a file unless it was used since it was listed; False when it stays or was gone already.

    It moves to ``tmp/`` and is removed there, so a process that dies in between leaves a temporary, which the next one
    sweeps. A reader that has opened it reads on; one that comes later finds nothing. Raises OSError when it cannot go.
    """
    try:
        if os.stat(file.path).st_mtime > file.last_used:
            return False
    except FileNotFoundError:
        # Gone, or a link that leads nowhere.
        if not os.path.lexists(file.path):
            return False
    removed = move_away(root, file.path)
    about = noted(file.path) if file.quarantined else None
    if about is not None:
        # It may have come after the listing. Whoever sets it aside looks for its note afterwards, and this looks for the
        # file: one of the two sees the other, and no file stays without its reason.
        move_away(root, about)
    return removed


def move_away(root: str, path: str) -> bool:
    """Removes a file or link by way of ``tmp/``; False when it was gone already. Raises OSError when it cannot go."""
    aside = os.path.join(root, "tmp", unique_name())
    try:
        make_folder(root, "tmp")
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    except OSError:
        # A disk that is full may have no room for another name. To remove one needs none.
        aside = path
    try:
        os.unlink(aside)
    except FileNotFoundError:
        return False
    return True


def _age(file: StoredFile, now: float) -> float:
    # Clocks of other hosts may be ahead: what was used in the future is used now.
    return max(0.0, now - file.last_used)


def _order(file: StoredFile, caps: Caps, now: float) -> tuple[int, float, float, str]:
    used = min(file.last_used, now)
    if file.quarantined:
        return 0, used, 0.0, file.path
    if is_young(file, caps, now):
        return 2, used, 0.0, file.path
    return 1, worth(file, now), used, file.path


def _with_worth(
    root: str, caps: Caps, now: float, used: Mapping[str, float], room: Total
) -> Sequence[StoredFile]:
    """The files with the times of use that are known better, and what older entries cost to make if one has to go."""
    found = [
        attrs.evolve(f, last_used=max(f.last_used, used[f.path])) if f.path in used else f
        for f in stored_files(root)
    ]
    if (total_of(found) + room).within(caps):
        return found
    return [f if f.quarantined or is_young(f, caps, now) else _looked_at(f) for f in found]


def _looked_at(file: StoredFile) -> StoredFile:
    if not file.readable_format:
        return file
    seen = glance(file.path)
    # What is no entry saves nothing.
    seconds = 0.0 if seen is None else seen.compile_seconds
    return attrs.evolve(file, compile_seconds=seconds)
