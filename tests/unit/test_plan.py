"""Planning and dispatch: what is captured is what the schedule reaches, and every step has one named outcome."""

import json
from pathlib import Path

import pytest

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.ladder import request_ladder
from graphspec.config.schedule import dense_schedule
from support.plans import FULL_MODES, plan_for

CASES = json.loads((Path(__file__).parent.parent / "data" / "capture-cases.json").read_text())[
    "cases"
]
TABLE = [(1, 8, 4), (9, 16, 2)]


def key(k, bucket):
    return CaptureKey(Phase.TARGET_VERIFY, k, bucket)


@pytest.fixture
def worked(tiny_config):
    return plan_for(tiny_config, TABLE, k=4, max_num_seqs=16)


def test_worked_example_gives_these_keys_largest_first(worked):
    """Depth 4 to 8 requests and 2 to 16 needs five graphs; the largest by tokens is first."""
    assert worked.keys == (key(2, 16), key(4, 8), key(4, 4), key(4, 2), key(4, 1))
    assert [k.tokens for k in worked.keys] == [48, 40, 20, 10, 5]
    assert worked.reachable() == frozenset(worked.keys)
    assert worked.fallthrough() == ()


@pytest.mark.parametrize(
    ("requests", "proposed", "wanted"),
    [
        (1, 4, key(4, 1)),
        (3, 4, key(4, 4)),
        (8, 4, key(4, 8)),
        (9, 4, key(2, 16)),  # grew past depth 4: its drafts are trimmed to depth 2
        (9, 2, key(2, 16)),
        (3, 2, key(2, 16)),  # shrank: the drafts it has are two deep, so it is padded in requests
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
    found = dispatch(worked, captured, Step(requests=1, proposed_k=4, prefill=True))
    assert (found.key, found.reason) == (None, Fallthrough.PREFILL_PRESENT)


@pytest.mark.parametrize("requests", [17, 1000])
def test_more_requests_than_the_maximum_is_a_named_reason(worked, requests):
    """A batch above scheduler.max_num_seqs has no graph and says so, whatever its prompts."""
    for prefill in (False, True):
        step = Step(requests=requests, proposed_k=2, prefill=prefill)
        found = dispatch(worked, frozenset(worked.keys), step)
        assert (found.key, found.reason) == (None, Fallthrough.ABOVE_MAX)


def test_a_planned_graph_that_is_not_captured_is_a_named_reason(worked):
    """The next larger graph is never taken in its place: the hole is reported."""
    captured = frozenset(worked.keys) - {key(4, 4)}
    found = dispatch(worked, captured, Step(requests=3, proposed_k=4, prefill=False))
    assert (found.key, found.reason, found.k) == (None, Fallthrough.NOT_CAPTURED, 4)


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
    assert plan.keys == (key(1, 2), key(0, 4), key(1, 1))
    assert [k.tokens for k in plan.keys] == [4, 4, 2]


def test_a_depth_in_two_tiers_shares_its_graphs(tiny_config):
    """Tiers of equal depth add to one set of buckets, and the sizes between them are padded into it."""
    plan = plan_for(tiny_config, [(1, 2, 3), (3, 6, 1), (7, 8, 3)], k=3, max_num_seqs=8)
    assert plan.buckets == {3: (1, 2, 8), 1: (4, 6)}
    found = dispatch(plan, frozenset(plan.keys), Step(requests=5, proposed_k=3, prefill=False))
    assert found.key == key(3, 8)


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        (1, 1, (1,)),
        (1, 20, (1, 2, 4, 8, 16, 20)),
        (9, 16, (16,)),
        (3, 3, (3,)),
        (250, 290, (256, 272, 288, 290)),
    ],
)
def test_ladder_keeps_to_its_range_and_ends_at_its_last_size(first, last, wanted):
    """A ladder has steps inside its range only, ascending, and always the last size."""
    assert request_ladder(first, last) == wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_graph_is_used_and_every_batch_has_one(tiny_config, case):
    """On the peer's measured cases: captured = reachable, no batch size falls through, and far fewer graphs."""
    table = [tuple(entry) for entry in case["table"]] if case["table"] else None
    k, most = case["num_speculative_tokens"], case["max_num_seqs"]
    plan = plan_for(tiny_config, table, k=k, max_num_seqs=most, mode=case["cudagraph_mode"])
    assert frozenset(plan.keys) == plan.reachable()
    assert plan.fallthrough() == ()
    if table and len(table) > 1 and case["batch_sizes_without_full"]:
        assert 2 * len(plan.keys) <= case["full_graphs"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_steady_decoding_pads_with_requests_of_its_own_depth(tiny_config, case):
    """On the peer's cases each batch size runs at exactly the depth that its table gives."""
    table = [tuple(entry) for entry in case["table"]] if case["table"] else None
    k, most = case["num_speculative_tokens"], case["max_num_seqs"]
    plan = plan_for(tiny_config, table, k=k, max_num_seqs=most, mode=case["cudagraph_mode"])
    schedule = dense_schedule(table, k, most)
    for requests in range(1, most + 1):
        depth = schedule.k_for(requests)
        step = Step(requests=requests, proposed_k=depth, prefill=False)
        found = dispatch(plan, frozenset(plan.keys), step)
        assert found.key is not None
        assert found.key.k == depth
        assert found.key.bucket >= requests
