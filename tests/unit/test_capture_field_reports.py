"""Reports B60 to B70 of shared/reference/field-reports.md (theme F, sizes and memory of graphs): each one's test and right
outcome. What a device's memory does, B60 and B61, runs here against a scripted device, and in tests/gpu against a real one.
"""

import gc
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.backends.cuda import CudaBackend
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, GraphMode
from graphspec.capture.ladder import request_ladder, token_ladder
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.routes import Routes
from graphspec.capture.survivors import Loss
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.formats.vllm import from_vllm
from support.fake_cuda import FakeCuda
from support.graphs import Steps, key
from support.plans import spec_for

MEBIBYTE = 1 << 20
FIVE = CapturePlan(schedule=KSchedule(dense=(0, *[3] * 16)), buckets={3: (1, 2, 4, 8, 16)})
"""Graphs of 64, 32, 16, 8 and 4 tokens."""
SMALLER = CapturePlan(schedule=KSchedule(dense=(0, 3, 3)), buckets={3: (1, 2)})
FAILURES = [torch.OutOfMemoryError, ValueError, KeyboardInterrupt]


@pytest.fixture
def cuda(monkeypatch):
    """A device of a gibibyte in the place of torch's. A collection of all that torch imported takes 0.2 s; here reference
    counts free all."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    device = FakeCuda(total=1024 * MEBIBYTE)
    device.install(monkeypatch)
    return device


class SizedSteps:
    """Steps that take a mebibyte a token while they run, and a thousandth of it for their output. The step of `fail_at`
    raises a `fail` while it holds the first."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.tried = []
        self.fail_at = None
        self.fail = None

    def static_tensors(self):
        return {}

    def fill_example(self, key, variant):
        pass

    def step(self, key):
        self.tried.append(key)
        scratch = self.cuda.allocate(key.tokens * MEBIBYTE)
        if key == self.fail_at:
            raise self.fail
        made = [self.cuda.allocate(key.tokens * 1024)]
        del scratch
        return made


def warmed(cuda, plan, backend=None):
    """A manager that has only to capture, and its steps."""
    steps = SizedSteps(cuda)
    manager = CaptureManager(plan, steps, backend or CudaBackend(0))
    manager.warm()
    steps.tried.clear()
    return manager, steps


def taken_by(plan):
    """What a device reserves where nothing but this plan was ever captured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        device = FakeCuda(total=1024 * MEBIBYTE)
        device.install(patch)
        manager, _ = warmed(device, plan)
        manager.capture()
        return device.reserved


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("at", range(len(FIVE.keys)))
def test_B60_a_failed_capture_leaves_the_memory_to_smaller_ones(cuda, at, failure):
    """After a failure at each n the device holds what it held before, and smaller graphs are captured in what they need."""
    backend, before = CudaBackend(0), cuda.reserved
    manager, steps = warmed(cuda, FIVE, backend)
    steps.fail_at, steps.fail = FIVE.keys[at], failure
    # Not pytest.raises: it keeps the error, and with it the frames that hold the failed step's memory.
    try:
        manager.capture(strict=True)
    except failure:
        pass
    else:
        pytest.fail("it raised nothing")
    backend.give_back()
    assert cuda.reserved == before
    assert not torch.cuda.is_current_stream_capturing()

    smaller, _ = warmed(cuda, SMALLER, backend)
    smaller.capture()
    assert smaller.captured == frozenset(SMALLER.keys)
    assert cuda.reserved == taken_by(SMALLER)


@pytest.mark.parametrize("at", range(len(FIVE.keys)))
def test_B60_graphs_that_survive_take_no_more_than_all_would(cuda, at):
    """Out of memory at each n: nothing is tried twice, and what failed leaves no memory behind beside the pool's."""
    manager, steps = warmed(cuda, FIVE)
    steps.fail_at, steps.fail = FIVE.keys[at], torch.OutOfMemoryError
    manager.capture()
    assert len(set(steps.tried)) == len(steps.tried) <= len(FIVE.keys)
    assert len(manager.captured) + len(manager.lost) == len(FIVE.keys)
    # Each graph that failed held its own memory when it did; what it held serves the next one.
    assert cuda.reserved <= taken_by(FIVE)
    manager.retire()
    assert cuda.reserved == 0


def test_B60_a_device_that_is_really_full_keeps_what_fits(cuda):
    """Memory ends by itself: the large graphs are lost, the others take what there is, and all is given back."""
    cuda.total = 20 * MEBIBYTE
    manager, steps = warmed(cuda, FIVE)
    manager.capture()
    assert {g.key.tokens: g.loss for g in manager.lost} == {64: Loss.FAILED, 32: Loss.FAILED}
    assert [k.tokens for k in manager.plan.keys] == [16, 8, 4]
    assert len(steps.tried) == 3
    manager.retire()
    assert cuda.reserved == 0


