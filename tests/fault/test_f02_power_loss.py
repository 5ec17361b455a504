"""F2: the power fails after any operation of a put. What is found then is a miss or the whole entry, never wrong bytes.

A put is recorded, and every state that the disk may be in after each of its operations is made real and read.
"""

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from graphspec.cache.entry import pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.crash_actions import damage, no_links
from support.entries import entry_of
from support.faults import memory_folder
from support.power import record, write_tree

ENTRY = entry_of("a", bytes(range(256)) * 17)
"""Of more than a page, so that one may be on the disk without the other."""
NEIGHBOUR = entry_of("b", b"neighbour")
STALE = pack(entry_of("s", bytes(len(ENTRY.payload))))
"""What blocks of the disk hold that were never written: here, worst of all, another whole entry of the same size."""


@pytest.fixture
def base(tmp_path):
    """The folder that is there for good; the cache's own is two folders below it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def root_in(folder):
    return os.path.join(folder, "user", "cache")


def replayed(base, action, before="synced"):
    """Records an action and reads each state: gives the moments' names, each with all outcomes of its states."""
    known, found = {}, []
    with memory_folder() as again:
        for moment in record(str(base), action, before=before, stale=STALE):
            for number, tree in enumerate(moment.states - known.keys()):
                folder = Path(again, f"{len(found)}.{number}")
                folder.mkdir()
                write_tree(tree, folder)
                known[tree] = outcomes_in(root_in(folder))
            found.append((moment.operation, {known[tree] for tree in moment.states}))
    return found


def outcomes_in(root):
    """How lookups of the entry and of its neighbour end in a state. No wrong bytes, and a put heals."""
    store, outcomes = DiskStore(root), []
    for entry in (ENTRY, NEIGHBOUR):
        found = store.get(entry.key)
        outcomes.append(found.outcome)
        if found.outcome is Outcome.HIT:
            assert bytes(found.entry.payload) == entry.payload
        else:
            assert found.entry is None
            assert found.outcome in (Outcome.MISS, Outcome.CORRUPT)
            assert store.put(entry).written
            assert bytes(store.get(entry.key).entry.payload) == entry.payload
    return tuple(outcomes)


def of_entry(outcomes):
    return {first for first, _ in outcomes}


def of_neighbour(outcomes):
    return {second for _, second in outcomes}


def test_F02_a_put_that_is_not_durable_is_a_miss_or_whole_after_any_power_loss(base):
    """Without syncs anything may be lost, in any order: the name with no content, zeros, or another entry's content."""
    moments = replayed(base, lambda: DiskStore(root_in(base)).put(ENTRY))
    operations, outcomes = zip(*moments, strict=True)
    assert "fsync" not in operations
    assert of_entry(outcomes[-1]) == {Outcome.MISS, Outcome.CORRUPT, Outcome.HIT}
    published = operations.index("link")
    assert all(of_entry(each) == {Outcome.MISS} for each in outcomes[:published])


BEFORE = {
    "nothing is there": ("synced", lambda root: None),
    "folders that were never synced": (
        "not synced",
        lambda root: [os.makedirs(os.path.join(root, f)) for f in ("tmp", "entries/73")],
    ),
    "a neighbour": ("synced", lambda root: DiskStore(root, durable=True).put(NEIGHBOUR)),
    "a file that is no entry": ("synced", damage),
    "the same entry, which was never synced": (
        "not synced",
        lambda root: DiskStore(root).put(ENTRY),
    ),
}


@pytest.mark.parametrize(("before", "prepare"), BEFORE.values(), ids=BEFORE)
def test_F02_a_durable_put_that_has_returned_is_never_lost(base, before, prepare):
    """Whatever lay there and was not synced: once put has returned, every state of the disk holds the whole entry."""
    prepare(root_in(base))
    store = DiskStore(root_in(base), durable=True)
    stored = []
    moments = replayed(base, lambda: stored.append(store.put(ENTRY)), before)
    assert not stored[0].failed
    outcomes = [each for _, each in moments]
    assert of_entry(outcomes[-1]) == {Outcome.HIT}
    assert Outcome.MISS in of_entry(outcomes[0]) or Outcome.CORRUPT in of_entry(outcomes[0])
    if prepare is BEFORE["a neighbour"][1]:
        assert all(of_neighbour(each) == {Outcome.HIT} for each in outcomes)


def test_F02_a_durable_put_never_shows_a_part_after_power_loss(base):
    """The content is on the disk before the name: no state of any moment has a name without its content."""
    moments = replayed(base, lambda: DiskStore(root_in(base), durable=True).put(ENTRY))
    for _, outcomes in moments:
        assert Outcome.CORRUPT not in of_entry(outcomes)


def test_F02_a_durable_put_without_hard_links_is_never_lost(base, monkeypatch):
    """A rename, where the file system has no links, is synced as well."""

    def put():
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", no_links)
            assert DiskStore(root_in(base), durable=True).put(ENTRY).written

    moments = replayed(base, put)
    operations, outcomes = zip(*moments, strict=True)
    assert "rename" in operations
    assert "link" not in operations
    assert of_entry(outcomes[-1]) == {Outcome.HIT}


def test_F02_each_put_of_a_durable_store_is_never_lost(base):
    """What a store has synced it does not sync again, unless the folder was removed and made anew in the meantime."""
    store = DiskStore(root_in(base), durable=True)

    def use():
        store.put(entry_of("removed"))
        shutil.rmtree(base / "user")
        store.put(NEIGHBOUR)
        store.put(ENTRY)

    moments = replayed(base, use)
    assert moments[-1][1] == {(Outcome.HIT, Outcome.HIT)}


def test_F02_a_folder_that_has_the_number_of_a_removed_one_is_synced(base):
    """File systems give numbers again: what a store knows to be on the disk must not be taken from the number alone."""
    store = DiskStore(root_in(base), durable=True)
    real = os.stat

    def stat(path, **named):
        facts = list(real(path, **named))
        facts[1] = 7
        return os.stat_result(facts)

    def use():
        store.put(entry_of("removed"))
        shutil.rmtree(base / "user")
        with mock.patch.object(os, "stat", stat):
            assert store.put(ENTRY).written

    with mock.patch.object(os, "stat", stat):
        store.put(entry_of("before"))
    moments = replayed(base, use)
    assert of_entry(moments[-1][1]) == {Outcome.HIT}


def test_F02_the_model_forgets_what_was_not_synced(base, tmp_path):
    """The model itself: of a file that is written and named, but not synced, a part may be left, or all or nothing."""

    def use():
        descriptor = os.open(str(base / "file"), os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"content")
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(str(base / "file"), str(base / "name"))

    *_, written, synced, renamed = record(str(base), use, before="synced")
    contents = {dict(tree).get("file") for tree in written.states}
    assert {None, b"", b"con", b"content", bytes(7)} <= contents
    assert synced.states == {frozenset(), frozenset({("file", b"content")})}
    both = frozenset({("file", b"content"), ("name", b"content")})
    assert renamed.states == {*synced.states, frozenset({("name", b"content")}), both}
    write_tree(both, tmp_path)
    assert (tmp_path / "name").read_bytes() == b"content"
