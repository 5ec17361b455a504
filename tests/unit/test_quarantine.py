"""The quarantine: each file beside its reason, bounded, and never a good entry that came in the meantime."""

import errno
import os

import pytest

from graphspec.cache.folder import quarantine
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.quarantine import KEPT_FILES, set_aside, trim
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "quarantine"


def bad_file(tmp_path, content="bad"):
    path = tmp_path / "KEY.v3.entry"
    path.write_text(content)
    return str(path)


def kept(folder):
    """Contents of the files in the quarantine, each of which has a reason."""
    files = [p for p in folder.iterdir() if p.suffix != ".reason"]
    assert {p.name for p in folder.iterdir()} == {
        n for p in files for n in (p.name, p.name + ".reason")
    }
    return sorted(p.read_text() for p in files)


def refuse(number):
    def call(*arguments):
        raise OSError(number, os.strerror(number))

    return call


def test_the_newest_files_stay_and_the_oldest_go(folder, tmp_path):
    """However many files are bad, the quarantine holds no more than its limit of them, with their reasons."""
    for number in range(KEPT_FILES + 5):
        assert set_aside(str(folder), bad_file(tmp_path, f"{number:03}"), "why")
    assert kept(folder) == [f"{n:03}" for n in range(5, KEPT_FILES + 5)]


def test_large_files_are_bounded_in_bytes_but_for_the_newest(folder, tmp_path, monkeypatch):
    """The limit is of disk space too. One file beyond all of it stays: it is what somebody looks for."""
    monkeypatch.setattr(quarantine, "KEPT_BYTES", 300_000)
    for letter in "abcd":
        set_aside(str(folder), bad_file(tmp_path, letter * 100_000), "why")
    assert [c[0] for c in kept(folder)] == ["c", "d"]
    set_aside(str(folder), bad_file(tmp_path, "e" * 500_000), "why")
    assert [c[0] for c in kept(folder)] == ["e"]


def test_a_sparse_file_counts_with_what_it_takes_on_the_disk(folder, tmp_path):
    """A bad file of a terabyte without blocks drives nothing out."""
    set_aside(str(folder), bad_file(tmp_path, "first"), "why")
    path = bad_file(tmp_path, "")
    os.truncate(path, 1 << 40)
    set_aside(str(folder), path, "why")
    assert len(list(folder.iterdir())) == 4


def test_notes_without_a_file_and_folders_are_bounded_too(folder, tmp_path):
    """A process that was killed between note and move leaves a note alone: such notes do not pile up."""
    folder.mkdir()
    for _ in range(KEPT_FILES + 5):
        (folder / f"KEY.v3.entry.{unique_name()}.reason").write_text("why")
    for _ in range(2):
        (folder / f"KEY.v3.entry.{unique_name()}" / "inside").mkdir(parents=True)
    assert trim(str(folder)) == 7
    assert len(list(folder.iterdir())) == KEPT_FILES


def test_what_others_put_there_stays(folder, tmp_path):
    """Notes of an operator, and copies with names of his own, are neither counted nor removed."""
    folder.mkdir()
    (folder / "notes.txt").write_text("do not remove")
    (folder / "KEY.v3.entry").write_text("a copy")
    for number in range(KEPT_FILES + 1):
        set_aside(str(folder), bad_file(tmp_path, str(number)), "why")
    assert (folder / "notes.txt").exists()
    assert (folder / "KEY.v3.entry").exists()
    assert len(list(folder.iterdir())) == 2 * KEPT_FILES + 2


def test_a_good_entry_that_came_in_the_meantime_stays(tmp_path, monkeypatch):
    """Between a bad file's reading and its move, another process heals: its entry is not moved, and the get hits."""
    store = DiskStore(str(tmp_path / "cache"))
    path = store.path_of(key_of("a"))
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"bad")
    real = os.lstat
    healed = []

    def lstat(name, *arguments):
        result = real(name, *arguments)
        if name == path and not healed:
            healed.append(True)
            other = DiskStore(store.root)
            assert other.get(key_of("a")).outcome is Outcome.CORRUPT
            assert other.put(entry_of("a")).written
        return result

    # The look of the get takes what it sees for the bad file's; by the time it reads, there is the good one.
    monkeypatch.setattr(os, "lstat", lstat)
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert healed


@pytest.mark.parametrize("when", ["before the move", "in the middle of the move"])
def test_another_file_in_its_place_is_not_set_aside(folder, tmp_path, monkeypatch, when):
    """What is there is compared with what was found bad, before the move and after it; it is given back."""
    path = bad_file(tmp_path)
    seen = os.lstat(path)
    real = os.rename

    def replace():
        (tmp_path / "good").write_text("good one")
        os.replace(tmp_path / "good", path)

    moved = []

    def rename(source, target):
        moved.append(source)
        if when == "in the middle of the move":
            replace()
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    if when == "before the move":
        replace()
    assert not set_aside(str(folder), path, "why", seen)
    with open(path, encoding="utf-8") as file:
        assert file.read() == "good one"
    # No reader misses it even for a moment, where that can be known.
    assert bool(moved) is (when == "in the middle of the move")
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_note_that_was_trimmed_before_its_file_came_is_written_again(
    folder, tmp_path, monkeypatch
):
    """Another process can take the note for one that was left alone; no file stays without its reason."""
    real = os.rename

    def rename(source, target):
        os.unlink(target + ".reason")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert set_aside(str(folder), bad_file(tmp_path), "why")
    assert kept(folder) == ["bad"]


