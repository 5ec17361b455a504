"""Remote tiers: one contract for all kinds of blobs, and a store over them that trusts nothing it is sent."""

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from graphspec.cache.entry import pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome, set_aside
from graphspec.cache.tiers.breaker import Breaker, TierError
from graphspec.cache.tiers.layers import LayeredStore
from graphspec.cache.tiers.remote import RemoteStore, name_of
from support.entries import entry_of, key_of

pytest_plugins = ("support.server_fixtures",)


@pytest.fixture(params=["memory", "s3", "redis"])
def blobs(request):
    return request.getfixturevalue(f"{request.param}_blobs")


@pytest.fixture
def store(blobs):
    return RemoteStore(blobs)


@pytest.fixture
def memory_store(memory_blobs):
    return RemoteStore(memory_blobs)


NAME = name_of(key_of("a"))


class Signer:
    """Signs everything with the same bytes."""

    public_key = b"k" * 32

    def sign(self, data):
        return b"s" * 64


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_a_block_comes_back_as_it_was_put(blobs, size):
    """Nothing before the put, the very bytes after it, of any size; an empty block is not the same as none."""
    data = bytes(range(251)) * (size // 251) + bytes(range(size % 251))
    assert blobs.get(NAME, 10) is None
    assert blobs.put_if_absent(NAME, data) is True
    found = blobs.get(NAME, size)
    assert found is not None
    assert bytes(found) == data


def test_the_first_block_stays(blobs):
    """A second put under the name changes nothing and says so."""
    assert blobs.put_if_absent(NAME, b"first")
    assert blobs.put_if_absent(NAME, b"the second") is False
    assert bytes(blobs.get(NAME, 100)) == b"first"


def test_of_writers_at_once_exactly_one_wins(blobs):
    """Eight writers meet at one name: one is told that it stored, and its bytes are there whole."""
    blobs.list()
    start = threading.Barrier(8)

    def write(number):
        start.wait(10)
        return blobs.put_if_absent(NAME, bytes([number]) * 50_000)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert sum(won) == 1
    assert bytes(blobs.get(NAME, 100_000)) == bytes([won.index(True)]) * 50_000


def test_a_block_beyond_the_limit_is_refused(blobs):
    """One byte too many is a reason with the limit, and no failure of the tier."""
    blobs.put_if_absent(NAME, bytes(1000))
    assert len(blobs.get(NAME, 1000)) == 1000
    with pytest.raises(TierError, match="at most 999 are fetched") as refused:
        blobs.get(NAME, 999)
    assert not refused.value.counts


def test_a_list_has_names_and_sizes(blobs):
    """Everything that was put, and nothing else."""
    assert list(blobs.list()) == []
    for number in range(5):
        blobs.put_if_absent(f"{number}/name", bytes(number))
    assert {b.name: b.size for b in blobs.list()} == {f"{n}/name": n for n in range(5)}


def test_a_deleted_block_is_gone_and_its_name_free(blobs):
    """Deleting twice is no failure, and a new block may take the name."""
    blobs.put_if_absent(NAME, b"first")
    blobs.delete(NAME)
    blobs.delete(NAME)
    assert blobs.get(NAME, 100) is None
    assert blobs.put_if_absent(NAME, b"second")


def test_a_closed_tier_opens_again(blobs):
    """Closing frees connections and forgets nothing."""
    blobs.put_if_absent(NAME, b"first")
    blobs.close()
    blobs.close()
    assert bytes(blobs.get(NAME, 100)) == b"first"


def test_get_after_put_is_equal(store):
    """What was put comes back with key, metadata and payload; before, it is a miss with the place in its reason."""
    missing = store.get(key_of("a"))
    assert (missing.outcome, missing.entry) == (Outcome.MISS, None)
    assert missing.reason == f"{store.where}: nothing is stored under this key"
    assert store.put(entry_of("a")).written
    found = store.get(key_of("a"))
    assert found.outcome is Outcome.HIT
    assert attrs.evolve(found.entry, payload=bytes(found.entry.payload)) == entry_of("a")
    assert store.get(key_of("b")).outcome is Outcome.MISS


def test_a_second_writer_is_told_whether_its_bytes_differ(store):
    """Equal bytes are fine; other bytes under one key are news, and do not replace the first."""
    store.put(entry_of("a", b"first"))
    same, other = store.put(entry_of("a", b"first")), store.put(entry_of("a", b"second"))
    assert (same.written, same.failed, same.differs) == (False, False, False)
    assert (other.written, other.failed, other.differs) == (False, False, True)
    assert bytes(store.get(key_of("a")).entry.payload) == b"first"


def test_stores_that_put_at_once_agree_on_one_entry(blobs):
    """Eight processes that compiled the same unit: one stores, seven are told that theirs differs, all read the same."""
    stores = [RemoteStore(blobs) for _ in range(8)]
    start = threading.Barrier(8)

    def put(number):
        start.wait(10)
        return stores[number].put(entry_of("a", bytes([number]) * 1000))

    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(put, range(8)))
    assert sum(s.written for s in stored) == 1
    assert sum(s.differs for s in stored) == 7
    winner = [s.written for s in stored].index(True)
    assert bytes(stores[0].get(key_of("a")).entry.payload) == bytes([winner]) * 1000


