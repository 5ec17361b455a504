"""`tidy`: what nobody needs leaves a cache folder: files of dead processes, old quarantine, entries beyond the caps."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from graphspec.cache.folder.evict import Caps, Eviction, evict, move_away
from graphspec.cache.folder.listing import StoredFile, quarantined_files
from graphspec.cache.folder.usage import RunningTotal
from graphspec.cache.leftovers import sweep

QUARANTINE_KEPT_S = 30 * 86_400.0
"""How long a file that was set aside is kept for whoever wants to know why."""


@attrs.frozen(kw_only=True)
class Tidied:
    """What went. `temporaries` is how many files of dead processes; None in a dry run, which does not look.

    `over` is True when the folder is still above its caps.
    """

    folder: str
    caps: Caps
    temporaries: int | None
    quarantined: tuple[StoredFile, ...]
    eviction: Eviction
    refused: tuple[str, ...]

    @property
    def over(self) -> bool:
        """Whether the folder holds more than its caps allow."""
        return not self.eviction.held.within(self.caps)

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``cache gc --json`` prints."""
        return {
            "folder": self.folder,
            "caps": attrs.asdict(self.caps),
            "temporaries": self.temporaries,
            "quarantined": len(self.quarantined),
            "evicted": [
                {"key": f.key, "path": f.path, "bytes": f.bytes, "last_used": f.last_used}
                for f in self.eviction.removed
            ],
            "evicted_within_grace": self.eviction.young,
            "freed_bytes": sum(f.bytes for f in self.quarantined) + self.eviction.bytes,
            "held": attrs.asdict(self.eviction.held),
            "over": self.over,
            "refused": list(self.refused),
        }


def tidy(
    root: str, caps: Caps, *, quarantine_kept_s: float = QUARANTINE_KEPT_S, dry_run: bool = False
) -> Tidied:
    """Removes what is not needed, or with `dry_run` says what it would remove. Never raises for what storage does."""
    old = tuple(_old(root, quarantine_kept_s))
    refused: list[str] = []
    temporaries = None
    if not dry_run:
        temporaries = sum(sweep(os.path.join(root, name)) for name in ("tmp", "entries"))
        old = tuple(f for f in old if _moved(root, f.path, refused))
    eviction = evict(root, caps, spare=0.0, dry_run=dry_run)
    if not dry_run:
        RunningTotal(root).forget()
    if eviction.refused:
        refused.append(eviction.refused)
    return Tidied(
        folder=root,
        caps=caps,
        temporaries=temporaries,
        quarantined=old,
        eviction=eviction,
        refused=tuple(refused),
    )


def _old(root: str, kept_s: float) -> Iterator[StoredFile]:
    now = time.time()
    for file in quarantined_files(root):
        try:
            # Its own time of last write is from before it was set aside.
            if now - os.stat(file.path).st_ctime >= kept_s:
                yield file
        except OSError:
            continue


def _moved(root: str, path: str, refused: list[str]) -> bool:
    try:
        return move_away(root, path)
    except OSError as error:
        refused.append(f"{path}: {error.strerror}")
        return False
