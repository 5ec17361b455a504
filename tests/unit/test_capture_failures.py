"""Captures that fail at each graph, in each way: what survives is captured, what is lost has a reason, all goes on."""

import gc
import weakref
from contextlib import suppress

import attrs
import pytest
import torch

from graphspec.capture.attempts import failure_of, sentences
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Fallthrough, Step
from graphspec.capture.left_out import left_out_of
from graphspec.capture.manager import CaptureManager, State
from graphspec.capture.memory_model import GraphCosts, GraphSample
from graphspec.capture.plan import CapturePlan
from graphspec.capture.report import Decisions, GraphReport, WarmupReport
from graphspec.capture.survivors import CaptureFailure, Loss, after_failure
from graphspec.config.compilation import CudagraphMode
from graphspec.config.schedule import KSchedule
from graphspec.errors import CaptureIllegalError, Problem
from graphspec.resolve.decision import ModeDecision
from support.graphs import FakeBackend, Steps, key

PLAN = CapturePlan(
    schedule=KSchedule(dense=(0, 3, 3, 3, 3, 1, 1, 1, 1)), buckets={3: (1, 2, 4), 1: (6, 8)}
)
"""Graphs of 16, 16, 12, 8 and 4 tokens."""
BACKENDS = [TapeBackend, FakeBackend]
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
BROKEN = ValueError("a unit\n  failed")
FAILURES = {CaptureFailure.OUT_OF_MEMORY: OUT_OF_MEMORY, CaptureFailure.ERROR: BROKEN}
EVERY = [(failure, at) for failure in FAILURES for at in range(len(PLAN.keys))]


class WideSteps(Steps):
    """The toy's steps with room for this plan."""

    def __init__(self):
        super().__init__()
        self.x = torch.zeros(16, self.x.shape[1])


def every_size():
    return [
        Step(requests=b, proposed_k=k, prefill=False)
        for b in range(1, PLAN.schedule.max_num_seqs + 1)
        for k in PLAN.schedule.depths
    ]


