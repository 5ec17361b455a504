"""`CountingStore`: every lookup and every put ends in exactly one counted result and one log event."""

import enum
import logging
import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import attrs

from graphspec.cache.abilities import is_writable, look
from graphspec.cache.entry import Entry
from graphspec.cache.forks import ForkLock
from graphspec.cache.store import Lookup, Outcome, Store, Stored, set_aside
from graphspec.cache.units import EntryKey
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode


class PutResult(enum.Enum):
    """How a put ended. Exactly one each; a put that failed is nothing else, and one that differs is not present too."""

    WRITTEN = "written"
    PRESENT = "present"
    DIFFERS = "differs"
    FAILED = "failed"


def put_result(stored: Stored) -> PutResult:
    """The one name for how a put ended."""
    if stored.failed:
        return PutResult.FAILED
    if stored.differs:
        return PutResult.DIFFERS
    return PutResult.WRITTEN if stored.written else PutResult.PRESENT


@attrs.frozen(kw_only=True)
class Counts:
    """What was counted until one moment, all of it at the same moment.

    `lookups` and `puts` are counted as they begin, `outcomes` and `results` as they end; those in between are
    `running_lookups` and `running_puts`. Bytes are those of payloads: read with hits, written with puts. `saved_seconds`
    is what the compiles behind the hits had taken; `lookup_seconds` and `put_seconds` is what the store took.
    """

    lookups: int
    running_lookups: int
    outcomes: Mapping[Outcome, int]
    puts: int
    running_puts: int
    results: Mapping[PutResult, int]
    read_bytes: int
    written_bytes: int
    saved_seconds: float
    lookup_seconds: float
    put_seconds: float

    def problem(self) -> str:
        """Why the counts do not add up, in a sentence, or an empty text."""
        for what, begun, running, ended in (
            ("lookups", self.lookups, self.running_lookups, self.outcomes.values()),
            ("puts", self.puts, self.running_puts, self.results.values()),
        ):
            if begun != running + sum(ended):
                return f"{begun} {what} began, {running} are running, and {sum(ended)} have ended"
            if min(running, *ended) < 0:
                return f"a count of {what} is negative"
        return ""


