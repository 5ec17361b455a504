"""Reports B80 to B82 of theme G: what a capture forbids, kernels that load late, and other threads.

They run on the tape and against a scripted device; tests/gpu has the same against a real one.
"""

import gc
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
from graphspec.capture.dispatch import Fallthrough, Step
from graphspec.capture.manager import CaptureManager, State
from graphspec.capture.plan import CapturePlan
from graphspec.capture.survivors import Loss
from graphspec.config.schedule import KSchedule
from graphspec.errors import CaptureIllegalError, CaptureStateError
from support.fake_cuda import Block, FakeCuda
from support.graphs import PLAN, FakeBackend, Steps, key

MEBIBYTE = 1 << 20
WATCHDOG_SECONDS = 10


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