def test_a_cache_folder_can_be_copied_into_a_tier_and_back(blobs, store, tmp_path):
    """Names and bytes below entries/ are the tier's own, so any tool that copies files fills it."""
    disk = DiskStore(str(tmp_path / "cache"))
    disk.put(entry_of("a"))
    entries = tmp_path / "cache" / "entries"
    for path in entries.rglob("*.entry"):
        blobs.put_if_absent(str(path.relative_to(entries)), path.read_bytes())
    assert store.get(key_of("a")).outcome is Outcome.HIT
    store.put(entry_of("b"))
    for blob in blobs.list():
        target = tmp_path / "copy" / "entries" / blob.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blobs.get(blob.name, blob.size))
    copy = DiskStore(str(tmp_path / "copy"))
    assert [copy.get(key_of(n)).outcome for n in "ab"] == [Outcome.HIT, Outcome.HIT]


CORRUPT = {
    "truncated": (lambda data: data[:-5], "truncated"),
    "empty": (lambda data: b"", "truncated"),
    "flipped": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "payload's SHA-256 differs"),
    "appended": (lambda data: data + b"x", "follow the payload"),
    "garbage": (lambda data: b"\x80\x04." * 500, "magic number differs"),
    "other format": (lambda data: data[:8] + struct.pack("<I", 4) + data[12:], "format version 4"),
    "another key": (lambda data: pack(entry_of("b")), "the entry of another key"),
}


