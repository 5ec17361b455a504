"""F22 and F23: what processes of other hosts and containers leave and do in a shared folder, and what a network mount shows late."""

import builtins
import errno
import os
import subprocess
import sys

import pytest

from graphspec.cache.entry import pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of


@pytest.fixture
def store(tmp_path):
    store = DiskStore(str(tmp_path / "cache"))
    assert store.put(entry_of("a")).written
    return store


def served(store, name):
    """True when a get gives the entry; what it gives is exactly what was put, and what it does not give has a reason."""
    found = store.get(key_of(name))
    assert (found.outcome is Outcome.HIT) is (found.entry is not None)
    assert found.entry is not None or found.reason
    return found.entry is not None and bytes(found.entry.payload) == entry_of(name).payload


def dead_pid():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return str(process.pid)


def named(host=None, boot=None, pid=None):
    """A temporary's name with some of its parts as another process would have them."""
    parts = unique_name().split(".")
    for place, value in ((1, host), (2, boot), (3, pid)):
        parts[place] = value or parts[place]
    return ".".join(parts)


def leave(store, name, data=b"half an entry"):
    """Puts a file into the folder of temporaries."""
    with open(os.path.join(store.root, "tmp", name), "wb") as file:
        file.write(data)


@pytest.mark.parametrize("pid", ["own", "dead", "1"])
def test_F22_a_temporary_of_another_host_is_not_taken_for_ours(store, pid):
    """Its process may live, whatever has its number here, or nothing: it stays when a new store is first written to."""
    number = {"own": str(os.getpid()), "dead": dead_pid(), "1": "1"}[pid]
    theirs = [named(host="otherhost", pid=number), named("otherhost", "0123456789ab-1", number)]
    for name in theirs:
        leave(store, name)
    assert DiskStore(store.root).put(entry_of("b")).written
    assert sorted(os.listdir(os.path.join(store.root, "tmp"))) == sorted(theirs)


def test_F22_of_equal_numbers_only_the_dead_process_of_this_host_is_swept(store):
    """Two temporaries with one dead number, here and elsewhere: the first goes, the second stays."""
    pid = dead_pid()
    ours, theirs = named(pid=pid), named(host="otherhost", pid=pid)
    for name in (ours, theirs):
        leave(store, name)
    assert DiskStore(store.root).put(entry_of("b")).written
    assert os.listdir(os.path.join(store.root, "tmp")) == [theirs]


def test_F22_a_container_of_this_host_does_not_sweep_what_its_host_is_writing(store):
    """Same host name, same boot, numbers of processes of its own: the writer that it cannot see lives, and its file stays."""
    leave(store, unique_name())
    before = os.listdir(os.path.join(store.root, "tmp"))
    code = f"""
from graphspec.cache.folder.disk import DiskStore
from support.entries import entry_of
assert DiskStore({store.root!r}).put(entry_of("b")).written
"""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ran = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": tests},
        cwd=os.path.dirname(tests),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in ran.stderr:
        pytest.skip(f"this machine does not let the test make a namespace: {ran.stderr}")
    assert ran.returncode == 0, ran.stderr
    assert os.listdir(os.path.join(store.root, "tmp")) == before
    assert served(store, "b")


def test_F22_a_temporary_is_never_taken_for_an_entry(store):
    """A whole entry under a temporary's name, in its folder and beside entries: not listed, not served, put as ever."""
    data = pack(entry_of("b"))
    path = store.path_of(key_of("b"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for name in (named(host="otherhost"), unique_name()):
        leave(store, name, data)
        for beside in (name, f"{os.path.basename(path)}.{name}", f".{os.path.basename(path)}.tmp"):
            with open(os.path.join(os.path.dirname(path), beside), "wb") as file:
                file.write(data)
    assert not served(store, "b")
    assert [path for path, _, _ in store.entries()] == [store.path_of(key_of("a"))]
    assert store.put(entry_of("b")).written
    assert served(store, "b")


class Descriptors:
    """Makes calls on an entry's open file fail, the first `times` of them or all, whichever way it is read."""

    def __init__(self, patched, number, times=None):
        self.number = number
        self.times = times
        self.seen = []
        for name in ("read", "pread", "fstat"):
            patched.setattr(os, name, self.failing(getattr(os, name)))

    def failing(self, real):
        def call(descriptor, *arguments):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.endswith(".entry") and (self.times is None or len(self.seen) < self.times):
                self.seen.append(real.__name__)
                raise OSError(self.number, os.strerror(self.number))
            return real(descriptor, *arguments)

        return call


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO],
                         ids=errno.errorcode.get)  # fmt: skip
