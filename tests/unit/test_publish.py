"""Files appear whole and once: names are given to complete files only, and what fails has a sentence."""

import errno
import os

import pytest

from graphspec.cache.folder import publish as publish_module
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.publish import make_folder, publish, why, write_new
from graphspec.cache.store import Outcome
from support.crash_actions import no_links
from support.entries import entry_of, key_of


@pytest.fixture
def store(tmp_path):
    return DiskStore(str(tmp_path / "cache"))


def test_a_new_file_is_private_and_replaces_nothing(tmp_path):
    """A file that exists is an error, and the new one is its owner's only, whatever the umask."""
    before = os.umask(0)
    try:
        write_new(str(tmp_path / "file"), b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_new(str(tmp_path / "file"), b"other")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("taken", ["file", "folder", "link to nothing"])
def test_a_taken_name_stays_what_it_is(tmp_path, monkeypatch, links, taken):
    """The first writer wins with hard links and without: nothing that has the name is replaced."""
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    write_new(str(tmp_path / "temporary"), b"content")
    name = tmp_path / "name"
    if taken == "file":
        name.write_bytes(b"first")
    elif taken == "folder":
        name.mkdir()
    else:
        name.symlink_to("/nonexistent/graphspec")
    before = os.lstat(name)
    assert publish(str(tmp_path / "temporary"), str(name)) is False
    assert os.lstat(name).st_ino == before.st_ino
    assert (tmp_path / "temporary").read_bytes() == b"content"


def test_without_hard_links_the_first_writer_wins(store, monkeypatch):
    """A second put that finds the entry does not rename over it, and is told of other bytes."""
    monkeypatch.setattr(os, "link", no_links)
    assert store.put(entry_of("a", b"first")).written
    stored = store.put(entry_of("a", b"second"))
    assert (stored.written, stored.failed, stored.differs) == (False, False, True)
    assert bytes(store.get(key_of("a")).entry.payload) == b"first"


def test_folders_are_made_private_from_the_top_and_once(tmp_path):
    """Each folder on the way is for its owner only; one that is there is left as it is, and a file is an error."""
    assert make_folder(str(tmp_path / "a" / "b" / "c")) is True
    for path in ("a", "a/b", "a/b/c"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700
    (tmp_path / "a").chmod(0o755)
    assert make_folder(str(tmp_path / "a")) is False
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        make_folder(str(tmp_path / "file" / "below"))


def test_a_place_where_nothing_can_be_made_is_an_error_and_not_a_circle():
    """The kernel answers as if the folder above were not there, and it is."""
    with pytest.raises(FileNotFoundError):
        make_folder("/proc/graphspec/cache")
    assert DiskStore("/proc/graphspec").put(entry_of("a")).failed
    assert DiskStore("/proc/graphspec").problem()


@pytest.mark.parametrize(
    ("free", "total", "sentence"),
    [
        (0, 100, "no inode is left on the disk: it holds too many files"),
        (2, 100, "no inode is left on the disk: it holds too many files"),
        (3, 100, "no space is left on the disk"),
        (0, 0, "no space is left on the disk"),
    ],
    ids=[
        "none free",
        "fewer than a put needs",
        "enough free",
        "a file system without inode numbers",
    ],
)
def test_a_disk_without_inodes_is_not_called_full(store, monkeypatch, free, total, sentence):
    """The same error number means both: who reads that the disk is full, and sees space, would not know what to do."""

    class Facts:
        f_files, f_favail = total, free

    monkeypatch.setattr(os, "statvfs", lambda path: Facts)
    assert why(OSError(errno.ENOSPC, "full"), "/cache") == f"/cache: {sentence}"


def test_folders_on_different_file_systems_are_named(store, monkeypatch):
    """A tmp that is a mount of its own cannot give its files to entries: put and the check before work say so."""

    def cross(source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", cross)
    sentence = f"{store.root}: its folders tmp and entries lie on different file systems"
    assert store.put(entry_of("a")).reason == sentence
    assert store.problem() == sentence


def test_the_check_before_work_does_what_a_put_does(store, monkeypatch):
    """It makes a folder among the entries, a file, and its second name; it leaves nothing, not even when it fails."""
    assert store.problem() == ""
    assert os.listdir(os.path.join(store.root, "tmp")) == []
    assert os.listdir(os.path.join(store.root, "entries")) == []
    real = os.mkdir

    def mkdir(path, mode=0o777):
        if os.path.basename(os.path.dirname(path)) == "entries":
            raise OSError(errno.ENOSPC, "full")
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert store.problem() == f"{store.root}: no space is left on the disk"
    assert store.put(entry_of("a")).reason == store.problem()


def test_a_put_whose_temporary_is_swept_begins_again(store, monkeypatch):
    """A machine of the same name may take a file that is being written for a dead process's: nothing is lost."""
    real, swept = os.link, []

    def link(source, target):
        if not swept:
            swept.append(source)
            os.unlink(source)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert store.put(entry_of("a")).written
    assert swept
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert os.listdir(os.path.join(store.root, "tmp")) == []


def test_a_put_whose_temporaries_are_always_swept_ends_in_a_sentence(store, monkeypatch):
    """It does not try for ever."""
    tried = []

    def link(source, target):
        tried.append(source)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "link", link)
    assert store.put(entry_of("a")).reason == f"{store.root}: a folder or file of it is not there"
    assert len(tried) == 3


def test_a_put_that_always_comes_second_and_finds_nothing_ends_in_a_sentence(store, monkeypatch):
    """Where the name is taken whenever it is wanted and free whenever it is read, put gives up and says so."""

    def link(source, target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link)
    stored = store.put(entry_of("a"))
    assert stored.reason == f"{store.root}: other processes write and remove the same entry"
    assert os.listdir(os.path.join(store.root, "tmp")) == []


def test_an_entry_beyond_the_formats_limits_is_refused_before_it_is_written(store):
    """What no reader would accept is not stored, to be set aside at every start."""
    entry = entry_of("a")
    huge = type(entry)(key=entry.key, metadata={"text": "x" * (17 << 20)}, payload=b"")
    stored = store.put(huge)
    assert stored.reason == "it cannot be stored: the promised size is beyond the limit"
    assert not os.path.exists(store.root)


def test_an_entry_that_is_there_is_not_written_again(store, monkeypatch):
    """A put looks first: on a read-only copy of a cache it is no failure, and it writes nothing."""
    store.put(entry_of("a", b"first"))
    before = os.stat(store.path_of(key_of("a")))

    def refuse(*arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for call in ("mkdir", "write", "link", "rename", "unlink"):
        monkeypatch.setattr(os, call, refuse)
    same, other = (store.put(entry_of("a", payload)) for payload in (b"first", b"other"))
    assert (same.written, same.failed, same.differs) == (False, False, False)
    assert (other.written, other.failed, other.differs) == (False, False, True)
    assert os.stat(store.path_of(key_of("a"))).st_ino == before.st_ino


def test_only_payloads_are_compared(store):
    """The seconds that a compile took differ each time; that is no difference between two compiles."""
    entry = entry_of("a")
    store.put(entry)
    again = type(entry)(key=entry.key, metadata={"compile_seconds": 9.0}, payload=entry.payload)
    assert store.put(again).differs is False


@pytest.mark.parametrize(
    ("stale", "outcome"), [(1, Outcome.HIT), (2, Outcome.ERROR)], ids=["once", "always"]
)
def test_a_stale_handle_is_opened_again(store, monkeypatch, stale, outcome):
    """On a network mount, a file that was replaced between opening and reading is read anew, once."""
    store.put(entry_of("a"))
    real, calls = os.pread, []

    def pread(*arguments):
        calls.append(arguments)
        if len(calls) <= stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*arguments)

    monkeypatch.setattr(os, "pread", pread)
    assert store.get(key_of("a")).outcome is outcome


def test_the_sentence_for_an_unknown_error_is_the_systems():
    """What has no sentence of its own has the operating system's words, and the folder's path."""
    assert publish_module.why(OSError(errno.EIO, "x y"), "/cache") == "/cache: x y"
