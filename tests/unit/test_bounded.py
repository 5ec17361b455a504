"""`BoundedStore`: room is made before an entry is published, at the cost of a count now and then."""

import multiprocessing
import os

import filelock
import pytest

from graphspec.cache.folder import bounded
from graphspec.cache.folder.bounded import BoundedStore, packed_bytes
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, Total, total_of
from graphspec.cache.folder.listing import stored_files
from graphspec.cache.folder.usage import NAME, RunningTotal
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of

SIZE = packed_bytes(entry_of("0", bytes(1000)))


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


def held(root):
    return total_of(list(stored_files(root)))


def bounded_store(root, entries=3, **more):
    return BoundedStore(DiskStore(root), Caps(max_bytes=entries * SIZE), **more)


def put(store, *names):
    return [store.put(entry_of(name, bytes(1000))) for name in names]


def has(store, name):
    return store.get(key_of(name)).outcome is Outcome.HIT


def counted(monkeypatch):
    """How often the files were counted from now on."""
    calls = []
    real = bounded.stored_files

    def count(root):
        calls.append(root)
        return real(root)

    monkeypatch.setattr(bounded, "stored_files", count)
    return calls


def test_the_size_of_an_entry_is_known_before_it_is_written(root):
    """The promised size is that of the file, to the byte."""
    entry = entry_of("a", b"some bytes")
    DiskStore(root).put(entry)
    assert held(root).bytes == packed_bytes(entry)


def test_an_entry_is_there_after_its_put_whatever_had_to_go(root):
    """The newest stays, the least recently used goes, and the listener is told."""
    told = []
    store = bounded_store(root, listener=told.append)
    assert all(s.written for s in put(store, "a", "b", "c"))
    assert not told
    put(store, "d")
    assert [has(store, n) for n in "abcd"] == [False, True, True, True]
    (eviction,) = told
    assert eviction.young == len(eviction.removed) == 1


def test_what_had_to_go_is_one_event_of_the_log(root, caplog):
    """With the digests of the keys that went, where nobody listens."""
    caplog.set_level("INFO", logger="graphspec.cache")
    store = bounded_store(root)
    put(store, "a", "b", "c", "d")
    (record,) = caplog.records
    assert (record.levelname, record.event, record.young) == ("INFO", "cache_eviction", 1)
    assert record.keys == [key_of("a").digest]
    assert record.held_bytes == record.bytes * 2


def test_what_was_read_last_stays(root):
    """A get counts as use at once, long before the file's own time would show it."""
    store = bounded_store(root)
    put(store, "a", "b", "c")
    assert has(store, "a")
    put(store, "d")
    assert [has(store, n) for n in "abcd"] == [True, False, True, True]


def test_a_look_is_no_use(root):
    """Who only asks what is there keeps nothing from going."""
    store = bounded_store(root)
    put(store, "a", "b", "c")
    assert store.look(key_of("a")).outcome is Outcome.HIT
    put(store, "d")
    assert store.look(key_of("a")).outcome is Outcome.MISS


@pytest.mark.parametrize("caps", [Caps(max_bytes=SIZE - 1), Caps(max_entries=0)])
def test_an_entry_that_can_never_fit_is_refused_and_removes_nothing(root, caps):
    """Nothing is evicted in vain, and the reason has the sizes."""
    put(bounded_store(root), "a")
    store = BoundedStore(DiskStore(root), caps)
    stored = store.put(entry_of("b", bytes(1000)))
    assert stored.failed
    assert f"{SIZE:,} bytes" in stored.reason
    assert f"{caps.max_bytes:,} in {caps.max_entries:,} files" in stored.reason
    assert has(store, "a")


def test_a_second_put_of_an_entry_makes_no_room(root):
    """The first writer has won: nothing has to go for bytes that are not written."""
    store = bounded_store(root, entries=1)
    put(store, "a")
    (again,) = put(store, "a")
    assert (again.written, again.failed, again.differs) == (False, False, False)
    assert has(store, "a")
    assert RunningTotal(root).read().total == Total(bytes=SIZE, files=1)


def test_a_put_that_fails_gives_its_room_back(root, monkeypatch):
    """A full disk is not counted as an entry."""
    store = bounded_store(root)
    put(store, "a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", failing)
        (stored,) = put(store, "b")
    assert stored.failed
    assert RunningTotal(root).read().total == Total(bytes=SIZE, files=1)


def failing(*arguments, **named):
    raise OSError(28, "No space left on device")