def test_F23_a_handle_that_turns_stale_while_it_is_read_is_an_error(store, monkeypatch, number):
    """The file server has forgotten the file: an error with path and reason, nothing is moved, the next get is a hit."""
    with monkeypatch.context() as patched:
        calls = Descriptors(patched, number)
        found = store.get(key_of("a"))
        stored = store.put(entry_of("a"))
        listed = list(store.entries())
    assert calls.seen
    path = store.path_of(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert found.reason == f"{path}: {os.strerror(number)}"
    assert (stored.failed, stored.reason) == (True, found.reason)
    assert [(p, header) for p, header, _ in listed] == [(path, None)]
    assert served(store, "a")


def test_F23_a_handle_that_is_stale_once_is_opened_again(store, monkeypatch):
    """The file was replaced on the server between its opening and its reading: the new one is read, and it is a hit."""
    calls = Descriptors(monkeypatch, errno.ESTALE, times=1)
    assert served(store, "a")
    assert len(calls.seen) == 1


def failing_paths(patched, number, suffix, times=None):
    """Makes calls that name a path with this ending fail, the first `times` of them or all. Returns what was called."""
    seen = []

    def failing(real, name):
        def call(path, *arguments, **named):
            if str(path).endswith(suffix) and (times is None or len(seen) < times):
                seen.append(name)
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **named)

        return call

    patched.setattr(builtins, "open", failing(builtins.open, "open"))
    for name in ("open", "stat", "lstat"):
        patched.setattr(os, name, failing(getattr(os, name), name))
    return seen


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN],
                         ids=errno.errorcode.get)  # fmt: skip
def test_F23_a_stale_handle_on_open_is_an_error(store, monkeypatch, number):
    """An entry that the mount cannot open for a moment is neither a miss nor corrupt, and costs one lookup."""
    with monkeypatch.context() as patched:
        assert failing_paths(patched, number, ".entry") == []
        found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert os.strerror(number) in found.reason
    assert served(store, "a")


@pytest.mark.parametrize("late", [1, 2, 3, 5, 10])
def test_F23_an_entry_that_becomes_visible_late_is_a_miss_until_then(store, monkeypatch, late):
    """Another host has put the entry, this one's mount does not show it yet: miss, then hit; put never takes its place."""
    with monkeypatch.context() as patched:
        failing_paths(patched, errno.ENOENT, ".entry", late)
        assert store.look(key_of("a")).outcome is Outcome.MISS
        stored = store.put(entry_of("a", b"other bytes"))
        assert not stored.written
        assert stored.reason or stored.differs
    assert served(store, "a")


@pytest.mark.parametrize("stale", ["gone", "not there yet"])
def test_F23_listings_that_lag_behind_the_folder_do_no_harm(store, monkeypatch, stale):
    """A listing with a name that is gone has no header for it; one without a new entry does not hide it from a get."""
    path = store.path_of(key_of("b"))
    if stale == "gone":
        assert store.put(entry_of("b")).written
    listings = {}
    for folder, _, _ in os.walk(store.root):
        with os.scandir(folder) as found:
            listings[folder] = list(found)
    names = {folder: [e.name for e in entries] for folder, entries in listings.items()}

    class Late:
        """What scandir gives: the listing of before."""

        def __init__(self, folder):
            self.entries = iter(listings.get(str(folder), []))

        def __iter__(self):
            return self.entries

        def __next__(self):
            return next(self.entries)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def close(self):
            pass

    if stale == "gone":
        os.unlink(path)
    else:
        assert store.put(entry_of("b")).written
    leave(store, named(pid=dead_pid()))
    monkeypatch.setattr(os, "scandir", Late)
    monkeypatch.setattr(os, "listdir", lambda folder: names.get(str(folder), []))
    listed = {p: header is not None for p, header, _ in store.entries()}
    assert listed.pop(store.path_of(key_of("a"))) is True
    assert not any(listed.values())
    assert served(DiskStore(store.root), "b") is (stale == "not there yet")
    assert DiskStore(store.root).put(entry_of("b")).written is (stale == "gone")
    assert served(store, "b")
