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
        self._threads: list[int] = []
        self._units: list[tuple[Span, UnitResult]] = []
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
                if thread not in self._threads:
                    self._threads.append(thread)
                number = 1 + self._threads.index(thread)
                span = Span(
                    row=UNITS if number == 1 else f"{UNITS} {number}",
                    kind="compile" if result.compiled else "load",
                    name=f"{'compile' if result.compiled else 'load'} {result.name}",
                    start=max(0.0, now - result.seconds),
                    seconds=min(now, result.seconds),
                )
                self._units.append((span, result))
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


def _parts(units: Sequence[tuple[Span, UnitResult]]) -> list[Span]:
    """Units that were compiled as two spans, their trace and the rest.

    Traces hold one lock, and nothing else makes a thread wait between the start of a unit and its trace. So each begins
    with its unit or when the trace before it ends, whichever is later.
    """
    found, lock_is_free = [], 0.0
    for span, result in sorted(units, key=lambda pair: pair[0].start):
        traced = min(result.trace_seconds, span.seconds)
        if not traced:
            found.append(span)
            continue
        start = min(max(span.start, lock_is_free), span.end - traced)
        lock_is_free = start + traced
        found.append(
            attrs.evolve(
                span, kind="trace", name=f"trace {result.name}", start=start, seconds=traced
            )
        )
        found.append(attrs.evolve(span, start=lock_is_free, seconds=span.end - lock_is_free))
    return found