def test_a_process_killed_while_it_gives_a_file_back_leaves_it_with_its_note(
    folder, tmp_path, monkeypatch
):
    """Its note may have been taken before the file came: it is written again before the file is given back."""
    path = bad_file(tmp_path)
    seen = os.lstat(path)
    real = os.rename

    class KilledError(Exception):
        pass

    def rename(source, target):
        os.unlink(target + ".reason")
        (tmp_path / "good").write_text("good one")
        os.replace(tmp_path / "good", path)
        real(source, target)

    def link(source, target):
        raise KilledError

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(KilledError):
        set_aside(str(folder), path, "why", seen)
    assert kept(folder) == ["good one"]


def test_a_file_that_comes_while_its_note_is_trimmed_does_not_stay_without_it(
    folder, tmp_path, monkeypatch
):
    """A trim takes an old note alone; at that moment the file comes that the note is of, and its process looks at the note
    before it goes."""
    slow = f"slow.{unique_name()}"
    folder.mkdir()
    (folder / f"{slow}.reason").write_text("why")
    for number in range(KEPT_FILES - 1):
        assert set_aside(str(folder), bad_file(tmp_path, f"{number:03}"), "why")
    real, came = os.unlink, []

    def unlink(path, **more):
        if path == str(folder / f"{slow}.reason"):
            (folder / slow).write_text("slow")
            came.append(path)
        real(path, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    assert set_aside(str(folder), bad_file(tmp_path, "last"), "why")
    assert came
    assert kept(folder) == [*(f"{n:03}" for n in range(KEPT_FILES - 1)), "last"]


def test_a_file_that_is_gone_is_no_failure(folder, tmp_path, monkeypatch):
    """Of two processes that find the same bad file, the second has nothing to do."""
    path = bad_file(tmp_path)
    seen = os.lstat(path)
    real = os.rename

    def rename(source, target):
        os.unlink(path)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert set_aside(str(folder), path, "why", seen)
    assert set_aside(str(folder), path, "why", seen)
    assert list(folder.iterdir()) == []


def test_a_file_that_another_process_moves_and_gives_back_is_looked_at_again(tmp_path, monkeypatch):
    """Gone for the moment of our own move, and the same file after it: that is no failure, neither of the move nor of the
    put that found the file bad."""
    store = DiskStore(str(tmp_path / "cache"))
    store.put(entry_of("a"))
    path, real, moves = store.path_of(key_of("a")), os.rename, []
    with open(path, "ab") as file:
        file.write(b"more")

    def rename(source, target):
        moves.append(target)
        if len(moves) > 1:
            return real(source, target)
        real(path, tmp_path / "moved")
        try:
            return real(source, target)
        finally:
            real(tmp_path / "moved", path)

    monkeypatch.setattr(os, "rename", rename)
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert len(moves) == 2


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EXDEV], ids=errno.errorcode.get
)
def test_a_bad_file_without_a_place_in_the_quarantine_is_removed(
    folder, tmp_path, monkeypatch, number
):
    """On a full disk, or with the quarantine on another one, to heal matters more than to keep the bytes."""
    path = bad_file(tmp_path)
    monkeypatch.setattr(os, "rename", refuse(number))
    assert set_aside(str(folder), path, "why", os.lstat(path))
    assert not os.path.exists(path)
    assert list(folder.iterdir()) == []


def test_a_quarantine_that_is_a_file_does_not_keep_an_entry_from_healing(tmp_path):
    """A store whose quarantine cannot be made removes what is bad, and stores anew."""
    store = DiskStore(str(tmp_path / "cache"))
    store.put(entry_of("a"))
    with open(store.path_of(key_of("a")), "wb") as file:
        file.write(b"bad")
    (tmp_path / "cache" / "quarantine").write_text("a file")
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    assert store.put(entry_of("a")).written
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_a_reason_that_cannot_be_written_does_not_keep_a_bad_file_in_its_place(
    folder, tmp_path, monkeypatch
):
    """The note is for people; that the place becomes free is for all processes."""
    path = bad_file(tmp_path)
    monkeypatch.setattr(os, "write", refuse(errno.ENOSPC))
    assert set_aside(str(folder), path, "why")
    assert [p.read_text() for p in folder.iterdir() if p.suffix != ".reason"] == ["bad"]


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.EBUSY], ids=errno.errorcode.get
)
def test_a_bad_file_that_has_to_stay_is_an_error_and_leaves_no_note(
    folder, tmp_path, monkeypatch, number
):
    """What may not be moved is not removed either, and the caller is told why."""
    path = bad_file(tmp_path)
    monkeypatch.setattr(os, "rename", refuse(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        set_aside(str(folder), path, "why")
    assert os.path.exists(path)
    assert list(folder.iterdir()) == []


def test_reasons_of_any_text_are_kept(folder, tmp_path):
    """A reason can hold a path with any characters, also those that are no Unicode."""
    assert set_aside(str(folder), bad_file(tmp_path), "é 字 \udcff")
    (note,) = folder.glob("*.reason")
    assert note.read_bytes() == b"\xc3\xa9 \xe5\xad\x97 \\udcff\n"
