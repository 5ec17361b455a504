"""The disk store: first writer wins, bad files heal, a bad disk is a sentence and never an exception."""

import errno
import os
import shutil
import struct
from pathlib import Path

import attrs
import pytest

from graphspec.cache.entry import pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of


@pytest.fixture
def store(tmp_path):
    return DiskStore(str(tmp_path / "cache"))


def files_below(folder):
    """Every path below a folder with content (files), target (links) or None (folders)."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def at(store, name):
    return Path(store.path_of(key_of(name)))


def test_get_after_put_is_equal(store):
    """What was put comes back with key, metadata and payload; before, it is a miss with a reason."""
    missing = store.get(key_of("a"))
    assert (missing.outcome, missing.entry) == (Outcome.MISS, None)
    assert missing.reason == "nothing is stored under this key"
    stored = store.put(entry_of("a"))
    assert (stored.written, stored.failed, stored.reason) == (True, False, "")
    found = store.get(key_of("a"))
    assert found.outcome is Outcome.HIT
    assert attrs.evolve(found.entry, payload=bytes(found.entry.payload)) == entry_of("a")
    assert store.get(key_of("b")).outcome is Outcome.MISS


def test_first_writer_wins(store):
    """A second writer does not replace what is there, and is told so without a failure."""
    store.put(entry_of("a", b"first"))
    stored = store.put(entry_of("a", b"second"))
    assert (stored.written, stored.failed) == (False, False)
    assert bytes(store.get(key_of("a")).entry.payload) == b"first"


def test_entries_are_private_files_in_folders_by_digest(store):
    """One file per entry, named by its digest, readable by its owner only; no temporary stays."""
    store.put(entry_of("a"))
    path = at(store, "a")
    digest = key_of("a").digest
    assert path.parts[-3:] == ("entries", digest[:2], digest + ".v3.entry")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_nlink == 1
    assert os.listdir(os.path.join(store.root, "tmp")) == []


def test_a_digest_collision_is_a_miss(store):
    """Two keys with one digest: the stored key text decides, so the second never gets the first one's library."""
    first = entry_of("a")
    second = attrs.evolve(entry_of("b"), key=attrs.evolve(key_of("b"), digest=first.key.digest))
    store.put(first)
    found = store.get(second.key)
    assert (found.outcome, found.entry) == (Outcome.MISS, None)
    assert "hash collision" in found.reason
    stored = store.put(second)
    assert stored.failed
    assert "hash collision" in stored.reason
    assert store.get(first.key).outcome is Outcome.HIT


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


CORRUPT = {
    "truncated": (lambda data: data[:-5], "truncated"),
    "empty": (lambda data: b"", "truncated"),
    "flipped": (flipped, "payload's XXH3-128 differs"),
    "appended": (lambda data: data + b"x", "follow the payload"),
    "foreign": (lambda data: b"\x7fELF" + data[4:], "magic number differs"),
    "other format": (lambda data: data[:8] + struct.pack("<I", 4) + data[12:], "format version 4"),
}


@pytest.mark.parametrize(("change", "reason"), CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_set_aside_with_its_reason_and_a_put_heals(store, change, reason):
    """The bytes are kept in the quarantine beside a file that says why, and the place is free for a new entry."""
    store.put(entry_of("a"))
    path = at(store, "a")
    bad = change(path.read_bytes())
    path.write_bytes(bad)
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert reason in found.reason
    kept = sorted((path.parents[2] / "quarantine").iterdir())
    assert [p.suffix == ".reason" for p in kept] == [False, True]
    assert kept[0].read_bytes() == bad
    assert kept[1].read_text() == found.reason + "\n"
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_swapped_entries_are_misses(store):
    """A valid entry under another's name is not that entry."""
    store.put(entry_of("a"))
    store.put(entry_of("b"))
    a, b = at(store, "a"), at(store, "b")
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)
    assert store.get(key_of("a")).entry is None
    assert store.get(key_of("b")).entry is None


def make_folder(path):
    path.mkdir(parents=True)
    (path / "inside").write_text("")


def make_link(target):
    def make(path):
        path.parent.mkdir(parents=True)
        path.symlink_to(target)

    return make


STRANGE = {
    "folder": make_folder,
    "link to nothing": make_link("/nonexistent/graphspec"),
    "link to itself": lambda path: make_link(path)(path),
    "link to a folder": make_link("/"),
    "link to a strange file": make_link(os.path.realpath(__file__)),
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_what_is_no_file_is_set_aside_and_a_put_heals(store, make):
    """A folder or a link in an entry's place is corrupt; it is moved away unopened, and its target is untouched."""
    make(at(store, "a"))
    here = os.stat(__file__).st_mtime_ns
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert os.stat(__file__).st_mtime_ns == here


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_a_put_sets_aside_what_lies_in_its_place_and_is_no_entry(store, make):
    """A put heals like a get: what it finds under the taken name is verified, and moved away with its reason."""
    make(at(store, "a"))
    here = os.stat(__file__).st_mtime_ns
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert len(os.listdir(os.path.join(store.root, "quarantine"))) == 2
    assert os.stat(__file__).st_mtime_ns == here


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_a_put_whose_place_cannot_be_freed_does_not_claim_to_have_stored(store, monkeypatch, make):
    """When what lies in the place is not the entry and has to stay, put says that nothing is stored, and why."""
    make(at(store, "a"))

    def refuse(source, target):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "rename", refuse)
    stored = store.put(entry_of("a"))
    assert stored.failed
    assert "could not be set aside: Permission denied" in stored.reason


