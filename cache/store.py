"""`Store`: get and put, nothing else, and how a lookup can end."""

import enum
from typing import Protocol, runtime_checkable

import attrs

from graphspec.cache.entry import Entry
from graphspec.cache.units import EntryKey


class Outcome(enum.Enum):
    """How a lookup ended. Exactly one each."""

    HIT = "hit"
    MISS = "miss"
    STALE = "stale"
    """Whole and of the very key, and it does not load on this machine."""
    CORRUPT = "corrupt"
    BYPASS = "bypass"
    LOCKED_OUT = "locked_out"
    DISABLED = "disabled"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class Lookup:
    """What a store has for a key. `entry` is there exactly for a hit; `reason` says why it is not, in a sentence."""

    outcome: Outcome
    entry: Entry | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class Stored:
    """How a put ended: written now, already there, or not stored for a reason.

    `differs`: under the same key other bytes were there before, and stayed: the compile is not deterministic, or the key
    forgets something.
    """

    written: bool
    reason: str = ""
    differs: bool = False

    @property
    def failed(self) -> bool:
        """True when the entry is not in the store now."""
        return not self.written and bool(self.reason)


class Store(Protocol):
    """Where entries live. Neither method raises for what storage does; they say it in their result."""

    def get(self, key: EntryKey) -> Lookup:
        """What is stored under `key`, checked; a hit has the very key text, not only its digest."""
        ...

    def put(self, entry: Entry) -> Stored:
        """Stores an entry unless one is there: the first writer wins."""
        ...


@runtime_checkable
class SetsAside(Protocol):
    """A store that can put an entry out of the way."""

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Takes the entry of `key` out, with the reason why it cannot be used."""
        ...


def set_aside(store: Store, key: EntryKey, reason: str) -> None:
    """Takes an entry out of a store that can do so."""
    if isinstance(store, SetsAside):
        store.set_aside(key, reason)


class DisabledStore:
    """Holds nothing and takes nothing. `problem` is the reason where that is not what was asked for."""

    writable = False

    def __init__(self, reason: str, *, problem: bool = False) -> None:
        self._reason = reason
        self._problem = problem

    def get(self, key: EntryKey) -> Lookup:
        return Lookup(outcome=Outcome.DISABLED, reason=self._reason)

    def put(self, entry: Entry) -> Stored:
        return Stored(written=False, reason=self._reason if self._problem else "")
