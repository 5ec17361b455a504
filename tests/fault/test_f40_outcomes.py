"""F40: after any session the counts add up: to what was asked, across levels, and to the events that were logged."""

import contextlib
import logging
import random
import shutil
import tempfile
import threading
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.cache.abilities import look
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Lookup, Outcome, Stored, set_aside
from graphspec.cache.tiers.background import BackgroundStore
from graphspec.cache.tiers.counting import Counters, CountingStore, PutResult, put_result
from graphspec.cache.tiers.layers import LayeredStore
from graphspec.cache.tiers.memory import MemoryStore
from graphspec.cache.tiers.verifying import VerifyingStore
from support.entries import METADATA, entry_of, key_of
from support.stores import FAST

TROUBLE = ["error", "corrupt", "stale", "locked_out", "bypass", "disabled", "another key", "raise"]


class Troubled:
    """Forwards to a store, unless `trouble` says what goes wrong in the next call."""

    def __init__(self, inner):
        self.inner = inner
        self.trouble = ""

    def get(self, key):
        trouble, self.trouble = self.trouble, ""
        if not trouble:
            return self.inner.get(key)
        if trouble == "raise":
            raise ZeroDivisionError
        if trouble == "another key":
            return Lookup(outcome=Outcome.HIT, entry=entry_of("another"))
        return Lookup(outcome=Outcome(trouble), reason="told to")

    def put(self, entry):
        trouble, self.trouble = self.trouble, ""
        if not trouble:
            return self.inner.put(entry)
        if trouble == "raise":
            raise ZeroDivisionError
        return Stored(written=False, reason="told to")

    def set_aside(self, key, reason):
        set_aside(self.inner, key, reason)


class Events(logging.Handler):
    """Counts the events of one kind that are logged inside the block."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.counts = Counter()

    def emit(self, record):
        self.counts[record.event, getattr(record, "outcome", getattr(record, "result", None))] += 1

    def __enter__(self):
        self.logger = logging.getLogger("graphspec.cache")
        self.level = self.logger.level
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(self)
        return self

    def __exit__(self, *error):
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level)


CALLS = st.tuples(
    st.sampled_from(["get", "look", "put", "set_aside"]),
    st.sampled_from("abc"),
    st.sampled_from([b"", b"one", b"twotwo"]),
    st.sampled_from(["", "", *TROUBLE]),
    st.sampled_from([0, 1]),
)


def ended(counts):
    """How many lookups and puts have ended."""
    return sum(counts.outcomes.values()), sum(counts.results.values())


@given(session=st.lists(CALLS, max_size=40))
@example(session=[("put", "a", b"one", "", 0), ("get", "a", b"", "raise", 0)])
@example(session=[("put", "a", b"one", "raise", 1), ("get", "a", b"", "another key", 0)])
def test_after_any_session_the_counts_add_up(session):
    """Each call that was made is in one outcome or one result, of the whole and of each level, and is one event."""
    troubled = [Troubled(MemoryStore()), Troubled(MemoryStore())]
    levels = [CountingStore(VerifyingStore(each), Counters()) for each in troubled]
    whole = CountingStore(LayeredStore(levels, listener=lambda problem: None), Counters())
    lookups, puts, read, below = Counter(), Counter(), 0, 0
    with Events() as events:
        for call, name, payload, trouble, number in session:
            troubled[number].trouble = trouble
            hits_above = levels[0].counters.snapshot().outcomes[Outcome.HIT]
            found, stored = None, None
            with contextlib.suppress(ZeroDivisionError):
                if call == "put":
                    stored = whole.put(entry_of(name, payload))
                elif call == "set_aside":
                    whole.set_aside(key_of(name), "no use")
                else:
                    ask = whole.get if call == "get" else whole.look
                    found = ask(key_of(name))
            if call == "put":
                puts[PutResult.FAILED if stored is None else put_result(stored)] += 1
            elif call != "set_aside":
                lookups[Outcome.ERROR if found is None else found.outcome] += 1
                read += len(found.entry.payload) if found is not None and found.entry else 0
                first = levels[0].counters.snapshot()
                raised_above = found is None and trouble == "raise" and number == 0
                below += first.outcomes[Outcome.HIT] == hits_above and not raised_above
    counts, first, second = (store.counters.snapshot() for store in (whole, *levels))
    for each in (counts, first, second):
        assert each.problem() == ""
        assert (each.lookups, each.puts) == ended(each)
        assert each.saved_seconds == METADATA["compile_seconds"] * each.outcomes[Outcome.HIT]
    assert +Counter(counts.outcomes) == lookups
    assert +Counter(counts.results) == puts
    assert counts.read_bytes == read
    assert first.lookups == counts.lookups
    assert second.lookups == below
    logged = Counter()
    for each in (counts, first, second):
        logged.update({("cache_lookup", o.value): n for o, n in each.outcomes.items() if n})
        logged.update({("cache_put", r.value): n for r, n in each.results.items() if n})
    assert events.counts == logged


def test_after_a_session_of_many_threads_the_counts_add_up(tmp_path):
    """Threads that get, put, look and set aside in one stack over a disk: every call of each is counted."""
    near, far = Counters(), Counters()
    disk = CountingStore(VerifyingStore(DiskStore(str(tmp_path))), far)
    store = CountingStore(BackgroundStore(LayeredStore([MemoryStore(max_bytes=900), disk])), near)
    made = [Counter() for _ in range(4)]
    start = threading.Barrier(len(made))

    def work(mine, seed):
        chosen = random.Random(seed)
        start.wait(60)
        for _ in range(100):
            name = chosen.choice("abcdef")
            call = chosen.choice(["get", "get", "look", "put", "set_aside"])
            if call == "put":
                mine[put_result(store.put(entry_of(name, name.encode() * 20)))] += 1
            elif call == "set_aside":
                store.set_aside(key_of(name), "no use")
            else:
                found = store.get(key_of(name)) if call == "get" else look(store, key_of(name))
                if found.entry is not None:
                    assert found.entry.payload == name.encode() * 20
                mine[found.outcome] += 1

    threads = [threading.Thread(target=work, args=(mine, seed)) for seed, mine in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    store._inner.close()
    total = sum(made, Counter())
    counts, behind = near.snapshot(), far.snapshot()
    assert (counts.problem(), behind.problem()) == ("", "")
    assert (counts.running_lookups, counts.running_puts) == (0, 0)
    assert +Counter(counts.outcomes) + +Counter(counts.results) == total
    assert (behind.lookups, behind.puts) == ended(behind)
    assert behind.results[PutResult.DIFFERS] == 0


@given(seed=st.integers(0, 10**6))
def test_damage_in_the_middle_of_a_session_is_counted_as_corrupt(seed):
    """Each damaged file that a get meets is one corrupt lookup, no more and no fewer."""
    chosen = random.Random(seed)
    folder = tempfile.mkdtemp(dir=FAST)
    try:
        disk = DiskStore(folder)
        store = CountingStore(disk, Counters())
        damaged, met = set(), 0
        for _ in range(12):
            name = chosen.choice("ab")
            if store.put(entry_of(name)).written:
                damaged.discard(name)
                if chosen.random() < 0.5:
                    with open(disk.path_of(key_of(name)), "r+b") as file:
                        file.truncate(chosen.randrange(200))
                    damaged.add(name)
            if chosen.random() < 0.5:
                store.get(key_of(name))
                met += name in damaged
                damaged.discard(name)
        counts = store.counters.snapshot()
        assert counts.problem() == ""
        assert counts.outcomes[Outcome.CORRUPT] == met
    finally:
        shutil.rmtree(folder)