@pytest.mark.parametrize(("change", "reason"), CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_object_is_deleted_and_a_put_heals(blobs, store, change, reason):
    """It is no hit and no part of it is handed on; where the tier is writable, its place is free for a new entry."""
    blobs.put_if_absent(NAME, change(pack(entry_of("a"))))
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert found.reason.startswith(f"{store.where}: ")
    assert reason in found.reason
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_a_put_replaces_a_corrupt_object(blobs, store):
    """A writer that finds damage under its name removes it and stores, without a get before."""
    blobs.put_if_absent(NAME, b"garbage")
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_a_tier_that_is_only_read_is_never_changed(memory_blobs):
    """A corrupt object stays, a put is refused with a reason, and neither sends anything that writes."""
    store = RemoteStore(memory_blobs, writable=False)
    memory_blobs.data[NAME] = b"garbage"
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    stored = store.put(entry_of("b"))
    assert stored.failed
    assert stored.reason == "memory://: it is only read here"
    assert memory_blobs.data == {NAME: b"garbage"}
    assert set(memory_blobs.calls) == {"get"}
    assert not store.writable


def test_a_corrupt_object_that_cannot_be_deleted_is_told(memory_blobs, memory_store, monkeypatch):
    """Credentials that may only read: still corrupt, and the reason says that it stays in place."""

    def refuse(name):
        raise TierError("access is denied")

    monkeypatch.setattr(memory_blobs, "delete", refuse)
    memory_blobs.data[NAME] = b"garbage"
    found = memory_store.get(key_of("a"))
    assert found.outcome is Outcome.CORRUPT
    assert "could not be deleted: access is denied" in found.reason
    stored = memory_store.put(entry_of("a"))
    assert stored.failed
    assert "could not be deleted" in stored.reason


def test_a_seal_that_is_not_trusted_is_refused_and_stays(memory_blobs):
    """One host with a wrong trust file must not empty a tier that others use; a good entry of damaged bytes goes."""
    RemoteStore(memory_blobs).put(entry_of("a"))
    before = dict(memory_blobs.data)
    store = RemoteStore(memory_blobs, trust=lambda seal: "the entry is not signed")
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert found.reason == "memory://: the entry is not signed"
    assert store.put(entry_of("a")).reason == "memory://: the entry is not signed"
    assert memory_blobs.data == before
    memory_blobs.data[NAME] = before[NAME][:-1]
    assert "truncated" in store.get(key_of("a")).reason
    assert memory_blobs.data == {}


def test_entries_are_signed_on_the_way_and_checked_on_arrival(memory_blobs):
    """The seal of a put reaches the trust of a get."""

    seals = []
    store = RemoteStore(memory_blobs, signer=Signer(), trust=lambda seal: seals.append(seal) or "")
    store.put(entry_of("a"))
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert [(s.public_key, s.signature) for s in seals] == [(b"k" * 32, b"s" * 64)]


def test_a_digest_collision_is_a_miss_and_the_first_entry_stays(memory_blobs, memory_store):
    """Two keys with one digest: the stored key text decides, and neither the library nor the object changes hands."""
    first = entry_of("a")
    second = attrs.evolve(entry_of("b"), key=attrs.evolve(first.key, text=key_of("b").text))
    memory_store.put(first)
    found = memory_store.get(second.key)
    assert (found.outcome, found.entry) == (Outcome.MISS, None)
    assert "hash collision" in found.reason
    assert "hash collision" in memory_store.put(second).reason
    assert memory_store.get(first.key).outcome is Outcome.HIT


def test_a_look_finds_what_a_get_finds_and_changes_nothing(memory_blobs, memory_store):
    """A hit, a miss, damage and a failure look the same, and the damaged object stays."""
    memory_store.put(entry_of("a"))
    memory_blobs.data[name_of(key_of("b"))] = b"garbage"
    before = dict(memory_blobs.data)
    looks = [memory_store.look(key_of(n)) for n in "abc"]
    assert memory_blobs.data == before
    assert looks == [memory_store.get(key_of(n)) for n in "abc"]
    assert [k.outcome for k in looks] == [Outcome.HIT, Outcome.CORRUPT, Outcome.MISS]
    memory_blobs.fault = TierError("no connection")
    assert memory_store.look(key_of("a")) == memory_store.get(key_of("a"))


def test_an_entry_beyond_the_cap_is_neither_sent_nor_fetched(memory_blobs):
    """Both ways end in a reason with the sizes, and the tier stays on."""
    small = RemoteStore(memory_blobs, max_entry_bytes=1000)
    for _ in range(5):
        stored = small.put(entry_of("a", bytes(5000)))
        assert stored.failed
        assert "at most 1000 are sent" in stored.reason
    assert memory_blobs.calls == []
    RemoteStore(memory_blobs).put(entry_of("a", bytes(5000)))
    for _ in range(5):
        found = small.get(key_of("a"))
        assert found.outcome is Outcome.ERROR
        assert "at most 1000 are fetched" in found.reason
    assert small.put(entry_of("b", b"small")).written


def test_an_object_that_vanishes_between_put_and_look_is_stored_again(memory_blobs, monkeypatch):
    """Another process may delete what took the name; the second try stores."""
    store = RemoteStore(memory_blobs)
    store.put(entry_of("a"))
    real = memory_blobs.get

    def vanish(name, limit):
        memory_blobs.data.clear()
        return real(name, limit)

    monkeypatch.setattr(memory_blobs, "get", vanish)
    assert store.put(entry_of("a")).written


def test_a_dead_tier_costs_three_calls_and_then_none(memory_blobs, memory_store):
    """Forty units against a tier that is gone: three calls reach it, every lookup says why, every put too."""
    memory_blobs.fault = TierError("no connection")
    found = [memory_store.get(key_of(str(n))) for n in range(40)]
    stored = [memory_store.put(entry_of(str(n))) for n in range(40)]
    assert memory_blobs.calls == ["get"] * 3
    assert {f.outcome for f in found} == {Outcome.ERROR}
    assert found[0].reason == "memory://: no connection"
    assert found[-1].reason.startswith("memory://: switched off (tried again in ")
    assert found[-1].reason.endswith("last failure: no connection")
    assert all(s.failed and "switched off" in s.reason for s in stored)


def test_the_time_to_load_a_client_is_not_the_tiers(memory_blobs, monkeypatch):
    """A slow machine takes seconds to import a client: one quick failure after that switches nothing off."""
    now = [0.0]
    store = RemoteStore(memory_blobs, breaker=lambda: Breaker(patience_s=1.0, clock=lambda: now[0]))
    monkeypatch.setattr(memory_blobs, "open", lambda: now.__setitem__(0, now[0] + 60.0))
    memory_blobs.fault = TierError("no connection")
    assert store.get(key_of("a")).outcome is Outcome.ERROR
    assert store.put(entry_of("a")).failed
    memory_blobs.fault = None
    assert store.put(entry_of("a")).written


def test_a_tier_that_cannot_be_written_is_still_read(memory_blobs, memory_store, monkeypatch):
    """Puts that are refused switch off puts alone."""
    memory_store.put(entry_of("a"))
    calls = []

    def refuse(name, data):
        calls.append(name)
        raise TierError("access is denied")

    monkeypatch.setattr(memory_blobs, "put_if_absent", refuse)
    for number in range(10):
        assert memory_store.put(entry_of(str(number))).failed
    assert len(calls) == 3
    assert memory_store.get(key_of("a")).outcome is Outcome.HIT


def test_a_tier_that_comes_back_is_used_again(memory_blobs):
    """After the pause the next lookup is the probe, and its entry is a hit."""
    now = [0.0]
    store = RemoteStore(memory_blobs, breaker=lambda: Breaker(pause_s=30.0, clock=lambda: now[0]))
    store.put(entry_of("a"))
    memory_blobs.fault = TierError("no connection")
    for _ in range(4):
        assert store.get(key_of("a")).outcome is Outcome.ERROR
    memory_blobs.fault = None
    assert store.get(key_of("a")).outcome is Outcome.ERROR
    now[0] += 30.0
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_a_corrupt_object_never_reaches_the_folder_before_the_tier(memory_blobs, tmp_path):
    """Behind a cache folder, damage of the tier is told and the folder stays empty; a hit fills it, seal and all."""
    disk = DiskStore(str(tmp_path / "cache"))
    remote = RemoteStore(memory_blobs)
    both = LayeredStore([disk, remote])
    memory_blobs.data[NAME] = pack(entry_of("a"))[:-1] + b"?"
    found = both.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert list(disk.entries()) == []
    whole = pack(entry_of("a"), Signer())
    memory_blobs.data[NAME] = whole
    assert both.get(key_of("a")).outcome is Outcome.HIT
    assert Path(disk.path_of(key_of("a"))).read_bytes() == whole


def test_a_hit_in_the_folder_asks_no_tier(memory_blobs, tmp_path):
    """What is here costs no call over the network, and so nothing when the network is gone."""
    disk = DiskStore(str(tmp_path / "cache"))
    disk.put(entry_of("a"))
    memory_blobs.fault = TierError("no connection")
    assert LayeredStore([disk, RemoteStore(memory_blobs)]).get(key_of("a")).outcome is Outcome.HIT
    assert memory_blobs.calls == []


def test_an_entry_that_does_not_load_here_stays_in_the_tier(memory_blobs, memory_store):
    """A host that lacks a library must not take the entry from those that load it."""
    memory_store.put(entry_of("a"))
    set_aside(memory_store, key_of("a"), "it does not load")
    assert memory_store.get(key_of("a")).outcome is Outcome.HIT


def test_problem_is_empty_for_a_good_tier_and_leaves_nothing(blobs, store):
    """The check stores a probe, sees that a second writer is refused, and removes it."""
    assert store.problem() == ""
    assert list(blobs.list()) == []
    assert RemoteStore(blobs, writable=False).problem() == ""


def test_problem_tells_a_tier_that_replaces_what_is_there(memory_blobs, memory_store, monkeypatch):
    """A store that ignores the condition would let the last writer win, and nobody would know."""

    def replace(name, data):
        memory_blobs.data[name] = data
        return True

    monkeypatch.setattr(memory_blobs, "put_if_absent", replace)
    assert memory_store.problem() == (
        "memory://: a second writer replaces what the first one stored"
    )
    assert memory_blobs.data == {}


@pytest.mark.parametrize("writable", [True, False])
def test_problem_is_the_reason_of_a_tier_that_fails(memory_blobs, writable):
    """What every put would say is known before any work is done."""
    memory_blobs.fault = TierError("no connection")
    store = RemoteStore(memory_blobs, writable=writable)
    assert store.problem() == "memory://: no connection"
