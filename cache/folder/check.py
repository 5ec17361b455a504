"""`check_folder`: every file of a cache folder read whole, and what is wrong with those that no lookup could use."""

import os
from collections.abc import Iterator
from typing import Any

import attrs

from graphspec.cache.entry import EntryCorruptError, Trust, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.listing import SUFFIX
from graphspec.cache.folder.quarantine import set_aside
from graphspec.cache.folder.reading import read_entry


@attrs.frozen(kw_only=True)
class Damage:
    """A file that is no usable entry: where it lies, and why, in a sentence. `kept` says why a repair left it there."""

    path: str
    reason: str
    repaired: bool = False
    kept: str = ""


@attrs.frozen(kw_only=True)
class Checked:
    """What a check found. `entries` are whole, `bytes` what they come to."""

    folder: str
    entries: int
    bytes: int
    damages: tuple[Damage, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data: what ``cache verify --json`` prints."""
        return attrs.asdict(self)


def check_folder(store: DiskStore, *, trust: Trust | None = None, repair: bool = False) -> Checked:
    """Reads every entry whole: sizes, digests, key text against the name of the file, with `trust` the seal.

    With `repair` what cannot be used moves to the quarantine, with its reason, so that the next process that needs it
    compiles it anew. A file that vanishes meanwhile is passed over.
    """
    entries = size = 0
    damages = []
    for path in _paths(store.root):
        try:
            seen = os.lstat(path)
            data = read_entry(path)
            reason = _wrong(store, path, data, trust)
        except FileNotFoundError:
            continue
        except OSError as error:
            # The disk, not the file: another look may find it whole, so a repair leaves it.
            damages.append(Damage(path=path, reason=error.strerror or str(error)))
            continue
        except EntryCorruptError as error:
            reason = str(error)
        if not reason:
            entries, size = entries + 1, size + len(data)
        elif not repair:
            damages.append(Damage(path=path, reason=reason))
        else:
            damages.append(_repaired(store, path, reason, seen))
    return Checked(folder=store.root, entries=entries, bytes=size, damages=tuple(damages))


def _paths(root: str) -> Iterator[str]:
    """Whatever bears the name of an entry, also folders and links; sorted."""
    base = os.path.join(root, "entries")
    for above, folders, files in os.walk(base):
        taken = [n for n in folders if n.endswith(SUFFIX)]
        folders[:] = sorted(n for n in folders if n not in taken)
        yield from (os.path.join(above, n) for n in sorted(taken + files) if n.endswith(SUFFIX))


def _wrong(store: DiskStore, path: str, data: bytes, trust: Trust | None) -> str:
    entry = unpack(data, trust=trust)
    if os.path.basename(path) != entry.key.digest + SUFFIX:
        return f"it is the entry of another key, {entry.key.digest}"
    if path != store.path_of(entry.key):
        return f"it lies where no lookup finds it; its place is {store.path_of(entry.key)}"
    return ""


def _repaired(store: DiskStore, path: str, reason: str, seen: os.stat_result) -> Damage:
    try:
        moved = set_aside(os.path.join(store.root, "quarantine"), path, reason, seen)
    except OSError as error:
        return Damage(path=path, reason=reason, kept=error.strerror or str(error))
    kept = "" if moved else "another process has replaced it meanwhile"
    return Damage(path=path, reason=reason, repaired=moved, kept=kept)
