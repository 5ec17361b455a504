"""`DiskStore`: one file per entry, published by one link, verified on every read, corrupt files set aside.

Layout below the root: ``entries/ab/KEY.v3.entry``, ``tmp/`` (files being written), ``quarantine/``, ``locks/``. Entries
hold no path of the folder, so it can be moved, copied or mounted read-only.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator

import attrs

from graphspec.cache.entry import (
    FORMAT,
    Entry,
    EntryCorruptError,
    Signer,
    Trust,
    pack,
    read_prefix,
    unpack,
)
from graphspec.cache.folder.publish import (
    Names,
    make_folder,
    publish,
    sync_file,
    sync_names,
    why,
    write_new,
)
from graphspec.cache.folder.quarantine import set_aside
from graphspec.cache.folder.reading import read_entry, read_header
from graphspec.cache.leftovers import sweep, unique_name
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.units import EntryKey

_SUFFIX = f".v{FORMAT}.entry"
"""Entries of another format version have other names, so two versions of graphspec can share a folder."""
_TRIES = 3
"""How often a put or a get begins again when another process removes or replaces what it works on."""


class DiskStore:
    """Entries in a folder. Correct without locks: a reader sees no file or a whole one.

    `durable` makes `put` survive power loss (fsync of file and folders). `trust` refuses entries by their seal before
    they are read, and `signer` seals what is put.
    """

    def __init__(
        self,
        root: str,
        *,
        durable: bool = False,
        signer: Signer | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self._durable = durable
        self._signer = signer
        self._trust = trust
        self._swept = False
        self._synced: Names = set()

    def path_of(self, key: EntryKey) -> str:
        """Where the entry of `key` is or would be."""
        digest = key.digest
        return f"{self.root}/entries/{digest[:2]}/{digest}{_SUFFIX}"

    def get(self, key: EntryKey) -> Lookup:
        """What is stored under `key`. A file that is not an entry is moved to the quarantine with its reason."""
        for _ in range(_TRIES):
            found = self._look(key)
            if found.lookup.outcome is not Outcome.CORRUPT:
                break
            try:
                if self._set_aside(key, found):
                    break
            except OSError as error:
                return Lookup(outcome=Outcome.CORRUPT, reason=_stayed(found, error))
        if found.lookup.outcome is Outcome.HIT and found.seen is not None:
            _mark_used(self.path_of(key), found.seen)
        return found.lookup

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, without touching anything."""
        return self._look(key).lookup

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Moves the entry of `key` to the quarantine: it is whole, and cannot be used. Another key's entry stays."""
        found = self._look(key)
        if found.lookup.outcome is not Outcome.MISS:
            with contextlib.suppress(OSError):
                set_aside(self._quarantine, self.path_of(key), reason, found.seen)

    def put(self, entry: Entry) -> Stored:
        """Stores an entry unless a whole one is there. What lies in its place and is no entry is set aside."""
        data = b""
        failure = f"{self.root}: other processes write and remove the same entry"
        for _ in range(_TRIES):
            ended = self._ended(entry)
            if ended is not None:
                return ended
            data = data or pack(entry, self._signer)
            refusal = self._refusal(data)
            if refusal:
                return Stored(written=False, reason=refusal)
            try:
                if self._written(self.path_of(entry.key), data):
                    return Stored(written=True)
            except FileNotFoundError as error:
                # The folder was removed, or a machine of the same name took the temporary for a dead process's.
                failure = why(error, self.root)
            except OSError as error:
                return Stored(written=False, reason=why(error, self.root))
        return self._ended(entry) or Stored(written=False, reason=failure)

    def entries(self) -> Iterator[tuple[str, Entry | None, int]]:
        """Path, header (None when unreadable; payload left empty) and size in bytes of every stored file."""
        base = os.path.join(self.root, "entries")
        for folder, names, files in os.walk(base):
            names.sort()
            for name in sorted(f for f in files if f.endswith(_SUFFIX)):
                path = os.path.join(folder, name)
                yield path, _header(path), _size(path)

    def problem(self) -> str:
        """Why nothing can be stored here, in a sentence, or an empty text. It stores a file to know, and removes it."""
        probe = os.path.join(self.root, "tmp", unique_name())
        folder = os.path.join(self.root, "entries", os.path.basename(probe))
        published = os.path.join(folder, "probe")
        try:
            self._make_folders(folder)
            self._write(probe, b"\0" * 4096)
            publish(probe, published)
        except OSError as error:
            return why(error, self.root)
        finally:
            for remove, path in ((os.unlink, probe), (os.unlink, published), (os.rmdir, folder)):
                with contextlib.suppress(OSError):
                    remove(path)
        return ""

    @property
    def _quarantine(self) -> str:
        return os.path.join(self.root, "quarantine")

    def _look(self, key: EntryKey) -> "_Found":
        path = self.path_of(key)
        seen = None
        try:
            seen = os.lstat(path)
            data = _read_again_if_stale(path)
            entry = unpack(data, trust=self._trust, quick=True)
            if entry.key.digest != key.digest:
                raise EntryCorruptError(f"it is the entry of another key, {entry.key.digest}")
        except (FileNotFoundError, NotADirectoryError):
            return _Found(
                lookup=Lookup(outcome=Outcome.MISS, reason="nothing is stored under this key")
            )
        except OSError as error:
            reason = f"{path}: {error.strerror}"
            return _Found(lookup=Lookup(outcome=Outcome.ERROR, reason=reason), seen=seen)
        except EntryCorruptError as error:
            return _Found(lookup=Lookup(outcome=Outcome.CORRUPT, reason=str(error)), seen=seen)
        if entry.key.text != key.text:
            reason = "another key with the same digest is stored (a hash collision)"
            return _Found(lookup=Lookup(outcome=Outcome.MISS, reason=reason), seen=seen)
        lookup = Lookup(outcome=Outcome.HIT, entry=entry)
        return _Found(lookup=lookup, seen=seen, data=data)

    def _set_aside(self, key: EntryKey, found: "_Found") -> bool:
        return set_aside(self._quarantine, self.path_of(key), found.lookup.reason, found.seen)

    def _refusal(self, data: bytes) -> str:
        """Why no get would accept what a put is about to write, in a sentence, or an empty text."""
        try:
            seal = read_prefix(data).seal
        except EntryCorruptError as error:
            return f"it cannot be stored: {error}"
        distrust = self._trust(seal) if self._trust is not None else ""
        return f"no get would trust it: {distrust}" if distrust else ""

    def _ended(self, entry: Entry) -> Stored | None:
        """How a put ends that finds its name taken; None where the name is free, or has been made free."""
        key = entry.key
        found = self._look(key)
        outcome = found.lookup.outcome
        if found.seen is None:
            return None
        if outcome is Outcome.CORRUPT:
            try:
                self._set_aside(key, found)
            except OSError as error:
                return Stored(written=False, reason=_stayed(found, error))
            return None
        if outcome is not Outcome.HIT:
            return Stored(written=False, reason=found.lookup.reason)
        if self._durable:
            # Whoever wrote it may not have waited for the disk.
            try:
                sync_file(self.path_of(key))
                sync_names(self.path_of(key), self.root, self._synced)
            except OSError as error:
                return Stored(written=False, reason=why(error, self.root))
        # The file ends with the payload. To compare views of bytes takes longer than to hash them: 10 ns an item.
        same_size = read_prefix(found.data).payload == len(entry.payload)
        return Stored(written=False, differs=not (same_size and found.data.endswith(entry.payload)))

    def _written(self, path: str, data: bytes) -> bool:
        """Stores a new file; False where its name has been taken."""
        temporary = os.path.join(self.root, "tmp", unique_name())
        self._make_folders(os.path.dirname(path))
        try:
            self._write(temporary, data)
            if not publish(temporary, path):
                return False
            if self._durable:
                sync_names(path, self.root, self._synced)
            return True
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _write(self, path: str, data: bytes) -> None:
        write_new(path, data, durable=self._durable)

    def _make_folders(self, *more: str) -> None:
        inner = [os.path.join(self.root, name) for name in ("tmp", "entries")]
        for folder in (self.root, *inner, *more):
            if make_folder(folder):
                # It may have the number of one that was removed. With the root, folders above it may be new as well.
                above = folder if folder != self.root else ""
                self._synced = {known for known in self._synced if not known[0].startswith(above)}
        if not self._swept:
            self._swept = True
            for folder in inner:
                sweep(folder)


@attrs.frozen(kw_only=True)
class _Found:
    """A lookup, what lay there (None where nothing did), and for a hit the file's bytes, which end with the payload."""

    lookup: Lookup
    seen: os.stat_result | None = None
    data: bytes = attrs.field(default=b"", repr=False)


def _read_again_if_stale(path: str) -> bytes:
    try:
        return read_entry(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # On a network mount the file was replaced between its opening and its reading.
    return read_entry(path)


def _stayed(found: _Found, error: OSError) -> str:
    return f"{found.lookup.reason} (and it could not be set aside: {error.strerror})"


_USED_EVERY_S = 3600.0


def _mark_used(path: str, seen: os.stat_result) -> None:
    """The time of last use is the file's own, set at most once an hour: a read must not cost a write each time."""
    if time.time() - seen.st_mtime > _USED_EVERY_S:
        with contextlib.suppress(OSError):
            os.utime(path)


def _header(path: str) -> Entry | None:
    try:
        return unpack(read_header(path), with_payload=False)
    except (OSError, EntryCorruptError):
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
