"""`FleetReport`: what became of each unit of a matrix, and what of it an operator should look at."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.fleet.plan import FleetPlan, Job
from graphspec.fleet.task import Verdict
from graphspec.text import plural


class State(enum.Enum):
    """How a job ended, for the whole fleet."""

    PRESENT = "present"
    """Stored before the run: nothing was scheduled for it."""
    PUBLISHED = "published"
    """It was in the driver's folder alone, and is in the shared tiers now. Nothing was scheduled for it."""
    COMPILED = Verdict.COMPILED.value
    FOUND = Verdict.FOUND.value
    NOT_STORED = Verdict.NOT_STORED.value
    FAILED = Verdict.FAILED.value
    DIFFERS = Verdict.DIFFERS.value
    LOST = "lost"
    """Each worker that tried it was lost."""
    ELSEWHERE = "elsewhere"
    """Stored where the others cannot see it: on one node alone."""
    CANCELLED = "cancelled"


USABLE = frozenset((State.PRESENT, State.PUBLISHED, State.COMPILED, State.FOUND))
"""States in which every node that shares the tier finds the entry."""


@attrs.frozen(kw_only=True)
class JobReport:
    """One job. `seconds` are those of all its attempts that came back, `lost` the reasons of those that did not."""

    job: Job
    state: State
    node: str = ""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    bytes: int = 0
    attempts: int = 0
    lost: tuple[str, ...] = ()
    reason: str = ""

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "unit": self.job.unit,
            "key": self.job.key.digest,
            "wanted_by": list(self.job.wanted_by),
            "state": self.state.value,
            "node": self.node,
            "expected_seconds": self.job.expected_seconds,
            "expected_from": self.job.expected_from,
            "resources": attrs.asdict(self.job.task.resources),
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "bytes": self.bytes,
            "attempts": self.attempts,
            "lost": list(self.lost),
            "reason": self.reason,
        }


@attrs.frozen(kw_only=True)
class FleetReport:
    """A fleet warmup. `seconds` is from the first submission to the end, `cancelled` a run that was interrupted."""

    plan: FleetPlan
    jobs: tuple[JobReport, ...]
    executor: str
    slots: int
    seconds: float
    cancelled: bool = False

    def count(self, *states: State) -> int:
        """Jobs that ended in one of these states."""
        return sum(job.state in states for job in self.jobs)

    @property
    def compile_seconds(self) -> float:
        """What the compiles took, on all workers together."""
        return sum(job.compile_seconds for job in self.jobs)

    def missing_of(self, variant: str) -> Sequence[str]:
        """Units that this variant still lacks."""
        return [
            j.job.unit for j in self.jobs if variant in j.job.wanted_by and j.state not in USABLE
        ]

    @property
    def findings(self) -> Sequence[str]:
        """What an operator should look at, a sentence each."""
        found = [_sentence(job) for job in self.jobs if job.state in _SAYS]
        if self.cancelled:
            left = plural(self.count(State.CANCELLED), "unit")
            found.append(f"the run was cancelled: {left} not compiled; run it again for the rest")
        return found

    @property
    def notes(self) -> Sequence[str]:
        """What is good to know, and was made good."""
        again = [
            f"unit {j.job.unit} ({j.job.key.digest}) was tried {j.attempts} times: {'; '.join(j.lost)}"
            for j in self.jobs
            if j.lost and j.state in USABLE
        ]
        return [*self.plan.notes, *again]

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``warmup --executor ... --json`` prints."""
        return {
            "executor": self.executor,
            "slots": self.slots,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "cancelled": self.cancelled,
            "variants": [
                {"label": label, "ready": not missing, "missing": list(missing)}
                for label in self.plan.variants
                for missing in (self.missing_of(label),)
            ],
            "units": self.plan.units,
            "jobs": [job.as_dict() for job in self.jobs],
            "scheduled": len(self.plan.missing),
            "compiled": self.count(State.COMPILED, State.NOT_STORED, State.ELSEWHERE),
            "present": self.count(State.PRESENT, State.PUBLISHED),
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


_SAYS: Mapping[State, str] = {
    State.NOT_STORED: "was compiled and not stored",
    State.FAILED: "failed",
    State.DIFFERS: "has another key on the worker than here",
    State.LOST: "was given up, its workers were lost",
    State.ELSEWHERE: "is not in a place that all nodes share",
}


def _sentence(job: JobReport) -> str:
    where = f" on {job.node}" if job.node else ""
    why = "; ".join(job.lost) if job.state is State.LOST else job.reason
    return f"unit {job.job.unit} ({job.job.key.digest}) {_SAYS[job.state]}{where}: {why}"
