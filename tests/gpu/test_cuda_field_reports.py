"""Reports B60, B61, B72 to B76 and B80 to B82 of shared/reference/field-reports.md on a device: what only one can show."""

import gc
import random
import threading
from functools import partial

import pytest
import torch

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import CapturePlan
from graphspec.config.schedule import KSchedule
from graphspec.errors import CaptureIllegalError
from support.graphs import PLAN, Steps, key, mix, scale

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A step that fails at once leaves an empty graph, of which CUDA graphs warn.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
MEBIBYTE = 1 << 20
FEW_MIB = 32 * MEBIBYTE
WATCHDOG_SECONDS = 10
FIVE = CapturePlan(schedule=KSchedule(dense=(0, *[3] * 16)), buckets={3: (1, 2, 4, 8, 16)})
SMALLER = CapturePlan(schedule=KSchedule(dense=(0, 3, 3)), buckets={3: (1, 2)})
DEPTHS, SIZES = (5, 3, 1), (1, 2, 4)


@pytest.fixture
def backend():
    from graphspec.capture.backends.cuda import CudaBackend

    return CudaBackend()


class LargeSteps:
    """Steps whose intermediate values take four mebibytes a token. The step of `fail_at` raises while it holds them."""

    def __init__(self):
        self.x = torch.ones(64, MEBIBYTE, device="cuda")
        self.fail_at = None
        self.tried = []

    def static_tensors(self):
        return {"x": self.x}

    def fill_example(self, key, variant):
        self.x.fill_(1.0 + variant)

    def step(self, key):
        self.tried.append(key)
        doubled = self.x[: key.tokens] * 2
        if key == self.fail_at:
            raise ValueError("a unit failed")
        return [doubled.sum(dim=1)]


def reserved():
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def captured(plan, steps, backend):
    """A manager that has captured the plan."""
    manager = CaptureManager(plan, steps, backend)
    manager.warm()
    manager.capture()
    return manager


def test_B60_a_failed_capture_leaves_the_memory_to_smaller_ones(backend):
    """The third of five raises: the device has what it had before, and smaller graphs are captured and right."""
    steps = LargeSteps()
    before = reserved()
    manager = CaptureManager(FIVE, steps, backend)
    manager.warm()
    steps.fail_at = FIVE.keys[2]
    try:
        manager.capture(strict=True)
    except ValueError:
        pass
    else:
        pytest.fail("it raised nothing")
    assert reserved() <= before + FEW_MIB
    steps.fail_at = None
    assert all(v.agrees for v in captured(SMALLER, steps, backend).verify())


def test_B61_several_passes_take_as_much_memory_as_one(backend):
    """A pass for each depth on one backend, against one pass over the same shapes on another."""
    from graphspec.capture.backends.cuda import CudaBackend

    steps = LargeSteps()
    passes = [
        captured(
            CapturePlan(schedule=KSchedule(dense=(0, *[k] * 4)), buckets={k: SIZES}), steps, backend
        )
        for k in DEPTHS
    ]
    together = CapturePlan(
        schedule=KSchedule(dense=(0, 5, 5, 3, 3, 1, 1)), buckets=dict.fromkeys(DEPTHS, SIZES)
    )
    alone = CudaBackend()
    manager = captured(together, steps, alone)
    assert backend.pool_bytes <= alone.pool_bytes + FEW_MIB
    assert [len(p.captured) for p in passes] == [3, 3, 3]
    assert len(manager.captured) == 9


NAN = float("nan")


def test_B72_B75_padding_and_what_an_earlier_batch_left_change_nothing(backend):
    """NaN in every row before each batch, batches of 8 falling to 1 and then in any order: rows of the batch are as without
    a graph, padding rows hold what they were padded with, three times over."""
    eight = CapturePlan(schedule=KSchedule(dense=(0, *[0] * 8)), buckets={0: (3, 8)})
    steps = Steps(device="cuda")
    manager = captured(eight, steps, backend)
    manager.seal()
    rows = StaticBuffer("x", steps.x, Padding(poison=1e4, unread=NAN))
    made = random.Random(75)
    for count in [*range(8, 0, -1), *(made.randint(1, 8) for _ in range(24))]:
        graph = key(0, 3 if count <= 3 else 8)
        batch = torch.randn(count, steps.x.shape[1], device="cuda")
        steps.x.fill_(NAN)
        for _ in range(3):
            rows.copy_in(batch)
            rows.pad(count, graph.bucket)
            outputs = [t[:count].clone() for t in manager.replay(graph)]
            for got, wanted in zip(outputs, mix(*scale(batch), steps.w), strict=True):
                torch.testing.assert_close(got, wanted)
            assert (steps.x[count : graph.bucket] == 0).all()


