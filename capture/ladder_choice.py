"""The buckets to capture for a traffic within limits, beside the ladder that asks for no traffic."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.capture.best_ladder import best_ladder
from graphspec.capture.ladder import request_ladder
from graphspec.capture.limits import CostLimit, GraphsOf, Limits, verify_graphs
from graphspec.capture.memory_model import Estimate, GraphCosts
from graphspec.capture.padding import Buckets, Padding, expected_padding
from graphspec.capture.traffic import Demand, Traffic
from graphspec.config.schedule import KSchedule


@attrs.frozen(kw_only=True)
class Ladder:
    """Buckets, the graphs they stand for, what one step then pads on average, and what the graphs take.

    `mib` and `seconds` are None where graphs were not measured.
    """

    buckets: Buckets
    graphs: int
    padding: Padding
    mib: Estimate | None
    seconds: Estimate | None

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data for a report."""
        return {
            "buckets": {str(k): list(sizes) for k, sizes in self.buckets.items()},
            "graphs": self.graphs,
            "padded_tokens_mean": self.padding.padded_tokens,
            "useful_tokens_mean": self.padding.useful_tokens,
            "predicted_mib": None if self.mib is None else self.mib.amount,
            "predicted_seconds": None if self.seconds is None else self.seconds.amount,
        }


@attrs.frozen(kw_only=True)
class LadderChoice:
    """The best ladder and the default one.

    `best_known` is False where several limits had to be merged into one: both hold, and a better ladder may exist.
    """

    best: Ladder
    default: Ladder
    best_known: bool

    @property
    def fewer(self) -> float:
        """The share of the default ladder's padded tokens that the best one saves; 0 where that has none."""
        before = self.default.padding.padded_tokens
        return 1 - self.best.padding.padded_tokens / before if before else 0.0


def default_ladder(schedule: KSchedule) -> Buckets:
    """What is planned where nobody gives traffic: the steps of `request_ladder` within each tier."""
    sizes: dict[int, set[int]] = {k: set() for k in schedule.depths}
    for first, last, k in schedule.tiers:
        sizes[k].update(request_ladder(first, last))
    return {k: tuple(sorted(s)) for k, s in sizes.items()}


def choose_ladder(
    schedule: KSchedule,
    traffic: Traffic,
    limits: Limits | None = None,
    *,
    costs: GraphCosts | None = None,
    graphs_of: GraphsOf = verify_graphs,
) -> LadderChoice:
    """The buckets of least expected padding for `traffic`, within `limits`; without limits, as many graphs as
    the default ladder has.

    `costs` are what graphs took when they were measured; limits in MiB and seconds need them. Two limits of those are
    tried one after the other. If the optimum of each breaks the other, a bucket counts with the larger of its two
    shares: both limits hold, and a better ladder may exist.

    Raises `TrafficError` for batches that the schedule does not have, and `BudgetError` for limits that cannot be kept
    or checked.
    """
    costs = costs or GraphCosts()
    limits = limits or Limits()
    default = default_ladder(schedule)
    if limits == Limits():
        limits = Limits(max_graphs=_count(default, graphs_of))
    demands = traffic.split(schedule)
    found, best_known = _within(demands, limits.as_costs(costs, graphs_of))
    return LadderChoice(
        best=_ladder(found, demands, costs, graphs_of),
        default=_ladder(default, demands, costs, graphs_of),
        best_known=best_known,
    )


def _within(demands: Sequence[Demand], limits: Sequence[CostLimit]) -> tuple[Buckets, bool]:
    buckets, others = _in_buckets(demands, limits)
    if not others:
        return best_ladder(demands, buckets), True
    for limit in others:
        found = best_ladder(demands, buckets, limit)
        if all(other.keeps(found) for other in others):
            return found, True
    shares = CostLimit(
        name=" and ".join(limit.name for limit in others),
        unit="of all limits",
        most=1.0,
        of=lambda k, size: max(limit.of(k, size) / (limit.most or 1e-300) for limit in others),
    )
    return best_ladder(demands, buckets, shares), False


def _in_buckets(
    demands: Sequence[Demand], limits: Sequence[CostLimit]
) -> tuple[int | None, Sequence[CostLimit]]:
    """A limit in graphs as a limit in buckets, where each bucket is as many graphs; and the limits that are left."""
    for limit in limits:
        each = {limit.of(d.k, s) for d in demands for s in (*(s for s, _ in d.steps), d.top)}
        if limit.name == "max_graphs" and len(each) == 1 and (graphs := each.pop()):
            return int(limit.most // graphs), [other for other in limits if other is not limit]
    return None, limits


def _count(buckets: Buckets, graphs_of: GraphsOf) -> int:
    return sum(len(graphs_of(k, size)) for k, sizes in buckets.items() for size in sizes)


def _ladder(
    buckets: Buckets, demands: Sequence[Demand], costs: GraphCosts, graphs_of: GraphsOf
) -> Ladder:
    tokens = [t for k, sizes in buckets.items() for size in sizes for t in graphs_of(k, size)]
    return Ladder(
        buckets=buckets,
        graphs=len(tokens),
        padding=expected_padding(buckets, demands),
        mib=costs.predict_mib(tokens),
        seconds=costs.predict_seconds(tokens),
    )
