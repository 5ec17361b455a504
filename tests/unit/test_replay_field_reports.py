"""Reports B71 to B82 of shared/reference/field-reports.md (theme G, replays and padding): each one's test and right outcome.

Replays run on the tape. What only a device forbids, B80 to B82, runs here against a scripted one too, and tests/gpu has the
same against a real one.
"""

import gc
import random
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture import warmup as warmup_module
from graphspec.capture.attempts import sentences
from graphspec.capture.backends.cuda import CudaBackend
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, GraphMode
from graphspec.capture.manager import CaptureManager, State
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.routes import Routes
from graphspec.capture.survivors import Loss
from graphspec.config.schedule import KSchedule
from graphspec.engine.buffers import SCRATCH_BLOCK
from graphspec.engine.generate import Generator
from graphspec.engine.sampling import SamplingParams
from graphspec.errors import CaptureError, CaptureIllegalError, CaptureStateError
from support.fake_cuda import Block, FakeCuda
from support.graphs import PLAN, FakeBackend, Steps, key
from support.plans import spec_for
from support.replays import ReplayEngine, plain_executor, sealed, tiny_spec_for

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def no_full_collection(monkeypatch):
    """A collection of all that torch imported takes 0.2 s; here reference counts free all."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def cuda(monkeypatch):
    """A scripted device in the place of torch's."""
    device = FakeCuda(total=1024 * MEBIBYTE)
    device.install(monkeypatch)
    return device


@pytest.fixture(scope="module")
def wide(tiny_checkpoint):
    """A sealed engine of two drafts whose only graphs are of 3 and 8 requests. What no request owns is not poisoned, as in
    production."""
    spec = tiny_spec_for(tiny_checkpoint, None, k=2, max_num_seqs=8)
    return ReplayEngine(spec, plain_executor(spec), plan_capture(spec, buckets={2: (3, 8)}))


# One request of four prompt tokens, a tail of four after a chunk of eight, a decode beside a prefill, other short prompts.
PREFILLS = {
    "prompt of 1 + k": {"requests": 1, "tokens": 4},
    "last chunk of 1 + k": {"requests": 1, "tokens": 4, "uniform": True},
    "decode and prefill of 1 + k": {"requests": 2, "tokens": 8},
    "prompt of 3": {"requests": 1, "tokens": 3},
    "prompt of 5": {"requests": 1, "tokens": 5},
    "uncounted": {"requests": 1},
}


@pytest.mark.parametrize("shape", PREFILLS.values(), ids=PREFILLS)
def test_B71_a_step_with_a_prefill_has_no_full_graph(tiny_config, shape):
    """Also where its tokens look like decodes: not by the rule, not by the table of a sealed engine, and with a reason."""
    plan = plan_capture(spec_for(tiny_config, None, k=3, max_num_seqs=4), captures=EVERY_KIND)
    captured = frozenset(plan.keys)
    prefill, decode = (Step(proposed_k=3, prefill=p, **shape) for p in (True, False))
    for answer in (partial(dispatch, plan, captured), Routes.of(plan, captured).route):
        found = answer(prefill)
        assert found.reason in (Fallthrough.PREFILL_CHUNK, Fallthrough.MIXED_BATCH)
        assert found.key is None or found.key.mode is GraphMode.PIECEWISE
    alike = shape.get("tokens") == shape["requests"] * 4
    assert (found.reason is Fallthrough.PREFILL_CHUNK) == alike
    # The same shape is a decode where nobody is in prefill: the phase alone tells them apart.
    assert (answer(decode).reason is None) == (alike or "tokens" not in shape)


def test_B71_nobody_can_ask_without_saying_the_phase():
    """A step has no default for it, so that an engine cannot forget it."""
    with pytest.raises(TypeError, match="prefill"):
        Step(requests=1, proposed_k=3)


def generate(spec, plan, prompts, max_tokens):
    """What prompts give on the tiny model; and of each step whether it had a prefill, its requests and whether it was a
    replay."""
    executor, steps = plain_executor(spec), []
    manager = sealed(plan, executor)
    asked = manager.dispatch

    def watched(step):
        found = asked(step)
        steps.append((step.prefill, step.requests, found))
        return found

    manager.dispatch = watched
    generator = Generator(executor, manager)
    told = generator.generate(prompts, SamplingParams(max_tokens=max_tokens))
    return told, steps, executor


