"""The plan for a spec and its traffic: the best ladder within limits, or a given plan cut down to them."""

from collections.abc import Iterable, Sequence

import attrs

from graphspec.capture.budget import Budgeted, apply_budget
from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import FULL_VERIFY, CaptureKey, GraphKind, GraphMode
from graphspec.capture.ladder_choice import LadderChoice, choose_ladder
from graphspec.capture.limits import GraphsOf, Limits
from graphspec.capture.memory_model import GraphCosts
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.traffic import Traffic
from graphspec.errors import BudgetError, Problem
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class TrafficPlan:
    """A plan with the best ladder for some traffic, and how that compares with the default one."""

    plan: CapturePlan
    choice: LadderChoice


def plan_for_traffic(
    spec: EngineSpec,
    traffic: Traffic,
    limits: Limits | None = None,
    *,
    costs: GraphCosts | None = None,
    captures: frozenset[GraphKind] = FULL_VERIFY,
) -> TrafficPlan:
    """The plan whose full graphs pad `traffic` least within `limits`; without limits, as many graphs as by default.

    A bucket counts with every full graph that it stands for: the target's for each number of adapters, and the draft's.
    Piecewise graphs are for steps that the traffic does not count, so limits do not count them either.

    Raises `BudgetError` where the granted mode has no full graphs, and what `choose_ladder` raises.
    """
    schedule = spec.schedule
    every: dict[int, list[int]] = {k: [] for k in schedule.depths}
    for requests in range(1, schedule.max_num_seqs + 1):
        every[schedule.k_for(requests)].append(requests)
    # What a size stands for is the plan's to say, so it is asked for all of them at once.
    graphs_of = _graphs_of(plan_capture(spec, captures=captures, buckets=every).keys)
    if not any(graphs_of(k, sizes[-1]) for k, sizes in every.items()):
        raise BudgetError(
            Problem(
                where="compilation.cudagraph_mode",
                found=spec.mode.granted.value,
                wanted="a mode with full graphs for decode",
                hint="without them no ladder has any effect: ask for FULL_AND_PIECEWISE or FULL_DECODE_ONLY",
            )
        )
    choice = choose_ladder(schedule, traffic, limits, costs=costs, graphs_of=graphs_of)
    return TrafficPlan(
        plan=plan_capture(spec, captures=captures, buckets=choice.best.buckets), choice=choice
    )


def cut_down(
    plan: CapturePlan, traffic: Traffic, limits: Limits, *, costs: GraphCosts | None = None
) -> tuple[CapturePlan, Budgeted]:
    """A plan without its least valuable full graphs, so that `limits` hold, and what was dropped. Batches of a dropped
    graph run in the next larger one, or fall through as `Fallthrough.DROPPED_BY_BUDGET`.

    Raises `TrafficError` for batches that the schedule does not have, `BudgetError` for limits that cannot be checked.
    """
    found = apply_budget(
        plan.buckets,
        traffic.split(plan.schedule),
        limits.as_costs(costs or GraphCosts(), _graphs_of(plan.keys)),
    )
    gone = {(one.k, one.bucket) for one in found.dropped}
    keys = [key for key in plan.keys if _is_full(key) and (key.k, key.bucket) in gone]
    return plan.without(keys, Fallthrough.DROPPED_BY_BUDGET), found


def _graphs_of(keys: Iterable[CaptureKey]) -> GraphsOf:
    tokens: dict[tuple[int, int], list[int]] = {}
    for key in filter(_is_full, keys):
        tokens.setdefault((key.k, key.bucket), []).append(key.tokens)

    def graphs_of(k: int, bucket: int) -> Sequence[int]:
        return tokens.get((k, bucket), ())

    return graphs_of


def _is_full(key: CaptureKey) -> bool:
    return key.mode is GraphMode.FULL