def test_B76_every_padded_batch_returns_and_equals_the_exact_one(backend):
    """Each number of requests up to the bucket, three tokens wide, within ten seconds each."""
    plan = CapturePlan(schedule=KSchedule(dense=(0, *[2] * 5)), buckets={2: tuple(range(1, 6))})
    steps = Steps(device="cuda")
    manager = captured(plan, steps, backend)
    manager.seal()
    for count in range(1, 6):
        steps.x.normal_()
        exact = [t.clone() for t in manager.replay(key(2, count))]
        ended = []

        def run(count=count, exact=exact, ended=ended):
            padded = [t[: count * 3] for t in manager.replay(key(2, 5))]
            torch.cuda.synchronize()
            for got, wanted in zip(padded, exact, strict=True):
                torch.testing.assert_close(got, wanted)
            ended.append(count)

        watched = threading.Thread(target=run, daemon=True)
        watched.start()
        watched.join(WATCHDOG_SECONDS)
        assert ended == [count]


FORBIDDEN = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "nonzero": torch.nonzero,
    "print": lambda x: print("x is", x),
    "copy from the host": lambda x: x + torch.tensor([1.0], device="cuda"),
}


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN)
def test_B80_what_a_capture_forbids_is_named_with_its_graph(backend, forbidden):
    """The graph of depth 2 that does it is lost, with phase, k and requests; that of depth 1 is captured and serves."""

    class Forbidding(Steps):
        def step(self, key):
            if key.k == 2:
                forbidden(self.x)
            return super().step(key)

    steps = Forbidding(device="cuda")
    manager = CaptureManager(PLAN, steps, backend)
    manager.warm()
    manager.capture()
    assert manager.captured == {key(1, 4)}
    assert manager.lost[0].key == key(2, 2)
    assert manager.lost[0].error.startswith("CaptureIllegalError")
    assert not torch.cuda.is_current_stream_capturing()
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    manager.replay(key(1, 4))


def test_B81_a_kernel_that_is_compiled_in_a_capture_is_warmed_before(backend):
    """A cold Triton kernel: the manager's warm run compiles and loads it, and the capture finds it loaded."""
    pytest.importorskip("triton")
    from support.triton_add import add_one

    class Launching(Steps):
        def step(self, key):
            return [add_one(self.x[: key.tokens])]

    manager = captured(PLAN, Launching(device="cuda"), backend)
    assert manager.captured == frozenset(PLAN.keys)
    assert all(v.agrees for v in manager.verify())


def test_B82_a_copy_in_another_thread_disturbs_no_capture(backend):
    """20 rounds of 10 captures while a thread copies from the host on a stream of its own."""
    ten = CapturePlan(schedule=KSchedule(dense=(0, *[0] * 10)), buckets={0: tuple(range(1, 11))})
    stop, problems, rounds = threading.Event(), [], []

    def elsewhere():
        stream = torch.cuda.Stream()
        host = torch.ones(1 << 16).pin_memory()
        try:
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    host.to("cuda", non_blocking=True)
                    stream.synchronize()
                    rounds.append(1)
        except RuntimeError as error:
            problems.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        for _ in range(20):
            manager = captured(ten, Steps(device="cuda"), backend)
            assert manager.captured == frozenset(ten.keys)
            assert all(v.agrees for v in manager.verify())
            manager.retire()
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert rounds


def test_B80_the_error_of_a_device_leads_to_the_tape(backend):
    """It is our error, with CUDA's own words and what to run to find the line."""
    x = torch.ones(8, device="cuda")
    with pytest.raises(CaptureIllegalError) as caught:
        backend.capture(partial(lambda: [x + 1, x.sum().item()][:1]))
    assert "captur" in caught.value.problems[0].found
    assert "tape backend" in caught.value.problems[0].hint
