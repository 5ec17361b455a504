"""Eviction: what goes first, what stays, and what it leaves behind. Caps win over grace, and nothing else does."""

import errno
import os
import time
from pathlib import Path

import attrs
import pytest

from graphspec.cache.folder import evict as module
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import (
    HALF_LIFE_S,
    Caps,
    Total,
    discard,
    evict,
    is_young,
    move_away,
    plan_eviction,
    total_of,
    trim,
    worth,
)
from graphspec.cache.folder.listing import StoredFile, entry_files, quarantined_files, stored_files
from graphspec.cache.store import Outcome
from support.entries import METADATA, entry_of, key_of

NOW = 1_000_000_000.0
DAY = 86_400.0


def file(name, size=100, idle=2 * DAY, seconds=1.0, quarantined=False):
    """A file that was last used `idle` seconds ago."""
    return StoredFile(
        path=name,
        bytes=size,
        last_used=NOW - idle,
        compile_seconds=seconds,
        quarantined=quarantined,
    )


def caps(size=10**9, files=10**9, grace=DAY):
    return Caps(max_bytes=size, max_entries=files, grace_seconds=grace)


def planned(found, limits, **more):
    return [f.path for f in plan_eviction(found, limits, NOW, **more)]


def test_nothing_goes_while_the_caps_are_kept():
    """At the cap is within it, in bytes and in files."""
    found = [file("a"), file("b", idle=400 * DAY)]
    assert planned(found, caps(size=200, files=2)) == []
    assert planned(found, caps(size=199)) == ["b"]
    assert planned(found, caps(files=1)) == ["b"]
    assert planned([], caps(size=0, files=0)) == []


def test_what_saves_few_seconds_a_byte_goes_first():
    """A large entry that was quick to make goes before a small one that took long."""
    found = [
        file("small, slow", size=10, seconds=100.0),
        file("large, slow", size=1000, seconds=100.0),
        file("small, quick", size=10, seconds=0.5),
        file("large, quick", size=1000, seconds=0.5),
    ]
    order = planned(found, caps(size=0))
    assert order == ["large, quick", "small, quick", "large, slow", "small, slow"]


def test_worth_halves_with_each_week_without_use():
    """Ten seconds of compiling in an entry of five bytes are two a byte, and after two weeks half a second."""
    assert worth(file("a", size=5, seconds=10.0, idle=0), NOW) == 2.0
    assert worth(file("a", size=5, seconds=10.0, idle=2 * HALF_LIFE_S), NOW) == 0.5
    assert HALF_LIFE_S == 7 * DAY
    assert worth(file("a", idle=1e12), NOW) == 0.0


def test_an_unknown_cost_counts_as_one_second():
    """An entry of another version of graphspec cannot be asked what it took."""
    assert worth(file("a", seconds=None), NOW) == worth(file("a", seconds=1.0), NOW)


def test_of_equal_worth_the_least_recently_used_goes_first():
    """Entries that save nothing are all worth nothing; the names decide what is left."""
    found = [file("new", seconds=0.0, idle=3 * DAY), file("old", seconds=0.0, idle=4 * DAY)]
    assert planned(found, caps(size=100)) == ["old"]
    assert planned([file("b"), file("a")], caps(size=100)) == ["a"]


def test_the_quarantine_goes_before_any_entry():
    """What serves no lookup has no grace: the oldest of it goes first."""
    found = [
        file("entry", idle=400 * DAY, seconds=0.0),
        file("bad, new", idle=0, quarantined=True),
        file("bad, old", idle=9 * DAY, quarantined=True),
    ]
    assert planned(found, caps(size=250)) == ["bad, old"]
    assert planned(found, caps(size=100)) == ["bad, old", "bad, new"]


def test_within_the_grace_period_an_entry_stays_while_older_ones_are_left():
    """However little it is worth, and however much the older ones are."""
    young, old = file("young", idle=DAY - 1, seconds=0.0), file("old", idle=DAY, seconds=1e6)
    assert is_young(young, caps(), NOW)
    assert not is_young(old, caps(), NOW)
    assert planned([young, old], caps(size=100)) == ["old"]


def test_caps_win_over_grace_and_then_the_least_recently_used_goes():
    """When only young entries are left and do not fit, worth does not count: the working set is what was used last."""
    found = [
        file("used just now", idle=1, seconds=0.0),
        file("used before", idle=60, seconds=1e6),
        file("used long before", idle=3600, seconds=1e6),
    ]
    assert planned(found, caps(size=200)) == ["used long before"]
    assert planned(found, caps(size=100)) == ["used long before", "used before"]


def test_young_entries_go_only_as_far_as_the_cap_and_old_ones_a_little_further():
    """A tenth is left free for the next puts, but never at the price of an entry within its grace period."""
    old = [file(f"old {i}", size=10, idle=2 * DAY + i) for i in range(10)]
    young = [file(f"young {i}", size=10, idle=i) for i in range(10)]
    assert len(planned(old, caps(size=99), spare=0.5)) == 5
    assert len(planned(young, caps(size=99), spare=0.5)) == 1
    assert len(planned([*old, *young], caps(size=150), spare=0.5)) == 10


