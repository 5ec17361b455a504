"""F25: races in one order each, paced through pipes: readers, writers and removers that meet in the middle of a step."""

import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.bad_disks import files_below
from support.entries import entry_of, key_of
from support.races import Troupe

WHOLE = {"outcome": "hit", "reason": "", "payload": "library bytes"}
MISS = {"outcome": "miss", "reason": "nothing is stored under this key", "payload": None}


@pytest.fixture(scope="module")
def send():
    """Starts other processes."""
    with Troupe() as troupe:
        yield troupe.send


@pytest.fixture
def get(send, store):
    """What another process gets now."""

    def got(name="a"):
        with send(store.root, "get", name) as reader:
            return reader.result()

    return got


@pytest.fixture
def store(tmp_path):
    """A cache with the entry "a"."""
    store = DiskStore(str(tmp_path / "cache"))
    assert store.put(entry_of("a")).written
    return store


def assert_clean(store, *names):
    """Nothing is left but whole entries of these names."""
    listed = {os.path.relpath(path, store.root): header for path, header, _ in store.entries()}
    assert set(listed) == {os.path.relpath(store.path_of(key_of(n)), store.root) for n in names}
    assert all(header is not None for header in listed.values())
    assert [f for f in files_below(store.root) if f.startswith(("tmp/", "quarantine/"))] == []


@pytest.mark.parametrize("removal", ["eviction", "unlink", "whole folder"])
def test_F25_a_reader_with_an_open_entry_reads_it_to_the_end(store, send, get, removal):
    """The entry goes while it is open: this reader still gets all of it, and one that comes later misses."""
    with send(store.root, "get", at="entry opened").arrive() as reader:
        if removal == "eviction":
            with send(store.root, "remove") as remover:
                assert remover.result() == {"removed": True}
        elif removal == "unlink":
            os.unlink(store.path_of(key_of("a")))
        else:
            os.rename(store.root, store.root + ".gone")
        assert get() == MISS
        assert reader.result() == WHOLE


def test_F25_a_reader_with_an_open_entry_is_not_disturbed_by_its_successor(store, send, get):
    """The entry is removed and put again with other bytes while it is open: each reader gets what it opened."""
    with send(store.root, "get", at="entry opened").arrive() as reader:
        os.unlink(store.path_of(key_of("a")))
        assert store.put(entry_of("a", b"other bytes")).written
        assert get()["payload"] == "other bytes"
        assert reader.result() == WHOLE


def test_F25_two_removers_of_one_entry_meet(store, send, get):
    """The second finds nothing left, which is no error; no temporary stays."""
    with send(store.root, "remove", at="before rename").arrive() as first:
        with send(store.root, "remove") as second:
            assert second.result() == {"removed": True}
        assert first.result() == {"removed": False}
    assert_clean(store)


@pytest.mark.parametrize("other", ["library bytes", "other bytes"])
def test_F25_of_two_writers_that_reach_the_link_together_the_first_wins(store, send, get, other):
    """Both have written all their bytes: one link succeeds, the other writer learns of it and whether it differs."""
    with (
        send(store.root, "put", "b", at="before link") as first,
        send(store.root, "put", "b", payload=other, at="before link") as second,
    ):
        first.arrive(), second.arrive()
        assert get("b") == MISS
        assert second.result() == {"written": True, "reason": "", "differs": False}
        assert get("b")["payload"] == other
        assert first.result() == {
            "written": False,
            "reason": "",
            "differs": other != "library bytes",
        }
    assert get("b")["payload"] == other
    assert_clean(store, "a", "b")


def test_F25_of_two_writers_without_links_the_first_to_rename_wins(store, send, get):
    """On a file system without hard links the second writer, whose look came first, may replace: bytes are still whole."""
    with (
        send(store.root, "put", "b", at="before rename", links=False) as first,
        send(
            store.root, "put", "b", payload="other bytes", at="before rename", links=False
        ) as second,
    ):
        first.arrive(), second.arrive()
        assert second.result()["written"]
        assert get("b")["payload"] == "other bytes"
        assert first.result()["written"]
    assert get("b")["payload"] == "library bytes"
    assert_clean(store, "a", "b")


@pytest.mark.parametrize("step", ["half written", "before link"])
def test_F25_a_reader_between_write_and_link_sees_nothing(store, send, get, step):
    """However much of the entry is on the disk, before its link it is not there; after it, it is there whole."""
    with send(store.root, "put", "b", at=step).arrive() as writer:
        assert get("b") == MISS
        assert len(os.listdir(os.path.join(store.root, "tmp"))) == 1
        assert [path for path, _, _ in store.entries()] == [store.path_of(key_of("a"))]
        assert writer.result()["written"]
    assert get("b") == WHOLE
    assert_clean(store, "a", "b")


