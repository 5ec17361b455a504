"""`Timeline`: measures a warmup by what it tells, and passes that on."""

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from graphspec.cache.load import UnitResult
from graphspec.cache.units import CompileUnit
from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import CapturePlan
from graphspec.capture.progress import Progress
from graphspec.capture.spans import Span, in_order

PHASES, GRAPHS, UNITS = "phases", "graphs", "units"
"""Rows. Threads that handle units have a row each: units, units 2, and so on."""


class Timeline(Progress):
    """Listens to a warmup, notes when each part was done, and tells `told` the same."""

    def __init__(
        self, told: Progress | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._told = told or Progress()
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._phase: tuple[str, float] | None = None
        self._graph_began = 0.0
        self._units: list[_Unit] = []
        self._spans: list[Span] = []

    def spans(self) -> Sequence[Span]:
        """Everything that was measured up to now, by start."""
        now = self._now()
        with self._lock:
            running = [] if self._phase is None else [_phase(*self._phase, now)]
            found = [*self._spans, *running, *_parts(self._units)]
        return in_order(found)

    def started(self, units: Sequence[CompileUnit], plan: CapturePlan) -> None:
        self._told.started(units, plan)

    def unit_done(self, result: UnitResult) -> None:
        now, thread = self._now(), threading.get_ident()
        if not result.same_as:
            with self._lock:
                start = max(0.0, now - result.seconds)
                self._units.append(_Unit(thread=thread, start=start, end=now, result=result))
        self._told.unit_done(result)

    def phase(self, name: str) -> None:
        now = self._now()
        with self._lock:
            self._end_phase(now)
            self._phase = name, now
        self._told.phase(name)
        self._graph_began = self._now()

    def graph_done(self, phase: str, key: CaptureKey) -> None:
        now = self._now()
        with self._lock:
            self._spans.append(
                Span(
                    row=GRAPHS,
                    kind=phase,
                    name=f"{phase} {key}",
                    start=self._graph_began,
                    seconds=now - self._graph_began,
                )
            )
        self._told.graph_done(phase, key)
        # What the listener took is not the next graph's time.
        self._graph_began = self._now()

    def ended(self) -> None:
        """The last phase is over."""
        with self._lock:
            self._end_phase(self._now())
            self._phase = None

    def _end_phase(self, now: float) -> None:
        if self._phase is not None:
            self._spans.append(_phase(*self._phase, now))

    def _now(self) -> float:
        return self._clock() - self._began


def _phase(name: str, start: float, end: float) -> Span:
    return Span(row=PHASES, kind="phase", name=name, start=start, seconds=end - start)


@attrs.frozen(kw_only=True)
class _Unit:
    """A unit that is done, and when and by which thread it was handled."""

    thread: int
    start: float
    end: float
    result: UnitResult


def _parts(units: Sequence[_Unit]) -> list[Span]:
    """Units that were compiled as two spans, their trace and the rest.

    Traces hold one lock, and nothing else makes a thread wait between the start of a unit and its trace. So each begins
    with its unit or when the trace before it ends, whichever is later.
    """
    found, lock_is_free = [], 0.0
    rows: dict[int, str] = {}
    for unit in sorted(units, key=lambda unit: unit.start):
        number = len(rows) + 1
        row = rows.setdefault(unit.thread, UNITS if number == 1 else f"{UNITS} {number}")
        start, name = unit.start, unit.result.name
        traced = min(unit.result.trace_seconds, unit.end - unit.start)
        if traced:
            start = min(max(unit.start, lock_is_free), unit.end - traced)
            lock_is_free = start + traced
            found.append(
                Span(row=row, kind="trace", name=f"trace {name}", start=start, seconds=traced)
            )
            start = lock_is_free
        kind = "compile" if unit.result.compiled else "load"
        found.append(
            Span(row=row, kind=kind, name=f"{kind} {name}", start=start, seconds=unit.end - start)
        )
    return found
