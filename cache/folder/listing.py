"""What lies in a cache folder: its files, with their sizes and times of last use."""

import os
import stat
from collections.abc import Iterator

import attrs

from graphspec.cache.entry import FORMAT

SUFFIX = f".v{FORMAT}.entry"
"""How names of entries end that this version of graphspec reads."""
_ENTRY = ".entry"


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file that counts against the caps of a cache folder.

    `last_used` is in seconds since the epoch, known to the hour. `compile_seconds` is what the entry saves a process that
    loads it; None where nobody has looked. `quarantined` files serve no lookup.
    """

    path: str
    bytes: int
    last_used: float
    compile_seconds: float | None = None
    quarantined: bool = False

    @property
    def key(self) -> str:
        """The digest that an entry's file is named by."""
        return os.path.basename(self.path).partition(".")[0]

    @property
    def readable_format(self) -> bool:
        """False for an entry that another version of graphspec has written into the folder."""
        return self.path.endswith(SUFFIX)


def entry_paths(root: str) -> Iterator[str]:
    """The path of every file that bears the name of an entry, of any format version, sorted."""
    base = os.path.join(root, "entries")
    for folder in _names(base):
        above = os.path.join(base, folder)
        yield from (f"{above}/{name}" for name in _names(above) if name.endswith(_ENTRY))


def entry_files(root: str) -> Iterator[StoredFile]:
    """Every file of an entry, sorted by name. What vanishes meanwhile is left out."""
    return filter(None, map(facts_of, entry_paths(root)))


def quarantined_files(root: str) -> Iterator[StoredFile]:
    """Every file in the quarantine, the notes with the reasons included, sorted by name."""
    folder = os.path.join(root, "quarantine")
    for name in _names(folder):
        file = facts_of(f"{folder}/{name}", quarantined=True)
        if file is not None:
            yield file


def facts_of(path: str, *, quarantined: bool = False) -> StoredFile | None:
    """Size and time of use of a file; None where no file is."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return StoredFile(
        path=path, bytes=facts.st_size, last_used=facts.st_mtime, quarantined=quarantined
    )


def stored_files(root: str) -> Iterator[StoredFile]:
    """Every file that counts against the caps."""
    yield from entry_files(root)
    yield from quarantined_files(root)


def make_folder(root: str, name: str) -> str:
    """The path of a folder in a cache folder. It is made if need be, as the cache folder is, for this user alone."""
    path = os.path.join(root, name)
    for folder in (root, path):
        # One by one: makedirs gives its mode to the last folder only.
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return path


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
