"""F15: the disk is full, the quota or the inodes are used up, at each step of a put, a get that quarantines, a lock."""

import contextlib
import errno
import itertools
import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import load_or_compile
from graphspec.cache.store import Outcome
from graphspec.errors import CacheUnusableError
from support import fake_compiler, toy
from support.bad_disks import BadDisk, files_below, tmpfs
from support.entries import entry_of, key_of

PAYLOAD = b"library bytes " * 40
ENTRY = entry_of("a", PAYLOAD)
SENTENCES = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
}


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a small tmpfs for the time of the test."""
    mounts = []

    def mount(options):
        mounts.append(tmpfs(tmp_path / "mount", options))
        return mounts[-1].__enter__()

    yield mount
    for each in mounts:
        each.__exit__(None, None, None)


def error(number):
    return OSError(number, os.strerror(number))


def bytes_of(store):
    """The payload that a get of the entry gives, or None. What it gives is the very payload, never another."""
    found = store.get(ENTRY.key)
    if found.entry is None:
        assert found.reason
        return None
    assert bytes(found.entry.payload) == PAYLOAD
    return PAYLOAD


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
def test_F15_a_put_survives_a_failure_of_each_of_its_calls(root, number, durable):
    """For every n: the n-th call fails, the result says why, no part is seen, and the next put works."""
    failed = []
    for nth in itertools.count():
        store = DiskStore(f"{root}{nth}", durable=durable)
        with BadDisk(store.root, error(number), nth, most=200) as disk:
            stored = store.put(ENTRY)
        if not disk.failed:
            assert stored.written
            break
        failed.append(disk.failed)
        left = [f for f in files_below(store.root) if f.startswith("tmp/")]
        # A temporary stays only where it could not be removed.
        assert len(left) == (disk.failed == "unlink"), (nth, disk.failed)
        if stored.written:
            assert disk.failed == "unlink"
        else:
            assert stored.reason == f"{store.root}: {SENTENCES[number]}"
        published = bytes_of(store) is not None
        # Past the link only what makes it last can fail: the entry is there, and put does not promise that it stays.
        assert published == ("link" in failed[:-1])
        assert store.put(ENTRY).written is not published
        assert bytes_of(store) == PAYLOAD
    assert {"mkdir", "open", "write", "close", "link", "unlink"} <= set(failed)
    assert failed.count("write") >= 4
    assert ("fsync" in failed) is durable


@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
def test_F15_a_corrupt_entry_is_never_served_whatever_its_quarantine_meets(root, number):
    """For every n: the n-th call of a get that sets a corrupt file aside fails, and the get says corrupt with a reason."""
    failed = []
    for nth in itertools.count():
        store = DiskStore(f"{root}{nth}")
        store.put(ENTRY)
        with open(store.path_of(ENTRY.key), "r+b") as file:
            file.truncate(100)
        with BadDisk(store.root, error(number), nth) as disk:
            found = store.get(ENTRY.key)
        assert found.entry is None
        if not disk.failed:
            break
        failed.append(disk.failed)
        assert found.outcome is (Outcome.ERROR if nth == 0 else Outcome.CORRUPT)
        assert found.reason
        # Once the disk is well again, the place is free or becomes free.
        assert bytes_of(store) is None
        assert store.put(ENTRY).written
        assert bytes_of(store) == PAYLOAD
    assert {"open", "mkdir", "rename"} <= set(failed)


@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
def test_F15_a_lock_that_the_disk_refuses_is_no_obstacle(root, number):
    """For every n: the n-th call of taking and giving back a lock fails, and the work goes on."""
    failed = []
    for nth in itertools.count():
        locks = KeyLocks(f"{root}{nth}")
        with (
            BadDisk(f"{root}{nth}", error(number), nth) as disk,
            locks.try_lock(ENTRY.key) as free,
        ):
            assert free
        if not disk.failed:
            break
        failed.append(disk.failed)
        with locks.try_lock(ENTRY.key) as free:
            assert free
    assert {"mkdir", "open", "close"} <= set(failed)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_F15_a_start_survives_a_failure_of_each_of_its_calls(root, tiny_spec, monkeypatch, number):
    """For every n: the n-th call below the cache folder fails, and the start has its library all the same.

    What could not be stored is said in one sentence, and is an error of a strict start. The next start is as usual.
    """
    fake_compiler.install(lambda unit: PAYLOAD, monkeypatch.setattr)
    unit, _ = toy.program(tiny_spec).units()

    def start(folder, strict=False):
        arguments = ([unit], tiny_spec, DiskStore(folder), KeyLocks(folder))
        artifacts, (result,) = load_or_compile(*arguments, strict=strict)
        assert artifacts == {"scale": PAYLOAD}
        return result

    failed, problems = [], 0
    for nth in itertools.count():
        with BadDisk(f"{root}{nth}", error(number), nth) as disk:
            result = start(f"{root}{nth}")
        assert result.compiled
        if not disk.failed:
            assert result.store_problem == ""
            break
        failed.append(disk.failed)
        again = start(f"{root}{nth}")
        if result.store_problem:
            problems += 1
            assert result.store_problem.startswith(f"{root}{nth}")
            strict = BadDisk(f"{root}strict{nth}", error(number), nth)
            with strict, pytest.raises(CacheUnusableError, match="cache folder: found"):
                start(f"{root}strict{nth}", strict=True)
        else:
            assert (again.outcome, again.compiled) == (Outcome.HIT, False)
    assert problems >= 5
    assert {"mkdir", "open", "write", "close", "link", "unlink"} <= set(failed)


def test_F15_a_real_disk_that_is_too_small_ends_in_a_sentence_and_heals(small_disk):
    """64 kB hold one entry of 40 kB and no second one; when the first goes, the second fits."""
    store = DiskStore(str(small_disk("size=64k")))
    first, second = entry_of("a", bytes(40_000)), entry_of("b", bytes(40_000))
    assert store.put(first).written
    assert store.put(second).reason == f"{store.root}: no space is left on the disk"
    assert os.listdir(os.path.join(store.root, "tmp")) == []
    assert store.get(second.key).outcome is Outcome.MISS
    assert bytes(store.get(first.key).entry.payload) == bytes(40_000)
    os.unlink(store.path_of(first.key))
    assert store.put(second).written


def test_F15_a_real_disk_without_inodes_says_so_and_heals(small_disk):
    """With space but no inode left, put names what is missing; what is there is served, and locks are no obstacle."""
    store = DiskStore(str(small_disk("size=4m,nr_inodes=12")))
    stored = {}
    for name in "abcdefghijkl":
        stored[name] = store.put(entry_of(name))
        if stored[name].failed:
            break
    assert (
        stored.popitem()[1].reason
        == f"{store.root}: no inode is left on the disk: it holds too many files"
    )
    assert len(stored) >= 2
    assert os.listdir(os.path.join(store.root, "tmp")) == []
    for name in stored:
        assert store.get(key_of(name)).outcome is Outcome.HIT
    with KeyLocks(store.root).try_lock(key_of("a")) as free:
        assert free
    # An entry may need a new folder too, and here a second name counts as an inode.
    for name in stored:
        os.unlink(store.path_of(key_of(name)))
    assert store.put(entry_of("z")).written


def test_F15_a_full_disk_is_known_before_any_work(small_disk):
    """The check that strict work begins with gives the sentence that put would give."""
    store = DiskStore(str(small_disk("size=64k")))
    assert store.problem() == ""
    assert store.put(entry_of("a", bytes(55_000))).written
    filler = os.path.join(store.root, "filler")
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert store.problem() == f"{store.root}: no space is left on the disk"
