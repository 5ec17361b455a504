"""The disk store on a disk that fails: put ends in a sentence, leaves no temporary, and works once it is well again."""

import errno
import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of

SENTENCES = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the folder is mounted read-only",
    errno.EACCES: "permission is denied",
    errno.EIO: os.strerror(errno.EIO),
}
CALLS = ["open", "write", "link"]


@pytest.fixture
def store(tmp_path):
    return DiskStore(str(tmp_path / "cache"))


def failing(number):
    """A call that fails with `number`."""

    def fail(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return fail


def temporaries(store):
    return os.listdir(os.path.join(store.root, "tmp"))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_disk_ends_in_a_sentence(store, tmp_path, monkeypatch, call, number, durable):
    """Whichever step of put fails and how, the result says so, no temporary stays, and the next put works."""
    store = DiskStore(store.root, durable=durable)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(number))
        stored = store.put(entry_of("a"))
    assert stored.failed
    assert stored.reason == f"{store.root}: {SENTENCES[number]}"
    assert temporaries(store) == []
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written


def test_a_disk_that_fills_in_the_middle_leaves_nothing(store, monkeypatch):
    """A file that was written in part is removed, and never seen under the entry's name."""
    real, calls = os.write, []

    def write(descriptor, data):
        calls.append(len(data))
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, bytes(data)[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        assert "no space" in store.put(entry_of("a")).reason
    assert calls[1] == calls[0] - 10
    assert temporaries(store) == []
    assert store.look(key_of("a")).outcome is Outcome.MISS


def test_short_writes_are_continued(store, monkeypatch):
    """A file system that takes a few bytes at a time gets the whole entry."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda d, data: real(d, bytes(data)[:7]))
        assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS],
                         ids=errno.errorcode.get)  # fmt: skip
def test_a_file_system_without_hard_links_still_publishes(store, monkeypatch, number):
    """Where a link cannot be made for want of support, a rename gives the complete file its name."""
    monkeypatch.setattr(os, "link", failing(number))
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert temporaries(store) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_put_leaves_no_temporary(store, monkeypatch, error):
    """What is not the disk's fault is raised on, without a file left behind."""

    def interrupt(*arguments):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", interrupt)
        with pytest.raises(error):
            store.put(entry_of("a"))
    assert temporaries(store) == []


def test_a_quarantine_that_cannot_be_made_is_told(store, monkeypatch):
    """On a read-only folder a corrupt entry is still corrupt, and the reason says that it stays in place."""
    store.put(entry_of("a"))
    path = store.path_of(key_of("a"))
    with open(path, "wb") as file:
        file.write(b"bad")
    monkeypatch.setattr(os, "rename", failing(errno.EROFS))
    found = store.get(key_of("a"))
    assert found.outcome is Outcome.CORRUPT
    assert "could not be set aside" in found.reason
    assert os.path.exists(path)


def test_problem_is_empty_for_a_good_folder_and_leaves_nothing(store):
    """The check before strict work writes a probe and removes it."""
    assert store.problem() == ""
    assert temporaries(store) == []


@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "mkdir"])
def test_problem_is_the_sentence_that_put_would_give(store, monkeypatch, call, number):
    """A folder that cannot take entries is known before any work is done."""
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(number))
        assert store.problem() == f"{store.root}: {SENTENCES[number]}"
        assert store.put(entry_of("a")).reason == store.problem()
    if os.path.isdir(store.root):
        assert temporaries(store) == []


def test_the_first_put_sweeps_what_dead_processes_left(store):
    """Temporaries of dead processes go when the store is first written to; those of living ones stay."""
    folder = os.path.join(store.root, "tmp")
    os.makedirs(folder)
    parts = unique_name().split(".")
    dead = ".".join([*parts[:2], "otherboot", *parts[3:]])
    living = unique_name()
    for name in (dead, living):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8"):
            pass
        os.utime(path, (0, 0))
    store.get(key_of("a"))
    assert sorted(temporaries(store)) == sorted((dead, living))
    store.put(entry_of("a"))
    assert temporaries(store) == [living]