def test_where_nothing_can_be_removed_the_entry_is_not_stored(root, monkeypatch):
    """The cap is kept, and the reason says why nothing could go."""
    store = bounded_store(root, entries=1)
    put(store, "a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        patched.setattr(os, "unlink", failing)
        (stored,) = put(store, "b")
    assert stored.failed
    assert "the cache is full" in stored.reason
    assert "No space left on device" in stored.reason
    assert held(root).files == 1
    assert put(store, "b")[0].written


def test_files_are_counted_once_and_then_only_at_the_cap(root, monkeypatch):
    """A hundred puts below the cap count once in all."""
    calls = counted(monkeypatch)
    store = bounded_store(root, entries=200)
    put(store, *map(str, range(100)))
    assert len(calls) == 1


def test_what_others_put_is_known_without_counting(root, monkeypatch):
    """Two stores, as of two processes, share the running total: the second one sees the cap that the first one reached."""
    one, other = bounded_store(root), bounded_store(root)
    put(one, "a")
    put(other, "b")
    calls = counted(monkeypatch)
    put(one, "c")
    put(other, "d")
    assert calls == []
    assert held(root).files == 3


def test_files_that_were_put_by_hand_are_counted_by_the_next_process(root):
    """The total is a hint: a process counts what is there before its first put."""
    put(bounded_store(root), "a")
    for name in "bcd":
        DiskStore(root).put(entry_of(name, bytes(1000)))
    put(bounded_store(root), "e")
    assert held(root).within(Caps(max_bytes=3 * SIZE))


@pytest.mark.parametrize(
    "damage", [b"", b"short", bytes(16) + b"x", bytes(16) + b"\xff" * 16, None]
)
def test_a_damaged_or_lost_total_is_counted_anew(root, damage):
    """Whatever the hint says or however it is lost, the caps hold."""
    store = bounded_store(root)
    put(store, "a", "b", "c")
    path = os.path.join(root, NAME)
    os.unlink(path)
    if damage is not None:
        with open(path, "wb") as file:
            file.write(damage)
    put(store, "d")
    assert held(root) == Total(bytes=3 * SIZE, files=3)
    assert RunningTotal(root).read().total == held(root)


def test_a_total_that_is_too_high_is_set_right_without_removing_anything(root):
    """Entries that were removed by hand still stand in the total, until it reaches the cap."""
    store = bounded_store(root)
    put(store, "a", "b", "c")
    os.unlink(DiskStore(root).path_of(key_of("a")))
    put(store, "d")
    assert [has(store, n) for n in "bcd"] == [True, True, True]
    assert RunningTotal(root).read().total == held(root)


def test_a_total_that_cannot_be_written_costs_counts_and_nothing_else(root, monkeypatch):
    """A folder in which the hint belongs to somebody else."""
    real = os.open

    def refuse(path, *more, **named):
        if str(path).endswith(NAME):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    calls = counted(monkeypatch)
    store = bounded_store(root)
    assert all(s.written for s in put(store, *"abcde"))
    assert held(root).files == 3
    assert len(calls) > 3


def test_an_entry_that_was_left_out_of_a_count_is_added_afterwards(root):
    """Another process counts while an entry is being written: it is in the new total before its put returns."""
    store = bounded_store(root)
    put(store, "a")

    class CountsMeanwhile(DiskStore):
        def put(self, entry):
            RunningTotal(root).count(lambda: held(root))
            return super().put(entry)

    slow = BoundedStore(CountsMeanwhile(root), Caps(max_bytes=3 * SIZE))
    put(slow, "b")
    assert RunningTotal(root).read().total == held(root) == Total(bytes=2 * SIZE, files=2)


def test_a_put_that_is_above_the_cap_in_the_end_makes_room_once_more(root):
    """Another process fills the folder while an entry is being written: what this put leaves is within the cap."""

    class OthersPutMeanwhile(DiskStore):
        def put(self, entry):
            put(DiskStore(root), "x", "y", "z")
            RunningTotal(root).count(lambda: held(root))
            return super().put(entry)

    store = BoundedStore(OthersPutMeanwhile(root), Caps(max_bytes=3 * SIZE))
    put(store, "b")
    assert has(store, "b")
    assert held(root).files == 3


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_a_broken_lock_does_not_matter(root, monkeypatch, call):
    """Two evictors at once remove more than they must. They leave the folder within its caps."""

    def broken(*arguments, **named):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(filelock.FileLock, call, broken)
    store = bounded_store(root)
    assert all(s.written for s in put(store, *"abcde"))
    assert held(root).files == 3


def hammer(root, start, first, most):
    """Puts twelve entries, and gives the largest size that it saw after a put of its own."""
    store = BoundedStore(DiskStore(root), Caps(max_bytes=5 * SIZE))
    start.wait()
    seen = 0
    for i in range(first, first + 12):
        assert store.put(entry_of(f"{i:03}", bytes(998))).written
        seen = max(seen, held(root).bytes)
    most.put(seen)


def test_processes_that_put_at_the_same_time_stay_within_the_cap_and_what_they_are_writing():
    """Four of them: above the cap at no time by more than the entries in their hands, and within it in the end."""
    import tempfile

    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        start, most = fork.Barrier(4), fork.Queue()
        workers = [
            fork.Process(target=hammer, args=(folder, start, 100 * n, most), daemon=True)
            for n in range(4)
        ]
        for worker in workers:
            worker.start()
        seen = [most.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join(60)
        assert [w.exitcode for w in workers] == [0, 0, 0, 0]
        assert max(seen) <= (5 + 4) * SIZE
        assert held(folder).bytes <= 5 * SIZE


def test_the_folder_is_made_for_this_user_alone(root):
    """The first put makes it, whatever the umask allows."""
    before = os.umask(0)
    try:
        put(bounded_store(root), "a", "b", "c", "d")
    finally:
        os.umask(before)
    for name in ("", "tmp", "locks", "entries", NAME):
        assert os.stat(os.path.join(root, name)).st_mode & 0o077 == 0, name


def test_a_set_aside_entry_counts_until_it_goes(root):
    """What the loader cannot use moves to the quarantine, and goes first."""
    store = bounded_store(root)
    put(store, "a", "b", "c")
    store.set_aside(key_of("c"), "its library does not load")
    assert not has(store, "c")
    put(store, "d")
    assert [has(store, n) for n in "abd"] == [True, True, True]