def test_F25_an_entry_is_there_before_its_writer_has_tidied_up(store, send, get):
    """Between the link and the end of put a reader hits, another put finds it stored, and a removal removes it."""
    with send(store.root, "put", "b", at="after link").arrive() as writer:
        assert get("b") == WHOLE
        assert store.put(entry_of("b")).written is False
        with send(store.root, "remove", "b") as remover:
            assert remover.result() == {"removed": True}
        assert get("b") == MISS
        assert writer.result()["written"]
    assert_clean(store, "a")


@pytest.mark.parametrize("step", ["half written", "before link", "after link", "before unlink"])
def test_F25_a_writer_that_is_killed_at_a_step_is_cleaned_up_after(store, send, get, step):
    """Readers see all or nothing, the next writer of another process sweeps what is left."""
    with send(store.root, "put", "b", at=step).arrive() as writer:
        writer.kill()
    linked = step in ("after link", "before unlink")
    assert get("b") == (WHOLE if linked else MISS)
    assert len(os.listdir(os.path.join(store.root, "tmp"))) == 1
    with send(store.root, "put", "b") as again:
        assert again.result()["written"] is not linked
    assert DiskStore(store.root).put(entry_of("c")).written
    assert_clean(store, "a", "b", "c")


def test_F25_a_reader_that_found_an_entry_corrupt_does_not_set_its_successor_aside(
    store, send, get
):
    """Another process sets the bad file aside and stores a good one in between: the good one stays."""
    os.truncate(store.path_of(key_of("a")), 30)
    with send(store.root, "get", at="before rename").arrive() as late:
        assert store.get(key_of("a")).outcome is Outcome.CORRUPT
        assert store.put(entry_of("a")).written
        found = late.result()
    assert found["payload"] in (None, "library bytes")
    assert (found["payload"] is None) is (found["outcome"] != "hit")
    assert get() == WHOLE
    kept = os.listdir(os.path.join(store.root, "quarantine"))
    assert len([name for name in kept if not name.endswith(".reason")]) == 1


def test_F25_two_readers_find_one_corrupt_entry_and_a_third_heals_it(store, send, get):
    """Both are told, the file is set aside once, and each reason stands beside a file."""
    os.truncate(store.path_of(key_of("a")), 30)
    with (
        send(store.root, "get", at="before rename") as first,
        send(store.root, "get", at="before rename") as second,
    ):
        first.arrive(), second.arrive()
        outcomes = [first.result()["outcome"], second.result()["outcome"]]
    assert outcomes[0] == "corrupt"
    assert outcomes[1] in ("corrupt", "miss")
    kept = sorted(os.listdir(os.path.join(store.root, "quarantine")))
    assert len(kept) == 2
    assert kept[1] == kept[0] + ".reason"
    with send(store.root, "put") as healer:
        assert healer.result()["written"]
    assert get() == WHOLE


def test_F25_a_put_that_finds_its_name_taken_and_then_free_stores_it(store, send, get):
    """The entry of the first writer is removed just after it had won the link: the second one is not lost with it."""
    with send(store.root, "put", "b", at="before link").arrive() as writer:
        assert store.put(entry_of("b")).written
        with send(store.root, "get", "b", at="entry opened").arrive() as reader:
            with send(store.root, "remove", "b") as remover:
                assert remover.result() == {"removed": True}
            assert writer.result()["written"]
            assert reader.result() == WHOLE
    assert get("b") == WHOLE
    assert_clean(store, "a", "b")


@pytest.mark.parametrize("stored", [True, False], ids=["and is replaced", "and is not replaced"])
def test_F25_a_corrupt_entry_that_goes_in_the_middle_of_a_get(
    store, send, get, monkeypatch, stored
):
    """It is gone when it is to be moved, and a good one there a moment later: no error, and the good one stays."""
    path = store.path_of(key_of("a"))
    os.truncate(path, 30)
    real = os.rename

    def rename(source, target):
        if source == path:
            monkeypatch.undo()
            assert get()["outcome"] == "corrupt"
        try:
            real(source, target)
        finally:
            if stored:
                with send(store.root, "put") as other:
                    assert other.result()["written"]

    monkeypatch.setattr(os, "rename", rename)
    found = store.get(key_of("a"))
    assert found.outcome in ((Outcome.HIT,) if stored else (Outcome.CORRUPT, Outcome.MISS))
    assert "could not" not in found.reason
    assert get() == (WHOLE if stored else MISS)
    kept = os.listdir(os.path.join(store.root, "quarantine"))
    assert len(kept) == 2
