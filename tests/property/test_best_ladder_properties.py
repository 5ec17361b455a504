"""The best ladder against every ladder there is, on cases small enough to try them all."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.best_ladder import best_ladder
from graphspec.capture.keys import CaptureKey
from graphspec.capture.limits import CostLimit
from graphspec.capture.padding import expected_padding
from graphspec.capture.plan import CapturePlan
from graphspec.capture.traffic import Traffic
from graphspec.config.schedule import KSchedule
from graphspec.errors import BudgetError

weights = st.integers(0, 9) | st.sampled_from([0.1, 0.25, 1 / 3, 1e-9, 2.5])


@st.composite
def cases(draw):
    """A schedule of up to 8 sizes and 3 depths, in any order and more than once, and traffic on it."""
    most = draw(st.integers(1, 8))
    dense = draw(st.lists(st.integers(0, 2), min_size=most, max_size=most))
    traffic = draw(st.dictionaries(st.integers(1, most), weights, min_size=1))
    traffic[draw(st.integers(1, most))] = 1
    schedule = KSchedule(dense=(0, *dense))
    return schedule, Traffic.of(traffic).split(schedule)


def every_ladder(schedule, demands):
    """All ladders of sizes that a depth serves, each with the depth's largest."""
    choices = []
    for demand in demands:
        sizes = [s for s in range(1, demand.top) if schedule.k_for(s) == demand.k]
        choices.append(
            [
                (*rest, demand.top)
                for count in range(len(sizes) + 1)
                for rest in itertools.combinations(sizes, count)
            ]
        )
    for ladder in itertools.product(*choices):
        yield dict(zip([d.k for d in demands], ladder, strict=True))


def count(ladder):
    return sum(map(len, ladder.values()))


def padded(ladder, demands):
    """Written without prefix sums, in exact arithmetic, as a sum and not a mean."""
    scale = 2**80
    return sum(
        int(w * scale) * (min(b for b in ladder[d.k] if b >= size) - size) * (1 + d.k)
        for d in demands
        for size, w in d.steps
    )


def order_of_ties(ladder):
    """Read from the last depth's largest bucket down, smaller first, and none smallest."""
    return [(*reversed(sizes), 0) for sizes in reversed(ladder.values())]


@given(case=cases(), max_graphs=st.integers(0, 9) | st.none())
def test_no_ladder_of_as_many_graphs_pads_less(case, max_graphs):
    """The optimum is that of all ladders, and among those that pad as little it is the first in the stated order."""
    schedule, demands = case
    fitting = [
        ladder
        for ladder in every_ladder(schedule, demands)
        if max_graphs is None or count(ladder) <= max_graphs
    ]
    if not fitting:
        with pytest.raises(BudgetError, match="max_graphs"):
            best_ladder(demands, max_graphs)
        return
    found = best_ladder(demands, max_graphs)
    least = min(padded(ladder, demands) for ladder in fitting)
    ties = [ladder for ladder in fitting if padded(ladder, demands) == least]
    assert found == min(ties, key=order_of_ties)


@given(
    case=cases(),
    max_graphs=st.integers(1, 9) | st.none(),
    limit=st.integers(0, 60),
    prices=st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_no_ladder_within_a_cost_pads_less(case, max_graphs, limit, prices):
    """Costs in a common unit make the optimum exact, also where the number of graphs is limited at the same time."""
    schedule, demands = case
    fixed, per_token, *extra = prices

    def cost(k, size):
        return fixed + per_token * size * (1 + k) + sum(extra[: size // 3])

    fitting = [
        ladder
        for ladder in every_ladder(schedule, demands)
        if (max_graphs is None or count(ladder) <= max_graphs)
        and sum(cost(k, s) for k, sizes in ladder.items() for s in sizes) <= limit
    ]
    limits = CostLimit(most=limit, of=cost, name="max_mib", unit="MiB")
    if not fitting:
        with pytest.raises(BudgetError):
            best_ladder(demands, max_graphs, limits)
        return
    found = best_ladder(demands, max_graphs, limits)
    assert padded(found, demands) == min(padded(ladder, demands) for ladder in fitting)
    assert found in fitting


@given(case=cases(), limit=st.floats(1, 60), price=st.floats(0.01, 9))
def test_costs_without_a_common_unit_keep_the_limit(case, limit, price):
    """What is rounded is rounded up: the sum of the true costs is never above the limit."""
    _, demands = case
    limits = CostLimit(
        most=limit, of=lambda k, size: price + 0.1 * size * (1 + k), name="max_mib", unit="MiB"
    )
    try:
        found = best_ladder(demands, None, limits)
    except BudgetError:
        # A depth may lose a step to rounding.
        assert math.fsum(limits.of(d.k, d.top) for d in demands) > limit * (1 - 0.01 * len(demands))
        return
    assert math.fsum(limits.of(k, s) for k, sizes in found.items() for s in sizes) <= limit * (
        1 + 1e-12
    )


@given(case=cases(), spare=st.integers(0, 8))
def test_no_pair_of_steps_falls_through_a_best_ladder(case, spare):
    """Whatever depth the drafts were proposed at, and whatever size the batch now has, a planned graph holds it. And
    every graph of a best ladder is used by some pair."""
    schedule, demands = case
    buckets = best_ladder(demands, len(demands) + spare)
    plan = CapturePlan(schedule=schedule, buckets=buckets)
    for requests in range(1, schedule.max_num_seqs + 1):
        for proposed in schedule.depths:
            assert isinstance(plan.key_for(requests, proposed), CaptureKey)
    assert plan.reachable() == frozenset(plan.keys)


@given(case=cases(), spare=st.integers(0, 8))
def test_expected_padding_is_the_mean_over_steps(case, spare):
    """Padding is what each step's smallest bucket adds to it, and no step is without a graph."""
    _, demands = case
    buckets = best_ladder(demands, len(demands) + spare)
    found = expected_padding(buckets, demands)
    steps = math.fsum(w for d in demands for _, w in d.steps)
    useful = math.fsum(w * size * (1 + d.k) for d in demands for size, w in d.steps)
    assert math.isclose(
        found.padded_tokens, padded(buckets, demands) / 2**80 / steps, abs_tol=1e-12
    )
    assert math.isclose(found.useful_tokens, useful / steps)
    assert found.without_graph == 0
