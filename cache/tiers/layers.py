"""Stores around stores: `ReadOnlyStore` takes nothing, `LayeredStore` asks one level after the other."""

import logging
from collections.abc import Callable, Sequence

import attrs

from graphspec.cache.abilities import is_writable, look
from graphspec.cache.entry import Entry
from graphspec.cache.store import Lookup, Outcome, Store, Stored, set_aside
from graphspec.cache.units import EntryKey
from graphspec.errors import CacheError, Problem


class ReadOnlyStore:
    """What another store has, and no way to change it: puts are refused, and a bad entry is told and left where it is.

    Where the inner store has no `look`, a get is a get of the inner store, with all that it does.
    """

    writable = False

    def __init__(self, inner: Store, reason: str = "the store is read-only") -> None:
        self._inner = inner
        self._reason = reason

    def get(self, key: EntryKey) -> Lookup:
        return look(self._inner, key)

    def look(self, key: EntryKey) -> Lookup:
        """The same as `get`."""
        return look(self._inner, key)

    def put(self, entry: Entry) -> Stored:
        return Stored(written=False, reason=self._reason)


@attrs.frozen(kw_only=True)
class LevelProblem:
    """Something that one level did not do, where the whole store could go on without it.

    `level` counts from 1, the first to be asked. `action` is ``get``, ``put`` or ``back-fill``.
    """

    level: int
    action: str
    key: EntryKey = attrs.field(repr=False)
    reason: str


class ProblemLog:
    """Logs problems of levels to ``graphspec.cache``: the first of a level and an action as a warning, later ones as debug.

    A place that is down fails for every unit, and one warning says it.
    """

    def __init__(self) -> None:
        self._told: set[tuple[int, str]] = set()

    def __call__(self, problem: LevelProblem) -> None:
        what = (problem.level, problem.action)
        level = logging.DEBUG if what in self._told else logging.WARNING
        self._told.add(what)
        logging.getLogger("graphspec.cache").log(
            level,
            "level %d, %s: %s",
            problem.level,
            problem.action,
            problem.reason,
            extra={
                "event": "cache_level",
                "level": problem.level,
                "action": problem.action,
                "key": problem.key.digest,
                "reason": problem.reason,
            },
        )


_MOST_TELLING = (
    Outcome.CORRUPT,
    Outcome.ERROR,
    Outcome.STALE,
    Outcome.LOCKED_OUT,
    Outcome.MISS,
    Outcome.BYPASS,
    Outcome.DISABLED,
)


class LayeredStore:
    """Several stores as one, the nearest first.

    Get: the first level with a hit wins, and the writable levels above it are given a copy (back-fill), which heals what
    was corrupt there. When no level has a hit, the outcome is the most telling one of all levels: corrupt, error, stale,
    locked out, miss, bypass, disabled, in this order; the reason is that of the first level with this outcome.

    Put: every writable level is given the entry, in order. The result is that of the first writable level. When it has
    the entry and a later level fails, the reason says so and the put has not failed. `differs` is true when it is for any
    level. So a level that a start must not lose, such as the disk, comes before those that may fail, such as a network.

    What one level does not do and the whole can do without goes to `listener`: a corrupt or unreadable entry above a hit,
    a failed back-fill, a failed put of a later level. Without one it is logged.
    """

    def __init__(
        self,
        levels: Sequence[Store],
        *,
        listener: Callable[[LevelProblem], None] | None = None,
    ) -> None:
        if not levels:
            raise CacheError(
                Problem(where="levels of the cache", found="none", wanted="one store or more")
            )
        self._levels = tuple(levels)
        self._listener = listener if listener is not None else ProblemLog()

    @property
    def writable(self) -> bool:
        """False when each level refuses puts."""
        return any(is_writable(level) for level in self._levels)

    def get(self, key: EntryKey) -> Lookup:
        missed: list[Lookup] = []
        for level in self._levels:
            lookup = level.get(key)
            if lookup.entry is not None:
                self._fill(missed, lookup.entry)
                return lookup
            missed.append(lookup)
        return _most_telling(missed)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find; no level is filled."""
        missed: list[Lookup] = []
        for level in self._levels:
            lookup = look(level, key)
            if lookup.entry is not None:
                return lookup
            missed.append(lookup)
        return _most_telling(missed)

    def put(self, entry: Entry) -> Stored:
        done = [
            (number, level.put(entry))
            for number, level in enumerate(self._levels, 1)
            if is_writable(level)
        ]
        if not done:
            return Stored(written=False, reason="no level of the store can be written to")
        (_, first), *later = done
        problems = [f"level {number}: {stored.reason}" for number, stored in later if stored.failed]
        for number, stored in later:
            if stored.failed:
                self._tell(number, "put", entry.key, stored.reason)
        # A reason without `written` would be a failure, which an entry that was there before is not.
        told = problems if first.written or first.failed else []
        return Stored(
            written=first.written,
            reason="; ".join([first.reason, *told] if first.reason else told),
            differs=any(stored.differs for _, stored in done),
        )

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Takes the entry out of each level that can do so: a back-fill may have copied it."""
        for level in self._levels:
            set_aside(level, key, reason)

    def _fill(self, missed: Sequence[Lookup], entry: Entry) -> None:
        for number, lookup in enumerate(missed, 1):
            if lookup.outcome in (Outcome.CORRUPT, Outcome.ERROR):
                self._tell(number, "get", entry.key, f"{lookup.outcome.value}: {lookup.reason}")
            level = self._levels[number - 1]
            if is_writable(level):
                stored = level.put(entry)
                if stored.failed:
                    self._tell(number, "back-fill", entry.key, stored.reason)

    def _tell(self, level: int, action: str, key: EntryKey, reason: str) -> None:
        self._listener(LevelProblem(level=level, action=action, key=key, reason=reason))


def _most_telling(missed: Sequence[Lookup]) -> Lookup:
    number, lookup = min(
        enumerate(missed, 1), key=lambda each: (_MOST_TELLING.index(each[1].outcome), each[0])
    )
    if lookup.outcome is Outcome.MISS or len(missed) == 1:
        return lookup
    return attrs.evolve(lookup, reason=f"level {number}: {lookup.reason}")