def check_usable(manager, steps, survivors):
    """The surviving graphs replay as eager runs; every other step says why it has none."""
    assert manager.captured == frozenset(survivors)
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    for step in every_size():
        found = manager.dispatch(step)
        if found.key is None:
            assert found.reason is Fallthrough.NOT_CAPTURED
            continue
        assert found.key in survivors
        assert found.key.bucket >= step.requests
        steps.x.normal_()
        for got, wanted in zip(manager.replay(found.key), steps.expected(found.key), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.fixture(autouse=True)
def no_full_collection(monkeypatch):
    """A collection of all that torch imported takes 0.2 s, and none of these tests is about it."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def state_around():
    """The collector is afterwards as it was."""
    before = gc.isenabled(), gc.get_freeze_count()
    yield
    assert (gc.isenabled(), gc.get_freeze_count()) == before


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("failure", "at"), EVERY, ids=lambda v: getattr(v, "value", v))
def test_the_survivors_of_a_failed_capture_serve(state_around, backend, failure, at):
    """At each n: the policy's survivors are captured, the lost are released, left out of the plan, and reported."""
    steps, made = WideSteps(), backend()
    manager = CaptureManager(PLAN, steps, made)
    manager.warm()
    steps.fail_at, steps.fail = PLAN.keys[at], FAILURES[failure]
    manager.capture()

    verdict = after_failure(PLAN.keys, PLAN.keys[:at], {}, PLAN.keys[at], failure)
    survivors = {*verdict.keep, *verdict.attempt}
    assert {g.key: g.loss for g in manager.lost} == verdict.lost
    assert set(manager.plan.keys) == survivors
    assert set(manager.plan.left_out) == set(verdict.lost)
    assert set(manager.samples) == survivors
    assert isinstance(made, TapeBackend) or made.held == len(survivors)
    check_usable(manager, steps, survivors)

    # With memory again, or the unit mended, all are captured.
    steps.fail_at = None
    assert len(manager.recapture()) == len(PLAN.keys)
    assert (manager.lost, manager.plan) == ([], PLAN)


@pytest.mark.parametrize(("failure", "at"), EVERY, ids=lambda v: getattr(v, "value", v))
def test_a_graph_that_cannot_be_warmed_is_not_captured(state_around, failure, at):
    """At each n: what fails while warming is lost before capture, which goes on with the others."""
    steps, made = WideSteps(), FakeBackend()
    manager = CaptureManager(PLAN, steps, made)
    steps.fail_at, steps.fail = PLAN.keys[at], FAILURES[failure]
    manager.warm()
    assert manager.state is State.WARMED
    steps.fail_at = None
    manager.capture()
    verdict = after_failure(PLAN.keys, PLAN.keys[:at], {}, PLAN.keys[at], failure)
    assert {g.key: g.loss for g in manager.lost} == verdict.lost
    assert len(made.made) == len(PLAN.keys) - len(verdict.lost)
    check_usable(manager, steps, {*verdict.keep, *verdict.attempt})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at", range(len(PLAN.keys)))
def test_an_interrupt_comes_through_and_keeps_nothing(state_around, backend, at):
    """KeyboardInterrupt at each n: raised, every graph released, and capturing again works."""
    steps, made = WideSteps(), backend()
    manager = CaptureManager(PLAN, steps, made)
    manager.warm()
    steps.fail_at, steps.fail = PLAN.keys[at], KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.capture()
    assert (manager.state, manager.captured, manager.lost) == (State.WARMED, frozenset(), [])
    assert (manager.memory_bytes, manager.samples, manager.plan) == (0, {}, PLAN)
    assert isinstance(made, TapeBackend) or made.held == 0
    steps.fail_at = None
    manager.capture()
    check_usable(manager, steps, set(PLAN.keys))


@pytest.mark.parametrize("at", range(len(PLAN.keys)))
def test_an_interrupt_while_warming_comes_through(at):
    """KeyboardInterrupt at each n of the warm runs: raised, and warming again works."""
    steps = WideSteps()
    manager = CaptureManager(PLAN, steps, FakeBackend())
    steps.fail_at, steps.fail = PLAN.keys[at], KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.warm()
    assert manager.state is State.PLANNED
    steps.fail_at = None
    manager.warm()
    manager.capture()
    check_usable(manager, steps, set(PLAN.keys))


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_ends_again_and_again(backend):
    """Every graph above 5 tokens fails: each failure halves, the smallest is captured, and few captures are tried."""
    steps, tried = WideSteps(), []

    class Full(WideSteps):
        def step(self, key):
            tried.append(key)
            if key.tokens > 5:
                raise OUT_OF_MEMORY
            return super().step(key)

    steps = Full()
    manager = CaptureManager(PLAN, steps, backend())
    manager.warm()
    manager.capture()
    assert manager.captured == {key(3, 1)}
    assert [k.tokens for k in dict.fromkeys(tried)] == [16, 8, 4]
    assert manager.plan.fallthrough() == (2, 3, 4, 5, 6, 7, 8)
    check_usable(manager, steps, {key(3, 1)})


def test_without_any_graph_the_engine_still_runs():
    """Nothing can be captured: the manager is sealed, and every decode step says so."""

    class Illegal(WideSteps):
        def step(self, key):
            return [self.x[: key.tokens] * float(self.x[0, 0])]

    manager = CaptureManager(PLAN, Illegal(), TapeBackend())
    manager.warm()
    manager.capture()
    manager.seal()
    assert {manager.dispatch(s).reason for s in every_size()} == {Fallthrough.NOT_CAPTURED}
    assert all("read of a tensor's value by the host" in g.error for g in manager.lost)


def test_a_strict_capture_raises_what_cannot_be_captured():
    """A CI wants the error, not an engine without graphs."""

    class Illegal(WideSteps):
        def step(self, key):
            return [self.x[: key.tokens] * float(self.x[0, 0])]

    manager = CaptureManager(PLAN, Illegal(), TapeBackend())
    manager.warm(strict=True)
    with pytest.raises(CaptureIllegalError):
        manager.capture(strict=True)
    assert (manager.state, manager.lost) == (State.WARMED, [])


def test_a_failed_step_keeps_none_of_its_tensors_while_the_next_is_captured():
    """Its error holds the frames, and these the tensors: they are gone before memory is given back."""
    kept = []

    class Leaving(WideSteps):
        def step(self, key):
            if key == self.fail_at:
                large = torch.zeros(100)
                kept.append(weakref.ref(large))
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().step(key)

    class Watching(FakeBackend):
        def give_back(self):
            if kept:
                kept.append(kept[0]() is None)

    steps = Leaving()
    manager = CaptureManager(PLAN, steps, Watching())
    manager.warm()
    steps.fail_at = PLAN.keys[0]
    manager.capture()
    assert kept[1] is True


CAUSED = CaptureIllegalError(Problem(where="cuda graph", found="the capture ended", wanted="more"))
CAUSED.__cause__ = RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OUT_OF_MEMORY, CaptureFailure.OUT_OF_MEMORY),
        (MemoryError(), CaptureFailure.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory\nCompile with"), CaptureFailure.OUT_OF_MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), CaptureFailure.OUT_OF_MEMORY),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            CaptureFailure.OUT_OF_MEMORY,
        ),
        (CAUSED, CaptureFailure.OUT_OF_MEMORY),
        (RuntimeError("shapes differ"), CaptureFailure.ERROR),
        (ValueError("out of memory of the past"), CaptureFailure.ERROR),
        (KeyboardInterrupt(), CaptureFailure.INTERRUPTED),
        (SystemExit(), CaptureFailure.INTERRUPTED),
    ],
    ids=repr,
)
def test_what_an_error_says_of_memory_is_understood(error, failure):
    """Torch's own class, what CUDA and cuBLAS say, and what our error was caused by."""
    assert failure_of(error) is failure