DEPTHS = (5, 3, 1)
SIZES = (1, 2, 4)


def test_B61_several_passes_take_as_much_memory_as_one(cuda):
    """One pass for each depth, on one backend: one stream, one pool, largest first, and the memory of a single pass."""
    backend = CudaBackend(0)
    passes = []
    for k in DEPTHS:
        plan = CapturePlan(schedule=KSchedule(dense=(0, *[k] * 4)), buckets={k: SIZES})
        manager, steps = warmed(cuda, plan, backend)
        manager.capture()
        tokens = [tried.tokens for tried in steps.tried]
        assert tokens == sorted(tokens, reverse=True)
        passes.append(manager)
    ((pool, stream, _),) = set(cuda.begun)
    assert backend.pool_bytes == cuda.reserved > 0

    together = CapturePlan(
        schedule=KSchedule(dense=(0, 5, 5, 3, 3, 1, 1)), buckets=dict.fromkeys(DEPTHS, SIZES)
    )
    assert cuda.reserved == taken_by(together)

    # A backend for each pass is what the report is about.
    manager, _ = warmed(cuda, together, CudaBackend(0))
    manager.capture()
    assert {(p, s) for p, s, _ in cuda.begun} > {(pool, stream)}
    assert cuda.reserved == 2 * taken_by(together)


def full_tokens(plan):
    """Tokens of the full graphs that verify, ascending."""
    return sorted(k.tokens for k in plan.keys if k.mode is GraphMode.FULL)


@pytest.mark.parametrize(("requests", "k"), [(6, 6), (257, 0), (300, 0)])
def test_B62_the_maximum_is_a_captured_size(tiny_config, requests, k):
    """42, 257 and 300 tokens, none of which is on a grid of 8, have graphs, and so has each batch up to there."""
    if k:
        spec = spec_for(tiny_config, None, k=k, max_num_seqs=requests)
    else:
        sizes = {"max_num_seqs": requests, "max_num_batched_tokens": requests}
        spec = EngineConfig.from_dict(tiny_config(scheduler=sizes, speculative=None)).resolve()
    plan = plan_capture(spec, captures=EVERY_KIND)
    most = requests * (1 + k)
    assert max(full_tokens(plan)) == most == plan.token_buckets[-1]
    assert plan.fallthrough() == ()
    captured = frozenset(plan.keys)
    for batch in range(1, requests + 1):
        found = dispatch(plan, captured, Step(requests=batch, proposed_k=k, prefill=False))
        assert found.reason is None
        assert found.key.mode is GraphMode.FULL


@given(st.integers(1, 4096))
def test_B62_no_ladder_ends_below_what_it_is_asked_for(most):
    """Neither requests nor tokens: the end is a size."""
    assert request_ladder(1, most)[-1] == token_ladder(most)[-1] == most


def why_left(arguments, name):
    """Why an argument of vLLM's compilation section has no field here."""
    (why,) = (left.why for left in from_vllm(arguments).left if left.where.endswith(f".{name}"))
    return why


def test_B62_a_maximum_written_for_another_engine_cuts_nothing():
    """vLLM's own limits of sizes are left out, and the carrying says so: the scheduler's limits are the maximum."""
    name = "max_cudagraph_capture_size"
    why = why_left({"model": "m", "max_num_seqs": 6, "compilation_config": {name: 42}}, name)
    assert "derives the captured sizes from the scheduler's limits" in why


def test_B65_a_full_graph_with_padding_is_taken_before_a_piecewise_one(tiny_config):
    """Width 3 with full graphs of 3, 6, 9, 18 and 24 tokens, and pieces of 16: four requests run in 18."""
    spec = spec_for(tiny_config, None, k=2, max_num_seqs=8)
    plan = plan_capture(spec, captures=EVERY_KIND, buckets={2: (1, 2, 3, 6, 8)})
    captured = frozenset(plan.keys)
    assert plan.piecewise_key(12).tokens == 16
    steps = [Step(requests=n, proposed_k=2, prefill=False) for n in range(1, 9)]
    for answer in (partial(dispatch, plan, captured), Routes.of(plan, captured).route):
        found = [answer(step) for step in steps]
        assert [f.key.tokens for f in found] == [3, 6, 9, 18, 18, 18, 24, 24]
        assert {(f.key.mode, f.reason) for f in found} == {(GraphMode.FULL, None)}


