"""What graphs will take, in MiB and seconds, from what measured ones took; afterwards, planned against actual."""

import math
import statistics
from collections.abc import Sequence

import attrs

from graphspec.capture.robust_fit import Line, fit_line

NOT_MEASURED = "not measured"


@attrs.frozen(kw_only=True)
class GraphSample:
    """One captured graph: tokens of its step, MiB by which capturing it grew the device's memory, seconds it took.

    `opens_pool` marks the first of its pool. It also pays for what all later ones share, so it says nothing about them.
    """

    tokens: int
    mib: float
    seconds: float
    opens_pool: bool = False


@attrs.frozen(kw_only=True)
class Estimate:
    """A predicted amount and its stated error, both in `unit`: 9 of 10 measured graphs lay that near, times the graphs.

    `error` is None where there were too few samples to state one.
    """

    amount: float
    error: float | None
    unit: str

    @property
    def least(self) -> float:
        """The lower end of the band; the amount itself without one."""
        return max(0.0, self.amount - (self.error or 0.0))

    @property
    def most(self) -> float:
        """The upper end of the band; the amount itself without one."""
        return self.amount + (self.error or 0.0)

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.amount:.4g} {self.unit}, error not known"
        return f"{self.amount:.4g} {self.unit} ({self.least:.4g} to {self.most:.4g})"


@attrs.frozen(kw_only=True)
class GraphCosts:
    """Lines for the MiB and the seconds of a graph by its tokens, and the MiB that a pool takes once.

    All None where nothing was measured. Then every prediction is None: a number would be an invention.
    """

    mib: Line | None = None
    seconds: Line | None = None
    pool_mib: float | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[GraphSample]) -> "GraphCosts":
        """The costs that samples of one model on one device show.

        Lines are fitted to graphs that joined a pool: a line through one that opened it and one that did not took the
        difference for a slope, and predicted up to a hundred times what was needed. A pool takes once what its first
        graph took beyond its line, in the median; 0 where none is among the samples.
        """
        later = [s for s in samples if not s.opens_pool]
        mib = fit_line([(s.tokens, s.mib) for s in later])
        once = [s.mib - mib.at(s.tokens) for s in samples if s.opens_pool] if mib else []
        return cls(
            mib=mib,
            # The pool does not make the first capture slower, so all of them count.
            seconds=fit_line([(s.tokens, s.seconds) for s in samples]),
            pool_mib=None if mib is None else max(0.0, statistics.median(once)) if once else 0.0,
        )

    def predict_mib(self, tokens: Sequence[int]) -> Estimate | None:
        """The MiB of graphs of these token counts in one pool. None where nothing was measured."""
        if self.mib is None:
            return None
        return _sum(self.mib, tokens, "MiB", (self.pool_mib or 0.0) if tokens else 0.0)

    def predict_seconds(self, tokens: Sequence[int]) -> Estimate | None:
        """The seconds that capturing such graphs takes, one after another. None where nothing was measured."""
        return None if self.seconds is None else _sum(self.seconds, tokens, "s", 0.0)


def _sum(line: Line, tokens: Sequence[int], unit: str, once: float) -> Estimate:
    return Estimate(
        amount=once + math.fsum(map(line.at, tokens)),
        # Not its root: graphs of one model err on the same side.
        error=None if line.error is None else line.error * len(tokens),
        unit=unit,
    )


@attrs.frozen(kw_only=True)
class PlannedAgainstActual:
    """The MiB that were planned for a set of graphs, those it took, and the graph that was furthest from its line."""

    planned: Estimate | None
    actual_mib: float
    furthest: GraphSample | None = None

    @property
    def within(self) -> bool | None:
        """True when the actual amount lies in the stated band. None where there is no band."""
        if self.planned is None or self.planned.error is None:
            return None
        return self.planned.least <= self.actual_mib <= self.planned.most

    def __str__(self) -> str:
        if self.planned is None:
            return f"planned: {NOT_MEASURED}; took {self.actual_mib:.4g} MiB"
        told = {True: "within the band", False: "outside the band", None: "no band to hold it to"}
        text = f"planned {self.planned}; took {self.actual_mib:.4g} MiB, {told[self.within]}"
        if self.furthest is None:
            return text
        return f"{text}; furthest: {self.furthest.tokens} tokens with {self.furthest.mib:.4g} MiB"


def compare(costs: GraphCosts, captured: Sequence[GraphSample]) -> PlannedAgainstActual:
    """What was planned for the graphs that are now captured, against what they took."""
    line = costs.mib
    later = [s for s in captured if not s.opens_pool]
    return PlannedAgainstActual(
        planned=costs.predict_mib([s.tokens for s in captured]),
        actual_mib=math.fsum(s.mib for s in captured),
        furthest=max(later, key=lambda s: abs(s.mib - line.at(s.tokens)), default=None)
        if line
        else None,
    )
