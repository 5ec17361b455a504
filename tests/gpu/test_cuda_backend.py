"""CUDA graphs keep the promises of the tape: the same toy steps, on a device."""

import contextlib
import gc
import random
import threading
from functools import partial

import pytest
import torch

from graphspec.capture.manager import CaptureManager, State
from graphspec.capture.memory_model import GraphCosts, GraphSample, compare
from graphspec.capture.survivors import CaptureFailure, after_failure
from graphspec.errors import CaptureError, CaptureIllegalError, CaptureStateError
from support.graphs import PLAN, Steps, key

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A step that fails at once leaves an empty graph, of which CUDA graphs warn.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
MEBIBYTE = 1 << 20


@pytest.fixture
def backend():
    from graphspec.capture.backends.cuda import CudaBackend

    return CudaBackend()


@pytest.fixture
def steps():
    return Steps(device="cuda")


def captured(backend, call):
    """The graph of a call that was warmed first, as the manager does it."""
    backend.warm(call)
    return backend.capture(call)


def works(backend):
    """True when a capture succeeds and replays: the stream and the pool are in order."""
    x = torch.ones(4, device="cuda")
    graph = captured(backend, lambda: [x + 1])
    x.fill_(5)
    return bool(torch.equal(graph.replay()[0], torch.full_like(x, 6)))


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_warm_gives_the_results_on_the_current_stream(backend, steps):
    """What the warm run on the side stream made can be read at once where it was asked for."""
    steps.x.normal_()
    same(backend.warm(lambda: steps.step(key(2, 1))), steps.expected(key(2, 1)))


def test_capture_does_not_execute(backend):
    """A capture changes no static tensor: the counter is raised by replays alone."""
    count = torch.zeros((), dtype=torch.int64, device="cuda")

    def step():
        count.add_(1)
        return [count + 0]

    backend.warm(step)
    count.zero_()
    graph = backend.capture(step)
    assert int(count) == 0
    for _ in range(3):
        graph.replay()
    assert int(count) == 3
    assert backend.needs_warmup is True


def test_replay_equals_eager_after_inputs_change_and_other_graphs_run(backend, steps):
    """Graphs that share a pool do not disturb one another, in any order and with any input."""
    graphs = {k: captured(backend, lambda k=k: steps.step(k)) for k in PLAN.keys}
    torch.manual_seed(3)
    for _ in range(5):
        for which in (*PLAN.keys, *reversed(PLAN.keys)):
            steps.x.normal_()
            same(graphs[which].replay(), steps.expected(which))


def test_outputs_keep_their_address(backend, steps):
    """Each replay writes to the tensors that the capture returned."""
    graph = captured(backend, lambda: steps.step(key(2, 2)))
    places = [t.data_ptr() for t in graph.outputs]
    steps.x.normal_()
    assert [t.data_ptr() for t in graph.replay()] == places


@pytest.mark.parametrize("error", [RuntimeError("in the step"), KeyboardInterrupt()], ids=repr)
def test_an_error_in_a_capture_leaves_the_stream_not_capturing(backend, steps, error):
    """The step's own error comes out, no stream stays in capture mode, and the next capture works."""
    steps.fail_at, steps.fail = key(2, 1), error
    with pytest.raises(type(error)) as caught:
        backend.capture(lambda: [steps.x + 1, *steps.step(key(2, 1))])
    assert caught.value is error
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    assert works(backend)


@pytest.mark.parametrize(
    "code",
    [lambda x: x.sum().item(), lambda x: x.cpu(), torch.nonzero],
    ids=["item", "cpu", "nonzero"],
)
def test_a_host_read_ends_the_capture_and_the_backend_stays_usable(backend, code):
    """What a graph cannot repeat is an error, CUDA's or ours, and the next capture works."""
    x = torch.ones(8, device="cuda")
    with pytest.raises((RuntimeError, CaptureIllegalError)):
        backend.capture(lambda: [x + 1, code(x)][:1])
    assert not torch.cuda.is_current_stream_capturing()
    assert works(backend)


def test_a_capture_inside_a_capture_is_refused(backend, steps):
    """The inner capture is our error, not an invalidated stream, and the next capture works."""
    with pytest.raises(CaptureStateError, match="a capture inside a capture"):
        backend.capture(lambda: backend.capture(lambda: [steps.x + 1]).outputs)
    assert not torch.cuda.is_current_stream_capturing()
    assert works(backend)


def test_all_graphs_share_one_pool(backend):
    """A second graph of the same size takes no memory for its intermediate values: it reuses the first one's."""
    x = torch.ones(16 * MEBIBYTE, device="cuda")

    def step():
        return [(x * 2 + 1).sum()]

    graphs = [captured(backend, step) for _ in range(3)]
    first, *others = (g.memory_bytes for g in graphs)
    assert first >= 64 * MEBIBYTE
    assert all(m < first / 2 for m in others)
    for graph in graphs:
        assert graph.replay()[0].item() == pytest.approx(3 * 16 * MEBIBYTE)