def same_text(one, other):
    """All but the margins, which are sums of other shapes."""
    fields = ("tokens", "drafted", "accepted", "steps")
    return [[getattr(g, f) for f in fields] for g in one] == [
        [getattr(g, f) for f in fields] for g in other
    ]


def test_B71_short_prompts_give_what_they_give_without_graphs(tiny_checkpoint):
    """Prompts of 3, 4 and 5 tokens, and one whose last chunk has four: prefills run no full graph, and the text is right."""
    spec = tiny_spec_for(tiny_checkpoint, None, k=3, max_num_seqs=2)
    assert spec.scheduler.max_num_batched_tokens == 8
    plan = plan_capture(spec)
    prompts = [[5, 6, 7], [5, 6, 7, 8], [9, 8, 7, 6, 5], list(range(20, 33))]
    told, steps, _ = generate(spec, plan, prompts, max_tokens=8)
    prefills = [found for prefill, _, found in steps if prefill]
    assert prefills
    assert all(found.key is None for found in prefills)
    assert all(found.reason is None for prefill, _, found in steps if not prefill)
    without = plan.without(plan.keys, Fallthrough.NOT_CAPTURABLE)
    assert same_text(told, generate(spec, without, prompts, max_tokens=8)[0])


def test_B72_padding_rows_stay_what_they_are(wide):
    """Five requests in the graph of eight, for three steps in which they grow: rows 5 to 7 keep position and length, their
    slots and blocks are the scratch block's, and no index is negative."""
    bucket, buffers = key(2, 8), wide.executor.buffers
    width, requests = 1 + bucket.k, wide.requests(5, 2)
    scratch = range(wide.spec.kv_cache.block_size)
    for _ in range(3):
        wide.check(wide.batch(bucket, requests))
        rows = slice(5 * width, 8 * width)
        assert set(buffers.positions.tensor[rows].tolist()) == {0}
        assert set(buffers.slots.tensor[rows].tolist()) <= set(scratch)
        assert buffers.block_tables.tensor[5:8].unique().tolist() == [SCRATCH_BLOCK]
        assert buffers.context_lens.tensor[5:8].tolist() == [width] * 3
        assert buffers.query_starts.tensor[:9].tolist() == list(range(0, 9 * width, width))
        assert all(int(buffer.tensor.min()) >= 0 for buffer in buffers.all)
        requests = [grown(r) for r in requests]


def grown(request):
    """The same request some tokens later, or from its begin again where its blocks end."""
    limit = len(request.blocks) * 8 - 16
    position = (request.position + 3) % limit
    return type(request)(
        tokens=request.tokens, position=position, blocks=request.blocks, padding=request.padding
    )


NOWHERE = 1 << 40


def falling_then_any():
    """Batch sizes from 8 down to 1, then in any order."""
    made = random.Random(75)
    return [*range(8, 0, -1), *(made.randint(1, 8) for _ in range(24))]


def test_B75_nothing_of_an_earlier_batch_is_left(wide):
    """Every static buffer holds numbers that no row may have before a batch is copied in: real rows are as without a graph,
    and padding rows hold the neutral value."""
    buffers = wide.executor.buffers
    for count in falling_then_any():
        bucket = key(2, 3 if count <= 3 else 8)
        batch = wide.batch(bucket, wide.requests(count, 2))
        for buffer in buffers.all:
            buffer.tensor.fill_(NOWHERE)
        wide.check(batch)
        padded = slice(count * 3, bucket.tokens)
        for buffer in (buffers.token_ids, buffers.positions, buffers.slots):
            assert set(buffer.tensor[padded].tolist()) <= {buffer.padding.harmless}
        # What lies behind the graph is not read, or it would have been an error.
        assert buffers.token_ids.tensor[bucket.tokens :].unique().tolist() in ([NOWHERE], [])


