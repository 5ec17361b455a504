"""A budget over random buckets and traffic: limits hold, last buckets go last, and prices add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.best_ladder import best_ladder
from graphspec.capture.budget import apply_budget
from graphspec.capture.limits import CostLimit
from graphspec.capture.padding import expected_padding
from graphspec.capture.traffic import Traffic
from graphspec.config.schedule import KSchedule
from graphspec.errors import BudgetError


@st.composite
def cases(draw):
    """Traffic on a schedule of up to 24 sizes, and buckets that hold all of it."""
    most = draw(st.integers(1, 24))
    dense = draw(st.lists(st.integers(0, 3), min_size=most, max_size=most))
    schedule = KSchedule(dense=(0, *dense))
    weights = draw(st.dictionaries(st.integers(1, most), st.integers(1, 9), min_size=1))
    demands = Traffic.of(weights).split(schedule)
    buckets = {}
    for demand in demands:
        lower = draw(st.sets(st.integers(1, demand.top)))
        buckets[demand.k] = tuple(sorted({*lower, demand.top}))
    return demands, buckets


def limits_of(mib, graphs):
    return [
        CostLimit(name="max_mib", unit="MiB", most=mib, of=lambda k, s: 5 + s * (1 + k)),
        CostLimit(name="max_graphs", unit="graphs", most=graphs, of=lambda _k, _s: 1),
    ]


@given(case=cases(), mib=st.integers(0, 400), graphs=st.integers(0, 30))
def test_limits_hold_and_last_buckets_go_last(case, mib, graphs):
    """While a depth keeps more than its largest bucket, no depth has lost its last; and every price is accounted for."""
    demands, buckets = case
    limits = limits_of(mib, graphs)
    found = apply_budget(buckets, demands, limits)
    assert all(limit.keeps(found.buckets) for limit in limits)
    kept = {(k, s) for k, sizes in found.buckets.items() for s in sizes}
    gone = {(d.k, d.bucket) for d in found.dropped}
    assert kept | gone == {(k, s) for k, sizes in buckets.items() for s in sizes}
    assert not kept & gone
    if any((k, sizes[-1]) in gone for k, sizes in buckets.items()):
        assert all(len(sizes) == 1 for sizes in found.buckets.values())
    else:
        added = sum(d.padded_tokens for d in found.dropped)
        assert found.after.padded_tokens - found.before.padded_tokens == pytest.approx(added)
    assert found.after.without_graph == pytest.approx(sum(d.without_graph for d in found.dropped))
    assert found == apply_budget(buckets, demands, limits)


@given(case=cases(), graphs=st.integers(1, 30))
def test_the_best_ladder_is_never_behind_a_budget(case, graphs):
    """Dropping moves no bucket, so the optimum of as many graphs pads as little or less."""
    demands, buckets = case
    (_, limit) = limits_of(0, graphs)
    try:
        best = expected_padding(best_ladder(demands, graphs), demands)
    except BudgetError:
        return
    found = apply_budget(buckets, demands, [limit])
    assert best.padded_tokens <= found.after.padded_tokens + 1e-9
