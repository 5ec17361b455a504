"""F14: the digest function is a constant, so that all keys have one name. Every property of the store still holds.

A collision costs a recompile and never gives the wrong bytes.
"""

import os
import shutil
import tempfile
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from graphspec.cache import entry as entry_module
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest
from support.entries import METADATA
from support.faults import memory_folder

COLLISION = "another key with the same digest is stored (a hash collision)"
NAMES = "abcd"
PAYLOADS = (b"", b"one", b"other", bytes(5000))


def constant(text):
    """The worst of all digest functions."""
    return "0" * 32


def one_of_two(text):
    """Some keys collide and some do not."""
    return f"{digest(text)[-1] in '01234567':032x}"


@pytest.fixture
def collide(monkeypatch):
    """All keys of the test have one digest."""
    monkeypatch.setattr(entry_module, "digest", constant)


@pytest.fixture
def store():
    with memory_folder() as folder:
        yield DiskStore(folder)


def entry_named(name, payload=b"library bytes", digest_of=constant):
    text = encode({"unit": name})
    key = EntryKey(text, digest_of(text))
    return Entry(key=key, metadata={**METADATA, "unit": name}, payload=payload)


A, B = entry_named("a", b"of a"), entry_named("b", b"of b")


def test_F14_no_key_gets_what_is_stored_under_another(collide, store):
    """The stored key text decides: the first key is a hit, all others are misses with the reason."""
    assert A.key.digest == B.key.digest
    assert store.put(A).written
    found = store.get(B.key)
    assert (found.outcome, found.entry, found.reason) == (Outcome.MISS, None, COLLISION)
    assert bytes(store.get(A.key).entry.payload) == b"of a"


def test_F14_a_second_key_is_not_stored_and_is_told_so(collide, store):
    """Its result is used and not kept; the first one's entry is neither replaced nor called different bytes."""
    store.put(A)
    stored = store.put(B)
    assert (stored.failed, stored.reason, stored.differs) == (True, COLLISION, False)
    assert bytes(store.get(A.key).entry.payload) == b"of a"


def test_F14_a_key_that_is_not_the_entrys_sets_nothing_aside(collide, store):
    """What one key cannot use may be another's good entry."""
    store.put(A)
    store.set_aside(B.key, "it does not load")
    assert store.get(A.key).outcome is Outcome.HIT
    store.set_aside(A.key, "it does not load")
    assert store.get(A.key).outcome is Outcome.MISS
    assert store.put(B).written


def test_F14_of_two_keys_that_are_put_at_once_one_is_stored(collide, store, monkeypatch):
    """Where another key takes the name between the look and the link, the put ends as if it had come later."""
    real = os.link

    def late(source, target):
        monkeypatch.setattr(os, "link", real)
        assert DiskStore(store.root).put(B).written
        real(source, target)

    monkeypatch.setattr(os, "link", late)
    assert store.put(A).reason == COLLISION
    assert bytes(store.get(B.key).entry.payload) == b"of b"
    assert os.listdir(os.path.join(store.root, "tmp")) == []


def test_F14_a_bad_file_is_set_aside_for_whichever_key_comes_first(collide, store):
    """A place that no entry holds is free for each of its keys."""
    store.put(A)
    with open(store.path_of(A.key), "r+b") as file:
        file.truncate(50)
    assert store.get(B.key).outcome is Outcome.CORRUPT
    assert store.put(B).written
    assert store.get(A.key).reason == COLLISION


class Collisions(RuleBasedStateMachine):
    """One store against a model: a place by digest, which holds nothing, damage, or one key's entry."""

    digest_of = staticmethod(constant)

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.patch = mock.patch.object(entry_module, "digest", self.digest_of)
        self.patch.start()
        self.store = DiskStore(self.folder)
        self.places = {}

    def teardown(self):
        self.patch.stop()
        shutil.rmtree(self.folder)

    def entry(self, name, payload=b""):
        return entry_named(name, payload, self.digest_of)

    @rule(name=st.sampled_from(NAMES), payload=st.sampled_from(PAYLOADS))
    def put(self, name, payload):
        entry = self.entry(name, payload)
        stored = self.store.put(entry)
        there = self.places.get(entry.key.digest)
        if there in (None, "damage"):
            assert stored.written
            self.places[entry.key.digest] = (name, payload)
        elif there[0] == name:
            assert (stored.written, stored.failed) == (False, False)
            assert stored.differs is (there[1] != payload)
        else:
            assert stored.reason == COLLISION

    @rule(name=st.sampled_from(NAMES))
    def get(self, name):
        key = self.entry(name).key
        found = self.store.get(key)
        there = self.places.get(key.digest)
        if there is None:
            assert (found.outcome, found.reason) == (
                Outcome.MISS,
                "nothing is stored under this key",
            )
        elif there == "damage":
            assert found.outcome is Outcome.CORRUPT
            del self.places[key.digest]
        elif there[0] == name:
            assert (found.entry.metadata["unit"], bytes(found.entry.payload)) == there
        else:
            assert (found.outcome, found.reason) == (Outcome.MISS, COLLISION)

    @rule(name=st.sampled_from(NAMES), keep=st.integers(0, 300))
    def damage(self, name, keep):
        digest_ = self.entry(name).key.digest
        if digest_ in self.places:
            path = self.store.path_of(self.entry(name).key)
            os.truncate(path, max(0, min(keep, os.path.getsize(path) - 1)))
            self.places[digest_] = "damage"

    @rule(name=st.sampled_from(NAMES))
    def set_aside(self, name):
        digest_ = self.entry(name).key.digest
        self.store.set_aside(self.entry(name).key, "it does not load")
        there = self.places.get(digest_)
        if there == "damage" or (there is not None and there[0] == name):
            del self.places[digest_]

    @rule()
    def reopen(self):
        self.store = DiskStore(self.folder)

    @invariant()
    def listing_is_the_model(self):
        listed = {e.metadata["unit"] for _, e, _ in self.store.entries() if e is not None}
        assert {p[0] for p in self.places.values() if p != "damage"} <= listed
        assert len(list(self.store.entries())) == len(self.places)


class SomeCollisions(Collisions):
    """Half of the keys have one digest, the rest the other."""

    digest_of = staticmethod(one_of_two)


class NoCollisions(Collisions):
    """The same properties with the real digest."""

    digest_of = staticmethod(digest)


TestF14Constant = Collisions.TestCase
TestF14OneOfTwo = SomeCollisions.TestCase
TestF14Real = NoCollisions.TestCase
TestF14Constant.settings = settings(stateful_step_count=10)
TestF14OneOfTwo.settings = settings(stateful_step_count=10)
TestF14Real.settings = settings(stateful_step_count=10)


def test_F14_the_digests_of_these_tests_are_what_they_say():
    """One value, two values, four."""
    for function, count in ((constant, 1), (one_of_two, 2), (digest, 4)):
        assert len({function(encode({"unit": name})) for name in NAMES}) == count
