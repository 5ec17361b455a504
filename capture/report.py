"""`WarmupReport`: what a warmup did, for people and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.load import UnitResult, looked_up
from graphspec.cache.store import Outcome
from graphspec.cache.units import CompileUnit
from graphspec.capture.attempts import LostGraph, sentences
from graphspec.capture.keys import CaptureKey
from graphspec.capture.left_out import LeftOut
from graphspec.capture.memory_model import GraphCosts, GraphSample, PlannedAgainstActual, compare
from graphspec.capture.spans import Span
from graphspec.capture.verified import Verified
from graphspec.resolve.decision import ModeDecision
from graphspec.resolve.records import Note
from graphspec.resolve.runner import RunnerDecision
from graphspec.resolve.schedule import ScheduleDecision
from graphspec.resolve.spec import EngineSpec

_DRAFT_MODEL = "speculative.draft_model"


@attrs.frozen(kw_only=True)
class GraphReport:
    """The graphs of one warmup.

    `planned` and `reachable` are of the plan before anything was captured. `fallthrough` lists batch sizes that steady
    decoding runs without a full graph, `left_out` the graphs that steps could use and that were not to be captured, and
    `lost` those that should have been. `samples` has what each graph took, and `costs` what had been measured before.
    """

    planned: int
    captured: int
    reachable: int
    fallthrough: tuple[int, ...]
    memory_bytes: int
    verified: Sequence[Verified]
    left_out: Sequence[LeftOut] = ()
    lost: Sequence[LostGraph] = ()
    samples: Mapping[CaptureKey, GraphSample] = attrs.field(factory=dict)
    costs: GraphCosts = attrs.field(factory=GraphCosts)

    @property
    def differing(self) -> Sequence[Verified]:
        """Graphs whose replay did not agree with the eager run."""
        return [v for v in self.verified if not v.agrees]

    @property
    def memory(self) -> PlannedAgainstActual:
        """The MiB that were predicted for the captured graphs, against those they took."""
        return compare(self.costs, list(self.samples.values()))

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        planned = self.memory.planned
        return {
            "planned": self.planned,
            "captured": self.captured,
            "reachable": self.reachable,
            "fallthrough": list(self.fallthrough),
            "left_out": [part.as_dict() for part in self.left_out],
            "lost": [
                {"graph": str(g.key), "reason": g.loss.name.lower(), "error": g.error}
                for g in self.lost
            ],
            "memory_bytes": self.memory_bytes,
            "predicted_mib": None
            if planned is None
            else {"amount": planned.amount, "error": planned.error},
            "samples": [
                {"graph": str(key), **attrs.asdict(sample)} for key, sample in self.samples.items()
            ],
            "verified": sum(v.agrees for v in self.verified),
        }


@attrs.frozen(kw_only=True)
class Decisions:
    """What a contract granted of what was asked. `schedule` is None without speculation.

    `cold_draft` names a method whose draft model no unit of the program reads, so that nothing of it is compiled ahead.
    """

    mode: ModeDecision
    runner: RunnerDecision | None = None
    schedule: ScheduleDecision | None = None
    notes: tuple[Note, ...] = ()
    cold_draft: str = ""

    @classmethod
    def of(cls, spec: EngineSpec, units: Sequence[CompileUnit]) -> "Decisions":
        """The decisions that `spec` holds, for a program of these units."""
        drafting = spec.speculative
        if drafting is None:
            return cls(mode=spec.mode, runner=spec.runner, notes=spec.notes)
        cold = drafting.speculator.has_draft_model and not any(
            unit.scope.reaches(_DRAFT_MODEL) for unit in units
        )
        return cls(
            mode=spec.mode,
            runner=spec.runner,
            schedule=drafting.schedule,
            notes=spec.notes,
            cold_draft=(drafting.custom_method or drafting.method) if cold else "",
        )

    @property
    def lowered(self) -> Sequence[str]:
        """One sentence for each thing that is less than what was asked."""
        found = [
            f"graph mode {self.mode.asked.value} was lowered to {self.mode.granted.value}: {r}"
            for r in self.mode.reasons
        ]
        if self.schedule is not None:
            found += [f"the dynamic depth table is not used: {r}" for r in self.schedule.reasons]
        if self.cold_draft:
            found.append(
                f"drafting by {self.cold_draft} is not compiled: no unit of the program reads {_DRAFT_MODEL}, so its "
                "passes run the code as it is"
            )
        return found

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        schedule, runner = self.schedule, self.runner
        return {
            "mode": {
                "asked": self.mode.asked.value,
                "granted": self.mode.granted.value,
                "reasons": list(self.mode.reasons),
            },
            "runner": None
            if runner is None
            else {
                "asked": runner.asked,
                "granted": runner.granted,
                "reasons": list(runner.reasons),
            },
            "schedule": None
            if schedule is None
            else {
                "asked": None if schedule.asked is None else [list(r) for r in schedule.asked],
                "granted": [list(tier) for tier in schedule.granted.tiers],
                "reasons": list(schedule.reasons),
            },
        }


@attrs.frozen(kw_only=True)
class WarmupReport:
    """What a warmup did. `phases` has the wall seconds of each part, in order, and `timeline` what ran when. `cache_note`
    says where the cache is if nobody chose that. `parallel` has the sizes of the parallel groups: what graphs took is of
    such ranks alone."""

    spec_hash: str
    capture_hash: str
    decisions: Decisions
    parallel: Mapping[str, int] = attrs.field(factory=dict)
    cache_note: str = ""
    units: Sequence[UnitResult]
    graphs: GraphReport
    phases: Mapping[str, float]
    seconds: float
    timeline: Sequence[Span] = ()

    @property
    def compiled(self) -> int:
        """Units that were compiled here."""
        return sum(u.compiled for u in self.units)

    @property
    def loaded(self) -> int:
        """Units that came from the store. One that is equal to another is neither loaded nor compiled by itself."""
        return len(looked_up(self.units)) - self.compiled

    @property
    def trace_seconds(self) -> float:
        """The part of the time that went into tracing; nothing where all is loaded."""
        return sum(u.trace_seconds for u in self.units)

    @property
    def seconds_saved(self) -> float:
        """Compile seconds that stored entries saved, after what loading them took."""
        return sum(u.seconds_saved for u in self.units)

    @property
    def findings(self) -> Sequence[str]:
        """What an operator should know of, one sentence each; empty when all is as asked."""
        found = _by_reason(
            "{} not stored: {}", {u.name: u.store_problem for u in self.units if u.store_problem}
        )
        found += _by_reason(
            "{} compiled although stored, and will be again: {}",
            {u.name: u.reason for u in looked_up(self.units) if u.outcome is Outcome.ERROR},
        )
        found += [
            f"unit {u.name} does not compile alike: other bytes are stored under its key {u.key}"
            for u in self.units
            if u.differs
        ]
        found += [
            f"graph {v.key} differs from the eager run by {v.max_difference:.3g}"
            for v in self.graphs.differing
        ]
        found += self.decisions.lowered
        found += sentences(self.graphs.lost)
        if self.graphs.memory.within is False:
            found.append(f"memory of the graphs: {self.graphs.memory}")
        if self.graphs.captured + len(self.graphs.lost) != self.graphs.reachable:
            found.append(
                f"{self.graphs.reachable} graphs are reachable, {self.graphs.captured} are captured"
            )
        if self.graphs.fallthrough and self.decisions.mode.asked.decode_is_full:
            found.append(
                f"batches of {_spans(self.graphs.fallthrough)} requests decode without a full graph"
            )
        return found

    @property
    def notes(self) -> Sequence[str]:
        """What is as asked and still good to know, one sentence each."""
        told = [self.cache_note] if self.cache_note else []
        told += [str(note) for note in self.decisions.notes]
        told += [str(part) for part in self.graphs.left_out]
        return told

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data with a fixed set of keys: what ``warmup --json`` prints."""
        return {
            "spec_hash": self.spec_hash,
            "capture_hash": self.capture_hash,
            **self.decisions.as_dict(),
            "parallel": dict(self.parallel),
            "units": [
                {
                    "name": u.name,
                    "key": u.key,
                    "outcome": u.outcome.value,
                    "reason": u.reason,
                    "compiled": u.compiled,
                    "same_as": u.same_as,
                    "seconds": round(u.seconds, 4),
                    "trace_seconds": round(u.trace_seconds, 4),
                    "bytes": u.bytes,
                }
                for u in self.units
            ],
            "graphs": self.graphs.as_dict(),
            "compiled": self.compiled,
            "loaded": self.loaded,
            "seconds": round(self.seconds, 3),
            "trace_seconds": round(self.trace_seconds, 3),
            "seconds_saved": round(self.seconds_saved, 3),
            "phases": {name: round(s, 3) for name, s in self.phases.items()},
            "timeline": [span.as_dict() for span in self.timeline],
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


def _by_reason(sentence: str, reasons: Mapping[str, str]) -> list[str]:
    """One sentence for each reason, with all the units that have it: one full disk is one finding."""
    units: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        units.setdefault(reason, []).append(name)
    return [
        sentence.format(
            f"unit {names[0]} was" if len(names) == 1 else f"units {', '.join(names)} were", reason
        )
        for reason, names in units.items()
    ]


def _spans(sizes: Sequence[int]) -> str:
    """``1 to 4, 9`` for (1, 2, 3, 4, 9)."""
    spans: list[list[int]] = []
    for size in sizes:
        if spans and spans[-1][1] == size - 1:
            spans[-1][1] = size
        else:
            spans.append([size, size])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in spans)