@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(1, 64), min_size=1), min_size=1))
def test_B66_every_size_is_a_whole_number_of_requests(sizes):
    """Sizes are requests, whatever they are: tokens are a multiple of the width, and nothing is rounded anywhere."""
    plan = CapturePlan(
        schedule=KSchedule(dense=(0, *[max(sizes)] * 64)),
        buckets={k: tuple(sorted(found)) for k, found in sizes.items()},
    )
    assert {(key.k, key.bucket) for key in plan.keys} == {
        (k, size) for k, found in sizes.items() for size in found
    }
    for one in plan.keys:
        assert one.tokens == one.bucket * (1 + one.k)
        assert plan.verify_key(one.k, one.bucket) == one


def test_B66_sizes_in_tokens_of_another_engine_are_named_and_not_taken(tiny_config):
    """[1, 2, 4, 8] for width 3 would leave remainders: the list is left out with its reason, and every batch has a graph."""
    name = "cudagraph_capture_sizes"
    assert "derives" in why_left({"model": "m", "compilation_config": {name: [1, 2, 4, 8]}}, name)
    plan = plan_capture(spec_for(tiny_config, None, k=2, max_num_seqs=8))
    assert full_tokens(plan) == [3, 6, 9, 12, 15, 18, 21, 24]


def test_B67_one_request_has_its_graph(tiny_config):
    """One request of three drafts: exactly one full graph, of four tokens."""
    plan = plan_capture(spec_for(tiny_config, None, k=3, max_num_seqs=1))
    assert plan.keys == (key(3, 1),)
    assert plan.keys[0].tokens == 4
    found = dispatch(
        plan, frozenset(plan.keys), Step(requests=1, proposed_k=3, prefill=False, tokens=4)
    )
    assert (found.key, found.reason) == (key(3, 1), None)


EIGHT_AND_SIXTEEN = CapturePlan(schedule=KSchedule(dense=(0, *[0] * 16)), buckets={0: (8, 16)})


def sealed(plan, fail_at=None):
    """A manager on toy steps, one of whose captures fails."""
    steps = Steps()
    manager = CaptureManager(plan, steps, TapeBackend())
    manager.warm()
    steps.fail_at, steps.fail = fail_at, ValueError("a unit failed")
    manager.capture()
    steps.fail_at = None
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    return manager


def test_B70_only_captured_sizes_are_dispatched_to():
    """Graphs of 8 and 16: 17 requests and none have a reason, 16 and 1 have the graph that holds them."""
    manager = sealed(EIGHT_AND_SIXTEEN)
    found = {
        n: manager.dispatch(Step(requests=n, proposed_k=0, prefill=False)) for n in (17, 0, 16, 1)
    }
    assert (found[17].key, found[17].reason) == (None, Fallthrough.ABOVE_MAX)
    assert (found[0].key, found[0].reason) == (None, Fallthrough.NO_REQUESTS)
    assert (found[16].key, found[1].key) == (key(0, 16), key(0, 8))


def test_B70_a_size_that_was_lost_is_not_dispatched_to():
    """The capture of 8 fails: 5 requests run in 16, and every answer of dispatch can be replayed."""
    manager = sealed(EIGHT_AND_SIXTEEN, fail_at=key(0, 8))
    assert manager.captured == {key(0, 16)}
    for requests in range(1, 17):
        found = manager.dispatch(Step(requests=requests, proposed_k=0, prefill=False))
        assert found.key == key(0, 16)
    manager.replay(found.key)


@given(data=st.data())
def test_B70_no_answer_is_a_graph_that_is_not_captured(data):
    """Whatever of a plan is captured, whatever is asked: a key that is given is among the captured ones."""
    depths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    schedule = KSchedule(dense=(0, *depths))
    sizes = {k: tuple(range(1, len(depths) + 1)) for k in schedule.depths}
    plan = CapturePlan(schedule=schedule, buckets=sizes, token_buckets=(4, 16))
    captured = data.draw(st.frozensets(st.sampled_from(plan.keys)))
    step = Step(
        requests=data.draw(st.integers(-1, 14)),
        proposed_k=data.draw(st.sampled_from(schedule.depths)),
        prefill=data.draw(st.booleans()),
        tokens=data.draw(st.none() | st.integers(0, 60)),
        uniform=data.draw(st.booleans()),
    )
    for found in (dispatch(plan, captured, step), Routes.of(plan, captured).route(step)):
        assert found.key is None or found.key in captured
        is_full = found.key is not None and found.key.mode is GraphMode.FULL
        assert is_full == (found.reason is None)
