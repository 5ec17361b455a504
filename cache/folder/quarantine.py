"""The quarantine: files that cannot be used, each beside a note with the reason. It is bounded in files and bytes."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator

import attrs

from graphspec.cache.folder.publish import make_folder, publish, write_new
from graphspec.cache.leftovers import NAME_PARTS, is_ours, unique_name

KEPT_FILES = 32
KEPT_BYTES = 256 << 20
"""Of what was set aside the newest stay, up to these limits together; the very newest stays whatever its size."""

_REASON = ".reason"
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EXDEV, errno.ENOTDIR, errno.EEXIST, errno.EMLINK)


def set_aside(folder: str, path: str, reason: str, seen: os.stat_result | None = None) -> bool:
    """Moves what lies at `path` into `folder`, with its reason. Then removes the oldest beyond the limits.

    With `seen`, what lay there when it was found bad, anything else stays where it is and the result is False: another
    process has set the bad file aside, and stored a good one. A bad file for which there is no place in `folder` is
    removed. Raises OSError where it had to stay.
    """
    if _is_gone(path):
        return True
    if not _is(path, seen):
        return False
    target = os.path.join(folder, f"{os.path.basename(path)}.{unique_name()}")
    unnoted = _note(target + _REASON, reason)
    try:
        os.rename(path, target)
    except OSError as error:
        _remove(target + _REASON)
        if _is_gone(path):
            return True
        moved_and_back = unnoted is None and isinstance(error, FileNotFoundError)
        if moved_and_back or not _is(path, seen):
            # Gone when it was to be moved, and there again: a good one, or this one, given back by who had moved it.
            return False
        _make_room(path, unnoted or error)
        return True
    if unnoted is None and _is_gone(target + _REASON):
        # Another process's trim took the note, still without its file, for one that a killed process had left. Before all
        # else: a process may be killed while it gives the file back, too.
        _note(target + _REASON, reason)
    if not _is(target, seen):
        _give_back(target, path)
        return False
    trim(folder)
    return True


def trim(folder: str) -> int:
    """Removes the oldest files beyond the limits, with their reasons, and returns how many. Leaves what others put there."""
    kept_bytes, removed = 0, 0
    for count, item in enumerate(sorted(_items(folder), key=lambda i: i.age, reverse=True)):
        kept_bytes += item.bytes
        if count and (count >= KEPT_FILES or kept_bytes > KEPT_BYTES):
            _remove(item.path)
            _remove(item.path + _REASON)
            # A note alone may be one whose file is just coming: what came before the note went has to go too.
            _remove(item.path)
            removed += 1
    return removed


@attrs.frozen(kw_only=True)
class _Item:
    path: str
    age: tuple[int, int]
    """Time of change in nanoseconds, then the place in the order of one process: times can be equal."""
    bytes: int


def _items(folder: str) -> Iterator[_Item]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in {n.removesuffix(_REASON) for n in names}:
        parts = name.split(".")[-NAME_PARTS:]
        if not is_ours(".".join(parts)):
            continue
        path = os.path.join(folder, name)
        # A process that was killed in between leaves a note alone: it counts, and so it goes in its turn.
        facts = [f for f in (_status(path), _status(path + _REASON)) if f is not None]
        if facts:
            # Not the time of the last write: that is the entry's own, from before it was set aside.
            changed = max(f.st_ctime_ns for f in facts)
            size = sum(f.st_blocks * 512 for f in facts)
            yield _Item(path=path, age=(changed, int(parts[4])), bytes=size)


def noted(path: str) -> str | None:
    """The file whose reason is in `path`; None where that is no note."""
    return path.removesuffix(_REASON) if path.endswith(_REASON) else None


def _is_gone(path: str) -> bool:
    return not os.path.lexists(path)


def _is(path: str, seen: os.stat_result | None) -> bool:
    if seen is None:
        return True
    there = _status(path)
    return there is not None and _identity(there) == _identity(seen)


def _identity(facts: os.stat_result) -> tuple[int, int, int, int]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _note(path: str, reason: str) -> OSError | None:
    """Writes the reason before the file is moved, so that no file is there without one. Gives what went wrong."""
    try:
        make_folder(os.path.dirname(path))
        write_new(path, f"{reason}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        return error
    return None


def _make_room(path: str, error: OSError) -> None:
    """Removes what could not be moved for want of a place. To heal matters more than to keep what cannot be used."""
    if error.errno not in _NO_PLACE:
        raise error
    try:
        os.unlink(path)
    except OSError:
        raise error from None


def _give_back(target: str, path: str) -> None:
    # Where even that fails, it stays in the quarantine: nothing is lost.
    with contextlib.suppress(OSError):
        publish(target, path)
        _remove(target)
        _remove(target + _REASON)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _remove(path: str) -> None:
    facts = _status(path)
    if facts is None:
        return
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(facts.st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
