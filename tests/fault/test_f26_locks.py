"""F26: locks whose holder is killed or stuck, whose files are deleted, that always or never succeed, that raise, that are forked.

A lock only spares work: in each case the right library comes out, after a bounded time.
"""

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import signal
import threading
import time
from concurrent.futures import Future

import attrs
import filelock
import pytest

from graphspec.cache import load
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.store import Outcome
from graphspec.errors import NondeterministicError
from support import fake_compiler, toy
from support.entries import entry_of, key_of
from support.races import Troupe

BOUND = 20.0
"""Seconds that these tests let a process wait for a lock, of a clock that runs when it is looked at."""
POLL = load._LOCK_POLL_S


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture(scope="module")
def send():
    """Starts other processes."""
    with Troupe() as troupe:
        yield troupe.send


class Clock:
    """Time for the module that waits: to sleep only moves it on. The wall clock is another matter."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self):
        self.now = 1000.0
        self.slept = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(load, "time", made)
    return made


class Compiler:
    """Library bytes by unit name; counts what it compiled."""

    def __init__(self):
        self.compiled = []
        self.first = lambda unit: None

    def __call__(self, unit):
        self.first(unit)
        self.compiled.append(unit.name)
        return b"library of " + unit.name.encode()


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    fake_compiler.install(made, monkeypatch.setattr)
    return made


@pytest.fixture
def units(tiny_spec):
    """Five units."""
    scale, _ = toy.program(tiny_spec).units()
    # Of one build function they would be equal, and one compile would serve them all.
    builds = [functools.partial(toy.build_scale) for _ in range(5)]
    return [attrs.evolve(scale, name=f"unit {n}", build=b) for n, b in enumerate(builds)]


@pytest.fixture
def warm(root, tiny_spec, compiler):
    """Loads or compiles units, checks that each library is right, and gives outcome and compiled by unit."""

    def run(units, locks=None, bound=BOUND):
        store, locks = DiskStore(root), locks or KeyLocks(root)
        artifacts, results = load_or_compile(
            units, tiny_spec, store, locks, lock_wait_seconds=bound
        )
        assert artifacts == {u.name: b"library of " + u.name.encode() for u in units}
        for keyed in keyed_units(units, tiny_spec):
            found = store.get(keyed.key)
            assert bytes(found.entry.payload) == artifacts[keyed.unit.name]
        assert os.listdir(os.path.join(root, "tmp")) == []
        return [(r.outcome, r.compiled) for r in results]

    return run


class Watched:
    """The locks of a folder; `refused` is called in each block whose lock another holds."""

    def __init__(self, root, refused):
        self._locks = KeyLocks(root)
        self._refused = refused

    @contextlib.contextmanager
    def try_lock(self, key):
        with self._locks.try_lock(key) as free:
            if not free:
                self._refused(key)
            yield free


def lock_of(send, root, unit, spec):
    """A process that holds the lock of a unit's key."""
    (keyed,) = keyed_units([unit], spec)
    return send(root, "lock", digest=keyed.key.digest)


def test_F26_a_holder_that_is_killed_delays_nobody(root, units, tiny_spec, warm, clock, send):
    """It dies while others wait: they take the lock at their next look, and compile."""
    with lock_of(send, root, units[0], tiny_spec).arrive() as holder:
        locks = Watched(root, lambda key: holder.kill())
        assert warm(units[:1], locks) == [(Outcome.MISS, True)]
    assert clock.slept == pytest.approx(POLL)


def test_F26_a_holder_that_is_stuck_delays_all_units_together_by_the_bound(
    root, units, tiny_spec, warm, clock, send
):
    """A stopped process holds every lock: the wait for five of them is one wait, and then they are compiled."""
    with contextlib.ExitStack() as stack:
        for unit in units:
            holder = stack.enter_context(lock_of(send, root, unit, tiny_spec))
            os.kill(holder.arrive().pid, signal.SIGSTOP)
        assert warm(units) == [(Outcome.LOCKED_OUT, True)] * 5
        assert BOUND - 5 * POLL <= clock.slept <= BOUND + 5 * POLL


def test_F26_a_stuck_holder_in_real_time(root, units, tiny_spec, warm, compiler, send):
    """With a bound of half a second the other process compiles after half a second; the holder goes on unharmed."""
    with lock_of(send, root, units[0], tiny_spec).arrive() as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert warm(units[:1], bound=0.5) == [(Outcome.LOCKED_OUT, True)]
        assert time.monotonic() - began >= 0.5
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.result() == {"free": True}
    assert compiler.compiled == ["unit 0"]


