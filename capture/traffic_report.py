"""`TrafficReport`: the best ladder for some traffic beside the default one, and what a budget would drop of that."""

from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.capture.budget import Budgeted
from graphspec.capture.keys import GraphKind
from graphspec.capture.ladder_choice import LadderChoice
from graphspec.capture.limits import Limits
from graphspec.capture.memory_model import GraphCosts
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.traffic import Traffic
from graphspec.capture.traffic_plan import cut_down, plan_for_traffic
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class TrafficReport:
    """The plan with the best ladder, and how it compares. `budgeted` is None without limits.

    `source` says where the traffic is from, and is empty where every batch size counts alike.
    """

    source: str
    plan: CapturePlan
    choice: LadderChoice
    budgeted: Budgeted | None

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "source": self.source or None,
            "best": self.choice.best.as_dict(),
            "default": self.choice.default.as_dict(),
            "saved": self.choice.fewer,
            "best_known": self.choice.best_known,
            "budget": None if self.budgeted is None else self.budgeted.as_dict(),
        }


def report_of_traffic(
    spec: EngineSpec,
    traffic: Traffic,
    limits: Limits,
    *,
    costs: GraphCosts,
    captures: frozenset[GraphKind],
    source: str = "",
) -> TrafficReport:
    """The report for a contract. Raises what `plan_for_traffic` and `cut_down` raise."""
    found = plan_for_traffic(spec, traffic, limits, costs=costs, captures=captures)
    budgeted = None
    if limits != Limits():
        _, budgeted = cut_down(plan_capture(spec, captures=captures), traffic, limits, costs=costs)
    return TrafficReport(source=source, plan=found.plan, choice=found.choice, budgeted=budgeted)
