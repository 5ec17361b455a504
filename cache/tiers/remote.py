"""`RemoteStore`: packed entries in an object store or a database, verified like those on a disk.

A tier keeps named blocks of bytes, and is no more trusted than a wire. An entry is named ``ab/KEY.v3.entry``, as below
``entries/`` of a cache folder, and has the same bytes, so any tier can be filled and emptied with standard tools.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from graphspec.cache.entry import (
    FORMAT,
    Entry,
    EntryCorruptError,
    Seal,
    Signer,
    Trust,
    pack,
    unpack,
)
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers.breaker import Breaker, TierError
from graphspec.cache.units import EntryKey

MAX_ENTRY_BYTES = 256 << 20
"""Larger entries are neither sent nor fetched, unless a tier is told otherwise."""


@attrs.frozen(kw_only=True)
class Blob:
    """A stored block of bytes: its name and its size in bytes."""

    name: str
    size: int


class Blobs(Protocol):
    """Named blocks of bytes, somewhere else. Every method raises `TierError`, and nothing else, for what fails there."""

    @property
    def where(self) -> str:
        """The place for messages: scheme, host, bucket. Never a secret."""
        ...

    def open(self) -> None:
        """Makes ready what calls need on this machine, once: that time is not the tier's. Connects to nothing."""
        ...

    def get(self, name: str, limit: int) -> bytes | memoryview | None:
        """The block, or None when there is none. One of more than `limit` bytes is refused before it is read."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Stores the block whole; False when there was one. Of two writers at once exactly one gets True."""
        ...

    def list(self) -> Iterator[Blob]:
        """All blocks, in no order."""
        ...

    def delete(self, name: str) -> None:
        """Removes the block. It is no failure when there is none."""
        ...

    def close(self) -> None:
        """Closes connections. The next call opens them again."""
        ...


class Untrusted(Exception):  # noqa: N818
    """The seal of an entry is not trusted. Its bytes may be as good as any."""


def raising(trust: Trust | None) -> Trust | None:
    """The same trust, which raises `Untrusted` with the reason, so that it is told from damage."""
    if trust is None:
        return None

    def check(seal: Seal | None) -> str:
        reason = trust(seal)
        if reason:
            raise Untrusted(reason)
        return ""

    return check


def name_of(key: EntryKey) -> str:
    """The name of an entry in every tier."""
    return f"{key.digest[:2]}/{key.digest}.v{FORMAT}.entry"


class RemoteStore:
    """A `Store` over `Blobs`. What goes wrong there ends in a result with the place and the reason, never in an exception.

    A damaged object is deleted where the tier is `writable`, and stays where it is not. An object with a seal that is not
    trusted always stays, as does one that is whole and does not load here: another reader may use it, and one host that is
    set up wrongly must not empty a shared tier. Reads and writes are switched off apart from each other, so that
    credentials that may only read still serve; while reads are off, nothing is written either.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        writable: bool = True,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
        signer: Signer | None = None,
        trust: Trust | None = None,
        breaker: Callable[[], Breaker] = Breaker,
    ) -> None:
        self._blobs = blobs
        self.writable = writable
        self._max_entry_bytes = max_entry_bytes
        self._signer = signer
        self._trust = raising(trust)
        self._reads, self._writes = breaker(), breaker()

    def __repr__(self) -> str:
        return f"RemoteStore({self.where})"

    @property
    def where(self) -> str:
        """The place for messages, without any secret."""
        return self._blobs.where

    def get(self, key: EntryKey) -> Lookup:
        """What is stored under `key`. A damaged object is deleted where the tier is writable."""
        try:
            found = self._look(key)
        except TierError as error:
            return self._lookup(Outcome.ERROR, str(error))
        return found if isinstance(found, Lookup) else self._damaged(key, found)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find; nothing is deleted."""
        try:
            found = self._look(key)
        except TierError as error:
            return self._lookup(Outcome.ERROR, str(error))
        return found if isinstance(found, Lookup) else self._lookup(Outcome.CORRUPT, found.reason)

    def put(self, entry: Entry) -> Stored:
        """Stores an entry unless one is there. A damaged object in its place is deleted first."""
        if not self.writable:
            return self._not_stored("it is only read here")
        data = pack(entry, self._signer)
        if len(data) > self._max_entry_bytes:
            reason = f"the entry has {len(data)} bytes, at most {self._max_entry_bytes} are sent"
            return self._not_stored(reason)
        try:
            return self._store(entry, data)
        except TierError as error:
            return self._not_stored(str(error))

    def problem(self) -> str:
        """Why nothing can be stored here, or read where it is only read, in a sentence; empty where it can."""
        name = f"probe/{unique_name()}"
        try:
            if not self.writable:
                self._blobs.get(name, self._max_entry_bytes)
                return ""
            try:
                self._blobs.put_if_absent(name, b"first")
                replaced = self._blobs.put_if_absent(name, b"second")
            finally:
                with contextlib.suppress(TierError):
                    self._blobs.delete(name)
        except TierError as error:
            return self._said(str(error))
        return self._said("a second writer replaces what the first one stored") if replaced else ""

    def close(self) -> None:
        """Closes connections. The next call opens them again."""
        self._blobs.close()

    def _look(self, key: EntryKey) -> "Lookup | _Damage":
        self._blobs.open()
        with self._reads.attempt():
            data = self._blobs.get(name_of(key), self._max_entry_bytes)
        if data is None:
            return self._lookup(Outcome.MISS, "nothing is stored under this key")
        try:
            entry = unpack(data, trust=self._trust)
        except Untrusted as error:
            return self._lookup(Outcome.CORRUPT, str(error))
        except EntryCorruptError as error:
            return _Damage(str(error))
        if entry.key.digest != key.digest:
            return _Damage(f"it is the entry of another key, {entry.key.digest}")
        if entry.key.text != key.text:
            reason = "another key with the same digest is stored (a hash collision)"
            return self._lookup(Outcome.MISS, reason)
        return Lookup(outcome=Outcome.HIT, entry=entry)

    def _store(self, entry: Entry, data: bytes) -> Stored:
        self._blobs.open()
        # Twice, because what took the name may be damaged and is then deleted, or may be deleted by another process.
        for _ in range(2):
            self._reads.check()
            with self._writes.attempt():
                written = self._blobs.put_if_absent(name_of(entry.key), data)
            if written:
                return Stored(written=True)
            found = self.get(entry.key)
            if found.entry is not None:
                return Stored(written=False, differs=found.entry.payload != entry.payload)
        return Stored(written=False, reason=found.reason)

    def _damaged(self, key: EntryKey, damage: "_Damage") -> Lookup:
        reason = damage.reason
        if self.writable:
            try:
                with self._writes.attempt():
                    self._blobs.delete(name_of(key))
            except TierError as error:
                reason = f"{reason} (and it could not be deleted: {error})"
        return self._lookup(Outcome.CORRUPT, reason)

    def _lookup(self, outcome: Outcome, reason: str) -> Lookup:
        return Lookup(outcome=outcome, reason=self._said(reason))

    def _not_stored(self, reason: str) -> Stored:
        return Stored(written=False, reason=self._said(reason))

    def _said(self, reason: str) -> str:
        return f"{self.where}: {reason}"


@attrs.frozen
class _Damage:
    """The object is no entry of its key, for this reason."""

    reason: str