class Counters:
    """Counts of one store, or of several together. Threads may share it; a forked child goes on from its parent's counts.

    >>> Counters().snapshot().outcomes[Outcome.HIT]
    0
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._lookups = self._running_lookups = self._puts = self._running_puts = 0
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._results = dict.fromkeys(PutResult, 0)
        self._read_bytes = self._written_bytes = 0
        self._saved_s = self._lookup_s = self._put_s = 0.0

    def snapshot(self) -> Counts:
        """All counts as they are now."""
        with self._lock:
            return Counts(
                lookups=self._lookups,
                running_lookups=self._running_lookups,
                outcomes=MappingProxyType(dict(self._outcomes)),
                puts=self._puts,
                running_puts=self._running_puts,
                results=MappingProxyType(dict(self._results)),
                read_bytes=self._read_bytes,
                written_bytes=self._written_bytes,
                saved_seconds=self._saved_s,
                lookup_seconds=self._lookup_s,
                put_seconds=self._put_s,
            )

    def lookup_begins(self) -> None:
        """Counts a lookup that must end with `lookup_ends`."""
        with self._lock:
            self._lookups += 1
            self._running_lookups += 1

    def lookup_ends(self, lookup: Lookup, seconds: float) -> None:
        """Counts the outcome of a lookup that has begun."""
        entry = lookup.entry
        read = len(entry.payload) if entry is not None else 0
        saved = compile_seconds(entry) if entry is not None else 0.0
        with self._lock:
            self._running_lookups -= 1
            self._outcomes[lookup.outcome] += 1
            self._lookup_s += seconds
            self._read_bytes += read
            self._saved_s += saved

    def put_begins(self) -> None:
        """Counts a put that must end with `put_ends`."""
        with self._lock:
            self._puts += 1
            self._running_puts += 1

    def put_ends(self, entry: Entry, stored: Stored, seconds: float) -> None:
        """Counts the result of a put that has begun."""
        written = len(entry.payload) if stored.written else 0
        with self._lock:
            self._running_puts -= 1
            self._results[put_result(stored)] += 1
            self._put_s += seconds
            self._written_bytes += written


def compile_seconds(entry: Entry) -> float:
    """Seconds that the compile of an entry took, as its metadata says; 0 where it says nothing that makes sense."""
    said = entry.metadata.get("compile_seconds")
    if not isinstance(said, int | float) or isinstance(said, bool):
        return 0.0
    try:
        seconds = float(said)
    except OverflowError:
        return 0.0
    return seconds if 0.0 < seconds < math.inf else 0.0


class CountingStore:
    """Counts and logs what goes through it to the inner store. A look counts as a lookup, like a get.

    Each lookup and put is one event of the logger ``graphspec.cache``, with what it was as attributes of the record:
    `event`, `outcome` or `result`, `key` (the digest, never the text), `unit`, `reason`, `payload_bytes`, `seconds`. It is
    a warning when somebody should know (corrupt, error, differs, failed), else debug. No handler is installed.

    An inner store that raises is counted as error or failed, and its exception goes on.
    """

    def __init__(self, inner: Store, counters: Counters) -> None:
        self._inner = inner
        self.counters = counters

    @property
    def writable(self) -> bool:
        """False when the inner store refuses puts."""
        return is_writable(self._inner)

    def get(self, key: EntryKey) -> Lookup:
        return self._lookup(key, self._inner.get)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, counted like a get."""
        return self._lookup(key, lambda key: look(self._inner, key))

    def put(self, entry: Entry) -> Stored:
        stored = Stored(written=False, reason="the store raised an exception")
        self.counters.put_begins()
        began = time.perf_counter()
        try:
            stored = self._inner.put(entry)
        finally:
            seconds = time.perf_counter() - began
            self.counters.put_ends(entry, stored, seconds)
            _log_put(entry, stored, seconds)
        return stored

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Takes the entry out of the inner store, where that can be done. Not counted: the lookup before it was."""
        set_aside(self._inner, key, reason)

    def _lookup(self, key: EntryKey, ask: Callable[[EntryKey], Lookup]) -> Lookup:
        lookup = Lookup(outcome=Outcome.ERROR, reason="the store raised an exception")
        self.counters.lookup_begins()
        began = time.perf_counter()
        try:
            lookup = ask(key)
        finally:
            seconds = time.perf_counter() - began
            self.counters.lookup_ends(lookup, seconds)
            _log_lookup(key, lookup, seconds)
        return lookup


_logger = logging.getLogger("graphspec.cache")


def _log_lookup(key: EntryKey, lookup: Lookup, seconds: float) -> None:
    alarming = lookup.outcome in (Outcome.CORRUPT, Outcome.ERROR)
    level = logging.WARNING if alarming else logging.DEBUG
    if not _logger.isEnabledFor(level):
        return
    unit = _unit(key)
    extra = {
        "event": "cache_lookup",
        "outcome": lookup.outcome.value,
        "key": key.digest,
        "unit": unit,
        "reason": lookup.reason,
        "payload_bytes": len(lookup.entry.payload) if lookup.entry is not None else 0,
        "seconds": seconds,
    }
    told = f": {lookup.reason}" if lookup.reason else ""
    _logger.log(level, "lookup of %s: %s%s", unit, lookup.outcome.value, told, extra=extra)


def _log_put(entry: Entry, stored: Stored, seconds: float) -> None:
    result = put_result(stored)
    alarming = result in (PutResult.DIFFERS, PutResult.FAILED)
    level = logging.WARNING if alarming else logging.DEBUG
    if not _logger.isEnabledFor(level):
        return
    unit = _unit(entry.key)
    extra = {
        "event": "cache_put",
        "result": result.value,
        "key": entry.key.digest,
        "unit": unit,
        "reason": stored.reason,
        "payload_bytes": len(entry.payload),
        "seconds": seconds,
    }
    told = f": {stored.reason}" if stored.reason else ""
    _logger.log(level, "put of %s: %s%s", unit, result.value, told, extra=extra)


def _unit(key: EntryKey) -> str:
    """The unit's name, which is in the key. Read only for an event that is logged: a key has thousands of bytes."""
    try:
        content = decode(key.text)
    except KeyFactorError:
        return "unknown"
    name = content.get("unit") if isinstance(content, Mapping) else None
    return name if isinstance(name, str) else "unknown"
