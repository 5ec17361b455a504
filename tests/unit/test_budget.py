"""What a budget drops, in which order and at what price; and who survives a failed capture."""

import attrs
import pytest

from graphspec.capture.budget import Dropped, apply_budget
from graphspec.capture.limits import CostLimit, Limits
from graphspec.capture.memory_model import GraphCosts, GraphSample
from graphspec.capture.traffic import Traffic
from graphspec.config.schedule import dense_schedule

SCHEDULE = dense_schedule([(1, 8, 4), (9, 16, 2)], 4, 16)
DEMANDS = Traffic.of({3: 10, 5: 1, 8: 1, 12: 6, 16: 1}).split(SCHEDULE)
BUCKETS = {4: (1, 3, 5, 8), 2: (12, 16)}
COSTS = GraphCosts.from_samples(
    [GraphSample(tokens=t, mib=10 + t, seconds=1) for t in (8, 16, 32, 64)]
)


def within(**limits):
    return apply_budget(BUCKETS, DEMANDS, Limits(**limits).as_costs(COSTS))


def names(budgeted):
    return [(d.k, d.bucket) for d in budgeted.dropped]


def test_a_budget_that_holds_drops_nothing():
    """What is planned stays, with equal padding before and after."""
    found = within(max_graphs=6, max_mib=1000)
    assert (found.buckets, found.dropped) == (BUCKETS, ())
    assert found.before == found.after
    assert found.dropped_buckets == {}


def test_the_least_valuable_graph_goes_first():
    """1 serves nobody; 5 saves 15 tokens in 19 steps, 12 saves 72, 3 now saves 250."""
    found = within(max_graphs=2)
    assert names(found) == [(4, 1), (4, 5), (2, 12), (4, 3)]
    assert [d.padded_tokens * 19 for d in found.dropped] == pytest.approx([0, 15, 72, 250])
    assert found.buckets == {4: (8,), 2: (16,)}
    assert found.after.without_graph == 0
    saved = found.after.padded_tokens - found.before.padded_tokens
    assert saved == pytest.approx(sum(d.padded_tokens for d in found.dropped))
    assert found.dropped_buckets == {4: (1, 3, 5), 2: (12,)}


def test_the_last_bucket_of_a_depth_goes_only_when_nothing_else_can():
    """Depth 2 is used less, and still keeps a graph until depth 4 has one left too."""
    found = within(max_graphs=1)
    assert names(found)[4:] == [(4, 8)]  # 250 tokens a 19 steps against 264
    assert found.buckets == {2: (16,)}
    assert found.dropped[-1].without_graph == pytest.approx(12 / 19)
    assert found.after.without_graph == pytest.approx(12 / 19)
    assert str(found.dropped[-1]).endswith(
        "dropped by budget: 63.16% of the steps run without a graph"
    )


def test_no_graphs_at_all_is_a_budget_too():
    """Everything goes, and every step is said to run without a graph."""
    found = within(max_graphs=0)
    assert found.buckets == {}
    assert len(found.dropped) == 6
    assert found.after.without_graph == 1


def test_memory_weighs_value():
    """Of two graphs that save as much, the one that takes more MiB goes."""
    demands = Traffic.of({1: 8, 7: 2, 15: 1}).split(dense_schedule(None, 0, 16))
    buckets = {0: (1, 7, 15, 16)}
    free = CostLimit(name="max_graphs", unit="graphs", most=3, of=lambda _k, _s: 1)
    heavy = CostLimit(name="max_mib", unit="MiB", most=40, of=lambda _k, s: 40 if s == 7 else 5)
    assert names(apply_budget(buckets, demands, [free])) == [(0, 15)]
    # 15 saves 1 token for 5 MiB, 7 saves 16 for 40, 1 saves 48 for 5: 0.2, 0.4, 9.6.
    assert names(apply_budget(buckets, demands, [heavy])) == [(0, 15), (0, 7)]
    light = attrs.evolve(heavy, of=lambda _k, s: 400 if s == 7 else 5)
    assert names(apply_budget(buckets, demands, [light])) == [(0, 7)]


def test_seconds_and_mib_are_kept_together():
    """Several limits at once: each of them holds at the end."""
    limits = Limits(max_graphs=5, max_mib=200, max_seconds=4).as_costs(COSTS)
    found = apply_budget(BUCKETS, DEMANDS, limits)
    assert all(limit.keeps(found.buckets) for limit in limits)
    assert found.after.without_graph == 0


def test_of_equal_value_the_graph_of_more_tokens_goes():
    """Ties are the same on every rank and in every run."""
    demands = Traffic.of({1: 1, 2: 1, 3: 1, 4: 1}).split(dense_schedule(None, 0, 4))
    limit = CostLimit(name="max_graphs", unit="graphs", most=3, of=lambda _k, _s: 1)
    assert names(apply_budget({0: (1, 2, 3, 4)}, demands, [limit])) == [(0, 3)]


def test_what_was_dropped_is_plain_data():
    """A report has k, requests, price and the reason of each."""
    data = within(max_graphs=5).as_dict()
    assert data["dropped"] == [
        {
            "k": 4,
            "requests": 1,
            "padded_tokens_mean": 0,
            "without_graph": 0,
            "reason": "dropped_by_budget",
        }
    ]
    one = Dropped(k=4, bucket=1, padded_tokens=0.25, without_graph=0)
    assert str(one) == "k=4 requests=1: dropped by budget: 0.25 more padded tokens a step"


def test_a_depth_that_no_traffic_names_costs_nothing_to_drop():
    """Buckets outside the demands have no value, and still go last when they are a depth's last."""
    limit = CostLimit(name="max_graphs", unit="graphs", most=2, of=lambda _k, _s: 1)
    found = apply_budget({4: (3, 8), 9: (2,)}, DEMANDS[:1], [limit])
    assert names(found) == [(4, 3)]
