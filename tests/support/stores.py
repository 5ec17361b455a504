"""Stores for tests of wrappers: one with get and put only, one that answers as told, one whose puts wait."""

import multiprocessing.util
import os
import threading
from collections.abc import Callable

from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers.background import BackgroundStore
from graphspec.cache.units import EntryKey
from support.entries import entry_of

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory, where there is one: for tests that make and remove thousands of small folders."""
MISS = Lookup(outcome=Outcome.MISS, reason="nothing is stored under this key")


class PlainStore:
    """A dictionary with get and put, and nothing else. `asked` is each call and the payload or key text of it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.asked: list[tuple[str, bytes]] = []

    def get(self, key: EntryKey) -> Lookup:
        self.asked.append(("get", key.text))
        entry = self.entries.get(key.text)
        return MISS if entry is None else Lookup(outcome=Outcome.HIT, entry=entry)

    def put(self, entry: Entry) -> Stored:
        self.asked.append(("put", bytes(entry.payload)))
        there = self.entries.setdefault(entry.key.text, entry)
        return Stored(written=there is entry, differs=there.payload != entry.payload)


class SetAsideStore(PlainStore):
    """A plain store that can set aside; `aside` are the reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.aside: list[str] = []

    def set_aside(self, key: EntryKey, reason: str) -> None:
        self.aside.append(reason)
        self.entries.pop(key.text, None)


class ToldStore:
    """Answers each get and put with what it was made with, or raises it."""

    def __init__(
        self, lookup: Lookup | BaseException = MISS, stored: Stored | BaseException | None = None
    ) -> None:
        self.lookup = lookup
        self.stored = Stored(written=False, reason="no room") if stored is None else stored

    def get(self, key: EntryKey) -> Lookup:
        if isinstance(self.lookup, BaseException):
            raise self.lookup
        return self.lookup

    def put(self, entry: Entry) -> Stored:
        if isinstance(self.stored, BaseException):
            raise self.stored
        return self.stored


class GatedStore(SetAsideStore):
    """A store whose put begins, tells that by `began`, and goes on when `gate` is open."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.began = threading.Event()
        self.gate = threading.Event()
        self._before = before

    def put(self, entry: Entry) -> Stored:
        self.began.set()
        assert self.gate.wait(60)
        self._before()
        return super().put(entry)


class LateStore(DiskStore):
    """A disk store that writes nothing before `gate` is open."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.gate = threading.Event()

    def put(self, entry: Entry) -> Stored:
        assert self.gate.wait(60)
        return super().put(entry)


def put_ten(root: str) -> LateStore:
    """Queues ten entries for a folder. None is written before the returned store's gate is open."""
    late = LateStore(root)
    store = BackgroundStore(late)
    for number in range(10):
        assert store.put(entry_of(str(number))).written
    return late


def put_ten_and_end(root: str) -> None:
    """The work of a child of multiprocessing: ten entries that are written only while it ends."""
    multiprocessing.util.Finalize(None, put_ten(root).gate.set, exitpriority=10)
