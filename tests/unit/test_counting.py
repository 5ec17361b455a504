"""The counting store: each lookup and each put is counted once and logged once, whatever happens."""

import logging
import threading

import attrs
import pytest

from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers.counting import (
    Counters,
    CountingStore,
    PutResult,
    compile_seconds,
    put_result,
)
from graphspec.cache.tiers.memory import MemoryStore
from graphspec.cache.units import EntryKey
from support.entries import METADATA, entry_of, key_of
from support.stores import GatedStore, PlainStore, ToldStore

HIT = Lookup(outcome=Outcome.HIT, entry=entry_of("a", b"12345"))
STORED = {
    PutResult.WRITTEN: Stored(written=True),
    PutResult.PRESENT: Stored(written=False),
    PutResult.DIFFERS: Stored(written=False, differs=True),
    PutResult.FAILED: Stored(written=False, reason="no room"),
}


def counting(inner):
    """A counting store around `inner`, with counters of its own."""
    return CountingStore(inner, Counters())


def nonzero(counts):
    """The counts that are not zero, by name."""
    return {each.value: count for each, count in counts.items() if count}


def lookup(outcome):
    return HIT if outcome is Outcome.HIT else Lookup(outcome=outcome, reason="because")


@pytest.mark.parametrize("outcome", Outcome)
def test_each_lookup_is_counted_by_its_outcome(outcome):
    """One lookup, one outcome, for get and look alike; the result is the inner store's own."""
    store = counting(ToldStore(lookup(outcome)))
    assert store.get(key_of("a")) == lookup(outcome)
    assert store.look(key_of("a")) == lookup(outcome)
    counts = store.counters.snapshot()
    assert nonzero(counts.outcomes) == {outcome.value: 2}
    assert (counts.lookups, counts.running_lookups, counts.puts) == (2, 0, 0)
    assert counts.problem() == ""


@pytest.mark.parametrize("result", PutResult)
def test_each_put_is_counted_by_its_result(result):
    """One put, one result; the result is the inner store's own."""
    store = counting(ToldStore(stored=STORED[result]))
    assert store.put(entry_of("a")) == STORED[result]
    counts = store.counters.snapshot()
    assert nonzero(counts.results) == {result.value: 1}
    assert (counts.puts, counts.running_puts, counts.lookups) == (1, 0, 0)
    assert counts.problem() == ""


def test_a_put_has_one_name():
    """Failed comes before differs, and differs before written: the news is what is counted."""
    assert put_result(Stored(written=False, reason="x", differs=True)) is PutResult.FAILED
    assert put_result(Stored(written=True, differs=True)) is PutResult.DIFFERS
    assert put_result(Stored(written=True, reason="level 2: x")) is PutResult.WRITTEN


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_is_counted_and_goes_on(error):
    """A store that raises, or a user who interrupts it, leaves no lookup and no put without an end."""
    store = counting(ToldStore(error(), error()))
    with pytest.raises(error):
        store.get(key_of("a"))
    with pytest.raises(error):
        store.put(entry_of("a"))
    counts = store.counters.snapshot()
    assert nonzero(counts.outcomes) == {"error": 1}
    assert nonzero(counts.results) == {"failed": 1}
    assert counts.problem() == ""


def test_bytes_and_seconds_are_those_of_hits_and_written_puts():
    """Read bytes and saved seconds come with hits, written bytes with puts that wrote, and each call takes time."""
    store = counting(MemoryStore())
    store.get(key_of("a"))
    store.put(entry_of("a", b"12345"))
    store.put(entry_of("a", b"12345"))
    for _ in range(2):
        store.get(key_of("a"))
    counts = store.counters.snapshot()
    assert (counts.read_bytes, counts.written_bytes) == (10, 5)
    assert counts.saved_seconds == 2 * METADATA["compile_seconds"]
    assert counts.lookup_seconds > 0.0
    assert counts.put_seconds > 0.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (2, 2.0),
        (2.5, 2.5),
        (0, 0.0),
        (-1.0, 0.0),
        (float("nan"), 0.0),
        (float("inf"), 0.0),
        (10**400, 0.0),
        (True, 0.0),
        ("2", 0.0),
        (None, 0.0),
    ],
    ids=str,
)
def test_seconds_that_make_no_sense_count_as_none(said, seconds):
    """Metadata may say anything: the sum of seconds saved stays a number, and a hit stays a hit."""
    entry = attrs.evolve(entry_of("a"), metadata={"compile_seconds": said})
    assert compile_seconds(entry) == seconds
    assert compile_seconds(attrs.evolve(entry, metadata={})) == 0.0


