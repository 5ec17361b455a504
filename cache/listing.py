"""What lies in a cache folder: its files, with their sizes and times of last use."""

import os
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


def entry_files(root: str) -> Iterator[StoredFile]:
    """Every file of an entry, of any format version, sorted by name. What vanishes meanwhile is left out."""
    base = os.path.join(root, "entries")
    for folder in sorted(_names(base)):
        yield from _files(os.path.join(base, folder), _ENTRY, quarantined=False)


def quarantined_files(root: str) -> Iterator[StoredFile]:
    """Every file in the quarantine, the notes with the reasons included, sorted by name."""
    yield from _files(os.path.join(root, "quarantine"), "", quarantined=True)


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
        return os.listdir(folder)
    except OSError:
        return []


def _files(folder: str, suffix: str, *, quarantined: bool) -> Iterator[StoredFile]:
    try:
        with os.scandir(folder) as found:
            files = sorted((f for f in found if f.name.endswith(suffix)), key=lambda f: f.name)
    except OSError:
        return
    for file in files:
        try:
            if not file.is_file():
                continue
            facts = file.stat()
        except OSError:
            continue
        yield StoredFile(
            path=file.path,
            bytes=facts.st_size,
            last_used=facts.st_mtime,
            quarantined=quarantined,
        )
