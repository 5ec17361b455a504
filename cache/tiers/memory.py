"""`MemoryStore`: entries of this process, bounded by bytes if asked."""

import copy
from collections import OrderedDict

import attrs

from graphspec.cache.entry import PREFIX_BYTES, Entry, Seal
from graphspec.cache.forks import ForkLock
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import decode, encode


@attrs.frozen(kw_only=True)
class Held:
    """An entry as it was when it was given: whatever its giver does with metadata and payload afterwards."""

    key: EntryKey
    metadata: bytes = attrs.field(repr=False)
    payload: bytes = attrs.field(repr=False)
    seal: Seal | None = None

    @property
    def bytes(self) -> int:
        """About what the entry would take as a file."""
        return PREFIX_BYTES + len(self.key.text) + len(self.metadata) + len(self.payload)

    def entry(self) -> Entry:
        """The entry, with metadata as a disk store would give it back."""
        return Entry(
            key=self.key, metadata=decode(self.metadata), payload=self.payload, seal=self.seal
        )


def hold(entry: Entry) -> Held:
    """A copy of an entry as it is now. Raises `KeyFactorError` for metadata that no file could hold."""
    return Held(
        key=entry.key,
        metadata=encode(entry.metadata),
        payload=bytes(entry.payload),
        seal=entry.seal,
    )


class MemoryStore:
    """Entries in this process's memory. The first writer wins; they are gone when the process ends.

    With `max_bytes`, those that were used longest ago make room for new ones, and an entry larger than that is refused.
    What was given, and what is handed out, is the caller's own: changing its metadata changes nothing here. Threads may
    share a store. A forked child begins with a copy of what its parent had.
    """

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Entry, int]] = OrderedDict()
        self._bytes = 0
        self._lock = ForkLock()

    @property
    def bytes(self) -> int:
        """Size of all entries together, each counted about as large as its file would be."""
        return self._bytes

    def get(self, key: EntryKey) -> Lookup:
        with self._lock:
            found = self._entries.get(key.text)
            if found is not None:
                self._entries.move_to_end(key.text)
        return _lookup(found)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find; the entry does not count as used."""
        with self._lock:
            found = self._entries.get(key.text)
        return _lookup(found)

    def put(self, entry: Entry) -> Stored:
        held = hold(entry)
        if self._max_bytes is not None and held.bytes > self._max_bytes:
            reason = f"the entry has {held.bytes} bytes, this memory has room for {self._max_bytes}"
            return Stored(written=False, reason=reason)
        new = held.entry()
        with self._lock:
            there, _ = self._entries.setdefault(held.key.text, (new, held.bytes))
            if there is new:
                self._bytes += held.bytes
                self._make_room()
        return Stored(written=there is new, differs=there.payload != new.payload)

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Forgets the entry of `key`: memory has no use for what cannot be used."""
        with self._lock:
            _, size = self._entries.pop(key.text, (None, 0))
            self._bytes -= size

    def _make_room(self) -> None:
        while self._max_bytes is not None and self._bytes > self._max_bytes:
            _, (_, size) = self._entries.popitem(last=False)
            self._bytes -= size


def _lookup(found: tuple[Entry, int] | None) -> Lookup:
    if found is None:
        return Lookup(outcome=Outcome.MISS, reason="nothing is stored under this key")
    entry = found[0]
    return Lookup(
        outcome=Outcome.HIT, entry=attrs.evolve(entry, metadata=copy.deepcopy(entry.metadata))
    )
