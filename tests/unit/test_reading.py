"""Reading stored files: no more of a file than was asked for, and a storage that fails is not taken for a bad entry."""

import errno
import os

import pytest

from graphspec.cache.entry import PREFIX_BYTES, EntryCorruptError, pack, read_prefix
from graphspec.cache.folder import reading
from graphspec.cache.folder.reading import read_entry, read_header
from support.entries import entry_of

DATA = pack(entry_of("a", b"payload" * 100))
HEADER_END = PREFIX_BYTES + read_prefix(DATA).header


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "stored"
    path.write_bytes(DATA)
    return str(path)


@pytest.mark.parametrize("most", [None, 7, HEADER_END - 1])
def test_each_part_is_read_to_its_end_and_no_further(path, monkeypatch, most):
    """Also where the storage gives fewer bytes at a time than it is asked for."""
    if most is not None:
        read = os.read
        monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, most)))
    assert read_header(path) == DATA[:HEADER_END]
    assert read_entry(path) == DATA


def test_a_link_on_a_storage_that_fails_is_no_bad_entry(path, tmp_path, monkeypatch):
    """Only a link whose end is known to be missing is one; what the storage reports otherwise is passed on."""
    link = tmp_path / "link"
    link.symlink_to(path)

    def failing(name):
        raise OSError(errno.EIO, "disk", name)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(OSError, match="disk") as caught:
        read_entry(str(link))
    assert caught.value.errno == errno.EIO


def test_what_this_system_has_no_name_for_is_no_file():
    """A kind of file that POSIX does not know is refused in words."""
    with pytest.raises(EntryCorruptError, match=r"^something that is no file lies where the entry"):
        reading._check_kind(0)
