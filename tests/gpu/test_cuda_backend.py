"""CUDA graphs keep the promises of the tape: the same toy steps, on a device."""

import contextlib

import pytest
import torch

from graphspec.capture.manager import CaptureManager, State
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
    import threading

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


@pytest.mark.parametrize("at", range(len(PLAN.keys)))
def test_a_failed_capture_leaves_the_manager_usable(backend, steps, at):
    """Whichever graph fails, nothing stays captured and a second capture works."""
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    steps.fail_at = PLAN.keys[at]
    with contextlib.suppress(RuntimeError):
        manager.capture()
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())
    assert not torch.cuda.is_current_stream_capturing()
    steps.fail_at = None
    manager.capture()
    assert all(v.agrees for v in manager.verify())
