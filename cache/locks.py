"""Locks per key, only so that two processes do not compile the same unit. Nothing is wrong without them."""

import contextlib
import os
from collections.abc import Iterator

import filelock

from graphspec.cache.units import EntryKey


class KeyLocks:
    """Advisory locks in a folder. The kernel releases a lock when its holder dies, and lock files stay in place.

    A holder that is stopped keeps its lock: who waits for one needs a bound of his own.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._folder = os.path.join(self._root, "locks")

    @contextlib.contextmanager
    def try_lock(self, key: EntryKey) -> Iterator[bool]:
        """Holds the key's lock inside the block; the value is False when another process holds it.

        Where no lock can be had, the value is True: compiling twice is better than not at all. No error of a lock is
        raised, neither before the block nor after it.
        """
        free, lock = self._acquire(key)
        try:
            yield free
        finally:
            if lock is not None:
                # The work in the block is done and good, whatever becomes of its lock.
                with contextlib.suppress(Exception):
                    lock.release()

    def _acquire(self, key: EntryKey) -> tuple[bool, filelock.BaseFileLock | None]:
        path = os.path.join(self._folder, key.digest + ".lock")
        # No soft lock where flock is missing: that is a file that a killed holder on another host leaves for ever.
        lock = filelock.FileLock(path, timeout=0, fallback_to_soft=False)
        try:
            # One by one: makedirs gives its mode to the last folder only, and this may be the first one to make the root.
            for folder in (self._root, self._folder):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            lock.acquire()
        except filelock.Timeout:
            return False, None
        except Exception:
            # Not only OSError: the library has errors of its own for forks and for file systems without flock.
            return True, None
        return True, lock