def test_a_time_in_the_future_is_now():
    """Another host's clock may be ahead by years: its entries are young and not immortal."""
    ahead, here = file("ahead", idle=-1e9), file("here", idle=-1.0)
    assert is_young(ahead, caps(), NOW)
    assert worth(ahead, NOW) == worth(here, NOW)
    assert planned([ahead, file("b", idle=0)], caps(size=100)) == ["ahead"]


def test_room_is_made_for_what_is_to_come():
    """The caps hold for what is there and the entry that arrives, together."""
    found = [file("a"), file("b", idle=3 * DAY)]
    assert planned(found, caps(size=250), room=Total(bytes=50, files=1)) == []
    assert planned(found, caps(size=250), room=Total(bytes=51, files=1)) == ["b"]
    assert planned(found, caps(files=2), room=Total(bytes=0, files=1)) == ["b"]


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


def stored(root, name, size=1000, idle=2 * DAY, seconds=1.0):
    """A real entry of about that size that was last used so long ago."""
    metadata = {**METADATA, "compile_seconds": seconds}
    entry = attrs.evolve(entry_of(name, bytes(size)), metadata=metadata)
    store = DiskStore(root)
    assert store.put(entry).written
    at = time.time() - idle
    os.utime(store.path_of(entry.key), (at, at))
    return store.path_of(entry.key)


def there(root):
    return {name for name in "abcdefgh" if os.path.exists(DiskStore(root).path_of(key_of(name)))}


def test_evict_removes_the_planned_files_and_says_what_is_left(root):
    """The costs come from the entries' own headers."""
    for name, seconds in (("a", 9.0), ("b", 1.0), ("c", 5.0)):
        stored(root, name, seconds=seconds)
    done = evict(root, caps(files=2), spare=0.0)
    assert there(root) == {"a", "c"}
    assert [os.path.basename(f.path).split(".")[0] for f in done.removed] == [key_of("b").digest]
    assert done.held == total_of(list(entry_files(root)))
    assert (done.young, done.refused) == (0, "")
    assert done.bytes == done.removed[0].bytes
    assert os.listdir(os.path.join(root, "tmp")) == []


def test_a_dry_run_says_the_same_and_removes_nothing(root):
    """What it would remove is what it then removes."""
    for name, seconds in (("a", 9.0), ("b", 1.0), ("c", 5.0)):
        stored(root, name, seconds=seconds)
    told = evict(root, caps(files=1), spare=0.0, dry_run=True)
    assert there(root) == {"a", "b", "c"}
    done = evict(root, caps(files=1), spare=0.0)
    assert [f.path for f in told.removed] == [f.path for f in done.removed]
    assert told.held == done.held
    assert there(root) == {"a"}


def test_what_is_no_entry_saves_nothing_and_goes_first(root):
    """A damaged file that nobody has asked for in days is not worth its bytes."""
    Path(stored(root, "a")).write_bytes(b"damaged" * 200)
    os.utime(DiskStore(root).path_of(key_of("a")), (NOW, NOW))
    stored(root, "b", seconds=0.001)
    evict(root, caps(files=1), spare=0.0)
    assert there(root) == {"b"}


def test_entries_of_other_versions_of_graphspec_count_and_go(root):
    """Two versions can share a folder, and after an upgrade nobody else would remove what the old one left."""
    path = stored(root, "a", seconds=0.5)
    other = path.replace(".v3.", ".v1.")
    os.rename(path, other)
    stored(root, "b", seconds=2.0)
    assert {f.path: f.readable_format for f in entry_files(root)}[other] is False
    evict(root, caps(files=1), spare=0.0)
    assert not os.path.exists(other)
    assert there(root) == {"b"}


def test_files_that_are_not_ours_neither_count_nor_go(root):
    """Notes of people in the folder are left alone."""
    path = stored(root, "a")
    note = Path(path).parent / "README"
    note.write_text("do not touch")
    assert [f.path for f in stored_files(root)] == [path]
    evict(root, caps(size=0))
    assert note.exists()
    assert there(root) == set()


def test_what_lies_in_the_quarantine_counts(root):
    """Damaged files that were set aside fill a disk as well: they go first, with their notes."""
    Path(stored(root, "a")).write_bytes(bytes(5000))
    assert DiskStore(root).get(key_of("a")).outcome is Outcome.CORRUPT
    stored(root, "b")
    assert total_of(list(quarantined_files(root))).files == 2
    evict(root, caps(files=1))
    assert list(quarantined_files(root)) == []
    assert there(root) == {"b"}


