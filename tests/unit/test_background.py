"""The background store: puts are queued and visible, written in order by one thread, and none is lost without a word."""

import contextlib
import threading

import attrs
import pytest

from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers import background
from graphspec.cache.tiers.background import BackgroundStore, LatePut
from graphspec.cache.tiers.counting import Counters, CountingStore, PutResult
from graphspec.cache.tiers.layers import ReadOnlyStore
from graphspec.cache.tiers.memory import hold
from support.entries import entry_of, key_of
from support.stores import GatedStore, PlainStore, SetAsideStore, ToldStore


def payload(store, name="a"):
    """The payload that a get finds, or None."""
    entry = store.get(key_of(name)).entry
    return None if entry is None else bytes(entry.payload)


@pytest.fixture
def gated():
    inner = GatedStore()
    yield inner
    inner.gate.set()


def writers():
    return [t for t in threading.enumerate() if t.name == "graphspec-cache"]


def test_a_put_returns_before_it_is_written_and_a_get_sees_it(gated):
    """While the write is stuck, put and get and look work from the queue."""
    store = BackgroundStore(gated)
    assert store.put(entry_of("a")) == Stored(written=True)
    assert gated.began.wait(60)
    assert gated.entries == {}
    assert store.get(key_of("a")) == Lookup(outcome=Outcome.HIT, entry=entry_of("a"))
    assert store.look(key_of("a")).entry == entry_of("a")
    assert store.get(key_of("b")).outcome is Outcome.MISS
    gated.gate.set()
    report = store.flush()
    assert (report.written, report.present, report.waiting) == (1, 0, 0)
    assert report.problems == ()
    assert set(gated.entries) == {key_of("a").text}


def test_puts_are_written_in_order_by_one_thread_that_ends(gated):
    """There is one thread while something is queued and none afterwards, so a store needs no close to be forgotten."""
    store = BackgroundStore(gated)
    for name in "abcde":
        store.put(entry_of(name, name.encode()))
    assert len(writers()) == 1
    assert writers()[0].daemon
    (thread,) = writers()
    gated.gate.set()
    assert store.flush().written == 5
    thread.join(60)
    assert writers() == []
    assert [data for what, data in gated.asked if what == "put"] == [b"a", b"b", b"c", b"d", b"e"]


def test_the_first_writer_wins_while_it_is_queued(gated):
    """A second put of the same key is there already, and differs when its bytes do; a third party's entry is found first."""
    store = BackgroundStore(gated)
    store.put(entry_of("a", b"first"))
    assert store.put(entry_of("a", b"first")) == Stored(written=False)
    assert store.put(entry_of("a", b"other")) == Stored(written=False, differs=True)
    assert payload(store) == b"first"
    gated.entries[key_of("a").text] = entry_of("a", b"of another process")
    assert payload(store) == b"of another process"


def test_what_became_of_queued_puts_is_told_once():
    """Written, present, differing and failed puts since the last report."""
    inner = PlainStore()
    inner.put(entry_of("there", b"x"))
    inner.put(entry_of("other", b"x"))
    store = BackgroundStore(inner)
    for name in ("new", "there", "other"):
        store.put(entry_of(name, b"y" if name == "other" else b"x"))
    report = store.flush()
    assert (report.written, report.present) == (1, 1)
    (late,) = report.problems
    assert late == LatePut(key=key_of("other"), stored=Stored(written=False, differs=True))
    assert "stayed" in late.reason
    again = store.flush()
    assert (again.written, again.present, again.problems) == (0, 0, ())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Stored(written=False, reason="no room"), "no room"),
        (Stored(written=True, reason="level 2: no room"), "level 2: no room"),
        (ValueError("broken"), "ValueError: broken"),
    ],
    ids=["fails", "fails in part", "raises"],
)
def test_what_could_not_be_written_is_told_at_flush(answer, reason):
    """A failed put, one with a reason, and a store that raises: each is a problem with its key, and the next put is tried."""
    store = BackgroundStore(ToldStore(stored=answer))
    for name in "ab":
        assert store.put(entry_of(name)).written
    report = store.flush()
    assert [(p.key, p.reason) for p in report.problems] == [(key_of(n), reason) for n in "ab"]


def test_a_full_queue_refuses_with_a_reason_and_takes_one_entry_of_any_size(gated):
    """A stuck store takes at most the bytes it may, or one entry; what is refused is not found by a get."""
    size = hold(entry_of("a")).bytes
    store = BackgroundStore(gated, max_bytes=2 * size)
    assert store.put(entry_of("a")).written
    assert store.put(entry_of("b")).written
    refused = store.put(entry_of("c"))
    assert refused.failed
    assert f"{2 * size} bytes wait" in refused.reason
    assert payload(store, "c") is None
    gated.gate.set()
    store.flush()
    gated.gate.clear()
    assert store.put(entry_of("c")).written
    assert store.put(entry_of("d")).written
    gated.gate.set()
    store.flush()
    gated.gate.clear()
    assert store.put(entry_of("e", bytes(10 * size))).written
    assert store.put(entry_of("f")).failed


def test_flush_waits_for_what_is_queued_and_not_for_what_comes_after():
    """A thread that goes on putting does not hold a flush up for ever."""
    inner = GatedStore(before=lambda: store.put(entry_of(str(len(inner.asked)))))
    store = BackgroundStore(inner)
    store.put(entry_of("a"))
    inner.gate.set()
    report = store.flush()
    assert report.written >= 1
    inner._before = lambda: None
    store.close()


