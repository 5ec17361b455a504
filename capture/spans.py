"""`Span`: one stretch of a warmup, as reports have it and as the trace-event format of browsers has it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Span:
    """What one thread did for `seconds` from `start`, in seconds after the warmup began.

    `row` names the thread, `kind` what it did: phase, trace, compile, load, warm or capture. Spans of one row do not
    overlap.
    """

    row: str
    kind: str
    name: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """Seconds after the warmup began."""
        return self.start + self.seconds

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "row": self.row,
            "kind": self.kind,
            "name": self.name,
            "start": round(self.start, 6),
            "seconds": round(self.seconds, 6),
        }


def in_order(spans: Sequence[Span]) -> Sequence[Span]:
    """By start; of those that begin together, the longest first: what holds the others."""
    return sorted(spans, key=lambda span: (span.start, -span.seconds))


def rows_of(spans: Sequence[Span]) -> tuple[str, ...]:
    """The rows, in the order in which they first did something."""
    return tuple(dict.fromkeys(span.row for span in in_order(spans)))


def trace_events(spans: Sequence[Span]) -> Mapping[str, Any]:
    """The spans as a trace-event file, which chrome://tracing and ui.perfetto.dev open. Rows are its threads.

    Format: "Trace Event Format", Google, complete events (``"ph": "X"``) with times in microseconds, and metadata events
    (``"ph": "M"``) that name process and threads.
    """
    rows = rows_of(spans)
    named = [_named("process_name", 0, "graphspec warmup")]
    named += [_named("thread_name", at, row) for at, row in enumerate(rows, start=1)]
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            # Both ends rounded alike, so that what did not overlap does not begin to.
            "ts": _microseconds(span.start),
            "dur": _microseconds(span.end) - _microseconds(span.start),
            "pid": _PROCESS,
            "tid": 1 + rows.index(span.row),
        }
        for span in sorted(spans, key=lambda span: span.start)
    ]
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}


_PROCESS = 1


def _microseconds(seconds: float) -> int:
    return math.floor(max(0.0, seconds) * 1e6)


def _named(what: str, thread: int, name: str) -> Mapping[str, Any]:
    return {
        "ph": "M",
        "name": what,
        "pid": _PROCESS,
        "tid": thread,
        "ts": 0,
        "args": {"name": name},
    }
