"""`load_or_compile`: every unit of a program to a callable, from the store where it can be, one compile a key."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.entry import Entry
from graphspec.cache.folder.locks import Locks
from graphspec.cache.store import Lookup, Outcome, Store, Stored, set_aside
from graphspec.cache.units import (
    CompileUnit,
    EntryKey,
    equal_but_for_name,
    signature,
    unit_key,
)
from graphspec.config.device import DeviceProfile
from graphspec.errors import (
    CacheError,
    CacheUnusableError,
    CompileError,
    NondeterministicError,
    Problem,
)
from graphspec.resolve.spec import EngineSpec

if TYPE_CHECKING:
    from graphspec.cache.compiling.compiler import Compiled, Compiler
    from graphspec.cache.loading.artifact import Artifact

_LOCK_POLL_S = 0.2
_LOCK_WAIT_S = 900.0


@attrs.frozen(kw_only=True)
class UnitResult:
    """What became of one unit. `seconds` is what it took here; `seconds_saved` what the stored compile had taken.

    `trace_seconds` is the part of `seconds` that tracing took: nothing for a unit that was loaded. `differs`: it was
    compiled here, and other bytes were stored under its key before. `same_as` names the unit before it that it is equal to
    and has its artifact from; nothing was looked up for it.
    """

    name: str
    key: str
    outcome: Outcome
    reason: str
    compiled: bool
    seconds: float
    seconds_saved: float
    bytes: int
    store_problem: str = ""
    differs: bool = False
    trace_seconds: float = 0.0
    same_as: str = ""


def unit_result(
    name: str,
    entry: Entry,
    lookup: Lookup,
    began: float,
    *,
    compiled: bool,
    saved: float,
    stored: Stored | None = None,
) -> UnitResult:
    """What became of a unit that was looked up at `began` (of `time.perf_counter`) and is finished now.

    `saved`: seconds that the stored compile had taken.
    """
    seconds = time.perf_counter() - began
    return UnitResult(
        name=name,
        key=entry.key.digest,
        outcome=lookup.outcome,
        reason=lookup.reason,
        compiled=compiled,
        seconds=seconds,
        seconds_saved=max(0.0, saved - seconds),
        bytes=len(entry.payload),
        store_problem=stored.reason if stored is not None else "",
        differs=stored is not None and stored.differs,
    )


Listener = Callable[[UnitResult], None]


@attrs.frozen(kw_only=True)
class Keyed:
    """A unit with its key."""

    unit: CompileUnit
    key: EntryKey


def keyed_units(
    units: Sequence[CompileUnit], spec: EngineSpec, *, device: DeviceProfile | None = None
) -> Sequence[Keyed]:
    """Each unit with the key that this machine's toolchain and device give it, or this toolchain and a described `device`.

    Units that differ in nothing but the name have one key, with the name of the first of them.
    """
    chain, device = toolchain(spec.device), device or measure_device(spec.device)
    options = {**compiler_options(spec.device), "flags": compiler_flags(spec.device)}
    firsts: list[Keyed] = []
    keyed = []
    for unit in units:
        equal = next((one for one in firsts if equal_but_for_name(one.unit, unit)), None)
        if equal is not None:
            keyed.append(Keyed(unit=unit, key=equal.key))
            continue
        key = unit_key(unit, spec, toolchain=chain, device=device, options=options)
        keyed.append(Keyed(unit=unit, key=key))
        firsts.append(keyed[-1])
    return keyed


def first_of_each_key(keyed: Sequence[Keyed]) -> Mapping[EntryKey, Keyed]:
    """The unit that is looked up, compiled and stored for all that have its key, in the order of `keyed`."""
    firsts: dict[EntryKey, Keyed] = {}
    for one in keyed:
        firsts.setdefault(one.key, one)
    return firsts


def load_or_compile(
    units: Sequence[CompileUnit],
    spec: EngineSpec,
    store: Store,
    locks: Locks,
    *,
    jobs: int = 1,
    strict: bool = False,
    single_threaded: bool = False,
    listener: Listener = lambda result: None,
    lock_wait_seconds: float = _LOCK_WAIT_S,
    offline: str | None = None,
    compiler: "Compiler | None" = None,
) -> tuple[Mapping[str, "Artifact"], Sequence[UnitResult]]:
    """Artifacts by unit name, and what became of each unit, in the order of `units`. Units of one key share an artifact.

    At most `jobs` compiler processes run at once. What another process is compiling is left for last and then loaded.
    Whoever holds a unit's lock for longer than `lock_wait_seconds` is no longer waited for; the lock of a process that died
    is free at once. A result that cannot be stored is still used and carries a `store_problem`. With `strict` it is a
    `CacheUnusableError`, and one that differs from what is stored a `NondeterministicError`.

    `offline` is the cache folder where compiling is forbidden: units that are not stored are an `OfflineMissError`, which is
    explained by what that folder holds. `listener` is told of each unit as it is finished. `compiler`, for one job, is used
    in place of a new one and stays open.
    """
    run = CompileRun(
        spec, store, locks, strict, single_threaded, listener, lock_wait_seconds, compiler
    )
    run.all(keyed_units(units, spec), jobs, offline)
    return run.artifacts, [run.results[u.name] for u in units]


class CompileRun:
    """One run over units: looks each up, compiles and stores what is missing. What it does with an entry is `_keep`'s
    business, which a run for a device that is not here replaces, with `_compiler`, `_notes` and `share`."""

    def __init__(
        self,
        spec: EngineSpec,
        store: Store,
        locks: Locks,
        strict: bool,
        single_threaded: bool,
        listener: Listener,
        lock_wait: float,
        compiler: "Compiler | None" = None,
    ) -> None:
        self._given = compiler
        self._profile: DeviceProfile | None = None
        self._spec = spec
        self._store = store
        self._locks = locks
        self._strict = strict
        self._single_threaded = single_threaded
        self._listener = listener
        self._lock_wait = lock_wait
        self._tracing = threading.Lock()
        self._held_since: dict[str, float] = {}
        self._interrupted = False
        self.first: dict[str, Lookup] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.results: dict[str, UnitResult] = {}

    def all(self, keyed: Sequence[Keyed], jobs: int, offline: str | None) -> None:
        """Loads what is stored, compiles the rest, and shares artifacts between units of one key."""
        firsts = first_of_each_key(keyed)
        pending = [one for one in firsts.values() if not self.load(one)]
        if pending and offline is not None:
            from graphspec.cache.explain import offline_miss

            found = [(k.unit.name, k.key, self.first[k.unit.name]) for k in pending]
            raise offline_miss(found, offline)
        if pending:
            self.compile_all(pending, jobs)
        for one in keyed:
            if firsts[one.key] is not one:
                self.share(one.unit.name, firsts[one.key].unit.name)

    def load(self, keyed: Keyed) -> bool:
        """Looks a unit up and loads it on a hit. A unit that is compiled in the end has the outcome of its first lookup."""
        began = time.perf_counter()
        lookup = self._store.get(keyed.key)
        entry = lookup.entry
        if entry is not None:
            try:
                self._keep(keyed, entry)
            except CacheError as error:
                # Whole, and of no use here: another C library, say. Out of the way, or it would be compiled at each start.
                lookup = Lookup(outcome=Outcome.STALE, reason=error.problems[0].found)
                set_aside(self._store, keyed.key, lookup.reason)
            else:
                saved = float(entry.metadata["compile_seconds"])
                self._finish(keyed, lookup, False, began, saved, entry)
                return True
        self.first.setdefault(keyed.unit.name, lookup)
        return False

    def share(self, name: str, first: str) -> None:
        """Gives a unit the artifact of the one that it is equal to."""
        self.artifacts[name] = self.artifacts[first]
        self.results[name] = attrs.evolve(
            self.results[first],
            name=name,
            compiled=False,
            seconds=0.0,
            seconds_saved=0.0,
            store_problem="",
            differs=False,
            trace_seconds=0.0,
            same_as=first,
        )
        self._listener(self.results[name])

    def compile_all(self, pending: Sequence[Keyed], jobs: int) -> None:
        work: queue.SimpleQueue[Keyed] = queue.SimpleQueue()
        for keyed in pending:
            work.put(keyed)
        if self._given is not None:
            # Here, because a compiler that stays open dies with the thread that started it.
            self._lane(work)
            return
        with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(pending)))) as pool:
            lanes = [pool.submit(self._lane, work) for _ in range(pool._max_workers)]
            try:
                for lane in lanes:
                    lane.result()
            except KeyboardInterrupt:
                # The pool waits for its lanes, and a lane may be waiting for a lock.
                self._interrupted = True
                raise

    def _lane(self, work: "queue.SimpleQueue[Keyed]") -> None:
        with self._compiler() as compiler:
            while not self._interrupted:
                try:
                    keyed = work.get_nowait()
                except queue.Empty:
                    return
                if not self._compile_unless_held(keyed, compiler):
                    work.put(keyed)
                    time.sleep(_LOCK_POLL_S)

    def _compile_unless_held(self, keyed: Keyed, compiler: "Compiler") -> bool:
        with self._locks.try_lock(keyed.key) as free:
            now = time.monotonic()
            waited = 0.0 if free else now - self._held_since.setdefault(keyed.unit.name, now)
            if not free and waited < self._lock_wait:
                return self.load(keyed)
            if not free:
                reason = f"another process has held the unit's lock for {waited:.0f} s"
                self.first[keyed.unit.name] = Lookup(outcome=Outcome.LOCKED_OUT, reason=reason)
            # Whoever held the lock before may have stored the entry in the meantime.
            if not self.load(keyed):
                self._compile(keyed, compiler)
            return True

    def _compile(self, keyed: Keyed, compiler: "Compiler") -> None:
        from graphspec.cache.compiling.trace import trace

        began = time.perf_counter()
        device = self._spec.device.target.value
        with self._tracing:
            traced = trace(keyed.unit, self._spec, device)
        compiled = compiler.compile(keyed.unit, traced)
        self._check_unchanged(keyed)
        entry = Entry(
            key=keyed.key,
            metadata={
                "unit": keyed.unit.name,
                "device": device,
                "signature": signature(keyed.unit),
                "outputs": list(traced.outputs),
                "reads": list(traced.reads),
                "compile_seconds": compiled.seconds,
                "provenance": dict(compiled.provenance),
                **self._notes(compiled),
            },
            payload=compiled.library,
        )
        # Loaded before it is stored: a library that does not load is never published.
        self._keep(keyed, entry)
        stored = self._store.put(entry)
        if self._strict and (stored.failed or stored.differs):
            raise _unusable(stored) if stored.failed else _nondeterministic(keyed)
        first = self.first[keyed.unit.name]
        self._finish(keyed, first, True, began, 0.0, entry, stored, traced.seconds)

    def _notes(self, compiled: "Compiled") -> Mapping[str, Any]:
        """What else an entry says of its compile."""
        return {}

    def _check_unchanged(self, keyed: Keyed) -> None:
        """Refuses what was compiled while a file, a variable or a switch that its key covers was being changed."""
        (now,) = keyed_units([keyed.unit], self._spec, device=self._profile)
        if now.key != keyed.key:
            raise CompileError(
                Problem(
                    where=f"unit {keyed.unit.name}",
                    found="another key than before it was compiled",
                    wanted="sources, environment variables and settings of torch that stay as they are meanwhile",
                    hint="run it again; nothing was stored",
                )
            )

    def _keep(self, keyed: Keyed, entry: Entry) -> None:
        from graphspec.cache.loading.artifact import load_artifact

        self.artifacts[keyed.unit.name] = load_artifact(
            entry, single_threaded=self._single_threaded
        )

    def _finish(
        self,
        keyed: Keyed,
        lookup: Lookup,
        compiled: bool,
        began: float,
        saved: float,
        entry: Entry,
        stored: Stored | None = None,
        trace_seconds: float = 0.0,
    ) -> None:
        result = unit_result(
            keyed.unit.name, entry, lookup, began, compiled=compiled, saved=saved, stored=stored
        )
        result = attrs.evolve(result, trace_seconds=trace_seconds)
        self.results[keyed.unit.name] = result
        self._listener(result)

    def _compiler(self) -> "AbstractContextManager[Compiler]":
        from graphspec.cache.compiling.compiler import Compiler

        if self._given is not None:
            return nullcontext(self._given)
        device = self._spec.device
        return Compiler(compiler_flags(device), compiler_options(device), device.target.value)


def _unusable(stored: Stored) -> CacheUnusableError:
    return CacheUnusableError(
        Problem(
            where="cache folder",
            found=stored.reason,
            wanted="a folder that entries can be written to",
            hint="free space or permissions, choose another with --cache-dir, or drop --strict",
        )
    )


def _nondeterministic(keyed: Keyed) -> NondeterministicError:
    return NondeterministicError(
        Problem(
            where=f"unit {keyed.unit.name}",
            found=f"other bytes than are stored under its key {keyed.key.digest}",
            wanted="equal bytes from each compile of one key",
            hint="graphspec cache verify --recompile tells which units do not compile alike; without --strict the first stays",
        )
    )


def unusable_store(problem: str) -> CacheUnusableError:
    """The error for a store that cannot take entries at all, for strict mode's check before any work."""
    return _unusable(Stored(written=False, reason=problem))


def looked_up(results: Sequence[UnitResult]) -> Sequence[UnitResult]:
    """The results of units that are not equal to one before them: one for each entry."""
    return [result for result in results if not result.same_as]


def outcome_counts(results: Sequence[UnitResult]) -> Mapping[str, int]:
    """How many lookups ended with each outcome. The counts add up to the number of units that differ."""
    counts: dict[str, Any] = {}
    for result in looked_up(results):
        counts[result.outcome.value] = counts.get(result.outcome.value, 0) + 1
    return counts
