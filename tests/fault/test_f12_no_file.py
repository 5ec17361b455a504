"""F12: a folder, a link, a pipe, a socket or a device where an entry belongs. No reader waits, acts on it or follows it."""

import os
import signal
import socket
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphspec.cache.entry import pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.entries import entry_of
from support.faults import memory_folder

ENTRY = entry_of("a", b"library bytes")
NOWHERE = "a symbolic link that leads nowhere"
ZERO = os.makedev(1, 5)


@pytest.fixture
def store():
    with memory_folder() as folder:
        yield DiskStore(os.path.join(folder, "cache"))


@contextmanager
def at_once():
    """Fails the test when the block waits for something."""

    def late(number, frame):
        raise TimeoutError("the block waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_socket(path):
    # Addresses of sockets are short: a name in the working directory always is one.
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def make_device(kind):
    def make(path):
        try:
            os.mknod(path, kind | 0o600, ZERO)
        except PermissionError:
            pytest.skip("this machine lets nobody make devices")

    return make


def make_folder(path):
    (path / "inside").mkdir(parents=True)


def link_to(make):
    """Makes something elsewhere and links to it."""

    def make_link(path):
        target = path.parents[3] / "target"
        make(target)
        path.symlink_to(target)

    return make_link


KINDS = {
    "folder": (make_folder, "a folder"),
    "pipe": (os.mkfifo, "a named pipe"),
    "socket": (make_socket, "a socket"),
    "character device": (make_device(stat.S_IFCHR), "a device"),
    "block device": (make_device(stat.S_IFBLK), "a device"),
    "link to nothing": (lambda path: path.symlink_to("/nonexistent/graphspec"), NOWHERE),
    "link to itself": (lambda path: path.symlink_to(path.name), NOWHERE),
    "link into a file": (lambda path: path.symlink_to(f"{__file__}/inside"), NOWHERE),
    "link to a folder": (link_to(make_folder), "a folder"),
    "link to a pipe": (link_to(os.mkfifo), "a named pipe"),
    "link to a socket": (link_to(make_socket), "a socket"),
    "link to an endless device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "link to an empty device": (lambda path: path.symlink_to("/dev/null"), "a device"),
}


def lay(store, make):
    path = Path(store.path_of(ENTRY.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    return path


@pytest.mark.parametrize(("make", "what"), KINDS.values(), ids=KINDS)
def test_F12_what_is_no_file_is_set_aside_and_heals(store, make, what):
    """It is named, moved away as it is, without waiting, and a put takes its place."""
    path = lay(store, make)
    before = os.lstat(path)
    with at_once():
        assert store.look(ENTRY.key).outcome is Outcome.CORRUPT
        found = store.get(ENTRY.key)
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert found.reason == f"{what} lies where the entry should be"
    kept, note = sorted(Path(store.root, "quarantine").iterdir())
    assert (os.lstat(kept).st_ino, os.lstat(kept).st_mode) == (before.st_ino, before.st_mode)
    assert note.read_text() == found.reason + "\n"
    assert store.get(ENTRY.key).outcome is Outcome.MISS
    assert store.put(ENTRY).written
    assert bytes(store.get(ENTRY.key).entry.payload) == ENTRY.payload


@pytest.mark.parametrize(("make", "what"), KINDS.values(), ids=KINDS)
def test_F12_a_put_sets_aside_what_is_no_file(store, make, what):
    """A put that finds such a thing under its name heals like a get."""
    lay(store, make)
    with at_once():
        assert store.put(ENTRY).written
        assert bytes(store.get(ENTRY.key).entry.payload) == ENTRY.payload
    *_, note = sorted(Path(store.root, "quarantine").iterdir())
    assert note.read_text() == f"{what} lies where the entry should be\n"


@pytest.mark.parametrize(("make", "what"), KINDS.values(), ids=KINDS)
def test_F12_a_listing_neither_waits_nor_reads_what_is_no_file(store, make, what):
    """What the names promise is listed, and headers are read from files only."""
    lay(store, make)
    with at_once():
        assert [entry for _, entry, _ in store.entries()] in ([], [None])


def test_F12_a_link_to_a_whole_entry_is_a_hit(store, tmp_path):
    """Linked farms of entries work: what the link leads to is verified like any file."""
    target = tmp_path / "elsewhere"
    target.write_bytes(pack(ENTRY))
    lay(store, lambda path: path.symlink_to(target))
    assert bytes(store.get(ENTRY.key).entry.payload) == ENTRY.payload
    assert not store.put(ENTRY).failed


def test_F12_a_link_to_a_bad_file_is_set_aside_and_its_target_stays(store, tmp_path):
    """Only the link is moved: what it leads to belongs to somebody else."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"notes")
    lay(store, lambda path: path.symlink_to(target))
    assert store.get(ENTRY.key).outcome is Outcome.CORRUPT
    assert target.read_bytes() == b"notes"
    assert store.put(ENTRY).written
    assert target.read_bytes() == b"notes"
    assert store.get(ENTRY.key).outcome is Outcome.HIT


def test_F12_a_pipe_that_takes_the_files_place_in_between_is_not_waited_for(store, monkeypatch):
    """Between the look at a file and its opening, it can become a pipe: opened without waiting, and looked at again."""
    store.put(ENTRY)
    path, real = store.path_of(ENTRY.key), os.open

    def open_late(name, *arguments):
        if name == path and stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
            os.mkfifo(path)
        return real(name, *arguments)

    with monkeypatch.context() as patched, at_once():
        patched.setattr(os, "open", open_late)
        found = store.get(ENTRY.key)
    assert found.outcome is Outcome.CORRUPT
    assert found.reason == "a named pipe lies where the entry should be"
    assert not os.path.lexists(path)
    assert store.put(ENTRY).written