def test_a_stuck_write_ends_the_wait_and_is_told(gated):
    """Flush gives up after its patience and says how many puts wait; they are written when the store goes on."""
    store = BackgroundStore(gated, patience_s=0.01)
    for name in "ab":
        store.put(entry_of(name))
    report = store.flush()
    assert (report.written, report.waiting) == (0, 2)
    gated.gate.set()
    store._patience_s = 60.0
    assert store.close().written == 2


def test_a_closed_store_refuses_puts_and_still_gets():
    """Close flushes and tells; a put afterwards fails with a reason; gets go on."""
    store = BackgroundStore(PlainStore())
    store.put(entry_of("a"))
    assert store.close().written == 1
    assert store.put(entry_of("b")).reason == "the background store is closed"
    assert payload(store) == b"library bytes"
    assert store.close().written == 0


def test_a_with_block_writes_everything_and_logs_what_it_could_not(caplog):
    """At its end all is in the inner store, also after an error; what is not is a warning each."""
    inner = PlainStore()
    with contextlib.suppress(ZeroDivisionError), BackgroundStore(inner) as store:
        store.put(entry_of("a"))
        raise ZeroDivisionError
    assert set(inner.entries) == {key_of("a").text}
    assert caplog.records == []
    with BackgroundStore(ToldStore()) as store:
        store.put(entry_of("a"))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("graphspec.cache", "WARNING")
    assert (record.event, record.key, record.reason) == (
        "cache_late_put",
        key_of("a").digest,
        "no room",
    )


def test_what_still_waits_at_the_end_of_a_with_block_is_logged(gated, caplog):
    """A store that is stuck for longer than the patience is one warning with the number of puts."""
    with BackgroundStore(gated, patience_s=0.01) as store:
        store.put(entry_of("a"))
    (record,) = caplog.records
    assert (record.event, record.puts) == ("cache_not_written", 1)


def test_the_entry_is_written_as_it_was_when_it_was_put(gated):
    """Metadata and payload that change while they wait are not what is stored."""
    store = BackgroundStore(gated)
    metadata, data = {"reads": ["x"]}, bytearray(b"bytes")
    store.put(attrs.evolve(entry_of("a"), metadata=metadata, payload=memoryview(data)))
    metadata["reads"].append("y")
    data[0] = 0
    gated.gate.set()
    store.flush()
    written = gated.entries[key_of("a").text]
    assert (written.metadata, written.payload) == ({"reads": ["x"]}, b"bytes")


def test_setting_aside_keeps_its_place_among_the_puts(gated):
    """Put, set aside, put: a get sees the last of them at once, and the inner store does them in this order."""
    gated.entries[key_of("a").text] = entry_of("a", b"bad")
    store = BackgroundStore(gated)
    store.put(entry_of("z"))
    store.set_aside(key_of("a"), "no use")
    found = store.get(key_of("a"))
    assert (found.outcome, found.reason) == (Outcome.MISS, "the entry was set aside: no use")
    assert gated.aside == []
    assert store.put(entry_of("a", b"good")) == Stored(written=True)
    assert payload(store) == b"good"
    gated.gate.set()
    assert store.flush().written == 2
    assert gated.aside == ["no use"]
    assert payload(store) == b"good"


def test_a_store_that_takes_nothing_is_asked_at_once():
    """A put that cannot succeed is refused by its result and not later."""
    store = BackgroundStore(ReadOnlyStore(PlainStore()))
    assert store.put(entry_of("a")).reason == "the store is read-only"
    assert writers() == []


def test_a_counting_store_inside_counts_what_was_really_written():
    """The place for counters of puts is behind the queue."""
    counters = Counters()
    store = BackgroundStore(CountingStore(ToldStore(), counters))
    assert store.put(entry_of("a")).written
    store.flush()
    assert counters.snapshot().results[PutResult.FAILED] == 1


def test_without_threads_the_caller_writes(monkeypatch):
    """Where the system gives no thread, a put is as slow as the store, and not lost."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    inner = SetAsideStore()
    store = BackgroundStore(inner)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert store.put(entry_of("a")).written
    assert set(inner.entries) == {key_of("a").text}
    store.set_aside(key_of("a"), "no use")
    assert inner.aside == ["no use"]
    assert store.flush().written == 1


def test_an_interrupted_write_is_told_and_the_rest_is_written(monkeypatch):
    """An interrupt of the thread that writes, here the caller's own, goes on; its put is a problem, and others follow."""
    inner = ToldStore(stored=KeyboardInterrupt())
    store = BackgroundStore(inner)
    with monkeypatch.context() as patched:
        patched.setattr(background, "_exiting", True)
        with pytest.raises(KeyboardInterrupt):
            store.put(entry_of("a"))
    inner.stored = Stored(written=True)
    assert store.put(entry_of("b")).written
    report = store.flush()
    assert report.written == 1
    assert [p.reason for p in report.problems] == ["the write was interrupted"]


def test_what_an_interrupted_writer_left_is_written_by_flush(monkeypatch):
    """Puts behind an interrupted one are not stranded until the next put."""
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    errors = [None, SystemExit()]
    inner = GatedStore(before=lambda: raise_if(errors.pop()))
    store = BackgroundStore(inner)
    for name in "ab":
        store.put(entry_of(name))
    (thread,) = writers()
    inner.gate.set()
    report = store.flush()
    assert (report.written, len(report.problems), report.waiting) == (1, 1, 0)
    thread.join(60)


def raise_if(error):
    if error is not None:
        raise error