def test_a_link_to_a_whole_entry_is_a_hit(store, tmp_path):
    """Linked farms of entries work: what the link leads to is verified like any file."""
    write(tmp_path / "elsewhere", pack(entry_of("a")))
    make_link(tmp_path / "elsewhere")(at(store, "a"))
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_what_a_store_would_not_trust_it_does_not_store(store):
    """A store that accepts signed entries only refuses an unsigned one when it is put, not at every later start."""
    strict = DiskStore(store.root, trust=lambda seal: "it is not signed" if seal is None else "")
    stored = strict.put(entry_of("a"))
    assert stored.reason == "no get would trust it: it is not signed"
    assert store.get(key_of("a")).outcome is Outcome.MISS


def test_the_folder_can_be_moved(store, tmp_path):
    """No entry knows where it lies: the folder under another path gives the same hits."""
    store.put(entry_of("a"))
    shutil.move(store.root, tmp_path / "moved")
    assert store.get(key_of("a")).outcome is Outcome.MISS
    moved = DiskStore(str(tmp_path / "moved"))
    assert moved.get(key_of("a")).outcome is Outcome.HIT
    assert str(tmp_path).encode() not in at(moved, "a").read_bytes()


def test_the_root_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    """A relative root means the folder it named when the store was made."""
    monkeypatch.chdir(tmp_path)
    store = DiskStore("cache")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    store.put(entry_of("a"))
    assert (tmp_path / "cache" / "entries").is_dir()
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("state", ["absent", "hit", "corrupt", "folder"])
def test_look_touches_nothing(store, tmp_path, state):
    """A look gives what get would find, and leaves every file and folder as it is."""
    if state in ("hit", "corrupt"):
        store.put(entry_of("a"))
    if state == "corrupt":
        at(store, "a").write_bytes(b"bad")
    if state == "folder":
        make_folder(at(store, "a"))
    before = files_below(tmp_path)
    looked = store.look(key_of("a"))
    assert files_below(tmp_path) == before
    assert store.get(key_of("a")).outcome is looked.outcome


def test_entries_lists_what_is_there_and_unreadable_files_as_none(store):
    """Every file is listed with path and size: headers of whole entries, None for the rest, payloads unread."""
    for name in "abcde":
        store.put(entry_of(name))
    at(store, "b").write_bytes(b"bad")
    data = at(store, "c").read_bytes()
    at(store, "c").write_bytes(data[:-1])
    at(store, "d").write_bytes(flipped(data[:100]) + data[100:])
    listed = {path: (entry, size) for path, entry, size in store.entries()}
    assert set(listed) == {store.path_of(key_of(n)) for n in "abcde"}
    for name in "bcd":
        assert listed[store.path_of(key_of(name))][0] is None
    for name in "ae":
        entry, size = listed[store.path_of(key_of(name))]
        assert (entry.key, entry.payload) == (key_of(name), b"")
        assert size == at(store, name).stat().st_size


def test_entries_of_a_folder_that_is_not_there_is_empty(store):
    """Listing an absent cache lists nothing and makes nothing."""
    assert list(store.entries()) == []
    assert not os.path.exists(store.root)


def test_a_file_in_place_of_a_folder_is_a_failed_put(store):
    """Where the cache's folders cannot be made, put says so; it does not say that the entry is there."""
    write(at(store, "a").parent, b"")
    stored = store.put(entry_of("a"))
    assert stored.failed
    assert store.get(key_of("a")).outcome is Outcome.MISS


def test_a_file_in_place_of_the_root_is_a_failed_put(tmp_path):
    """A root that is a file stores nothing and says why, from put and from problem alike."""
    (tmp_path / "cache").write_text("")
    store = DiskStore(str(tmp_path / "cache"))
    assert store.get(key_of("a")).outcome is Outcome.MISS
    stored = store.put(entry_of("a"))
    assert stored.failed
    assert str(tmp_path / "cache") in stored.reason
    assert store.problem() == stored.reason


def test_an_entry_that_may_not_be_read_is_an_error_with_its_path(store, monkeypatch):
    """A permission lost on one entry is an error of that lookup; the file stays where it is."""
    store.put(entry_of("a"))
    path = store.path_of(key_of("a"))

    def refuse(name, *arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(os, "open", refuse)
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert path in found.reason
    assert os.path.exists(path)
