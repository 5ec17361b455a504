"""F28: every store, alone and in stacks, does what a dictionary does, through restarts, crashes, damage and eviction."""

import shutil
import tempfile
import threading
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from graphspec.cache.abilities import look
from graphspec.cache.entry import pack
from graphspec.cache.store import Stored, set_aside
from graphspec.cache.tiers.background import BackgroundStore
from graphspec.cache.tiers.counting import Counters, CountingStore, put_result
from graphspec.cache.tiers.layers import LayeredStore, ReadOnlyStore
from graphspec.cache.tiers.memory import MemoryStore
from graphspec.cache.tiers.verifying import VerifyingStore
from support.entries import METADATA, entry_of, key_of
from support.store_model import BAD, Model, Place
from support.stores import FAST

NAMES = st.sampled_from("abc")
PAYLOADS = st.sampled_from([b"", b"one", b"two", bytes(3000)])


class Paused:
    """Forwards to a store; what changes it waits while `gate` is closed, and is lost once the process is `dead`."""

    def __init__(self, inner):
        self.inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.dead = False

    def get(self, key):
        return self.inner.get(key)

    def look(self, key):
        return look(self.inner, key)

    def put(self, entry):
        assert self.gate.wait(60)
        return Stored(written=False, reason="killed") if self.dead else self.inner.put(entry)

    def set_aside(self, key, reason):
        assert self.gate.wait(60)
        if not self.dead:
            set_aside(self.inner, key, reason)


def quiet(levels):
    return LayeredStore(levels, listener=lambda problem: None)


def everything(disks):
    """Memory over a verified and counted disk over a read-only one, verified as a whole: what a process may use."""
    near = CountingStore(VerifyingStore(disks[0]), Counters())
    return VerifyingStore(quiet([MemoryStore(), near, ReadOnlyStore(disks[1])]))


STACKS = {
    "memory": ("m", lambda disks: MemoryStore()),
    "disk": ("d", lambda disks: disks[0]),
    "read-only": ("r", lambda disks: ReadOnlyStore(disks[0])),
    "verifying": ("d", lambda disks: VerifyingStore(disks[0])),
    "memory over disk": ("md", lambda disks: quiet([MemoryStore(), disks[0]])),
    "disk over disk": ("dd", quiet),
    "disk over read-only": ("dr", lambda disks: quiet([disks[0], ReadOnlyStore(disks[1])])),
    "read-only over disk": ("rd", lambda disks: quiet([ReadOnlyStore(disks[0]), disks[1]])),
    "background": ("d q", lambda disks: disks[0]),
    "background over layers": ("md q", lambda disks: quiet([MemoryStore(), disks[0]])),
    "everything": ("mdr q", everything),
}
"""Kinds of places (m: memory, d: disk, r: a disk that others write, q: with a queue before it), and the store over them."""


class Subject:
    """One stack of stores, its model, and what was asked of it."""

    def __init__(self, kinds, build, folder):
        places = [
            Place(writable=kind != "r", folder=None if kind == "m" else str(folder / str(number)))
            for number, kind in enumerate(kinds.removesuffix(" q"))
        ]
        self.model = Model(places, queued=kinds.endswith(" q"))
        self.disks = [place for place in places if place.folder is not None]
        self.counters, self.lookups, self.puts = Counters(), Counter(), Counter()
        self._build = build
        self.start()

    def start(self):
        store = self._build([place.disk() for place in self.disks])
        self.gate = Paused(store)
        self.queue = BackgroundStore(self.gate) if self.model.queued else None
        self.store = CountingStore(self.queue or store, self.counters)

    def lookup(self, name, touches):
        ask = self.store.get if touches else self.store.look
        found = ask(key_of(name))
        payload = None if found.entry is None else bytes(found.entry.payload)
        assert (found.outcome, payload) == self.model.lookup(name, touches=touches)
        if payload is not None:
            assert (found.entry.key, found.entry.metadata) == (key_of(name), METADATA)
        else:
            assert found.reason
        self.lookups[found.outcome] += 1

    def put(self, name, payload):
        stored = self.store.put(entry_of(name, payload))
        wanted = self.model.put(name, payload)
        assert stored.failed if wanted is None else wanted.agrees(stored)
        self.puts[put_result(stored)] += 1
        if not self.model.paused:
            self.drain()
        if not stored.failed and not self.model.paused:
            assert self.model.lookup(name, touches=False)[1] is not None

    def set_aside(self, name):
        self.store.set_aside(key_of(name), "no use")
        self.model.set_aside(name)
        if not self.model.paused:
            self.drain()

    def pause(self):
        self.model.paused = True
        self.gate.gate.clear()

    def drain(self):
        self.model.paused = False
        self.gate.gate.set()
        if self.queue is not None:
            report = self.queue.flush()
            wanted = self.model.drain()
            assert report.waiting == 0
            assert report.written + report.present + len(report.problems) == len(wanted)
            if all(one.written is not None for one in wanted):
                kinds = Counter((one.written, one.differs) for one in wanted)
                assert report.written == kinds[True, False]
                assert report.present == kinds[False, False]

    def restart(self):
        """A normal end: what is queued is written before."""
        self.drain()
        self.model.restart()
        self.start()

    def crash(self):
        """A kill: what is queued is lost."""
        self.gate.dead = True
        self.gate.gate.set()
        if self.queue is not None:
            self.queue.flush()
        self.model.paused = False
        self.model.queue.clear()
        self.model.restart()
        self.start()


