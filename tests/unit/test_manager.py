"""The capture manager: its order of work, its states, and what a failure leaves behind."""

import gc
import random
from contextlib import suppress

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Fallthrough, Step
from graphspec.capture.manager import CaptureManager, Change, State
from graphspec.errors import CaptureError, CaptureStateError
from support.graphs import PLAN, FakeBackend, Steps, key

BACKENDS = [TapeBackend, FakeBackend]
FAILURES = [RuntimeError("no more memory"), KeyboardInterrupt()]


def manager_in(state, steps=None, backend=None):
    """A manager that was brought to `state` the regular way."""
    steps = steps or Steps()
    manager = CaptureManager(PLAN, steps, backend or TapeBackend())
    if state is State.PLANNED:
        return manager
    manager.warm()
    if state is State.WARMED:
        return manager
    manager.capture()
    if state is State.CAPTURED:
        return manager
    manager.seal()
    if state is State.STALE:
        steps.x = steps.x.clone()
        with suppress(CaptureError):
            manager.replay(key(2, 1))
    if state is State.RETIRED:
        manager.retire()
    return manager


@pytest.fixture(autouse=True)
def no_full_collection(monkeypatch):
    """A collection of all that torch imported takes 0.2 s, and none of these tests is about it."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def call(manager, action):
    given = {"replay": [key(2, 1)], "declare": [Change.WEIGHTS_RELOADED]}
    return getattr(manager, action)(*given.get(action, []))


WANTED = {
    "warm": [State.PLANNED],
    "capture": [State.WARMED],
    "verify": [State.CAPTURED],
    "seal": [State.CAPTURED],
    "replay": [State.SEALED],
    "declare": [State.SEALED],
    "recapture": [State.SEALED, State.STALE],
}
WRONG = [(a, s) for a, wanted in WANTED.items() for s in State if s not in wanted]


@pytest.mark.parametrize(("action", "state"), WRONG, ids=lambda v: getattr(v, "value", v))
def test_a_call_in_the_wrong_state_names_both_states(action, state):
    """Each method in each state that does not allow it is refused, and the state stays what it was."""
    manager = manager_in(state)
    assert manager.state is state
    with pytest.raises(CaptureStateError) as caught:
        call(manager, action)
    (problem,) = caught.value.problems
    assert problem.where == f"CaptureManager.{action}"
    assert problem.found == f"a manager that is {state.value}"
    assert problem.wanted == f"one that is {' or '.join(s.value for s in WANTED[action])}"
    assert manager.state is state


def test_states_follow_the_order_of_work():
    """Warm, capture, verify, seal, retire: each is allowed in its turn and leads to the state of its name."""
    manager = manager_in(State.PLANNED)
    seen = [manager.state]
    for action in ("warm", "capture", "verify", "seal", "retire"):
        call(manager, action)
        seen.append(manager.state)
    assert [s.value for s in seen] == [
        "planned",
        "warmed",
        "captured",
        "captured",
        "sealed",
        "retired",
    ]


def test_all_are_warmed_before_any_is_captured_and_largest_first():
    """A workspace has its final size before the first capture, and the first capture sets the size of the pool."""
    log = []
    manager = CaptureManager(PLAN, Steps(log), FakeBackend(log))
    heard = []
    manager.warm(lambda k: heard.append(("warm", k)))
    manager.capture(lambda k: heard.append(("capture", k)))
    order = [key(1, 4), key(2, 2), key(2, 1)]
    assert log == [x for phase in ("warm", "capture") for k in order for x in (phase, k)]
    assert heard == [(phase, k) for phase in ("warm", "capture") for k in order]
    assert manager.captured == frozenset(order)
    assert manager.memory_bytes == 300


def test_a_backend_that_needs_no_warm_up_runs_each_step_once_to_capture_and_once_to_verify():
    """On the tape no separate warm run is made; verify runs each step eagerly, on other content than was captured."""
    steps = Steps()
    manager = manager_in(State.CAPTURED, steps)
    assert steps.log == list(PLAN.keys)
    assert all(v.agrees for v in manager.verify())
    assert steps.log == [*PLAN.keys, *PLAN.keys]


def test_a_value_that_was_frozen_into_a_graph_does_not_pass_verify():
    """A step that takes a number from its batch in Python is caught, since verify uses another batch."""

    class Freezing(Steps):
        def fill_example(self, key, variant):
            super().fill_example(key, variant)
            self.factor = 1.0 + variant

        def step(self, key):
            return [t * self.factor for t in super().step(key)]

    manager = manager_in(State.CAPTURED, Freezing())
    assert not any(v.agrees for v in manager.verify())


@pytest.mark.parametrize("backend", BACKENDS)
def test_replay_equals_eager_after_any_other_graphs(backend):
    """Over a random walk of graphs and inputs each replay gives what the step gives without capture."""
    steps = Steps()
    manager = manager_in(State.SEALED, steps, backend())
    choice = random.Random(5)
    torch.manual_seed(5)
    for _ in range(200):
        which = choice.choice(PLAN.keys)
        steps.x.copy_(torch.randn(steps.x.shape))
        for got, wanted in zip(manager.replay(which), steps.expected(which), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_moved_static_buffer_is_named_and_the_manager_is_stale(backend):
    """A buffer with another tensor in its place stops the replay; only the moved one is named."""
    steps = Steps()
    manager = manager_in(State.SEALED, steps, backend())
    manager.replay(key(2, 1))
    steps.w = steps.w.clone()
    with pytest.raises(CaptureError) as caught:
        manager.replay(key(2, 1))
    assert [p.where for p in caught.value.problems] == ["static buffer w"]
    assert manager.state is State.STALE
    with pytest.raises(CaptureStateError, match="stale") as refused:
        manager.replay(key(2, 1))
    assert "static buffer w moved; call recapture()" in str(refused.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_static_buffer_that_is_replaced_while_captured_is_named(backend):
    """A step that puts a new tensor in a buffer's place is refused: graphs captured before it hold the old one."""

    class Replacing(Steps):
        def step(self, key):
            self.w = self.w * 1.0
            return super().step(key)

    manager = manager_in(State.WARMED, Replacing(), backend())
    with pytest.raises(CaptureError) as caught:
        manager.capture()
    assert [p.where for p in caught.value.problems] == ["static buffer w"]
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("at", range(len(PLAN.keys)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_capture_that_raises_leaves_nothing_captured_and_can_be_repeated(backend, at, error):
    """An interrupt, or any failure in a strict capture, keeps no graph, and capturing again works."""
    steps = Steps()
    manager = manager_in(State.WARMED, steps, backend())
    steps.fail_at, steps.fail = PLAN.keys[at], error
    with pytest.raises(type(error)):
        manager.capture(strict=True)
    assert manager.state is State.WARMED
    assert manager.captured == frozenset()
    assert manager.memory_bytes == 0
    decode = Step(requests=1, proposed_k=2, prefill=False)
    assert manager.dispatch(decode).reason is Fallthrough.NOT_SEALED

    steps.fail_at = None
    manager.capture()
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    assert manager.dispatch(decode).key == key(2, 1)
    manager.replay(key(2, 1))


def test_a_listener_that_raises_is_a_failed_capture_too():
    """An error in the caller's progress display leaves nothing captured."""
    manager = manager_in(State.WARMED)

    def listener(key):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        manager.capture(listener)
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())
    manager.capture()


def test_a_failed_warm_can_be_repeated():
    """What is raised while warming leaves the manager planned."""
    steps = Steps()
    manager = manager_in(State.PLANNED, steps, FakeBackend())
    steps.fail_at = PLAN.keys[1]
    with pytest.raises(RuntimeError):
        manager.warm(strict=True)
    assert manager.state is State.PLANNED
    steps.fail_at = None
    manager.warm()
    manager.capture()
    assert all(v.agrees for v in manager.verify())


@pytest.fixture
def garbage():
    """Puts the collector back whatever a test does to it."""
    was = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("error", [None, *FAILURES], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_garbage_collection_is_off_while_capturing_and_as_before_after(
    garbage, enabled, frozen, error
):
    """The collector does not run during capture; enabled and frozen are afterwards what they were, on every path."""
    seen = []

    class Watching(Steps):
        def step(self, key):
            seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
            return super().step(key)

    steps = Watching()
    manager = manager_in(State.WARMED, steps)
    if error is not None:
        steps.fail_at, steps.fail = PLAN.keys[1], error
    (gc.enable if enabled else gc.disable)()
    if frozen:
        gc.freeze()
    with suppress(RuntimeError, KeyboardInterrupt):
        manager.capture()
    assert set(seen) == {(False, True)}
    assert gc.isenabled() is enabled
    assert (gc.get_freeze_count() > 0) is frozen


def test_verify_reports_the_graph_that_differs():
    """A graph whose replay is not what the eager run gave is reported with its key and by how much."""
    backend = FakeBackend()
    backend.lies[1] = 0.25
    verified = manager_in(State.CAPTURED, backend=backend).verify()
    assert [(v.key, v.agrees) for v in verified] == [
        (key(1, 4), True),
        (key(2, 2), False),
        (key(2, 1), True),
    ]
    assert verified[1].max_difference == pytest.approx(0.25)
    assert verified[0].max_difference == 0.0


def test_verify_reports_whole_numbers_that_differ():
    """Outputs that are not floating point must be equal: a token that is off by one is a difference."""

    class Tokens(Steps):
        def step(self, key):
            return [super().step(key)[0].argmax(dim=-1)]

    backend = FakeBackend()
    backend.lies[0] = 1
    assert [v.agrees for v in manager_in(State.CAPTURED, Tokens(), backend).verify()] == [
        False,
        True,
        True,
    ]


def test_verify_can_be_repeated():
    """A second verify gives the same answer as the first."""
    manager = manager_in(State.CAPTURED)
    assert manager.verify() == manager.verify()


@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
def test_retire_drops_all_graphs_from_any_state(state):
    """After retire there is no graph, no memory, and no step that could be dispatched to one."""
    manager = manager_in(state)
    manager.retire()
    assert manager.state is State.RETIRED
    assert manager.captured == frozenset()
    assert manager.memory_bytes == 0
    found = manager.dispatch(Step(requests=1, proposed_k=2, prefill=False))
    assert found.reason is Fallthrough.NOT_CAPTURED


def test_before_seal_no_step_has_a_graph():
    """Until capturing has ended, the answer of dispatch is that."""
    decode = Step(requests=1, proposed_k=2, prefill=False)
    for state in (State.PLANNED, State.WARMED, State.CAPTURED):
        assert manager_in(state).dispatch(decode).reason is Fallthrough.NOT_SEALED
    assert manager_in(State.SEALED).dispatch(decode).key == key(2, 1)


def test_static_tensors_in_another_order_are_where_they_were():
    """Only a tensor that moved makes a manager stale: an engine may list its buffers as it likes."""

    class Shuffled(Steps):
        def static_tensors(self):
            return dict(random.sample(sorted(super().static_tensors().items()), 2))

    manager = manager_in(State.SEALED, Shuffled())
    for _ in range(10):
        manager.replay(key(2, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_moved_buffers_are_captured_anew(backend):
    """From stale back to sealed: the new graphs run on the new buffers, and the old ones are released."""
    steps, made = Steps(), backend()
    manager = manager_in(State.SEALED, steps, made)
    steps.x, steps.w = steps.x.clone(), steps.w * 3
    with pytest.raises(CaptureError, match=r"recapture\(\) while no request runs"):
        manager.replay(key(2, 1))
    assert manager.dispatch(Step(requests=1, proposed_k=2, prefill=False)).key is None
    assert all(v.agrees for v in manager.recapture())
    assert (manager.state, manager.captured) == (State.SEALED, frozenset(PLAN.keys))
    assert isinstance(made, TapeBackend) or made.held == len(PLAN.keys)
    for which in PLAN.keys:
        steps.x.normal_()
        for got, wanted in zip(manager.replay(which), steps.expected(which), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("change", Change)
def test_a_declared_change_is_stale_until_it_is_captured(change):
    """Nothing is replayed after a declaration; the refusal says what was declared and what to call."""
    manager = manager_in(State.SEALED)
    manager.declare(change)
    with pytest.raises(CaptureStateError, match=change.value) as refused:
        manager.replay(key(2, 1))
    assert "call recapture()" in str(refused.value)
    manager.recapture()
    manager.replay(key(2, 1))


def test_a_sealed_manager_may_be_captured_anew():
    """Without a declaration too, as after a reload whose buffers stayed where they were."""
    steps = Steps()
    manager = manager_in(State.SEALED, steps)
    steps.w.mul_(2)
    assert all(v.agrees for v in manager.recapture())
    assert manager.state is State.SEALED


def test_new_graphs_that_differ_from_eager_are_not_sealed():
    """Recapture verifies: a graph that lies is named, and nothing is served until somebody decides."""
    backend = FakeBackend()
    manager = manager_in(State.SEALED, backend=backend)
    backend.lies[len(PLAN.keys) + 1] = 0.5
    with pytest.raises(CaptureError, match=str(PLAN.keys[1])):
        manager.recapture()
    assert manager.state is State.CAPTURED


def test_an_interrupted_recapture_goes_on_from_where_it_stopped():
    """The old graphs are gone; warm or capture again, and all is as before."""
    steps = Steps()
    manager = manager_in(State.SEALED, steps)
    steps.fail_at, steps.fail = PLAN.keys[1], KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.recapture()
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())
    steps.fail_at = None
    manager.capture()
    manager.seal()
    manager.replay(key(2, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_graphs_took_is_measured(backend):
    """One sample a graph, and the first opens the pool."""
    manager = manager_in(State.SEALED, backend=backend())
    samples = manager.samples
    assert list(samples) == list(PLAN.keys)
    assert [s.tokens for s in samples.values()] == [k.tokens for k in PLAN.keys]
    assert [s.opens_pool for s in samples.values()] == [True, False, False]
    assert sum(s.mib for s in samples.values()) == pytest.approx(manager.memory_bytes / 2**20)
    assert all(s.seconds > 0 for s in samples.values())


def test_a_capture_inside_a_capture_is_raised():
    """A misuse of the backend is no failure of one graph, after which the others would be captured."""
    backend = TapeBackend()

    class Nested(Steps):
        def step(self, key):
            backend.capture(lambda: super(Nested, self).step(key))
            return super().step(key)

    manager = manager_in(State.WARMED, Nested(), backend)
    with pytest.raises(CaptureStateError, match="a capture inside a capture"):
        manager.capture()
    assert (manager.state, manager.captured) == (State.WARMED, frozenset())


def test_a_key_that_is_not_captured_is_no_replay():
    """The error names the key; the manager stays sealed."""
    manager = manager_in(State.SEALED)
    with pytest.raises(CaptureError, match=r"k=2 requests=3: found no captured graph"):
        manager.replay(key(2, 3))
    manager.replay(key(2, 1))