def test_memory_of_outputs_is_reported(backend):
    """A graph reports at least what its outputs occupy in the pool."""
    x = torch.ones(16 * MEBIBYTE, device="cuda")
    graph = captured(backend, lambda: [x + 1])
    assert graph.memory_bytes >= 64 * MEBIBYTE


def test_another_thread_may_use_the_device_meanwhile(backend):
    """A logger or a scheduler that touches the device during a capture does not invalidate it."""
    x, problems = torch.ones(4, device="cuda"), []

    def elsewhere():
        try:
            torch.zeros(1 << 24, device="cuda").sum().item()
        except RuntimeError as error:
            problems.append(error)

    def step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return [x + 1]

    graph = captured(backend, step)
    assert problems == []
    assert torch.equal(graph.replay()[0], torch.full_like(x, 2))


def test_manager_end_to_end(backend, steps):
    """Warm, capture, verify, seal, dispatch and replay on a device; a moved buffer is named."""
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    assert steps.log == list(PLAN.keys)
    manager.capture()
    assert manager.captured == frozenset(PLAN.keys)
    assert [v.agrees for v in manager.verify()] == [True] * len(PLAN.keys)
    manager.seal()
    for which in PLAN.keys:
        steps.x.normal_()
        same(manager.replay(which), steps.expected(which))
    steps.x = steps.x.clone()
    with pytest.raises(CaptureError, match="static buffer x"):
        manager.replay(key(2, 1))
    assert manager.state is State.STALE


OUT_OF_MEMORY = "out of memory"
FAILURES = [OUT_OF_MEMORY, ValueError("a unit failed"), KeyboardInterrupt()]


class FailingSteps(Steps):
    """Fails in the middle of the step of `fail_at`: by an error, or by asking for more than any device has."""

    def step(self, key):
        if key == self.fail_at:
            made = self.x + 1
            if self.fail is OUT_OF_MEMORY:
                return [torch.empty(1 << 48, dtype=torch.uint8, device="cuda"), made]
            raise self.fail
        return super().step(key)


def reserved():
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
@pytest.mark.parametrize("at", range(len(PLAN.keys)))
def test_the_survivors_of_a_failed_capture_serve(backend, at, failure):
    """At each n and in each way: what the policy keeps is captured and replays, or nothing is after an interrupt."""
    steps = FailingSteps(device="cuda")
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    steps.fail_at, steps.fail = PLAN.keys[at], failure
    with contextlib.suppress(KeyboardInterrupt):
        manager.capture()
    assert not torch.cuda.is_current_stream_capturing()
    if isinstance(failure, KeyboardInterrupt):
        assert (manager.state, manager.captured) == (State.WARMED, frozenset())
        steps.fail_at = None
        manager.capture()
        assert manager.captured == frozenset(PLAN.keys)
    else:
        kind = CaptureFailure.OUT_OF_MEMORY if failure is OUT_OF_MEMORY else CaptureFailure.ERROR
        verdict = after_failure(PLAN.keys, PLAN.keys[:at], {}, PLAN.keys[at], kind)
        assert manager.captured == {*verdict.keep, *verdict.attempt}
        assert {g.key: g.loss for g in manager.lost} == verdict.lost
        steps.fail_at = None
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    assert all(v.agrees for v in manager.recapture())
    assert manager.captured == frozenset(PLAN.keys)


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_capture_that_fails_keeps_no_memory(backend, failure):
    """However often, what the allocator holds does not grow: neither the pool nor what the step had made leaks."""
    steps = FailingSteps(device="cuda")
    steps.x = torch.zeros(MEBIBYTE, steps.x.shape[1], device="cuda")
    steps.fail_at, steps.fail = key(2, 1), failure

    def failed():
        with contextlib.suppress(BaseException):
            backend.capture(lambda: steps.step(key(2, 1)))
        backend.give_back()
        return reserved()

    first = failed()
    assert [failed() for _ in range(4)] == [first] * 4
    assert works(backend)


def test_released_graphs_give_their_pool_back(backend):
    """After the last graph is gone its memory is the device's again, and the next capture opens a new pool."""
    x = torch.ones(16 * MEBIBYTE, device="cuda")
    before = reserved()
    for _ in range(3):
        graphs = [captured(backend, lambda: [(x * 2).sum(), x + 1]) for _ in range(2)]
        assert backend.pool_bytes >= 128 * MEBIBYTE
        assert graphs[0].replay()[1][0] == 2
        for graph in graphs:
            graph.release()
            graph.release()
            assert graph.memory_bytes == 0
        backend.give_back()
        assert reserved() <= before + 32 * MEBIBYTE
        with pytest.raises(CaptureStateError, match="a replay after release"):
            graphs[0].replay()


