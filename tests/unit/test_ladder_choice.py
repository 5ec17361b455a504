"""The best ladder by hand, its limits, and the choice that a command prints."""

import itertools
import time

import pytest

from graphspec.capture.best_ladder import best_ladder
from graphspec.capture.ladder import request_ladder
from graphspec.capture.ladder_choice import choose_ladder, default_ladder
from graphspec.capture.limits import CostLimit, Limits
from graphspec.capture.memory_model import GraphCosts, GraphSample
from graphspec.capture.padding import expected_padding
from graphspec.capture.traffic import Traffic
from graphspec.config.schedule import dense_schedule
from graphspec.errors import BudgetError

TWO_TIERS = dense_schedule([(1, 8, 4), (9, 16, 2)], 4, 16)
TRAFFIC = Traffic.of({3: 10, 5: 1, 8: 1, 12: 6, 16: 1})
COSTS = GraphCosts.from_samples(
    [GraphSample(tokens=t, mib=10 + t, seconds=0.5 + t / 100) for t in (8, 16, 32, 64)]
)


def problems(call, *arguments, **options):
    with pytest.raises(BudgetError) as caught:
        call(*arguments, **options)
    assert caught.value.exit_code == 2
    return caught.value.problems


@pytest.mark.parametrize(
    ("graphs", "wanted"),
    [
        (2, {4: (8,), 2: (16,)}),  # 265 + 72 padded
        (3, {4: (3, 8), 2: (16,)}),  # 3 saves 250, 12 would save 72
        (4, {4: (3, 8), 2: (12, 16)}),
        (5, {4: (3, 5, 8), 2: (12, 16)}),
        (6, {4: (3, 5, 8), 2: (12, 16)}),  # a sixth would save nothing
        (None, {4: (3, 5, 8), 2: (12, 16)}),
    ],
)
def test_graphs_go_where_they_save_most(graphs, wanted):
    """A graph goes to the size whose padding it saves, in tokens of its own depth, wherever in the schedule that is."""
    assert best_ladder(TRAFFIC.split(TWO_TIERS), graphs) == wanted


def test_a_depth_that_no_traffic_reaches_still_has_its_largest_graph():
    """The histogram is a forecast; a batch it does not have still finds a graph."""
    assert best_ladder(Traffic.of({3: 1}).split(TWO_TIERS), 9) == {4: (3, 8), 2: (16,)}


def test_ties_go_to_the_smaller_bucket_from_above():
    """Both ladders of two graphs pad by one token; the smaller bucket below the top is taken."""
    demands = Traffic.of({1: 1, 2: 1, 3: 1}).split(dense_schedule(None, 0, 3))
    assert best_ladder(demands, 2) == {0: (1, 3)}


def test_too_few_graphs_for_the_depths_are_refused():
    """The problem says how many, and which they are."""
    (problem,) = problems(best_ladder, TRAFFIC.split(TWO_TIERS), 1)
    assert problem.where == "max_graphs"
    assert problem.found == "1 graph"
    assert "at least 2" in problem.wanted
    assert "(k=4: 8, k=2: 16)" in problem.wanted


def test_a_limit_on_costs_below_the_need_is_refused():
    """The problem names the option and the least amount."""
    limit = CostLimit(name="max_mib", unit="MiB", most=19, of=lambda _k, _size: 10)
    (problem,) = problems(best_ladder, TRAFFIC.split(TWO_TIERS), None, limit)
    assert (problem.where, problem.found) == ("max_mib", "19 MiB")
    assert problem.wanted.startswith("at least 20 MiB")


def test_free_graphs_are_all_taken():
    """A cost of 0 spends nothing, and no limit stops it."""
    limit = CostLimit(name="max_mib", unit="MiB", most=0, of=lambda _k, _size: 0)
    assert best_ladder(TRAFFIC.split(TWO_TIERS), None, limit) == {4: (3, 5, 8), 2: (12, 16)}


def test_a_ladder_of_512_sizes_and_40_graphs_is_quick():
    """Processor time, least of three: 200 ms are the aim, and a busy machine gets five times that."""
    demands = Traffic.of({s: 1 + s * 7919 % 101 for s in range(1, 513)}).split(
        dense_schedule(None, 3, 512)
    )
    taken = []
    for _ in range(3):
        began = time.process_time()
        found = best_ladder(demands, 40)
        taken.append(time.process_time() - began)
    assert len(found[3]) == 40
    assert min(taken) < 1.0


def test_without_limits_the_choice_has_as_many_graphs_as_the_default_ladder():
    """Same number, less padding: what a better place for each graph is worth."""
    schedule = dense_schedule(None, 3, 64)
    traffic = Traffic.of(dict.fromkeys(range(20, 60), 1) | {1: 50})
    choice = choose_ladder(schedule, traffic)
    assert choice.default.buckets == default_ladder(schedule)
    assert choice.best.graphs == choice.default.graphs == len(request_ladder(1, 64))
    assert choice.best_known
    assert choice.best.padding.padded_tokens < choice.default.padding.padded_tokens
    assert choice.fewer == pytest.approx(
        1 - choice.best.padding.padded_tokens / choice.default.padding.padded_tokens
    )
    assert choice.best.mib is None
    assert choice.best.as_dict()["predicted_mib"] is None


