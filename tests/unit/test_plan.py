"""Planning and dispatch: what is captured is what the schedule reaches, and every step has one named outcome."""

import itertools

import pytest

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.ladder import adapter_cases, request_ladder, token_ladder
from support.plans import FULL_MODES, plan_for

TABLE = [(1, 8, 4), (9, 16, 2)]


def key(k, bucket):
    return CaptureKey(Phase.TARGET_VERIFY, k, bucket)


@pytest.fixture
def worked(tiny_config):
    return plan_for(tiny_config, TABLE, k=4, max_num_seqs=16)


def test_worked_example_gives_these_keys_largest_first(worked):
    """Depth 4 to 8 requests and 2 to 16: twelve graphs, none of depth 2 below 10; the largest by tokens is first."""
    deep = [key(4, requests) for requests in range(1, 9)]
    shallow = [key(2, requests) for requests in (10, 12, 14, 16)]
    assert set(worked.keys) == {*deep, *shallow}
    assert [k.tokens for k in worked.keys] == [48, 42, 40, 36, 35, 30, 30, 25, 20, 15, 10, 5]
    assert worked.reachable() == frozenset(worked.keys)
    assert worked.fallthrough() == ()


@pytest.mark.parametrize(
    ("requests", "proposed", "wanted"),
    [
        (1, 4, key(4, 1)),
        (3, 4, key(4, 3)),
        (8, 4, key(4, 8)),
        (9, 4, key(2, 10)),  # grew past depth 4: its drafts are trimmed to depth 2
        (9, 2, key(2, 10)),
        (11, 2, key(2, 12)),
        (3, 2, key(2, 10)),  # shrank: the drafts it has are two deep, so it is padded in requests
        (16, 2, key(2, 16)),
    ],
)
def test_worked_example_dispatches_by_depth_then_requests(worked, requests, proposed, wanted):
    """A step runs at the depth of its drafts while that depth's graphs hold it, else at that of its size."""
    step = Step(requests=requests, proposed_k=proposed, prefill=False)
    found = dispatch(worked, frozenset(worked.keys), step)
    assert (found.key, found.reason, found.k) == (wanted, None, wanted.k)


def test_a_short_prefill_is_never_taken_for_a_decode(worked):
    """One request of 1+k prompt tokens looks like a decode step of depth k and still runs without a graph."""
    captured = frozenset(worked.keys)
    chunk = Step(requests=1, proposed_k=4, prefill=True, tokens=5)
    found = dispatch(worked, captured, chunk)
    assert (found.key, found.reason) == (None, Fallthrough.PREFILL_CHUNK)
    for other in ({}, {"tokens": 6}, {"tokens": 5, "uniform": False}):
        step = Step(requests=1, proposed_k=4, prefill=True, **other)
        found = dispatch(worked, captured, step)
        assert (found.key, found.reason) == (None, Fallthrough.MIXED_BATCH)


@pytest.mark.parametrize("shape", [{"tokens": 14}, {"tokens": 16}, {"uniform": False}])
def test_a_decode_of_unequal_requests_is_a_named_reason(worked, shape):
    """Three requests of depth 4 are 15 tokens, five each; anything else is no uniform decode."""
    step = Step(requests=3, proposed_k=4, prefill=False, **shape)
    found = dispatch(worked, frozenset(worked.keys), step)
    assert (found.key, found.reason) == (None, Fallthrough.NON_UNIFORM)
    uniform = Step(requests=3, proposed_k=4, prefill=False, tokens=15)
    assert dispatch(worked, frozenset(worked.keys), uniform).key == key(4, 3)


def test_a_step_without_requests_is_a_named_reason(worked):
    """Nobody to decode for: no graph, and no error either."""
    found = dispatch(worked, frozenset(worked.keys), Step(requests=0, proposed_k=4, prefill=False))
    assert (found.key, found.reason) == (None, Fallthrough.NO_REQUESTS)


@pytest.mark.parametrize("requests", [17, 1000])
def test_more_requests_than_the_maximum_is_a_named_reason(worked, requests):
    """A batch above scheduler.max_num_seqs has no graph and says so, whatever its prompts."""
    for prefill in (False, True):
        step = Step(requests=requests, proposed_k=2, prefill=prefill)
        found = dispatch(worked, frozenset(worked.keys), step)
        assert (found.key, found.reason) == (None, Fallthrough.ABOVE_MAX)


def test_a_planned_graph_that_is_not_captured_is_a_named_reason(worked):
    """The next larger graph is never taken in its place: the hole is reported."""
    captured = frozenset(worked.keys) - {key(4, 3)}
    step = Step(requests=3, proposed_k=4, prefill=False)
    found = dispatch(worked, captured, step)
    assert (found.key, found.reason, found.k) == (None, Fallthrough.NOT_CAPTURED, 4)
    told = {key(4, 3): Fallthrough.RANK_DISAGREEMENT}
    assert dispatch(worked, captured, step, told).reason is Fallthrough.RANK_DISAGREEMENT


