"""How much a cache folder holds, without looking into it: a running total that all processes add to. It is only a hint.

The file ``usage`` begins with a random name. Records of 24 bytes follow: two signed numbers, bytes and files that came or
went, and a check over the name and both. A record is appended in one write, so no lock is needed. A process that puts
an entry adds it before it is published: the total may be too high, for a process that died or a file that was removed by
hand, and then somebody counts the files and starts a new total. It is too low only for what was put into the folder
without it, until a process puts its first entry and counts.
"""

import contextlib
import os
import secrets
import struct
from collections.abc import Callable

import attrs
import xxhash

from graphspec.cache.folder.evict import Total
from graphspec.cache.folder.listing import make_folder
from graphspec.cache.folder.publish import write_new
from graphspec.cache.leftovers import unique_name

NAME = "usage"
_MAGIC = b"GSPECUSE"
_NAME_BYTES = 16
_NUMBERS = struct.Struct("<qq")
_RECORD_BYTES = _NUMBERS.size + 8
_MOST_BYTES = _NAME_BYTES + 1024 * _RECORD_BYTES
"""A longer file takes longer to read than a count once in a while costs."""


@attrs.frozen(kw_only=True)
class Reading:
    """The total, and which of the files, that follow one another, it stood in."""

    total: Total
    name: bytes


@attrs.frozen(kw_only=True)
class _Seen:
    """How far a file was read, and what it came to up to there: a read costs what was added since."""

    name: bytes
    at: int
    total: Total


class RunningTotal:
    """The total of one cache folder. No method raises; None stands for a total that has to be counted."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._path = os.path.join(root, NAME)
        self._seen = _Seen(name=b"", at=0, total=Total())

    def read(self) -> Reading | None:
        """The total as it stands."""
        return self._append(None)

    def add(self, change: Total) -> Reading | None:
        """The total after `change` is added to it."""
        for _ in range(8):
            reading = self._append(change)
            now = self.read()
            # A count that began before the record was there may have replaced the file.
            if reading is None or (now is not None and now.name == reading.name):
                return reading
        return None

    def count(self, counted: Callable[[], Total]) -> Total:
        """What `counted` finds, which becomes the total, with what other processes add meanwhile."""
        # The new file is there before the count: who publishes after it began, sees that the name has changed and adds
        # the entry again. Twice is better than not at all.
        before = self.read()
        base = before.total if before is not None else Total()
        name = self._replace(base)
        found = counted()
        now = self.read()
        if now is not None and now.name == name:
            self._append(found - base)
        return found

    def forget(self) -> None:
        """Leaves it to the next process that puts an entry to count."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _append(self, change: Total | None) -> Reading | None:
        flags = (os.O_RDONLY if change is None else os.O_RDWR | os.O_APPEND) | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            name = os.pread(descriptor, _NAME_BYTES, 0)
            if change is not None:
                os.write(descriptor, _record(name, change))
            seen = self._seen
            if name != seen.name:
                seen = _Seen(name=name, at=_NAME_BYTES, total=Total())
            data = os.pread(descriptor, _MOST_BYTES + 1 - seen.at, seen.at)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        added = _sum(name, data)
        if added is None or seen.at + len(data) > _MOST_BYTES:
            return None
        total = seen.total + added
        if total.bytes < 0 or total.files < 0:
            return None
        self._seen = _Seen(name=name, at=seen.at + len(data), total=total)
        return Reading(total=total, name=name)

    def _replace(self, total: Total) -> bytes:
        name = _MAGIC + secrets.token_bytes(_NAME_BYTES - len(_MAGIC))
        temporary = os.path.join(self._root, "tmp", unique_name())
        try:
            make_folder(self._root, "tmp")
            write_new(temporary, name + _record(name, total))
            os.rename(temporary, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return name


def _record(name: bytes, change: Total) -> bytes:
    numbers = _NUMBERS.pack(change.bytes, change.files)
    return numbers + xxhash.xxh3_64_digest(name + numbers)


def _sum(name: bytes, data: bytes) -> Total | None:
    """What records come to; None for damaged ones."""
    if not name.startswith(_MAGIC) or len(data) % _RECORD_BYTES:
        return None
    size = files = 0
    for at in range(0, len(data), _RECORD_BYTES):
        numbers = data[at : at + _NUMBERS.size]
        if xxhash.xxh3_64_digest(name + numbers) != data[at + _NUMBERS.size : at + _RECORD_BYTES]:
            return None
        change = _NUMBERS.unpack(numbers)
        size, files = size + change[0], files + change[1]
    return Total(bytes=size, files=files)
