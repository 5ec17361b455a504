"""What processes do to keep a cache folder small when tests kill them: actions for `support.faults.Killer`."""

import os

from graphspec.cache.folder.bounded import BoundedStore, packed_bytes
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, evict
from graphspec.cache.folder.tidy import tidy
from graphspec.cache.prune import Wanted, choose, remove
from support.entries import entry_of

OLD = "abc"
NEW = "d"
SIZE = 500
CAPS = Caps(max_bytes=int((len(OLD) + 0.5) * packed_bytes(entry_of("a", bytes(SIZE)))))


def payload(name: str) -> bytes:
    """What the entry of that name holds."""
    return name.encode() * SIZE


def fill(root: str) -> None:
    """Three entries, which is all that the caps allow; not used for two days, the first one longest."""
    store = BoundedStore(DiskStore(root), CAPS)
    for at, name in enumerate(OLD):
        entry = entry_of(name, payload(name))
        assert store.put(entry).written
        used = os.stat(DiskStore(root).path_of(entry.key)).st_mtime - 2 * 86_400 + at
        os.utime(DiskStore(root).path_of(entry.key), (used, used))


def put(root: str) -> None:
    """Stores a fourth entry, for which another one has to go."""
    assert BoundedStore(DiskStore(root), CAPS).put(entry_of(NEW, payload(NEW))).written


def evict_two(root: str) -> None:
    """Evicts two entries of three."""
    assert len(evict(root, Caps(max_entries=1)).removed) == 2


def collect(root: str) -> None:
    """What ``cache gc`` does, with room for one entry."""
    assert len(tidy(root, Caps(max_entries=1), quarantine_kept_s=0).eviction.removed) == 2


def prune(root: str) -> None:
    """What ``cache prune --all`` does."""
    assert len(remove(root, choose(root, Wanted())).files) == len(OLD)
