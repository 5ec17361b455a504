"""`DiskStore`: one file per entry, published by one link, verified on every read, corrupt files set aside.

Layout below the root: ``entries/ab/KEY.v1.entry``, ``tmp/`` (files being written), ``quarantine/``, ``locks/``. Entries
hold no path of the folder, so it can be moved, copied or mounted read-only.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator

from graphspec.cache.entry import (
    FORMAT,
    PREFIX_BYTES,
    Entry,
    EntryCorruptError,
    Signer,
    Trust,
    pack,
    read_prefix,
    unpack,
)
from graphspec.cache.leftovers import sweep, unique_name
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.units import EntryKey

_SUFFIX = f".v{FORMAT}.entry"
"""Entries of another format version have other names, so two versions of graphspec can share a folder."""


class DiskStore:
    """Entries in a folder. Correct without locks: a reader sees no file or a whole one.

    `durable` makes `put` survive power loss (fsync of file and folder). `trust` refuses entries by their seal before they
    are read, and `signer` seals what is put.
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

    def path_of(self, key: EntryKey) -> str:
        """Where the entry of `key` is or would be."""
        return os.path.join(self.root, "entries", key.digest[:2], key.digest + _SUFFIX)

    def get(self, key: EntryKey) -> Lookup:
        """What is stored under `key`. A file that is not an entry is moved to the quarantine with its reason."""
        lookup = self.look(key)
        if lookup.outcome is Outcome.CORRUPT:
            return self._quarantined(self.path_of(key), lookup.reason)
        if lookup.outcome is Outcome.HIT:
            _mark_used(self.path_of(key))
        return lookup

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Moves the entry of `key` to the quarantine: it is whole, and cannot be used."""
        self._quarantined(self.path_of(key), reason)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, without touching anything."""
        path = self.path_of(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            return _not_opened(path, error)
        try:
            entry = unpack(data, trust=self._trust)
        except EntryCorruptError as error:
            return Lookup(outcome=Outcome.CORRUPT, reason=str(error))
        if entry.key.text != key.text:
            return Lookup(
                outcome=Outcome.MISS,
                reason="another key with the same digest is stored (a hash collision)",
            )
        return Lookup(outcome=Outcome.HIT, entry=entry)

    def put(self, entry: Entry) -> Stored:
        path = self.path_of(entry.key)
        temporary = os.path.join(self.root, "tmp", unique_name())
        try:
            self._make_folders(os.path.dirname(path))
            try:
                self._write(temporary, pack(entry, self._signer))
                written = _publish(temporary, path)
                if written and self._durable:
                    self._sync_above(path)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        except OSError as error:
            return Stored(written=False, reason=_why(error, self.root))
        if written:
            return Stored(written=True)
        # The name is taken, but not always by this entry: by a colliding key, a folder, a dangling link.
        found = self.look(entry.key)
        if found.entry is None:
            return Stored(written=False, reason=found.reason)
        return Stored(written=False, differs=found.entry.payload != entry.payload)

    def entries(self) -> Iterator[tuple[str, Entry | None, int]]:
        """Path, header (None when unreadable; payload left empty) and size in bytes of every stored file."""
        base = os.path.join(self.root, "entries")
        for folder, names, files in os.walk(base):
            names.sort()
            for name in sorted(f for f in files if f.endswith(_SUFFIX)):
                path = os.path.join(folder, name)
                yield path, _header(path), _size(path)

    def problem(self) -> str:
        """Why nothing can be stored here, in a sentence, or an empty text."""
        probe = os.path.join(self.root, "tmp", unique_name())
        try:
            self._make_folders()
            self._write(probe, b"\0" * 4096)
        except OSError as error:
            return _why(error, self.root)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(probe)
        return ""

    def _make_folders(self, *more: str) -> None:
        # One by one, from the top: makedirs gives its mode to the last folder only.
        names = (os.path.join(self.root, name) for name in ("tmp", "entries"))
        for folder in (self.root, *names, *more):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if not self._swept:
            self._swept = True
            sweep(os.path.join(self.root, "tmp"))

    def _write(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_above(self, path: str) -> None:
        # A folder that was just made is itself only a name in the one above it.
        folder = os.path.dirname(path)
        for each in (folder, os.path.dirname(folder), self.root):
            _sync_folder(each)

    def _quarantined(self, path: str, reason: str) -> Lookup:
        folder = os.path.join(self.root, "quarantine")
        target = os.path.join(folder, f"{os.path.basename(path)}.{unique_name()}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.rename(path, target)
            with open(target + ".reason", "w", encoding="utf-8") as file:
                file.write(reason + "\n")
        except OSError as error:
            reason = f"{reason} (and it could not be set aside: {error.strerror})"
        return Lookup(outcome=Outcome.CORRUPT, reason=reason)


def _not_opened(path: str, error: OSError) -> Lookup:
    if isinstance(error, IsADirectoryError):
        return Lookup(outcome=Outcome.CORRUPT, reason="a folder lies where the entry should be")
    if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP:
        # A link that leads nowhere would be a miss for ever: no put can take its name.
        if os.path.islink(path):
            reason = "a symbolic link that leads nowhere lies where the entry should be"
            return Lookup(outcome=Outcome.CORRUPT, reason=reason)
        return Lookup(outcome=Outcome.MISS, reason="nothing is stored under this key")
    return Lookup(outcome=Outcome.ERROR, reason=f"{path}: {error.strerror}")


def _publish(temporary: str, path: str) -> bool:
    """Gives the complete file its name at once; False where the name exists. The first writer wins, lock or no lock."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        # Without hard links (FAT, FUSE, some network mounts) a rename is as atomic, but the last writer wins.
        os.rename(temporary, path)
    return True


_USED_EVERY_S = 3600.0


def _mark_used(path: str) -> None:
    """The time of last use is the file's own, set at most once an hour: a read must not cost a write each time."""
    with contextlib.suppress(OSError):
        if time.time() - os.stat(path).st_mtime > _USED_EVERY_S:
            os.utime(path)


def _header(path: str) -> Entry | None:
    try:
        with open(path, "rb") as file:
            prefix = file.read(PREFIX_BYTES)
            sizes = read_prefix(prefix)
            header = file.read(sizes.header)
            if os.fstat(file.fileno()).st_size != sizes.end:
                return None
        return unpack(prefix + header, with_payload=False)
    except (OSError, EntryCorruptError):
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: OSError, root: str) -> str:
    known = {
        errno.ENOSPC: "no space is left on the disk",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the folder is mounted read-only",
        errno.EACCES: "permission is denied",
        errno.EPERM: "permission is denied",
        errno.ENOTDIR: "a file lies where a folder should be",
        errno.EEXIST: "a file lies where a folder should be",
    }
    return f"{root}: {known.get(error.errno or 0, error.strerror or str(error))}"