def test_F26_what_the_holder_stores_is_loaded_and_not_compiled(
    root, units, tiny_spec, warm, clock, compiler, send
):
    """The holder ends well just before the bound: others get what it has stored."""
    (keyed,) = keyed_units(units[:1], tiny_spec)
    metadata = {"unit": "unit 0", "compile_seconds": 1.0}
    entry = attrs.evolve(entry_of("a", b"library of unit 0"), key=keyed.key, metadata=metadata)
    with lock_of(send, root, units[0], tiny_spec).arrive() as holder:

        def refused(key):
            if clock.slept > BOUND - 5 * POLL:
                DiskStore(root).put(entry)

        assert warm(units[:1], Watched(root, refused)) == [(Outcome.HIT, False)]
        assert holder.result() == {"free": True}
    assert compiler.compiled == []


def test_F26_time_spent_on_other_units_is_no_time_waited(
    root, units, tiny_spec, warm, clock, compiler, send
):
    """After a long compile, a lock that is found held for the first time has been held for no time."""
    held = []

    def first(unit):
        if unit.name == "unit 0":
            clock.now += 2 * BOUND

    compiler.first = first
    (keyed,) = keyed_units(units[1:2], tiny_spec)
    metadata = {"unit": "unit 1", "compile_seconds": 1.0}
    entry = attrs.evolve(entry_of("a", b"library of unit 1"), key=keyed.key, metadata=metadata)
    with lock_of(send, root, units[1], tiny_spec).arrive():

        def refused(key):
            held.append(key)
            if len(held) == 3:
                DiskStore(root).put(entry)

        outcomes = warm(units[:2], Watched(root, refused))
    assert outcomes == [(Outcome.MISS, True), (Outcome.HIT, False)]
    assert len(held) == 3


@pytest.mark.parametrize("deleted", ["lock file", "locks", "cache"])
def test_F26_a_lock_file_that_is_deleted_under_its_holder_costs_a_second_compile(
    root, units, tiny_spec, warm, clock, send, deleted
):
    """The next process makes a new file and locks that: both compile, and the library is right."""
    with lock_of(send, root, units[0], tiny_spec).arrive() as holder:
        locks = os.path.join(root, "locks")
        if deleted == "lock file":
            (name,) = os.listdir(locks)
            os.unlink(os.path.join(locks, name))
        else:
            shutil.rmtree(locks if deleted == "locks" else root)
        assert warm(units[:1]) == [(Outcome.MISS, True)]
        assert holder.result() == {"free": True}
        assert warm(units[:1]) == [(Outcome.HIT, False)]
    assert clock.slept == 0


class Fixed:
    """Locks that always say the same, whoever holds them."""

    def __init__(self, free, asked=lambda: None):
        self._free = free
        self._asked = asked

    @contextlib.contextmanager
    def try_lock(self, key):
        self._asked()
        yield self._free


def both(run):
    """What two threads get that run the same at once."""
    got, errors = [], []

    def one():
        try:
            got.append(run())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return got, errors


def test_F26_locks_that_always_succeed_cost_a_second_compile(units, warm, compiler):
    """Two starts compile the same unit at the same time: one entry, equal libraries, no failure."""
    together = threading.Barrier(2, timeout=60)
    compiler.first = lambda unit: together.wait()
    got, errors = both(lambda: warm(units[:1], Fixed(True)))
    assert errors == []
    assert got == [[(Outcome.MISS, True)]] * 2
    assert compiler.compiled == ["unit 0"] * 2


def test_F26_locks_that_always_succeed_let_no_difference_pass_unseen(
    root, units, tiny_spec, monkeypatch
):
    """Two compiles at the same time with unlike bytes: each start uses its own, the second one is told."""
    together, compiled = threading.Barrier(2, timeout=60), []

    def compile(unit):
        together.wait()
        compiled.append(unit.name)
        return b"library %d" % len(compiled)

    fake_compiler.install(compile, monkeypatch.setattr)

    def run(strict=False):
        arguments = (units[:1], tiny_spec, DiskStore(root), Fixed(True))
        artifacts, results = load_or_compile(*arguments, strict=strict)
        return artifacts["unit 0"], results[0].differs

    got, errors = both(run)
    assert errors == []
    assert sorted(library for library, _ in got) == [b"library 1", b"library 2"]
    assert sorted(differs for _, differs in got) == [False, True]
    (stored,) = [library for library, differs in got if not differs]
    (keyed,) = keyed_units(units[:1], tiny_spec)
    assert bytes(DiskStore(root).get(keyed.key).entry.payload) == stored
    shutil.rmtree(root)
    got, errors = both(lambda: run(strict=True))
    assert len(got) == 1
    assert isinstance(errors[0], NondeterministicError)