def test_B75_a_batch_writes_every_buffer(wide):
    """No input is left out of a step, so none keeps what an earlier one put there."""
    buffers = wide.executor.buffers
    for buffer in buffers.all:
        buffer.tensor.fill_(NOWHERE)
    wide.write(key(2, 8), wide.requests(2, 2))
    assert {b.name for b in buffers.all if b.tensor.flatten()[0] == NOWHERE} == set()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (torch.zeros(5, 2), "rows 0 to 5"),
        (torch.zeros(3, 3), "rows of shape [3]"),
        (torch.zeros(3), "rows of shape []"),
        ([[1, 2], [3]], "rows of unequal lengths"),
    ],
)
def test_B75_rows_are_checked_against_the_buffer(rows, found):
    """More rows than were allocated, and rows of another length, are refused before anything is written."""
    buffer = StaticBuffer("x", torch.ones(4, 2), Padding(poison=7, unread=9))
    with pytest.raises(CaptureError) as caught:
        buffer.copy_in(rows)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == ("static buffer x", found)
    assert torch.equal(buffer.tensor, torch.ones(4, 2))


WATCHDOG_SECONDS = 10


@pytest.mark.parametrize("bucket", [3, 8])
def test_B76_every_padded_batch_returns_and_equals_the_exact_one(wide, bucket):
    """Each number of requests up to the bucket, three tokens wide, within ten seconds each."""
    for count in range(1, bucket + 1):
        requests, ended = wide.requests(count, 2), []

        def run(count=count, requests=requests, ended=ended):
            wide.check(wide.batch(key(2, bucket), requests))
            ended.append(count)

        watched = threading.Thread(target=run, daemon=True)
        watched.start()
        watched.join(WATCHDOG_SECONDS)
        assert ended == [count]


ON_OFF_ON = [(1, 1, 2), (2, 2, 0), (3, 8, 2)]
"""Three requests are drafted for, two are not, and one is again."""


def test_B77_dummies_are_in_no_result_and_as_wide_as_the_step(tiny_checkpoint):
    """Three requests in graphs of eight, speculation on, then off, then on as they end: results and counts of drafts are
    those of graphs of exactly three, two and one, and each dummy has the step's own width."""
    spec = tiny_spec_for(tiny_checkpoint, ON_OFF_ON, k=2, max_num_seqs=8)
    plan = plan_capture(spec, buckets={2: (8,), 0: (8,)})
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [3, 4] * 20, list(range(30, 62))]
    # They end one after another: each at the model's length limit.
    told, steps, executor = generate(spec, plan, prompts, max_tokens=64)
    assert len(told) == 3
    decodes = [(n, found.key) for prefill, n, found in steps if not prefill]
    assert all(found.bucket == 8 for _, found in decodes)
    assert {(n, found.k) for n, found in decodes} >= {(3, 2), (2, 0), (1, 2)}
    assert executor.buffers.query_starts.tensor[8] == 8 * (1 + decodes[-1][1].k)

    exact = plan_capture(spec, buckets={2: (1, 2, 3, 8), 0: (1, 2, 3)})
    plainly, steps, _ = generate(spec, exact, prompts, max_tokens=64)
    assert {n - found.key.bucket for prefill, n, found in steps if not prefill} == {0}
    assert same_text(told, plainly)
    assert sum(g.drafted for g in told) > 0


def test_B77_a_dummy_is_as_wide_as_the_depth_of_the_step(wide):
    """1 + k rows at every depth, whatever the depth before was: on, off, on."""
    for k in (2, 0, 2):
        dummies = [wide.executor.padding_request(k)] * 5
        assert wide.executor.buffers.write(dummies) == 5 * (1 + k)


class Forbidding(Steps):
    """Steps that do something in between, for depth 2 only."""

    def __init__(self, forbidden):
        super().__init__()
        self.forbidden = forbidden

    def step(self, key):
        if key.k == 2:
            self.forbidden(self.x)
        return super().step(key)


FORBIDDEN = {
    "item": (lambda x: x.sum().item(), "Tensor.item"),
    "cpu": (lambda x: x.cpu(), "Tensor.cpu"),
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero"),
    "print": (lambda x: print("x is", x), "Tensor.__repr__"),
    "format": (lambda x: f"{x[0, 0]:.1f}", "aten._local_scalar_dense"),
    "allocation": (lambda x: x + torch.tensor([1.0]), "aten.lift_fresh"),
}


