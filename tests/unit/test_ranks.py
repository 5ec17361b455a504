"""Ranks agree: on what they were started with, on the graphs that all of them have, and on the shape of each step."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.agreement import agree_on, agree_on_captured, agree_on_step, common_step
from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.manager import CaptureManager, State
from graphspec.capture.ranks import OneRank
from graphspec.errors import CaptureError
from support.graphs import FakeBackend, key
from support.processes import run_module
from support.rank_actions import PLAN, SmallSteps, sealed

SIZES = (2, 4)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each rank of a gloo group of each size answered, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    return run_module("support.rank_actions", str(folder), *map(str, SIZES), OMP_NUM_THREADS="1")


def of(answers, size, case):
    return [rank[case] for rank in answers[str(size)]]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_and_numbers_are_gathered_by_rank(answers, size):
    """Of any length, none and zeros too, and the same on every rank; so is what rank 0 broadcasts."""
    wanted = [
        [[bytes(range(r)).hex() for r in range(size)], [""] * size, ["000000"] * size],
        [[r, -(1 << 62)] for r in range(size)],
        [b"\0of rank 0".hex(), ""],
    ]
    assert of(answers, size, "gathering") == [wanted] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_lacks_memory_costs_all_the_graphs_that_it_lacks(answers, size):
    """The captured set is that of the poorest rank; the others released theirs, and say which rank lacks it."""
    ranks = of(answers, size, "lacking")
    # 16 tokens fail there; then at most 8 are tried.
    wanted = sorted(str(k) for k in PLAN.keys if k.tokens <= 8)
    assert [r["captured"] for r in ranks] == [wanted] * size
    for at, rank in enumerate(ranks):
        reasons = {reason for reason, _ in rank["lost"].values()}
        assert reasons == ({"FAILED", "NO_ROOM"} if at == 1 else {"RANK_DISAGREEMENT"})
        assert at == 1 or {error for _, error in rank["lost"].values()} == {"lacking on rank 1"}


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_runs_the_same_graph_at_each_step(answers, size):
    """Whatever each of them had to do, they come to one shape and one graph."""
    first, *others = (r["answers"] for r in of(answers, size, "lacking"))
    assert all(other == first for other in others)
    # Where any of them has a prefill, no rank has a graph.
    assert {graph for _, _, _, graph, _ in first} >= {"None", str(key(3, 2))}


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_cannot_go_on_is_named_on_the_others(answers, size):
    """Nobody waits for it: its own error there, an error that names it elsewhere, and no graph is kept anywhere."""
    *others, broken = of(answers, size, "failing")
    assert broken["error"] == "BrokenPipeError: nobody watches"
    for rank in (*others, broken):
        assert (rank["captured"], rank["lost"], rank["state"]) == ([], {}, "warmed")
    for rank in others:
        assert rank["error"].startswith("CaptureError")
        assert f"rank {size - 1}: found a failure: BrokenPipeError: nobody watches" in rank["error"]


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_never_comes_to_capture_is_named_too(answers, size):
    """It failed while it warmed: the others, who wait for what it captured, hear of that."""
    *others, broken = of(answers, size, "unwarmed")
    assert (broken["state"], broken["captured"]) == ("planned", [])
    assert broken["error"].startswith("OutOfMemoryError")
    for rank in others:
        assert (rank["state"], rank["captured"]) == ("warmed", [])
        assert f"rank {size - 1}: found a failure: OutOfMemoryError" in rank["error"]


@pytest.mark.parametrize("size", SIZES)
def test_what_differs_before_capture_is_named_with_the_ranks(answers, size):
    """Mode, plan and hash of rank 1 differ: all ranks raise the same, with the first line that differs."""
    first, *others = of(answers, size, "differing")
    assert all(other == first for other in others)
    assert first == [
        ["capture hash", "abcabc on rank 1", "abc, as on rank 0"],
        [
            "capture plan",
            f"{key(3, 1)} of 4 tokens on rank 1",
            f"{key(1, 6)} of 2 tokens, as on rank 0",
        ],
        ["granted graph mode", "NONE on rank 1", "FULL, as on rank 0"],
    ]


class Told(OneRank):
    """One rank of several: the others have answered already."""

    def __init__(self, *others):
        self.size = 1 + len(others)
        self._others = others

    def gather(self, data):
        return [data, *(other(data) for other in self._others)]


def test_another_plan_is_found_even_after_capture():
    """Positions in another plan mean other graphs, so they are not compared."""
    with pytest.raises(CaptureError, match="rank 1: found another plan"):
        agree_on_captured(
            Told(lambda data: data.replace(b'"plan": "', b'"plan": "x')), PLAN.keys, PLAN.keys
        )


def test_one_rank_agrees_with_itself():
    """An engine of one process needs no group, and its steps stay as they are."""
    agree_on(OneRank(), {"mode": "FULL"})
    step = Step(requests=3, proposed_k=3, prefill=True, tokens=12)
    assert agree_on_step(OneRank(), step) == step
    assert sealed(OneRank(), room=16).captured == frozenset(PLAN.keys)
    assert (
        sealed(OneRank(), room=8).dispatch(Step(requests=8, proposed_k=1, prefill=False)).reason
        is Fallthrough.NOT_CAPTURED
    )


def test_graphs_that_another_rank_lacks_are_released():
    """A graph that is given up keeps no memory."""
    backend = FakeBackend()
    manager = CaptureManager(
        PLAN,
        SmallSteps(16),
        backend,
        Told(lambda data: data.replace(b"[0, 1, 2, 3, 4]", b"[3, 4]")),
    )
    manager.warm()
    manager.capture()
    assert manager.state is State.CAPTURED
    assert (backend.held, len(manager.captured)) == (2, 2)
    assert set(manager.plan.left_out.values()) == {Fallthrough.RANK_DISAGREEMENT}
    manager.seal()
    grown = manager.dispatch(Step(requests=8, proposed_k=1, prefill=False))
    assert grown.reason is Fallthrough.RANK_DISAGREEMENT


STEP = st.builds(
    Step,
    requests=st.integers(0, 8),
    proposed_k=st.sampled_from(PLAN.schedule.depths),
    prefill=st.booleans(),
    uniform=st.booleans(),
    tokens=st.none() | st.integers(1, 40),
)


@given(st.lists(STEP, min_size=2, max_size=4))
def test_the_common_step_holds_every_rank_and_depends_on_no_order(steps):
    """It has room for each rank's own step, is the same in any order, and agreeing again changes nothing."""
    common = common_step(steps)
    for step in steps:
        assert common.requests >= step.requests
        assert common.proposed_k >= step.proposed_k
        assert common.prefill or not step.prefill
    assert {common_step(order) for order in itertools.permutations(steps)} == {common}
    assert common_step([common, common]) == common
    if all(s.not_a_decode is None for s in steps) and common.requests:
        found = dispatch(PLAN, frozenset(PLAN.keys), common)
        assert found.reason is None
        assert found.key.bucket >= max(s.requests for s in steps)


def test_ranks_in_threads_agree_on_each_step():
    """The gather of a step is one exchange of six numbers."""
    meeting, mine = threading.Barrier(2), {}

    class Pair(OneRank):
        def __init__(self, rank):
            self.rank, self.size, self.asked = rank, 2, 0

        def gather_ints(self, values):
            self.asked += 1
            mine[self.rank] = tuple(values)
            meeting.wait(10)
            both = [mine[0], mine[1]]
            meeting.wait(10)
            return both

    found, pair = {}, [Pair(0), Pair(1)]
    steps = [
        Step(requests=2, proposed_k=3, prefill=False),
        Step(requests=7, proposed_k=1, prefill=True, tokens=30),
    ]
    threads = [
        threading.Thread(target=lambda r=r, s=s: found.update({r.rank: agree_on_step(r, s)}))
        for r, s in zip(pair, steps, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == common_step(steps)
    assert [r.asked for r in pair] == [1, 1]