def test_a_snapshot_is_a_moment_and_stays_as_it_was():
    """A lookup and a put that have begun are running; a snapshot does not change afterwards, and cannot be changed."""
    inner = GatedStore()
    store = counting(inner)
    thread = threading.Thread(target=store.put, args=(entry_of("a"),))
    thread.start()
    assert inner.began.wait(60)
    during = store.counters.snapshot()
    inner.gate.set()
    thread.join(60)
    assert (during.puts, during.running_puts, sum(during.results.values())) == (1, 1, 0)
    assert during.problem() == ""
    store.get(key_of("a"))
    assert (during.lookups, sum(during.outcomes.values())) == (0, 0)
    assert store.counters.snapshot().running_puts == 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        during.puts = 2
    with pytest.raises(TypeError):
        during.results[PutResult.WRITTEN] = 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lookups": 4}, "4 lookups began, 0 are running, and 3 have ended"),
        ({"running_lookups": 1}, "3 lookups began, 1 are running, and 3 have ended"),
        ({"outcomes": {Outcome.HIT: 2}}, "3 lookups began, 0 are running, and 2 have ended"),
        ({"puts": 0}, "0 puts began, 0 are running, and 1 have ended"),
        ({"results": {PutResult.FAILED: 2}}, "1 puts began, 0 are running, and 2 have ended"),
        ({"lookups": 2, "running_lookups": -1}, "a count of lookups is negative"),
        (
            {"results": {PutResult.FAILED: 2, PutResult.PRESENT: -1}},
            "a count of puts is negative",
        ),
    ],
    ids=str,
)
def test_counts_that_do_not_add_up_are_told(change, told):
    """What began is what runs and what ended; a sentence says where that does not hold."""
    store = counting(PlainStore())
    store.put(entry_of("a"))
    for name in "aab":
        store.get(key_of(name))
    counts = store.counters.snapshot()
    assert counts.problem() == ""
    assert attrs.evolve(counts, **change).problem() == told


def test_threads_lose_no_count():
    """Eight threads count into the same counters, while snapshots are taken that all add up."""
    counters = Counters()
    store = CountingStore(MemoryStore(), counters)
    start = threading.Barrier(9)

    def work(number):
        start.wait(60)
        for each in range(200):
            store.put(entry_of(f"{number}-{each % 10}"))
            store.get(key_of(f"{number}-{each % 20}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    start.wait(60)
    while any(thread.is_alive() for thread in threads):
        assert counters.snapshot().problem() == ""
    counts = counters.snapshot()
    assert nonzero(counts.outcomes) == {"hit": 800, "miss": 800}
    assert nonzero(counts.results) == {"written": 80, "present": 1520}


ALARMING = {"corrupt", "error"}


@pytest.mark.parametrize("outcome", Outcome)
def test_each_lookup_is_one_log_event(caplog, outcome):
    """Its attributes say what happened; it is a warning for corrupt and error, else debug."""
    caplog.set_level(logging.DEBUG, logger="graphspec.cache")
    counting(ToldStore(lookup(outcome))).get(key_of("a"))
    (record,) = caplog.records
    level = logging.WARNING if outcome.value in ALARMING else logging.DEBUG
    assert (record.name, record.levelno, record.event) == ("graphspec.cache", level, "cache_lookup")
    assert (record.outcome, record.key, record.unit) == (outcome.value, key_of("a").digest, "a")
    hit = outcome is Outcome.HIT
    assert (record.reason, record.payload_bytes) == ("" if hit else "because", 5 if hit else 0)
    assert record.seconds > 0.0
    told = f"lookup of a: {outcome.value}"
    assert record.getMessage() == (told if hit else f"{told}: because")


@pytest.mark.parametrize("result", PutResult)
def test_each_put_is_one_log_event(caplog, result):
    """Its attributes say what happened; it is a warning for differs and failed, else debug."""
    caplog.set_level(logging.DEBUG, logger="graphspec.cache")
    counting(ToldStore(stored=STORED[result])).put(entry_of("a", b"12345"))
    (record,) = caplog.records
    level = logging.WARNING if result.value in ("differs", "failed") else logging.DEBUG
    assert (record.name, record.levelno, record.event) == ("graphspec.cache", level, "cache_put")
    assert (record.result, record.key, record.unit) == (result.value, key_of("a").digest, "a")
    assert (record.reason, record.payload_bytes) == (STORED[result].reason, 5)
    assert record.getMessage().startswith(f"put of a: {result.value}")


def test_the_text_of_a_key_is_never_logged(caplog):
    """A key's text has every field of a config, and logs are read by more people than configs."""
    caplog.set_level(logging.DEBUG, logger="graphspec.cache")
    store = counting(MemoryStore())
    store.put(entry_of("a"))
    store.get(key_of("a"))
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert key_of("a").text.decode() not in repr(vars(record))
        assert not any(isinstance(value, bytes) for value in vars(record).values())


@pytest.mark.parametrize("text", [b"no encoding", b"l0:", b"d12:s4:uniti3:123", b"d9:s1:xs1:y"])
def test_a_key_without_a_unit_is_logged_all_the_same(caplog, text):
    """What is in a key is its maker's business: the event says that the unit is unknown."""
    caplog.set_level(logging.DEBUG, logger="graphspec.cache")
    counting(MemoryStore()).get(EntryKey(text, "0" * 32))
    (record,) = caplog.records
    assert record.unit == "unknown"


def test_an_event_that_nobody_logs_costs_no_reading_of_the_key(monkeypatch):
    """Keys have thousands of bytes; the unit's name is read from them for an event that is wanted."""
    monkeypatch.setattr("graphspec.cache.tiers.counting.decode", None)
    logging.getLogger("graphspec.cache").setLevel(logging.INFO)
    try:
        assert counting(ToldStore(HIT)).get(key_of("a")) == HIT
    finally:
        logging.getLogger("graphspec.cache").setLevel(logging.NOTSET)


def test_no_handler_is_installed():
    """Where events go is the application's choice."""
    assert logging.getLogger("graphspec.cache").handlers == []
    assert logging.getLogger("graphspec").handlers == []
