"""What processes do with a cache folder when tests kill them: actions for `support.faults.Killer`."""

import errno
import os
from unittest import mock

from graphspec.cache.folder import quarantine
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of

PAYLOAD = bytes(range(256))
ENTRY = entry_of("a", PAYLOAD)


def put(root: str) -> None:
    """Stores the entry."""
    assert DiskStore(root).put(ENTRY).written


def put_durable(root: str) -> None:
    """Stores the entry so that it survives power loss."""
    assert DiskStore(root, durable=True).put(ENTRY).written


def no_links(source: str, target: str) -> None:
    """`os.link` on a file system that has none."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def put_without_links(root: str) -> None:
    """Stores the entry on a file system that has no hard links."""
    with mock.patch.object(os, "link", no_links):
        put_durable(root)


def put_again(root: str) -> None:
    """Stores other bytes where the entry is stored already."""
    assert DiskStore(root, durable=True).put(entry_of("a", b"other")).differs


def get(root: str) -> None:
    """Reads the entry."""
    assert DiskStore(root).get(ENTRY.key).outcome is Outcome.HIT


def get_corrupt(root: str) -> None:
    """Reads a file that is no entry, and so sets it aside."""
    assert DiskStore(root).get(ENTRY.key).outcome is Outcome.CORRUPT


def get_corrupt_beyond_the_limit(root: str) -> None:
    """Sets a file aside into a quarantine that holds more than it may, and so removes the oldest files there."""
    quarantine.KEPT_FILES = 2
    get_corrupt(root)


def problem(root: str) -> None:
    """Asks whether entries can be stored."""
    assert DiskStore(root).problem() == ""


def damage(root: str, name: str = "a") -> bytes:
    """Makes the stored entry a file that is no entry, and returns its bytes."""
    path = DiskStore(root).path_of(key_of(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    bad = f"no entry: {name}".encode()
    with open(path, "wb") as file:
        file.write(bad)
    return bad