def test_a_default_ladder_that_pads_nothing_cannot_be_bettered():
    """No division by nothing."""
    choice = choose_ladder(dense_schedule(None, 3, 4), Traffic.of({1: 1, 2: 1, 4: 5}))
    assert choice.fewer == 0


def test_the_default_ladder_is_that_of_each_tier():
    """A depth has the steps within its tiers and no others."""
    assert default_ladder(TWO_TIERS) == {4: request_ladder(1, 8), 2: request_ladder(9, 16)}


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_graphs=3),
        Limits(max_mib=200),
        Limits(max_seconds=2.5),
        Limits(max_graphs=4, max_mib=160),
        Limits(max_mib=170, max_seconds=2.2),
        Limits(max_graphs=4, max_mib=170, max_seconds=2.2),
    ],
    ids=str,
)
def test_a_choice_keeps_every_limit(limits):
    """Its own predictions are within each limit that was set."""
    choice = choose_ladder(TWO_TIERS, TRAFFIC, limits, costs=COSTS)
    assert choice.best.graphs <= (limits.max_graphs or 99)
    assert choice.best.mib.amount <= (limits.max_mib or 1e9) + 1e-6
    assert choice.best.seconds.amount <= (limits.max_seconds or 1e9) + 1e-6
    assert choice.best.padding.without_graph == 0


def test_two_limits_that_break_each_other_are_both_kept():
    """Where neither limit's own optimum keeps the other, the choice keeps both and does not claim to be the best."""
    samples = [GraphSample(tokens=t, mib=t, seconds=1) for t in (1, 10, 100)]
    costs = GraphCosts.from_samples(samples)
    schedule = dense_schedule(None, 0, 40)
    claims = set()
    for seconds, mib in itertools.product((2, 5, 8), (60, 110, 190)):
        limits = Limits(max_mib=mib, max_seconds=seconds)
        try:
            choice = choose_ladder(schedule, Traffic.uniform(40), limits, costs=costs)
        except BudgetError:
            continue
        claims.add(choice.best_known)
        assert choice.best.mib.amount <= mib + 1e-6
        assert choice.best.seconds.amount <= seconds + 1e-6
    assert claims == {True, False}


def test_a_bucket_may_stand_for_several_graphs():
    """A draft graph beside each verify graph halves the buckets; a k of 0 that drafts nothing has one of its own."""

    def with_draft(k, bucket):
        return (bucket * (1 + k), bucket) if k else (bucket,)

    choice = choose_ladder(TWO_TIERS, TRAFFIC, Limits(max_graphs=6), graphs_of=with_draft)
    assert choice.best.graphs == 6
    assert choice.best.buckets == {4: (3, 8), 2: (16,)}
    schedule = dense_schedule([(1, 8, 4), (9, 16, 0)], 4, 16)
    choice = choose_ladder(schedule, TRAFFIC, Limits(max_graphs=6), graphs_of=with_draft)
    assert choice.best.buckets == {4: (3, 8), 0: (12, 16)}
    assert choice.best.graphs == 6


def test_buckets_of_one_depth_may_stand_for_different_numbers_of_graphs():
    """Wide batches have a graph for each number of adapters: a limit in graphs counts them all."""
    schedule = dense_schedule(None, 0, 16)
    traffic = Traffic.of({1: 5, 2: 5, 9: 5, 12: 4, 16: 1})

    def with_adapters(_k, bucket):
        return (bucket,) * (1 if bucket == 1 else 3)

    choice = choose_ladder(schedule, traffic, Limits(max_graphs=7), graphs_of=with_adapters)
    assert choice.best.buckets == {0: (1, 2, 16)}
    assert choice.best.graphs == 7
    assert choice.best_known


def test_limits_that_nobody_can_check_are_refused_at_once():
    """Without samples MiB and seconds are not measured; amounts that are none are told in the same message."""
    limits = Limits(max_graphs=-1, max_mib=100, max_seconds=3)
    found = problems(choose_ladder, TWO_TIERS, TRAFFIC, limits)
    assert [p.where for p in found] == ["max_graphs", "max_mib", "max_seconds"]
    assert found[0].found == "-1 (an integer)"
    assert "not measured" in found[1].found
    assert "max_graphs" in found[1].hint


def test_what_the_pool_takes_once_is_off_the_limit():
    """A limit of 200 MiB with a pool of 90 leaves 110 for graphs."""
    pool = GraphSample(tokens=40, mib=140, seconds=0.9, opens_pool=True)
    samples = [pool, *(GraphSample(tokens=t, mib=10 + t, seconds=1) for t in (8, 16, 32))]
    costs = GraphCosts.from_samples(samples)
    assert costs.pool_mib == 90
    choice = choose_ladder(TWO_TIERS, TRAFFIC, Limits(max_mib=220), costs=costs)
    assert choice.best.mib.amount <= 220
    (problem,) = problems(choose_ladder, TWO_TIERS, TRAFFIC, Limits(max_mib=150), costs=costs)
    assert problem.found == "60 MiB"


def test_padding_says_what_runs_without_a_graph():
    """Sizes above a depth's largest bucket, and depths without any, are a share of the steps and not padding."""
    demands = TRAFFIC.split(TWO_TIERS)
    found = expected_padding({4: (5,)}, demands)
    assert found.without_graph == pytest.approx((1 + 6 + 1) / 19)
    assert found.padded_tokens == pytest.approx(10 * 2 * 5 / 19)
    assert found.waste == pytest.approx(100 / (5 * 43 + 3 * 88))
