"""`SharedFolder`: a cache folder that many hosts mount, over NFS, Lustre or any other file system.

It is a `DiskStore` on a folder of that file system, with what a network mount needs:

- No lock is used. A file gets its name by a link once it is whole and closed, and the server makes links one at a time.
- A file that another host removed can leave a stale handle here (ESTALE). The call is made once more.
- What another host stored can be seen late, after the time that the mount caches names. That costs a compile: the link of
  the second writer fails, so the first one wins all the same.
- Entries are synced before they get their name. A server may say only then that it is full.
- For a group, files are of mode 0660 and folders of mode 2770 whatever the umask is. Otherwise they are their owner's.
- A mount whose server is gone blocks the caller inside the kernel, if it is mounted ``hard``. No program can bound that.
  Mount with ``soft`` and a ``timeo``, and the failure comes here and switches the folder off for a while.
"""

import contextlib
import errno
import os
from collections.abc import Callable

from graphspec.cache.entry import Entry, Signer, Trust
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers.breaker import Breaker, TierError
from graphspec.cache.tiers.remote import Untrusted, raising
from graphspec.cache.units import EntryKey

_STALE = os.strerror(errno.ESTALE)


class SharedFolder:
    """A `Store` in a folder on a shared file system.

    A damaged entry is set aside where the folder is `writable`. One with a seal that is not trusted, or that is whole and
    does not load here, stays, as in every tier. With `group`, members of the folder's group can all read and write.
    Without `trust`, a folder that others could have written to is not used.
    """

    def __init__(
        self,
        root: str,
        *,
        group: bool = False,
        writable: bool = True,
        durable: bool = True,
        signer: Signer | None = None,
        trust: Trust | None = None,
        breaker: Callable[[], Breaker] = Breaker,
    ) -> None:
        kind = _GroupFolder if group else _MountedFolder
        self._disk = kind(root, durable=durable, signer=signer, trust=raising(trust))
        self.writable = writable
        self._distrust = "" if trust is not None else None
        self._reads, self._writes = breaker(), breaker()

    def __repr__(self) -> str:
        return f"SharedFolder({self.where})"

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return self._disk.root

    def get(self, key: EntryKey) -> Lookup:
        """What is stored under `key`. A damaged entry is set aside where the folder is writable."""
        return self._found(key, self._disk.get if self.writable else self._disk.look)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, without touching anything."""
        return self._found(key, self._disk.look)

    def put(self, entry: Entry) -> Stored:
        """Stores an entry unless a whole one is there."""
        if not self.writable:
            return Stored(written=False, reason=f"{self.where}: it is only read here")
        try:
            self._reads.check()
            with self._writes.attempt():
                return self._stored(entry)
        except TierError as error:
            return Stored(written=False, reason=self._said(error))

    def problem(self) -> str:
        """Why nothing can be stored here, or read where it is only read, in a sentence; empty where it can."""
        if self._why_not_used() or self.writable:
            return self._why_not_used() or self._disk.problem()
        try:
            os.listdir(self.where)
        except OSError as error:
            return f"{self.where}: {error.strerror}"
        return ""

    def close(self) -> None:
        """Nothing is open between calls."""

    def _found(self, key: EntryKey, ask: Callable[[EntryKey], Lookup]) -> Lookup:
        try:
            with self._reads.attempt():
                return self._asked(key, ask)
        except TierError as error:
            return Lookup(outcome=Outcome.ERROR, reason=self._said(error))

    def _asked(self, key: EntryKey, ask: Callable[[EntryKey], Lookup]) -> Lookup:
        self._check_used()
        try:
            found = ask(key)
        except Untrusted as error:
            return Lookup(outcome=Outcome.CORRUPT, reason=f"{self.where}: {error}")
        if found.outcome is Outcome.ERROR:
            raise TierError(found.reason)
        return found

    def _stored(self, entry: Entry) -> Stored:
        self._check_used()
        try:
            stored = self._disk.put(entry)
            if stored.reason.endswith(_STALE):
                stored = self._disk.put(entry)
        except Untrusted as error:
            return Stored(written=False, reason=f"{self.where}: {error}")
        # Other reasons are of what lies under the name, and not of the folder.
        if stored.failed and stored.reason.startswith(self.where):
            raise TierError(stored.reason)
        return stored

    def _check_used(self) -> None:
        reason = self._why_not_used()
        if reason:
            raise TierError(reason, counts=False)

    def _why_not_used(self) -> str:
        if self._distrust is None:
            from graphspec.cache.trust import folder_problem

            self._distrust = folder_problem(self.where)
        return self._distrust

    def _said(self, error: TierError) -> str:
        reason = str(error)
        return reason if reason.startswith(os.sep) else f"{self.where}: {reason}"


class _MountedFolder(DiskStore):
    folder_mode = 0o700

    def _make_folders(self, *more: str) -> None:
        # Not what is above the root: where nothing is mounted, nothing should be made.
        names = (os.path.join(self.root, name) for name in ("tmp", "entries", "quarantine"))
        for folder in (self.root, *names, *more):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, self.folder_mode)
                self._opened_up(folder, self.folder_mode)
        super()._make_folders(*more)

    def _opened_up(self, path: str, mode: int) -> None:
        """Called with each new folder and file."""


class _GroupFolder(_MountedFolder):
    folder_mode = 0o2770

    def _opened_up(self, path: str, mode: int) -> None:
        # The umask took bits away, and mkdir gives no set-group-id bit.
        os.chmod(path, mode)

    def _write(self, path: str, data: bytes) -> None:
        super()._write(path, data)
        self._opened_up(path, 0o660)
