"""`load_or_compile`: every unit of a program to a callable, from the store where it can be, one compile a key."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.cache.device import measure_device
from graphspec.cache.entry import Entry
from graphspec.cache.locks import KeyLocks
from graphspec.cache.store import Lookup, Outcome, Store, Stored
from graphspec.cache.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.units import CompileUnit, EntryKey, signature, unit_key
from graphspec.errors import CacheError, CacheUnusableError, CompileError, Problem
from graphspec.resolve.spec import EngineSpec

if TYPE_CHECKING:
    from graphspec.cache.artifact import Artifact
    from graphspec.cache.compiler import Compiler

_LOCK_POLL_S = 0.2
_LOCK_WAIT_S = 900.0
"""How long another process may hold a key's lock before this one compiles too. A dead holder's lock is free at once."""


@attrs.frozen(kw_only=True)
class UnitResult:
    """What became of one unit. `seconds` is what it took here; `seconds_saved` what the stored compile had taken."""

    name: str
    key: str
    outcome: Outcome
    reason: str
    compiled: bool
    seconds: float
    seconds_saved: float
    bytes: int
    store_problem: str = ""


Listener = Callable[[UnitResult], None]


@attrs.frozen(kw_only=True)
class Keyed:
    """A unit with its key."""

    unit: CompileUnit
    key: EntryKey


def keyed_units(units: Sequence[CompileUnit], spec: EngineSpec) -> Sequence[Keyed]:
    """Each unit with the key that this machine's toolchain and device give it."""
    chain, device = toolchain(spec.device), measure_device(spec.device)
    options = {**compiler_options(spec.device), "flags": compiler_flags(spec.device)}
    return [
        Keyed(unit=u, key=unit_key(u, spec, toolchain=chain, device=device, options=options))
        for u in units
    ]


def load_or_compile(
    units: Sequence[CompileUnit],
    spec: EngineSpec,
    store: Store,
    locks: KeyLocks,
    *,
    jobs: int = 1,
    strict: bool = False,
    single_threaded: bool = False,
    listener: Listener = lambda result: None,
) -> tuple[Mapping[str, "Artifact"], Sequence[UnitResult]]:
    """Artifacts by unit name, and what became of each unit, in the order of `units`.

    At most `jobs` compiler processes run at once. What another process is compiling is left for last and then loaded.
    A result that cannot be stored is still used and carries a `store_problem`; with `strict` it is a
    `CacheUnusableError`. `listener` is told of each unit as it is finished.
    """
    run = _Run(spec, store, locks, strict, single_threaded, listener)
    pending = [keyed for keyed in keyed_units(units, spec) if not run.load(keyed)]
    if pending:
        run.compile_all(pending, jobs)
    return run.artifacts, [run.results[u.name] for u in units]


class _Run:
    def __init__(
        self,
        spec: EngineSpec,
        store: Store,
        locks: KeyLocks,
        strict: bool,
        single_threaded: bool,
        listener: Listener,
    ) -> None:
        self._spec = spec
        self._store = store
        self._locks = locks
        self._strict = strict
        self._single_threaded = single_threaded
        self._listener = listener
        self._tracing = threading.Lock()
        self._first: dict[str, Lookup] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.results: dict[str, UnitResult] = {}

    def load(self, keyed: Keyed) -> bool:
        """Looks a unit up and loads it on a hit. A unit that is compiled in the end has the outcome of its first lookup."""
        began = time.perf_counter()
        lookup = self._store.get(keyed.key)
        entry = lookup.entry
        if entry is not None:
            try:
                self._keep(keyed, entry)
            except CacheError as error:
                lookup = Lookup(outcome=Outcome.ERROR, reason=error.problems[0].found)
            else:
                saved = float(entry.metadata["compile_seconds"])
                self._finish(keyed, lookup, False, began, saved, entry)
                return True
        self._first.setdefault(keyed.unit.name, lookup)
        return False

    def compile_all(self, pending: Sequence[Keyed], jobs: int) -> None:
        work: queue.SimpleQueue[tuple[Keyed, float]] = queue.SimpleQueue()
        for keyed in pending:
            work.put((keyed, time.monotonic()))
        with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(pending)))) as pool:
            lanes = [pool.submit(self._lane, work) for _ in range(pool._max_workers)]
            for lane in lanes:
                lane.result()

    def _lane(self, work: "queue.SimpleQueue[tuple[Keyed, float]]") -> None:
        with self._compiler() as compiler:
            while True:
                try:
                    keyed, since = work.get_nowait()
                except queue.Empty:
                    return
                if not self._compile_unless_held(keyed, since, compiler):
                    work.put((keyed, since))
                    time.sleep(_LOCK_POLL_S)

    def _compile_unless_held(self, keyed: Keyed, since: float, compiler: "Compiler") -> bool:
        with self._locks.try_lock(keyed.key) as free:
            if not free and time.monotonic() - since < _LOCK_WAIT_S:
                return self.load(keyed)
            # Whoever held the lock before may have stored the entry in the meantime.
            if not self.load(keyed):
                self._compile(keyed, compiler)
            return True

    def _compile(self, keyed: Keyed, compiler: "Compiler") -> None:
        from graphspec.cache.trace import trace

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
            },
            payload=compiled.library,
        )
        stored = self._store.put(entry)
        if stored.failed and self._strict:
            raise _unusable(stored)
        self._keep(keyed, entry)
        first = self._first[keyed.unit.name]
        self._finish(keyed, first, True, began, 0.0, entry, stored.reason)

    def _check_unchanged(self, keyed: Keyed) -> None:
        """Refuses what was compiled while a file, a variable or a switch that its key covers was being changed."""
        (now,) = keyed_units([keyed.unit], self._spec)
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
        from graphspec.cache.artifact import load_artifact

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
        problem: str = "",
    ) -> None:
        seconds = time.perf_counter() - began
        result = UnitResult(
            name=keyed.unit.name,
            key=keyed.key.digest,
            outcome=lookup.outcome,
            reason=lookup.reason,
            compiled=compiled,
            seconds=seconds,
            seconds_saved=max(0.0, saved - seconds),
            bytes=len(entry.payload),
            store_problem=problem,
        )
        self.results[keyed.unit.name] = result
        self._listener(result)

    def _compiler(self) -> "Compiler":
        from graphspec.cache.compiler import Compiler

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


def unusable_store(problem: str) -> CacheUnusableError:
    """The error for a store that cannot take entries at all, for strict mode's check before any work."""
    return _unusable(Stored(written=False, reason=problem))


def outcome_counts(results: Sequence[UnitResult]) -> Mapping[str, int]:
    """How many units ended with each outcome. The counts add up to the number of units."""
    counts: dict[str, Any] = {}
    for result in results:
        counts[result.outcome.value] = counts.get(result.outcome.value, 0) + 1
    return counts
