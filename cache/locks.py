"""Locks per key, only so that two processes do not compile the same unit. Nothing is wrong without them."""

import contextlib
import os
from collections.abc import Iterator

import filelock

from graphspec.cache.units import EntryKey


class KeyLocks:
    """Advisory locks in a folder. The kernel releases a lock when its holder dies, and lock files stay in place."""

    def __init__(self, root: str) -> None:
        self._folder = os.path.join(os.path.abspath(root), "locks")

    @contextlib.contextmanager
    def try_lock(self, key: EntryKey) -> Iterator[bool]:
        """Holds the key's lock inside the block; the value is False when another process holds it.

        Where no lock file can be made, the value is True: compiling twice is better than not at all.
        """
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            lock = filelock.FileLock(os.path.join(self._folder, key.digest + ".lock"), timeout=0)
            lock.acquire()
        except filelock.Timeout:
            yield False
            return
        except (OSError, NotImplementedError):
            # filelock raises the latter where the file system has no flock.
            yield True
            return
        try:
            yield True
        finally:
            lock.release()
