"""F3: what a durable put syncs, counted and in order: the file before its name, then each folder that leads to it."""

import errno
import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.crash_actions import no_links
from support.entries import entry_of, key_of
from support.faults import hooked


@pytest.fixture
def store(tmp_path):
    return DiskStore(str(tmp_path / "user" / "cache"), durable=True)


def same_folder(store, name):
    """An entry that lies in the same folder as that of `name`."""
    folder = os.path.dirname(store.path_of(key_of(name)))
    names = (f"{name}{n}" for n in range(10_000))
    return entry_of(next(n for n in names if os.path.dirname(store.path_of(key_of(n))) == folder))


def recorded(action, fails=None):
    """What an action syncs and publishes, in order, by path. A sync of the path `fails` is an error of the disk."""
    calls = []

    def hook(name, real, *arguments, **named):
        if name == "fsync":
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            calls.append(("fsync", path))
            if fails is not None and fails(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        if name in ("link", "rename"):
            calls.append((name, *arguments))
        return real(*arguments, **named)

    with hooked(hook):
        action()
    return calls


def folders_above(path):
    """Each folder above a path on the same file system, the nearest first."""
    found, device = [], os.stat(path).st_dev
    while os.path.dirname(path) != path and os.stat(os.path.dirname(path)).st_dev == device:
        path = os.path.dirname(path)
        found.append(path)
    return found


def test_F03_the_first_put_syncs_the_file_then_its_name_then_all_folders_above(store):
    """The content before the name; and a new folder is itself only a name, up to the root of the file system."""
    calls = recorded(lambda: store.put(entry_of("a")))
    path = store.path_of(key_of("a"))
    (first, temporary), second, *after = calls
    assert first == "fsync"
    assert os.path.dirname(temporary) == os.path.join(store.root, "tmp")
    assert second == ("link", temporary, path)
    assert after == [("fsync", folder) for folder in folders_above(path)]
    assert len(after) >= 4


def test_F03_a_further_put_syncs_the_file_and_its_folder_only(store):
    """A sync costs a flush of the disk even where nothing changed: names that are on the disk are not synced again."""
    store.put(entry_of("a"))
    more = same_folder(store, "a")
    calls = recorded(lambda: store.put(more))
    assert [name for name, *_ in calls] == ["fsync", "link", "fsync"]
    assert calls[-1] == ("fsync", os.path.dirname(store.path_of(more.key)))


def test_F03_a_put_into_a_new_folder_syncs_that_folders_name_as_well(store):
    """The two digits' folder of an entry is new in `entries`, which is known to be on the disk itself."""
    store.put(entry_of("a"))
    calls = recorded(lambda: store.put(entry_of("b")))
    folder = os.path.dirname(store.path_of(key_of("b")))
    assert calls[2:] == [("fsync", folder), ("fsync", os.path.dirname(folder))]


def test_F03_a_put_that_finds_its_entry_syncs_that(store):
    """Whoever wrote it may not have waited for the disk: put promises the same as if it had written."""
    DiskStore(store.root).put(entry_of("a"))
    calls = recorded(lambda: store.put(entry_of("a")))
    path = store.path_of(key_of("a"))
    assert calls[:2] == [("fsync", path), ("fsync", os.path.dirname(path))]
    assert {name for name, *_ in calls} == {"fsync"}


def test_F03_a_rename_is_synced_like_a_link(store, monkeypatch):
    """Where the file system has no hard links, the order is the same."""

    def put():
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", no_links)
            store.put(entry_of("a"))

    calls = recorded(put)
    path = store.path_of(key_of("a"))
    assert [name for name, *_ in calls[:3]] == ["fsync", "rename", "fsync"]
    assert calls[1][2] == path
    assert calls[2] == ("fsync", os.path.dirname(path))


def test_F03_without_durable_and_for_reads_nothing_is_synced(store):
    """The default trusts the page cache: a power loss costs a recompile, a put costs no wait. Reads never wait."""
    plain = DiskStore(store.root)

    def use():
        assert plain.put(entry_of("a")).written
        for reader in (plain, store):
            assert reader.get(key_of("a")).outcome is Outcome.HIT
            assert reader.get(key_of("b")).outcome is Outcome.MISS
        with open(plain.path_of(key_of("a")), "wb"):
            pass
        assert store.get(key_of("a")).outcome is Outcome.CORRUPT

    assert [name for name, *_ in recorded(use)] == ["link", "rename"]


def test_F03_a_file_that_cannot_be_synced_gets_no_name(store):
    """After a failed sync nobody knows what is on the disk: the file is dropped, and put says why."""
    results = []
    calls = recorded(
        lambda: results.append(store.put(entry_of("a"))), fails=lambda path: "tmp" in path
    )
    assert [name for name, *_ in calls] == ["fsync"]
    assert results[0].reason == f"{store.root}: {os.strerror(errno.EIO)}"
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert os.listdir(os.path.join(store.root, "tmp")) == []


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_F03_a_folder_that_cannot_be_synced_is_a_failed_put_and_is_tried_again(store, which):
    """The entry is there, and put does not promise that it stays. The next put syncs the same folders."""
    results, failing = [], []

    def fails(path):
        return bool(failing) and path == failing[0]

    path = store.path_of(key_of("a"))
    folder = path
    for _ in range(which + 1):
        folder = os.path.dirname(folder)
    failing.append(folder)
    recorded(lambda: results.append(store.put(entry_of("a"))), fails)
    assert results[0].failed
    assert store.get(key_of("a")).outcome is Outcome.HIT
    calls = recorded(lambda: results.append(store.put(entry_of("a"))))
    assert not results[1].failed
    assert ("fsync", folder) in calls


@pytest.mark.parametrize("inside", [False, True], ids=["above the root", "in the root"])
def test_F03_a_folder_above_the_root_that_may_not_be_opened_is_no_failure(
    store, monkeypatch, inside
):
    """A user may pass through folders that he may not list: he did not make them. In the root it is a failed put."""
    refused = os.path.join(store.root, "entries") if inside else os.path.dirname(store.root)
    real, asked = os.open, []

    def open_(path, *arguments):
        if path == refused:
            asked.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", open_)
    stored = store.put(entry_of("a"))
    assert asked
    assert stored.failed is inside


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_F03_a_file_system_that_syncs_no_folders_is_taken_as_it_is(store, monkeypatch, number):
    """Some mounts refuse to sync a folder: they have nothing more to give, and the put is no failure."""
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.put(entry_of("a")).written
