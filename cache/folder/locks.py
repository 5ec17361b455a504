"""Locks in a cache folder, only so that two processes do not do the same work. Nothing is wrong without them."""

import contextlib
import os
from collections.abc import Iterator
from typing import Protocol

import filelock

from graphspec.cache.folder.listing import make_folder
from graphspec.cache.units import EntryKey


class Locks(Protocol):
    """What keeps two processes from compiling one unit, as far as it can."""

    def try_lock(self, key: EntryKey) -> contextlib.AbstractContextManager[bool]:
        """Holds the key's lock inside the block, if the value is True."""
        ...


class KeyLocks:
    """Advisory locks in a folder. The kernel releases a lock when its holder dies, and lock files stay in place.

    A holder that is stopped keeps its lock: who waits for one needs a bound of his own.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    @contextlib.contextmanager
    def try_lock(self, key: EntryKey) -> Iterator[bool]:
        """Holds the key's lock inside the block; the value is False when another process holds it.

        Where no lock can be had, the value is True: compiling twice is better than not at all.
        """
        with hold(self._root, key.digest) as free:
            yield free


class NoLocks:
    """Locks where nothing is stored: waiting for another's work would give nothing."""

    @contextlib.contextmanager
    def try_lock(self, key: EntryKey) -> Iterator[bool]:
        """Is always free."""
        yield True


@contextlib.contextmanager
def hold(root: str, name: str, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Holds a lock of the cache folder `root` inside the block; the value is False when another still has it after `wait_s`.

    The value is True where no lock can be had. No error of a lock is raised, neither before the block nor after it.
    """
    free, lock = _acquired(root, name, wait_s)
    try:
        yield free
    finally:
        if lock is not None:
            # The work in the block is done and good, whatever becomes of its lock.
            with contextlib.suppress(Exception):
                lock.release()


def _acquired(root: str, name: str, wait_s: float) -> tuple[bool, filelock.BaseFileLock | None]:
    path = os.path.join(root, "locks", f"{name}.lock")
    # No soft lock where flock is missing: that is a file that a killed holder on another host leaves for ever.
    lock = filelock.FileLock(path, timeout=wait_s, fallback_to_soft=False)
    try:
        # It may be the first to make the root.
        make_folder(root, "locks")
        lock.acquire()
    except filelock.Timeout:
        return False, None
    except Exception:
        # Not only OSError: the library has errors of its own for forks and for file systems without flock.
        return True, None
    return True, lock