def test_F26_locks_that_always_fail_delay_by_the_bound(units, warm, clock):
    """Nobody ever gets a lock: all is compiled after one wait."""
    assert warm(units, Fixed(False)) == [(Outcome.LOCKED_OUT, True)] * 5
    assert BOUND - 5 * POLL <= clock.slept <= BOUND + 5 * POLL


def test_F26_a_wait_has_a_bound_that_nobody_has_to_set(root, units, tiny_spec, compiler, clock):
    """Without a word of the caller's it is fifteen minutes: longer than one unit compiles, shorter than a night."""
    load_or_compile(units[:1], tiny_spec, DiskStore(root), Fixed(False))
    assert 900 - POLL <= clock.slept <= 900 + POLL


def test_F26_who_waits_for_a_lock_can_be_interrupted(units, warm, compiler, monkeypatch):
    """Ctrl-C ends the wait at the next look, and nothing is compiled after it."""
    asked = threading.Event()

    def interrupted(lane):
        assert asked.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        warm(units, Fixed(False, asked.set), bound=600.0)
    assert compiler.compiled == []


ERRORS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO, errno.EBADF,
          errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EPERM]  # fmt: skip


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_F26_a_file_system_without_locks_is_no_obstacle(
    root, units, warm, monkeypatch, clock, number
):
    """Where flock fails, both processes compile at once, without a warning, and no lock of another kind is left behind."""

    def fail(descriptor, operation):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fail)
        assert warm(units[:1]) == [(Outcome.MISS, True)]
    locks = os.path.join(root, "locks")
    assert [os.path.getsize(os.path.join(locks, name)) for name in os.listdir(locks)] == [0]
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free
    assert clock.slept == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.EBADF], ids=errno.errorcode.get)
def test_F26_a_lock_that_cannot_be_given_back_does_not_undo_the_work(
    root, units, warm, monkeypatch, number
):
    """The unlock fails once: the compile counts, and the next process gets the lock."""
    real, failed = fcntl.flock, []

    def fail(descriptor, operation):
        if operation == fcntl.LOCK_UN and not failed:
            failed.append(number)
            raise OSError(number, os.strerror(number))
        real(descriptor, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fail)
        assert warm(units[:1]) == [(Outcome.MISS, True)]
    assert failed
    (name,) = os.listdir(os.path.join(root, "locks"))
    with filelock.FileLock(os.path.join(root, "locks", name), timeout=0):
        pass


@pytest.mark.parametrize("call", ["acquire", "release"])
@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, OSError, ValueError])
def test_F26_an_error_of_the_lock_library_itself_is_no_obstacle(
    units, warm, monkeypatch, call, error
):
    """Whatever it raises, before the work or after it, the work is done."""

    def fail(self, *arguments, **named):
        raise error("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(filelock.FileLock, call, fail)
        assert warm(units[:1]) == [(Outcome.MISS, True)]
    assert warm(units[:1]) == [(Outcome.HIT, False)]


YEARS = 10 * 365 * 86_400.0


@pytest.mark.parametrize("jump", [-YEARS, YEARS], ids=["back", "forward"])
def test_F26_a_clock_that_is_set_does_not_change_a_wait(
    root, units, tiny_spec, warm, clock, monkeypatch, send, jump
):
    """The wall clock jumps by ten years while a process waits: it waits for as long as before, and gets it right."""
    real = time.time
    with lock_of(send, root, units[0], tiny_spec).arrive(), monkeypatch.context() as patched:

        def refused(key):
            patched.setattr(time, "time", lambda: real() + jump)

        assert warm(units[:1], Watched(root, refused)) == [(Outcome.LOCKED_OUT, True)]
    assert BOUND - POLL <= clock.slept <= BOUND + POLL


@pytest.mark.parametrize("jump", [-YEARS, YEARS], ids=["back", "forward"])
def test_F26_entries_from_another_time_are_entries(root, monkeypatch, jump):
    """Last used ten years ago or in ten years: served as ever, and put, get and locks work under either clock."""
    store = DiskStore(root)
    store.put(entry_of("a"))
    real = time.time
    os.utime(store.path_of(key_of("a")), (real() - jump, real() - jump))
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert DiskStore(root).put(entry_of("b")).written
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free
    monkeypatch.undo()
    assert all(store.get(key_of(name)).outcome is Outcome.HIT for name in "ab")