def test_a_released_graph_leaves_the_others_whole(backend, steps):
    """Graphs of the same pool go on when one of them is gone, and a new one joins them."""
    graphs = {k: captured(backend, lambda k=k: steps.step(k)) for k in PLAN.keys}
    graphs.pop(PLAN.keys[0]).release()
    backend.give_back()
    graphs[PLAN.keys[0]] = captured(backend, lambda: steps.step(PLAN.keys[0]))
    for which in (*PLAN.keys, *reversed(PLAN.keys)):
        steps.x.normal_()
        same(graphs[which].replay(), steps.expected(which))


def test_random_numbers_go_on_from_replay_to_replay():
    """The device's own generator, and one that was registered: no two replays draw the same."""
    from graphspec.capture.backends.cuda import CudaBackend

    generator = torch.Generator(device="cuda").manual_seed(7)
    backend = CudaBackend(generators=[generator])
    x = torch.zeros(256, device="cuda")

    def step():
        return [
            x + torch.rand(256, device="cuda"),
            torch.rand(256, device="cuda", generator=generator),
        ]

    graph = captured(backend, step)
    first = [t.clone() for t in graph.replay()]
    for again, before in zip(graph.replay(), first, strict=True):
        assert not torch.equal(again, before)


def test_a_generator_that_is_not_registered_ends_the_capture(backend):
    """It would draw the same numbers for ever; the next capture works."""
    generator = torch.Generator(device="cuda")
    with pytest.raises((RuntimeError, CaptureIllegalError)):
        backend.capture(lambda: [torch.rand(8, device="cuda", generator=generator)])
    assert works(backend)


def test_a_capture_in_another_thread_is_refused(backend, steps):
    """Two captures would share the pool, which the allocator does not allow."""
    problems = []

    def elsewhere():
        try:
            backend.capture(lambda: [steps.x + 1])
        except CaptureStateError as error:
            problems.append(error)

    def step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return [steps.x * 2]

    captured(backend, lambda: [steps.x * 2])
    backend.capture(step)
    assert len(problems) == 1
    assert works(backend)


def test_global_error_mode_finds_another_thread(steps):
    """In the mode `global`, what another thread does to the device ends the capture, or is refused there."""
    from graphspec.capture.backends.cuda import CudaBackend

    backend, problems = CudaBackend(capture_error_mode="global"), []

    def elsewhere():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            problems.append(error)

    def step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return [steps.x + 1]

    try:
        backend.capture(step)
    except CaptureIllegalError as error:
        problems.append(error)
    assert problems
    assert works(backend)


def test_moved_buffers_are_captured_anew(backend, steps):
    """From stale back to sealed, at the new addresses."""
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    manager.capture()
    manager.seal()
    steps.x, steps.w = steps.x.clone(), steps.w * 2
    with pytest.raises(CaptureError, match="static buffer w"):
        manager.replay(key(2, 1))
    assert all(v.agrees for v in manager.recapture())
    for which in PLAN.keys:
        steps.x.normal_()
        same(manager.replay(which), steps.expected(which))


def test_a_thousand_replays_in_any_order_equal_eager(backend, steps):
    """Also after other graphs ran, with content that changes each time, and NaN behind the rows of the graph."""
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    manager.capture()
    manager.seal()
    choice = random.Random(6)
    for _ in range(1000):
        which = choice.choice(PLAN.keys)
        steps.x.fill_(float("nan"))
        steps.x[: which.tokens].normal_()
        same(manager.replay(which), steps.expected(which))


def test_what_graphs_took_predicts_what_they_take(backend):
    """Samples of one capture, fitted, hold for the next: planned against actual within the stated band or a page."""
    x = torch.ones(64, MEBIBYTE, device="cuda")

    def graph_of(rows):
        call = partial(lambda n: [(x[:n] * 2).sum(dim=1), x[:n] + 1], rows)
        backend.warm(call)
        return backend.capture(call)

    def samples():
        graphs = [graph_of(rows) for rows in (64, 48, 32, 24, 16, 8)]
        found = [
            GraphSample(tokens=rows, mib=g.memory_bytes / MEBIBYTE, seconds=0.1, opens_pool=not at)
            for at, (rows, g) in enumerate(zip((64, 48, 32, 24, 16, 8), graphs, strict=True))
        ]
        for g in graphs:
            g.release()
        backend.give_back()
        return found

    told = compare(GraphCosts.from_samples(samples()), samples())
    assert told.planned is not None
    assert abs(told.actual_mib - told.planned.amount) <= (told.planned.error or 0) + 64, str(told)
