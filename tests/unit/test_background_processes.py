"""The background store and processes: nothing is lost at their end, and a fork finds and leaves no lock held."""

import multiprocessing
import os
import signal
import threading

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.forks import ForkLock
from graphspec.cache.store import Outcome
from graphspec.cache.tiers.background import BackgroundStore
from graphspec.cache.tiers.counting import Counters, CountingStore
from graphspec.cache.tiers.memory import MemoryStore
from support.entries import entry_of, key_of
from support.processes import run_python
from support.stores import GatedStore, put_ten_and_end

ENDS = {
    "falls off its end": "",
    "sys.exit of a signal handler": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.kill(os.getpid(), signal.SIGTERM)
""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_normal_end_of_the_process_loses_nothing(tmp_path, end):
    """Ten puts are queued and none is written before the interpreter begins to end; all are there afterwards."""
    code = f"""
import atexit, os, signal, sys
from support.stores import put_ten
late = put_ten({str(tmp_path)!r})
atexit.register(late.gate.set)
{end}
"""
    run_python(code)
    assert stored_in(tmp_path) == 10


def stored_in(root):
    return sum(entry is not None for _, entry, _ in DiskStore(str(root)).entries())


def test_puts_of_exit_hooks_are_written(tmp_path):
    """A hook that runs after the store's own finds no thread any more, and its put is there all the same."""
    run_python(f"""
        import atexit
        from graphspec.cache.tiers.background import BackgroundStore
        from graphspec.cache.folder.disk import DiskStore
        from support.entries import entry_of
        atexit.register(lambda: store.put(entry_of("late")))
        store = BackgroundStore(DiskStore({str(tmp_path)!r}))
        store.put(entry_of("early"))
    """)
    assert stored_in(tmp_path) == 2


def test_the_end_of_the_process_tells_what_is_not_written_and_does_not_hang(tmp_path):
    """Nobody asks any more, so it is a warning each; a store that is stuck is left after its patience."""
    text = run_python("""
        import logging, sys
        from graphspec.cache.tiers.background import BackgroundStore
        from support.entries import entry_of
        from support.stores import GatedStore, ToldStore
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        full, stuck = ToldStore(), GatedStore()
        stores = [BackgroundStore(full), BackgroundStore(stuck, patience_s=0.05)]
        for store in stores:
            store.put(entry_of("a"))
    """)
    assert sorted(text.splitlines()) == [
        "graphspec.cache WARNING a queued put: no room",
        "graphspec.cache WARNING not written yet: 1 queued put",
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_loses_nothing(tmp_path, method):
    """Such a child may end without exit hooks of Python, and without those of its parent; its queue is written."""
    BackgroundStore(MemoryStore()).put(entry_of("so that the parent has its hook"))
    child = multiprocessing.get_context(method).Process(
        target=put_ten_and_end, args=(str(tmp_path),)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert stored_in(tmp_path) == 10


def in_child(work):
    """The exit status of a forked child that runs `work`, and is killed by an alarm when it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def gated():
    inner = GatedStore()
    yield inner
    inner.gate.set()


def test_a_child_that_is_forked_while_a_write_runs_works_and_does_not_write_again(gated):
    """The child begins with an empty queue and a thread of its own; the parent's queue is the parent's."""
    store = BackgroundStore(gated)
    store.put(entry_of("a"))
    assert gated.began.wait(60)

    def work():
        fresh = (store.flush().waiting, store.get(key_of("a")).entry) == (0, None)
        gated.gate.set()
        put = store.put(entry_of("b")).written
        return (
            fresh
            and put
            and store.flush().written == 1
            and store.get(key_of("b")).outcome is Outcome.HIT
        )

    assert in_child(work) == 0
    assert store.get(key_of("a")).outcome is Outcome.HIT
    gated.gate.set()
    report = store.flush()
    assert (report.written, set(gated.entries)) == (1, {key_of("a").text})


def test_a_fork_waits_until_no_other_thread_is_in_the_middle():
    """What a lock guards is in one piece in the child, and the lock is free there."""
    lock, entered, leave = ForkLock(), threading.Event(), threading.Event()
    state = []

    def hold():
        with lock:
            state.append("half")
            entered.set()
            assert leave.wait(60)
            state.append("whole")

    # The hooks before a fork run from the last registered to the first: this one opens the way for the lock's.
    os.register_at_fork(before=leave.set)
    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(60)

    def work():
        free = lock.inner.acquire(blocking=False)
        return free and state == ["half", "whole"]

    assert in_child(work) == 0
    holder.join(60)
    with lock:
        assert state == ["half", "whole"]


def test_a_fork_inside_the_lock_is_a_fork_all_the_same():
    """A signal handler may fork while its own thread holds the lock: parent and child leave it as usual."""
    lock = ForkLock()
    with lock:
        assert in_child(lambda: lock.inner.acquire(blocking=False)) == 0
    assert lock.inner.acquire(blocking=False)
    lock.inner.release()


def test_no_child_hangs_however_often_one_is_forked_among_busy_threads():
    """Threads put and get without a pause while children are forked that use the same stores."""
    memory, counters = MemoryStore(), Counters()
    store = BackgroundStore(CountingStore(memory, counters))
    stop = threading.Event()

    def busy(name):
        while not stop.is_set():
            store.put(entry_of(name))
            store.get(key_of(name))
            memory.set_aside(key_of(name), "to put it anew")

    def work():
        put = store.put(entry_of("child")).written
        return put and store.flush().waiting == 0 and counters.snapshot().puts > 0

    threads = [threading.Thread(target=busy, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    try:
        assert {in_child(work) for _ in range(20)} == {0}
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
