"""`Store`: get and put, nothing else, and how a lookup can end."""

import enum
from typing import Protocol

import attrs

from graphspec.cache.entry import Entry
from graphspec.cache.units import EntryKey


class Outcome(enum.Enum):
    """How a lookup ended. Exactly one each."""

    HIT = "hit"
    MISS = "miss"
    STALE = "stale"
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
