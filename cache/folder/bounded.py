"""`BoundedStore`: a folder store that stays within its caps. Room is made before an entry is published."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from graphspec.cache.entry import PREFIX_BYTES, Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, Eviction, Total, evict, total_of
from graphspec.cache.folder.listing import stored_files
from graphspec.cache.folder.locks import hold
from graphspec.cache.folder.usage import Reading, RunningTotal
from graphspec.cache.store import Lookup, Stored
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.text import plural

_LOCK_WAIT_S = 5.0


def log_eviction(eviction: Eviction) -> None:
    """Logs what was removed to make room: one event of ``graphspec.cache``, info, or a warning where files stayed."""
    told = f"; others stayed: {eviction.refused}" if eviction.refused else ""
    logging.getLogger("graphspec.cache").log(
        logging.WARNING if eviction.refused else logging.INFO,
        "to make room, %s of %d bytes removed%s",
        plural(len(eviction.removed), "file"),
        eviction.bytes,
        told,
        extra={
            "event": "cache_eviction",
            "keys": [file.key for file in eviction.removed],
            "bytes": eviction.bytes,
            "young": eviction.young,
            "held_bytes": eviction.held.bytes,
            "held_entries": eviction.held.files,
        },
    )


class BoundedStore:
    """A `DiskStore` with caps. An entry that fits in no way is refused, and put says why.

    A put adds the entry to a running total of the folder. Files are counted for a process's first put, and when the
    total is above a cap; then the least valuable ones go, as `graphspec.cache.folder.evict` ranks them, and `listener` is told.
    What this process has read or written counts as used at that moment, more exactly than the files say.

    Processes that put at the same time may be above a cap together, by the entries that they are writing, until each
    has looked at the total once more after its own.
    """

    def __init__(
        self,
        store: DiskStore,
        caps: Caps,
        *,
        clock: Callable[[], float] = time.time,
        listener: Callable[[Eviction], None] = log_eviction,
    ) -> None:
        self._store = store
        self._caps = caps
        self._clock = clock
        self._listener = listener
        self._total = RunningTotal(store.root)
        self._counted = False
        self._used: dict[str, float] = {}

    def get(self, key: EntryKey) -> Lookup:
        """What the folder has."""
        lookup = self._store.get(key)
        if lookup.entry is not None:
            self._used[self._store.path_of(key)] = self._clock()
        return lookup

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find. It does not count as use."""
        return self._store.look(key)

    def put(self, entry: Entry) -> Stored:
        """Stores an entry unless one is there, after what is worth less has made room for it."""
        arriving = Total(bytes=packed_bytes(entry), files=1)
        if not arriving.within(self._caps):
            return Stored(
                written=False,
                reason=f"{self._store.root}: the entry has {arriving.bytes:,} bytes, and the whole cache may have "
                f"{self._caps.max_bytes:,} in {self._caps.max_entries:,} files",
            )
        path = self._store.path_of(entry.key)
        booked = None
        if not os.path.lexists(path):
            booked, full = self._book(arriving)
            if full:
                self._total.add(Total() - arriving)
                return Stored(written=False, reason=full)
        stored = self._store.put(entry)
        if stored.written:
            self._used[path] = self._clock()
            self._settle(arriving, booked)
        elif booked is not None:
            self._total.add(Total() - arriving)
        return stored

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Moves the entry of `key` to the quarantine."""
        self._store.set_aside(key, reason)

    def _book(self, arriving: Total) -> tuple[Reading, str]:
        """The running total with the entry, and why there is no room for it."""
        reading = self._total.add(arriving) if self._counted else None
        if reading is None:
            found = self._total.count(self._count)
            reading = self._total.add(arriving) or Reading(total=found + arriving, name=b"")
            self._counted = True
        if reading.total.within(self._caps):
            return reading, ""
        with self._alone():
            now = self._total.read()
            if now is None or now.name != reading.name:
                # Another process has counted since, and has perhaps made room.
                reading = self._total.add(arriving) or reading
            if reading.total.within(self._caps):
                return reading, ""
            held, refused = self._evict(arriving)
        reading = self._total.add(arriving) or Reading(total=held + arriving, name=b"")
        if refused and not (held + arriving).within(self._caps):
            full = f"the cache is full: {held.bytes:,} bytes in {held.files:,} files; {refused}"
            return reading, f"{self._store.root}: {full}"
        return reading, ""

    def _settle(self, arriving: Total, booked: Reading | None) -> None:
        """After the entry was published. A count that another process made meanwhile may have left it out, and others may
        have filled the room that was made for it."""
        now = self._total.read()
        if booked is None or now is None or now.name != booked.name:
            now = self._total.add(arriving)
        if now is None or now.total.within(self._caps):
            return
        with self._alone():
            now = self._total.read()
            if now is None or not now.total.within(self._caps):
                self._evict(Total())

    def _evict(self, room: Total) -> tuple[Total, str]:
        made: list[Eviction] = []

        def fit() -> Total:
            made.append(
                evict(self._store.root, self._caps, now=self._clock(), room=room, used=self._used)
            )
            return made[0].held

        held = self._total.count(fit)
        if made[0].removed or made[0].refused:
            self._listener(made[0])
        return held, made[0].refused

    def _count(self) -> Total:
        return total_of(list(stored_files(self._store.root)))

    def _alone(self) -> AbstractContextManager[bool]:
        """One eviction at a time, so that two do not remove twice as much. Without the lock nothing is wrong."""
        return hold(self._store.root, "evict", wait_s=_LOCK_WAIT_S)


def packed_bytes(entry: Entry) -> int:
    """Size in bytes of the file that holds an entry."""
    header = encode({"key": entry.key.text, "metadata": entry.metadata})
    return PREFIX_BYTES + len(header) + len(entry.payload)