def test_a_note_never_goes_without_its_file(root):
    """The file may have come between the listing and the removal: left behind, nobody would know what is wrong with it."""
    folder = Path(root) / "quarantine"
    folder.mkdir(parents=True)
    note = folder / "ab.v3.entry.graphspec.host.1-2.3.4.5.reason"
    note.write_text("truncated")
    (listed,) = quarantined_files(root)
    come = note.with_suffix("")
    come.write_bytes(b"no entry")
    assert discard(root, listed)
    assert list(folder.iterdir()) == []


def test_times_of_use_that_are_known_better_count(root):
    """The file's own time is known to the hour; the process that has just read an entry knows more."""
    paths = {name: stored(root, name, idle=3600 - i) for i, name in enumerate("abc")}
    evict(root, caps(files=2), used={paths["a"]: time.time()})
    assert there(root) == {"a", "c"}


def test_an_entry_that_is_used_after_it_was_listed_stays(root, monkeypatch):
    """A reader that touches a file between the plan and its removal keeps it; another one goes in its place."""
    paths = {name: stored(root, name, idle=9 * DAY - i) for i, name in enumerate("abc")}
    real, touched = discard, []

    def touch_first(root, found):
        if found.path == paths["a"] and not touched:
            touched.append(found.path)
            os.utime(found.path)
        return real(root, found)

    monkeypatch.setattr(module, "discard", touch_first)
    done = evict(root, caps(files=2), spare=0.0)
    assert touched
    assert there(root) == {"a", "c"}
    assert [f.path for f in done.removed] == [paths["b"]]


def test_a_file_that_vanishes_is_nobodys_fault(root):
    """Two evictors choose the same file: one of them removes it, and both end well."""
    path = stored(root, "a")
    (listed,) = entry_files(root)
    assert discard(root, listed)
    assert not discard(root, listed)
    assert not move_away(root, path)


def test_a_reader_that_has_opened_an_entry_reads_it_to_the_end(root):
    """Eviction takes the name away and not the bytes."""
    path = stored(root, "a", size=1 << 20)
    whole = Path(path).read_bytes()
    with open(path, "rb", buffering=0) as reader:
        begun = reader.read(1000)
        assert len(evict(root, caps(size=0)).removed) == 1
        assert not os.path.exists(path)
        assert begun + reader.read() == whole


def test_a_reader_that_comes_too_late_finds_a_plain_miss(root):
    """Between a lookup and the opening of the file is no state of its own."""
    stored(root, "a")
    evict(root, caps(size=0))
    assert DiskStore(root).get(key_of("a")).outcome is Outcome.MISS
    assert DiskStore(root).put(entry_of("a")).written


def test_a_link_that_leads_nowhere_goes_too(root):
    """It can be removed like any file, and what it once led to is not touched."""
    path = stored(root, "a")
    os.rename(path, path + ".moved")
    os.symlink(path + ".gone", path)
    assert move_away(root, path)
    assert not os.path.lexists(path)


def failing(number):
    def fail(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_disk_too_full_for_another_name_is_emptied_all_the_same(root, monkeypatch):
    """Where the file cannot move to the temporaries first, it is removed in its place."""
    stored(root, "a")
    monkeypatch.setattr(os, "rename", failing(errno.ENOSPC))
    assert len(evict(root, caps(size=0)).removed) == 1
    assert there(root) == set()


def test_what_cannot_be_removed_is_told_and_another_goes_in_its_place(root, monkeypatch):
    """A file of another user stays; the folder is brought within its caps with what can go."""
    paths = {name: stored(root, name, idle=9 * DAY - i) for i, name in enumerate("abc")}
    unlink, rename = os.unlink, os.rename

    def refuse(real):
        def call(path, *more):
            if path == paths["a"]:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            return real(path, *more)

        return call

    monkeypatch.setattr(os, "unlink", refuse(unlink))
    monkeypatch.setattr(os, "rename", refuse(rename))
    done = evict(root, caps(files=2), spare=0.0)
    assert there(root) == {"a", "c"}
    assert done.refused == f"{paths['a']}: {os.strerror(errno.EPERM)}"
    assert done.held.files == 2


def test_a_folder_that_is_not_there_holds_nothing(root):
    """Nothing is made, and nothing is raised."""
    done = evict(root, caps(size=0))
    assert (done.removed, done.held) == ((), Total())
    assert not os.path.exists(root)


def test_trim_makes_the_folder_of_a_store_fit(root):
    """What a warmup calls when it has compiled something: a tenth of the cap is left free, of a small one nothing."""
    for i in range(20):
        stored(root, f"entry {i}")
    assert trim(DiskStore(root), Caps(max_entries=10)).held.files == 9
    assert trim(DiskStore(root), Caps(max_entries=1)).held.files == 1


def test_the_caps_are_on_by_default():
    """20 GiB, 20,000 files, a day of grace; none below zero."""
    assert Caps() == Caps(max_bytes=20 << 30, max_entries=20_000, grace_seconds=DAY)
    for name in ("max_bytes", "max_entries", "grace_seconds"):
        with pytest.raises(ValueError, match=name):
            Caps(**{name: -1})
