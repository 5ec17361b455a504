"""`Limits` on what a set of graphs may take, and what each bucket adds to it."""

import math
from collections.abc import Callable, Sequence

import attrs

from graphspec.capture.memory_model import NOT_MEASURED, GraphCosts
from graphspec.capture.padding import Buckets
from graphspec.capture.robust_fit import Line
from graphspec.errors import BudgetError, Problem
from graphspec.text import show

GraphsOf = Callable[[int, int], Sequence[int]]
"""The graphs that a bucket (k, requests) stands for, each by its tokens: verify, draft, one for each adapter count."""

# A sum of floats may be off in its last digits, and a limit that is just kept is kept.
_ROUNDING = 1e-9


def verify_graphs(k: int, bucket: int) -> Sequence[int]:
    """One graph a bucket: the target's verify step."""
    return (bucket * (1 + k),)


@attrs.frozen(kw_only=True)
class CostLimit:
    """A limit on the sum of `of(k, bucket)` over all buckets, both in `unit`. `name` is the option that set it."""

    name: str
    unit: str
    most: float
    of: Callable[[int, int], float]

    def spent(self, buckets: Buckets) -> float:
        """The sum over all buckets."""
        return math.fsum(self.of(k, size) for k, sizes in buckets.items() for size in sizes)

    def keeps(self, buckets: Buckets) -> bool:
        """True when the sum is within the limit."""
        return self.spent(buckets) <= self.most * (1 + _ROUNDING)


@attrs.frozen(kw_only=True)
class Limits:
    """What the graphs may take in all: their number, MiB of device memory, seconds to capture. None is no limit."""

    max_graphs: int | None = None
    max_mib: float | None = None
    max_seconds: float | None = None

    def as_costs(
        self, costs: GraphCosts, graphs_of: GraphsOf = verify_graphs
    ) -> tuple[CostLimit, ...]:
        """Each limit that is set, with what a bucket takes of it. What the pool takes once is off the MiB already.

        Raises `BudgetError` with every limit that is no amount, or that is on something nobody has measured.
        """
        problems: list[Problem] = []
        found: list[CostLimit] = []
        for limit in attrs.fields(Limits):
            most = getattr(self, limit.name)
            if most is None:
                continue
            number = isinstance(most, int | float) and not isinstance(most, bool)
            if not number or not 0 <= most < math.inf:
                problems.append(Problem(where=limit.name, found=show(most), wanted="a number >= 0"))
            elif limit.name == "max_graphs":
                found.append(
                    CostLimit(
                        name=limit.name,
                        unit="graphs",
                        most=most,
                        of=lambda k, size: len(graphs_of(k, size)),
                    )
                )
            else:
                line = costs.mib if limit.name == "max_mib" else costs.seconds
                if line is None:
                    problems.append(_unmeasured(limit.name, most))
                    continue
                once = (costs.pool_mib or 0.0) if limit.name == "max_mib" else 0.0
                found.append(
                    CostLimit(
                        name=limit.name,
                        unit="MiB" if limit.name == "max_mib" else "s",
                        most=max(0.0, most - once),
                        of=_bucket_cost(line, graphs_of),
                    )
                )
        if problems:
            raise BudgetError(problems)
        return tuple(found)


def _bucket_cost(line: Line, graphs_of: GraphsOf) -> Callable[[int, int], float]:
    return lambda k, size: math.fsum(map(line.at, graphs_of(k, size)))


def _unmeasured(name: str, most: float) -> Problem:
    what = "MiB" if name == "max_mib" else "seconds"
    return Problem(
        where=name,
        found=f"a limit of {most:.6g}, and the {what} of a graph are {NOT_MEASURED}",
        wanted="samples of captured graphs",
        hint="capture once on the device and give its samples, or limit the number of graphs: max_graphs",
    )