def failed_manager():
    steps = WideSteps()
    manager = CaptureManager(PLAN, steps, FakeBackend())
    manager.warm()
    steps.fail_at, steps.fail = key(3, 2), BROKEN
    manager.capture()
    return manager


def report_of(manager, **more):
    return GraphReport(
        planned=len(PLAN.keys),
        captured=len(manager.captured),
        reachable=len(PLAN.reachable()),
        fallthrough=manager.plan.fallthrough(),
        memory_bytes=manager.memory_bytes,
        verified=manager.verify(),
        left_out=left_out_of(PLAN),
        lost=manager.lost,
        samples=manager.samples,
        **more,
    )


def test_the_report_says_what_was_lost_and_why():
    """One sentence for each reason, in the findings; one object for each graph, in the JSON."""
    manager = failed_manager()
    assert sentences(manager.lost) == [
        f"graph {key(3, 2)} not captured, its capture failed (ValueError: a unit failed)",
        f"graph {key(3, 1)} not captured, {Loss.SAME_CODE.value} (ValueError: a unit failed)",
    ]
    printed = report_of(manager).as_dict()
    assert (printed["planned"], printed["captured"], printed["reachable"]) == (5, 3, 5)
    assert printed["lost"] == [
        {"graph": str(key(3, 2)), "reason": "failed", "error": "ValueError: a unit failed"},
        {"graph": str(key(3, 1)), "reason": "same_code", "error": "ValueError: a unit failed"},
    ]
    # The larger graph of the same depth serves them.
    assert printed["fallthrough"] == []
    assert [s["graph"] for s in printed["samples"]] == [str(k) for k in manager.plan.keys]


def test_the_report_has_planned_against_actual_memory():
    """Samples of one capture predict the next one; without any, no number is made up."""
    manager = failed_manager()
    assert report_of(manager).memory.planned is None
    before = [GraphSample(tokens=t, mib=100 / 2**20, seconds=0.1) for t in (4, 8, 12, 16)]
    told = report_of(manager, costs=GraphCosts.from_samples(before))
    assert told.memory.planned.amount == pytest.approx(told.memory.actual_mib)
    assert told.as_dict()["predicted_mib"]["amount"] == pytest.approx(300 / 2**20)
    tight = [attrs.evolve(s, mib=5.0) for s in before]
    assert report_of(manager, costs=GraphCosts.from_samples(tight)).memory.within is False


def test_a_listener_that_fails_is_no_failure_of_a_graph():
    """A broken progress display ends the capture; it does not cost graphs."""
    manager = CaptureManager(PLAN, WideSteps(), FakeBackend())
    manager.warm()

    def listener(key):
        raise OUT_OF_MEMORY

    with suppress(torch.OutOfMemoryError):
        manager.capture(listener)
    assert (manager.captured, manager.lost, manager.plan) == (frozenset(), [], PLAN)


def test_lost_graphs_are_findings_of_a_warmup():
    """An operator reads them once for each reason, and no sentence calls them a bug of the plan."""
    mode = CudagraphMode.FULL
    report = WarmupReport(
        spec_hash="",
        capture_hash="",
        decisions=Decisions(mode=ModeDecision(asked=mode, granted=mode)),
        units=[],
        graphs=report_of(failed_manager()),
        phases={},
        seconds=0.0,
    )
    assert list(report.findings) == sentences(report.graphs.lost)
    assert report.as_dict()["graphs"]["lost"] == report.graphs.as_dict()["lost"]