@pytest.mark.parametrize(("forbidden", "name"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_B80_what_a_capture_forbids_is_named_with_its_graph_and_line(forbidden, name):
    """The report has phase, k and requests of the graph, the operation and the line that it stands in; graphs of the other
    depth are captured and serve."""
    steps = Forbidding(forbidden)
    manager = CaptureManager(PLAN, steps, TapeBackend())
    manager.warm()
    manager.capture()
    assert {g.key: g.loss for g in manager.lost} == {
        key(2, 2): Loss.FAILED,
        key(2, 1): Loss.SAME_CODE,
    }
    said = sentences(manager.lost)[0]
    line = forbidden.__code__.co_firstlineno
    assert said.startswith(f"graph {key(2, 2)} not captured, its capture failed (")
    assert name in said
    assert f"{__file__}:{line}" in said
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    found = manager.dispatch(Step(requests=1, proposed_k=2, prefill=False))
    assert (found.key, found.reason) == (None, Fallthrough.NOT_CAPTURED)
    manager.replay(manager.dispatch(Step(requests=3, proposed_k=1, prefill=False)).key)


def test_B80_a_strict_capture_raises_our_error_with_its_graph():
    """Where nothing may be lowered the first error comes out, and says which graph it belongs to."""
    forbidden, name = FORBIDDEN["item"]
    manager = CaptureManager(PLAN, Forbidding(forbidden), TapeBackend())
    manager.warm()
    with pytest.raises(CaptureIllegalError) as caught:
        manager.capture(strict=True)
    (problem,) = caught.value.problems
    assert problem.where == f"{key(2, 2)}: {name}"
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())


@pytest.mark.parametrize("action", ["warm", "capture"])
def test_B80_a_strict_run_raises_the_program_s_error_with_its_graph(action):
    """Its class and its words are the program's; what it was doing is a note."""
    backend, steps = FakeBackend(), Steps()
    manager = CaptureManager(PLAN, steps, backend)
    if action == "capture":
        manager.warm()
    steps.fail_at, steps.fail = key(2, 1), ValueError("a unit failed")
    with pytest.raises(ValueError, match="a unit failed") as caught:
        getattr(manager, action)(strict=True)
    assert caught.value.__notes__ == [f"in the step of {key(2, 1)}"]


class DeviceSteps:
    """Steps on the scripted device: `inside` runs in the middle of each."""

    def __init__(self, cuda, inside=lambda: None):
        self.cuda = cuda
        self.inside = inside
        self.log = []

    def static_tensors(self):
        return {}

    def fill_example(self, key, variant):
        pass

    def step(self, key):
        self.log.append((key, torch.cuda.is_current_stream_capturing()))
        self.inside()
        return [self.cuda.allocate(key.tokens)]


def test_B80_a_device_that_forbids_it_gives_the_same(cuda):
    """What CUDA itself refuses becomes our error with a way to find the line; the next capture works."""
    backend, steps = CudaBackend(0), DeviceSteps(cuda, cuda.forbidden)
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    manager.capture()
    assert manager.captured == frozenset()
    said = sentences(manager.lost)
    assert str(key(1, 4)) in said[0]
    assert "operation not permitted when stream is capturing" in said[0]
    assert "run the same step on the tape backend" in said[0]
    assert not torch.cuda.is_current_stream_capturing()
    steps.inside = lambda: None
    backend.capture(partial(steps.step, key(1, 4))).replay()


class Lazy:
    """A kernel whose module is loaded by its first call, which no capture allows."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.cold = True

    def __call__(self):
        if self.cold:
            self.cuda.forbidden()
            self.cold = False


def test_B81_kernels_are_loaded_before_anything_is_captured(cuda):
    """A manager does not capture what it has not warmed, and warms all before it captures one."""
    steps = DeviceSteps(cuda, Lazy(cuda))
    manager = CaptureManager(PLAN, steps, CudaBackend(0))
    with pytest.raises(CaptureStateError, match="wanted one that is warmed"):
        manager.capture()
    manager.warm()
    manager.capture()
    assert manager.captured == frozenset(PLAN.keys)
    assert steps.log == [(k, captured) for captured in (False, True) for k in PLAN.keys]


def test_B81_a_cold_kernel_in_a_capture_is_an_error_and_no_hang(cuda):
    """Without a warm run it is refused by name, and the next capture works."""
    backend, kernel = CudaBackend(0), Lazy(cuda)
    with pytest.raises(CaptureIllegalError, match="not permitted when stream is capturing"):
        backend.capture(partial(DeviceSteps(cuda, kernel).step, key(1, 4)))
    assert not torch.cuda.is_current_stream_capturing()
    kernel.cold = False
    backend.capture(partial(DeviceSteps(cuda, kernel).step, key(1, 4)))


class Dropping(DeviceSteps):
    """Steps that let go of their compiled kernel in the middle of a capture, as a cache of kernels might."""

    def __init__(self, cuda, artifacts):
        super().__init__(cuda)
        self.kernel = artifacts["kernel"]

    def step(self, key):
        if torch.cuda.is_current_stream_capturing():
            self.kernel = None
        return super().step(key)


def test_B81_compiled_units_stay_loaded_while_graphs_are_captured(
    cuda, monkeypatch, tiny_spec, tmp_path
):
    """A unit whose last other reference goes in a capture is unloaded afterwards: turning the collector off holds nothing."""
    unloaded = []

    def loaded(*args, **options):
        kernel = Block()
        cuda.unloaded_with(kernel)
        unloaded.append(kernel.__class__)
        return {"kernel": kernel}, []

    program = SimpleNamespace(units=tuple, start=partial(Dropping, cuda))
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)
    monkeypatch.setattr(warmup_module, "load_or_compile", loaded)
    monkeypatch.setattr(warmup_module, "_backend", lambda spec: CudaBackend(0))
    monkeypatch.setattr(CaptureManager, "verify", lambda manager: [])
    report = warmup_module.warmup(tiny_spec, cache_dir=str(tmp_path))
    assert unloaded
    assert report.graphs.lost == []
    assert report.graphs.captured == report.graphs.planned > 0


TEN = CapturePlan(schedule=KSchedule(dense=(0, *[0] * 10)), buckets={0: tuple(range(1, 11))})


def test_B82_captures_are_of_their_own_thread_only(cuda):
    """The mode is thread-local unless somebody asks for another: 20 rounds of 10 captures while another thread uses the
    device in each of them."""
    refused = []

    def elsewhere():
        try:
            cuda.forbidden()
        except RuntimeError as error:
            refused.append(error)

    def meanwhile():
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()

    for _ in range(20):
        manager = CaptureManager(TEN, DeviceSteps(cuda, meanwhile), CudaBackend(0))
        manager.warm()
        manager.capture()
        assert manager.captured == frozenset(TEN.keys)
        manager.retire()
    assert refused == []
    assert {mode for _, _, mode in cuda.begun} == {"thread_local"}

    # The rule can be had the other way: then it is the other thread that is refused, and the graph that is lost.
    manager = CaptureManager(
        TEN, DeviceSteps(cuda, meanwhile), CudaBackend(0, capture_error_mode="global")
    )
    manager.warm()
    manager.capture()
    assert (manager.captured, len(refused)) == (frozenset(), 1)
    assert "failed due to a previous error during capture" in manager.lost[0].error


def test_B82_the_tape_records_its_own_thread_only():
    """Another thread reads values and makes tensors while ten graphs are recorded: nothing of it is refused or recorded."""
    stop, other, done = threading.Event(), torch.ones(4), Counter()

    def elsewhere():
        while not stop.is_set():
            other.add_(1).sum().item()
            torch.tensor([1.0]).cpu()
            done["rounds"] += 1

    class Waiting(Steps):
        def step(self, key):
            before = done["rounds"]
            made = super().step(key)
            while done["rounds"] < before + 2 and thread.is_alive():
                time.sleep(0)
            return made

    steps = Waiting()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        manager = CaptureManager(TEN, steps, TapeBackend())
        manager.warm()
        manager.capture(strict=True)
        assert all(v.agrees for v in manager.verify())
    finally:
        stop.set()
        thread.join(WATCHDOG_SECONDS)
    manager.seal()
    kept = other.clone()
    for which in TEN.keys:
        manager.replay(which)
    assert torch.equal(other, kept)


@given(st.lists(st.sampled_from(sorted(FORBIDDEN)), min_size=1, max_size=4))
def test_B80_captures_work_after_any_that_failed(names):
    """Whatever failed before, in whatever order, the next capture is as good as the first."""
    backend, x = TapeBackend(), torch.ones(2, 2)
    for name in names:
        forbidden, _ = FORBIDDEN[name]
        with pytest.raises(CaptureIllegalError):
            backend.capture(partial(lambda call: [call(x), x + 1], forbidden))
    graph = backend.capture(lambda: [x * 2])
    assert torch.equal(graph.replay()[0], x * 2)
