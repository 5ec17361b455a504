"""The breaker: a tier that fails is left alone for a while, and a dead one costs a bounded number of calls."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphspec.cache.tiers.breaker import Breaker, TierError, TierState


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def fail(breaker, clock, seconds=0.0, reason="no answer", counts=True):
    """A call that reaches the tier and fails; False when the breaker did not let it through."""
    reached = []

    def call():
        with breaker.attempt():
            reached.append(True)
            clock.now += seconds
            raise TierError(reason, counts=counts)

    with pytest.raises(TierError):
        call()
    return bool(reached)


def succeed(breaker):
    with breaker.attempt():
        pass


def test_three_failures_in_a_row_switch_the_tier_off(clock):
    """Two failures change nothing; the third does, and then no call reaches the tier."""
    breaker = Breaker(failures=3, clock=clock)
    assert [fail(breaker, clock) for _ in range(5)] == [True, True, True, False, False]
    assert breaker.state is TierState.OFF


def test_one_success_makes_the_count_begin_anew(clock):
    """Failures that are not in a row are the network's everyday life."""
    breaker = Breaker(failures=3, clock=clock)
    for _ in range(4):
        assert fail(breaker, clock)
        assert fail(breaker, clock)
        succeed(breaker)
    assert breaker.state is TierState.ON


def test_one_timeout_switches_the_tier_off(clock):
    """A failure that took long costs as much as many quick ones, so one is enough."""
    breaker = Breaker(failures=3, patience_s=1.0, clock=clock)
    assert fail(breaker, clock, seconds=5.0)
    assert breaker.state is TierState.OFF
    assert not fail(breaker, clock)


def test_the_time_of_failures_in_a_row_adds_up(clock):
    """Two failures of 0.6 seconds are more than a patience of one second; with a success between them they are not."""
    breaker = Breaker(failures=9, patience_s=1.0, clock=clock)
    fail(breaker, clock, seconds=0.6)
    succeed(breaker)
    fail(breaker, clock, seconds=0.6)
    assert breaker.state is TierState.ON
    fail(breaker, clock, seconds=0.6)
    assert breaker.state is TierState.OFF


def test_the_reason_says_why_it_is_off_and_for_how_long(clock):
    """A refused call carries the last failure, and does not itself count as one."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    fail(breaker, clock, reason="no route")
    clock.now += 12
    with pytest.raises(TierError) as refused:
        breaker.check()
    assert str(refused.value) == "switched off (tried again in 18 s); last failure: no route"
    assert not refused.value.counts


def test_after_the_pause_one_probe_goes_through_and_switches_on(clock):
    """A tier that is well again is used again."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    fail(breaker, clock)
    clock.now += 29.9
    assert not fail(breaker, clock)
    clock.now += 0.2
    succeed(breaker)
    assert breaker.state is TierState.ON
    assert fail(breaker, clock)


def test_only_one_call_at_a_time_is_a_probe(clock):
    """While a probe is under way, other calls are refused at once."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    fail(breaker, clock)
    clock.now += 31
    with breaker.attempt():
        assert breaker.state is TierState.PROBING
        with pytest.raises(TierError, match="another call is trying it now"), breaker.attempt():
            pass
    assert breaker.state is TierState.ON


def test_each_probe_that_fails_doubles_the_pause_and_the_last_gives_up(clock):
    """However long the process runs, a dead tier costs it no more than the stated number of probes."""
    breaker = Breaker(failures=1, pause_s=30.0, probes=3, clock=clock)
    began = clock.now
    fail(breaker, clock)
    reached = []
    for _ in range(10_000):
        clock.now += 1
        if fail(breaker, clock):
            reached.append(clock.now - began)
    assert reached == [30, 90, 210]
    assert breaker.state is TierState.GIVEN_UP
    with pytest.raises(TierError, match="not tried again by this process after 3 probes"):
        breaker.check()


def test_a_success_gives_all_probes_back(clock):
    """A tier that was well in between is new: pause and probes begin as at first."""
    breaker = Breaker(failures=1, pause_s=30.0, probes=1, clock=clock)
    for _ in range(3):
        fail(breaker, clock)
        clock.now += 31
        succeed(breaker)
    assert breaker.state is TierState.ON


def test_a_failure_of_one_object_is_no_failure_of_the_tier(clock):
    """A tier that refuses an object has answered, so it is on, and the count begins anew."""
    breaker = Breaker(failures=2, clock=clock)
    fail(breaker, clock)
    for _ in range(5):
        assert fail(breaker, clock, counts=False)
    assert fail(breaker, clock)
    assert breaker.state is TierState.ON


def test_an_interrupted_probe_leaves_the_place_to_the_next_call(clock):
    """An interrupt says nothing about the tier, and must not leave it switched off for ever."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    fail(breaker, clock)
    clock.now += 31
    with pytest.raises(KeyboardInterrupt), breaker.attempt():
        raise KeyboardInterrupt
    succeed(breaker)
    assert breaker.state is TierState.ON


def test_check_does_not_take_the_place_of_the_probe(clock):
    """Asking whether the tier is on neither reaches it nor changes anything."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    breaker.check()
    fail(breaker, clock)
    clock.now += 31
    for _ in range(3):
        with pytest.raises(TierError):
            breaker.check()
    succeed(breaker)
    breaker.check()


def test_calls_that_were_under_way_do_not_make_the_pause_longer(clock):
    """Eight calls that time out together are one failure: the pause is that of the first."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    together, under_way = threading.Barrier(8), threading.Barrier(8)

    def call():
        together.wait(10)
        with breaker.attempt():
            under_way.wait(10)
            raise TierError("no answer")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(call) for _ in range(8)]:
            assert isinstance(done.exception(), TierError)
    clock.now += 30
    succeed(breaker)
    assert breaker.state is TierState.ON


def test_a_forked_child_does_not_wait_for_the_probe_of_its_parent(clock):
    """The thread that probes is not in the child: there the next call is the probe."""
    breaker = Breaker(failures=1, pause_s=30.0, clock=clock)
    fail(breaker, clock)
    clock.now += 31
    with breaker.attempt():
        child = os.fork()
        if not child:
            state = 0 if breaker.state is TierState.OFF and fail(breaker, clock) else 1
            os._exit(state)
        assert os.waitpid(child, 0)[1] == 0
        assert breaker.state is TierState.PROBING