def flip(data, at):
    at = int(at * (len(data) - 1))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE = {
    "flip": flip,
    "flip in the payload": lambda data, at: flip(data, 1.0),
    "truncate": lambda data, at: data[: int(at * (len(data) - 1))],
    "empty": lambda data, at: b"",
    "append": lambda data, at: data + b"x",
    "replace by a whole entry of another key": lambda data, at: pack(entry_of("another")),
}


class Stores(RuleBasedStateMachine):
    """The same operations on all stacks; each answers as its model does."""

    def __init__(self):
        super().__init__()
        self.touched = set()
        self.folder = Path(tempfile.mkdtemp(dir=FAST))
        self.subjects = {
            name: Subject(kinds, build, self.folder / name)
            for name, (kinds, build) in STACKS.items()
        }

    def teardown(self):
        for subject in self.subjects.values():
            subject.drain()
        shutil.rmtree(self.folder)

    def disks(self, number):
        return [s.disks[number] for s in self.subjects.values() if number < len(s.disks)]

    @rule(name=NAMES, payload=PAYLOADS)
    def put(self, name, payload):
        self.touched.add(name)
        for subject in self.subjects.values():
            subject.put(name, payload)

    @rule(name=NAMES)
    def get(self, name):
        self.touched.add(name)
        for subject in self.subjects.values():
            subject.lookup(name, touches=True)

    @rule(name=NAMES)
    def set_aside(self, name):
        self.touched.add(name)
        for subject in self.subjects.values():
            subject.set_aside(name)

    @rule(name=NAMES, payload=PAYLOADS)
    def rebuild(self, name, payload):
        """What a start does with an entry that does not load on its machine."""
        self.set_aside(name)
        self.put(name, payload)

    @rule(name=NAMES, payload=PAYLOADS, number=st.sampled_from([0, 1]))
    def another_process_puts(self, name, payload, number):
        self.touched.add(name)
        for place in self.disks(number):
            stored = place.disk().put(entry_of(name, payload))
            if name not in place.has:
                assert stored == Stored(written=True)
                place.has[name] = payload
            elif place.good(name) is not None:
                differs = place.good(name) != payload
                assert stored == Stored(written=False, differs=differs)
            else:
                place.settle(name, payload)

    @rule(
        name=NAMES,
        number=st.sampled_from([0, 1]),
        kind=st.sampled_from(sorted(DAMAGE)),
        at=st.floats(0.0, 1.0),
    )
    def damage(self, name, number, kind, at):
        self.touched.add(name)
        for place in self.disks(number):
            if place.good(name) is not None:
                path = place.path(name)
                path.write_bytes(DAMAGE[kind](path.read_bytes(), at))
                place.has[name] = BAD

    @rule(name=NAMES, number=st.sampled_from([0, 1]))
    def evict(self, name, number):
        self.touched.add(name)
        for place in self.disks(number):
            place.path(name).unlink(missing_ok=True)
            place.has.pop(name, None)

    @rule()
    def pause(self):
        for subject in self.subjects.values():
            if subject.queue is not None:
                subject.pause()

    @precondition(lambda self: any(s.model.paused for s in self.subjects.values()))
    @rule()
    def resume(self):
        self.touched.update("abc")
        for subject in self.subjects.values():
            subject.drain()

    @rule()
    def restart(self):
        self.touched.update("abc")
        for subject in self.subjects.values():
            subject.restart()

    @rule()
    def crash(self):
        self.touched.update("abc")
        for subject in self.subjects.values():
            subject.crash()

    @invariant()
    def what_was_touched_is_there_or_not_as_in_the_model(self):
        for name in sorted(self.touched):
            for subject in self.subjects.values():
                subject.lookup(name, touches=False)
        self.touched.clear()

    @invariant()
    def every_call_is_counted_once(self):
        for subject in self.subjects.values():
            counts = subject.counters.snapshot()
            assert counts.problem() == ""
            assert +Counter(counts.outcomes) == subject.lookups
            assert +Counter(counts.results) == subject.puts


TestStores = Stores.TestCase
TestStores.settings = settings(
    max_examples=max(10, settings.default.max_examples // 4), stateful_step_count=40
)