def test_a_graph_dropped_from_the_plan_leaves_its_batches_to_the_next_larger(worked):
    """The plan without it is as exact as before; where no larger one is left, the reason is the one that was given."""
    plan = worked.without([key(4, 3)], Fallthrough.DROPPED_BY_BUDGET)
    captured = frozenset(plan.keys)
    assert captured == plan.reachable() == frozenset(worked.keys) - {key(4, 3)}
    assert dispatch(plan, captured, Step(requests=3, proposed_k=4, prefill=False)).key == key(4, 4)

    plan = plan.without([key(2, 16), key(2, 14)], Fallthrough.DROPPED_BY_BUDGET)
    captured = frozenset(plan.keys)
    assert plan.fallthrough() == (13, 14, 15, 16)
    found = dispatch(plan, captured, Step(requests=13, proposed_k=2, prefill=False))
    assert (found.key, found.reason, found.k) == (None, Fallthrough.DROPPED_BY_BUDGET, 2)


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE"])
def test_without_full_decode_graphs_the_plan_is_empty(tiny_config, mode):
    """Modes without full decode graphs plan none, and every batch size falls through with a reason."""
    plan = plan_for(tiny_config, TABLE, k=4, max_num_seqs=16, mode=mode)
    assert plan.keys == ()
    assert plan.reachable() == frozenset()
    assert plan.fallthrough() == tuple(range(1, 17))
    found = dispatch(plan, frozenset(), Step(requests=3, proposed_k=4, prefill=False))
    assert (found.key, found.reason, found.k) == (None, Fallthrough.NOT_FULL_MODE, 4)


@pytest.mark.parametrize("mode", FULL_MODES)
def test_full_modes_plan_the_same_decode_graphs(tiny_config, worked, mode):
    """What FULL modes differ in is prefill; their decode graphs are the same."""
    plan = plan_for(tiny_config, TABLE, k=4, max_num_seqs=16, mode=mode)
    assert plan.keys == worked.keys


def test_depth_zero_has_graphs_of_one_token_a_request(tiny_config):
    """A tier of depth 0 is captured too: its steps have one token a request."""
    plan = plan_for(tiny_config, [(1, 2, 1), (3, 4, 0)], k=1, max_num_seqs=4)
    assert plan.keys == (key(1, 2), key(0, 4), key(0, 3), key(1, 1))
    assert [k.tokens for k in plan.keys] == [4, 4, 3, 2]


def test_a_depth_in_two_tiers_shares_its_graphs(tiny_config):
    """Tiers of equal depth add to one set of buckets, and the sizes between them are padded into it."""
    plan = plan_for(tiny_config, [(1, 2, 3), (3, 6, 1), (7, 8, 3)], k=3, max_num_seqs=8)
    assert plan.buckets == {3: (1, 2, 7, 8), 1: (3, 4, 5, 6)}
    found = dispatch(plan, frozenset(plan.keys), Step(requests=5, proposed_k=3, prefill=False))
    assert found.key == key(3, 7)


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        (1, 1, (1,)),
        (1, 19, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 19)),
        (9, 16, (10, 12, 14, 16)),
        (3, 3, (3,)),
        (250, 290, (256, 272, 288, 290)),
    ],
)
def test_ladder_keeps_to_its_range_and_ends_at_its_last_size(first, last, wanted):
    """A ladder has steps inside its range only, ascending, and always the last size."""
    assert request_ladder(first, last) == wanted


def test_ladders_pad_by_a_bounded_share_and_grow_with_the_logarithm():
    """Beyond 8 requests a batch is padded by less than an eighth, beyond 32 by less than a sixteenth."""
    ladder = request_ladder(1, 1024)
    assert ladder[:8] == tuple(range(1, 9))
    for before, size in itertools.pairwise(ladder):
        batch = before + 1
        assert (size - batch) * (16 if batch > 32 else 8) < batch
    assert [len(request_ladder(1, 1 << n)) for n in range(6, 11)] == [36, 52, 68, 84, 100]
    assert len(token_ladder(8192)) == 19 + 16 * 6
    assert all(size % 8 == 0 for size in token_ladder(8192)[3:])


@pytest.mark.parametrize(
    ("most", "wanted"), [(1, (0, 1)), (2, (0, 1, 2)), (6, (0, 1, 2, 4, 6)), (8, (0, 1, 2, 4, 8))]
)
def test_adapter_cases_are_none_powers_of_two_and_the_most(most, wanted):
    """A step with three adapters runs in the graph for four, and one with the most in that for the most."""
    assert adapter_cases(most) == wanted
