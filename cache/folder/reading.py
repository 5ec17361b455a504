"""Reading a stored file without trusting it: only a regular file is opened, and only one of its promised size is read."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from graphspec.cache.entry import PREFIX_BYTES, EntryCorruptError, read_prefix

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link that leads nowhere",
}


def read_entry(path: str) -> bytes:
    """The bytes of the file at `path`. No memory is taken before its fixed part has promised exactly its size.

    Raises `EntryCorruptError` for what no put has left there, and OSError for what the storage does.
    """
    with _opened(path) as descriptor:
        return _read(descriptor, _promised(descriptor, with_payload=True))


def read_header(path: str) -> bytes:
    """Fixed part and header of the file at `path`, if the file has the size that they promise. Raises as `read_entry`."""
    with _opened(path) as descriptor:
        return _read(descriptor, _promised(descriptor, with_payload=False))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    # Opening a device can act on it, and opening a pipe waits for its other end: look first. What takes the file's place
    # after the look is opened without waiting and looked at again.
    _check_kind(_status(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor).st_mode)
        yield descriptor
    finally:
        # Nothing was written, so nothing can be lost in a close that fails.
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        # A link that leads nowhere would be a miss for ever: no put can take its name.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and os.path.islink(path):
            return os.lstat(path)
        raise


def _check_kind(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something that is no file")
        raise EntryCorruptError(f"{kind} lies where the entry should be")


def _promised(descriptor: int, *, with_payload: bool) -> int:
    size = os.fstat(descriptor).st_size
    sizes = read_prefix(os.pread(descriptor, PREFIX_BYTES, 0))
    if size < sizes.end:
        raise EntryCorruptError(f"truncated: {size} bytes, the header promises {sizes.end}")
    if size > sizes.end:
        raise EntryCorruptError(f"{size - sizes.end} bytes follow the payload")
    return sizes.end if with_payload else PREFIX_BYTES + sizes.header


def _read(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    if len(data) == size:
        return data
    # Network mounts give less at a time, and Linux never gives more than 2 GiB.
    parts = [data]
    while parts[-1]:
        parts.append(os.read(descriptor, size - sum(map(len, parts))))
    return b"".join(parts)
