"""Who could have written what is in the cache: of the folder, of each folder on the way to it, and of an entry's file.

An entry is machine code, and loading it runs it. So in private mode, only this process's user and root may be able to
write to the folder, or to put another one in its place: the rule that ssh has for its own files. Files of root are
trusted by everybody, since root can do anything anyway; root trusts nobody else.
"""

import os
import stat
from collections.abc import Callable, Iterator
from functools import cache

from graphspec.cache.abilities import look
from graphspec.cache.entry import Entry
from graphspec.cache.store import Lookup, Outcome, Store, Stored, set_aside
from graphspec.cache.units import EntryKey
from graphspec.errors import Problem, UntrustedError

_MOST_LINKS = 40


def folder_problem(path: str, *, uid: int | None = None) -> str:
    """Why what lies in the cache folder `path` is not trusted, in a sentence; an empty text where it is.

    Looked at are the folder and those below it, every folder above it, and those that symbolic links on the way lie in:
    who can rename any of these can put another cache in place of this one. A folder above may be writable by others if
    it is sticky, as /tmp is, or by a group that is the user's own. A folder that is not there yet is trusted if those
    above it are. `uid` is whom it must be private to; None: the user of this process.
    """
    user = os.geteuid() if uid is None else uid
    try:
        *above, root = _passed(os.path.abspath(path))
        for folder in above:
            problem = _above_problem(folder, user)
            if problem:
                return problem
        return _root_problem(root, user)
    except OSError as error:
        # What is not there, or may not be looked at, holds nothing that this process could load.
        return f"{path}: {error.strerror}" if isinstance(error, _LoopError) else ""


def require_private(path: str) -> None:
    """Raises `UntrustedError` when others could have written what lies in the cache folder."""
    found = folder_problem(path)
    if found:
        raise UntrustedError(
            Problem(
                where=f"cache folder {path}",
                found=found,
                wanted="a folder that only this user, or root, can write to or replace",
                hint="run chmod 700 on it if what is in it can be trusted, choose another with --cache-dir, or share it "
                "with signed entries (cache.trust names the file of public keys)",
            )
        )


def file_problem(facts: os.stat_result, *, uid: int | None = None) -> str:
    """Why an entry's file is not trusted, from the facts of the file that was opened; an empty text where it is."""
    return _writers(facts, os.geteuid() if uid is None else uid)


class PrivateStore:
    """A folder store in private mode: an entry whose file somebody else owns, or could have written, is set aside unread.

    `path_of` is where the folder keeps an entry. The folder itself is checked once, with `require_private`. Then nobody
    else can put another file in the place of one that was looked at.
    """

    def __init__(self, inner: Store, path_of: Callable[[EntryKey], str]) -> None:
        self._inner = inner
        self._path_of = path_of

    def get(self, key: EntryKey) -> Lookup:
        """What the folder has, if its file is this user's."""
        problem = self._problem(key)
        if problem:
            self.set_aside(key, problem)
            return Lookup(outcome=Outcome.CORRUPT, reason=problem)
        return self._inner.get(key)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, without touching anything."""
        problem = self._problem(key)
        if problem:
            return Lookup(outcome=Outcome.CORRUPT, reason=problem)
        return look(self._inner, key)

    def put(self, entry: Entry) -> Stored:
        """Stores an entry in the folder."""
        return self._inner.put(entry)

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Moves the entry of `key` to the quarantine."""
        set_aside(self._inner, key, reason)

    def _problem(self, key: EntryKey) -> str:
        try:
            return file_problem(os.stat(self._path_of(key)))
        except OSError:
            return ""


class _LoopError(OSError):
    pass


def _passed(path: str) -> list[str]:
    """The folders in which a name is looked up on the way to `path`, from the top, and last what it leads to."""
    passed, here = [], os.sep
    names = path.split(os.sep)[::-1]
    links = 0
    while names:
        name = names.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            here = os.path.dirname(here)
            continue
        if here not in passed:
            passed.append(here)
        below = os.path.join(here, name)
        if os.path.islink(below):
            links += 1
            if links > _MOST_LINKS:
                raise _LoopError(0, "symbolic links lead in a circle")
            target = os.readlink(below)
            names += target.split(os.sep)[::-1]
            here = os.sep if os.path.isabs(target) else here
        else:
            here = below
    return [*(p for p in passed if p != here), here]


def _above_problem(folder: str, user: int) -> str:
    facts = os.stat(folder)
    owner = _owner(facts, user)
    if owner and facts.st_uid == _outside():
        owner = ""
    if owner or facts.st_mode & stat.S_ISVTX:
        # In a sticky folder names can be changed by their owners and by the folder's, and by nobody else.
        return _with_place(folder, owner)
    if not facts.st_mode & stat.S_IWOTH and (
        not facts.st_mode & stat.S_IWGRP or _is_own_group(facts.st_gid, user)
    ):
        return ""
    return _with_place(folder, _modes(facts))


def _root_problem(root: str, user: int) -> str:
    facts = os.stat(root)
    problem = _with_place(root, _writers(facts, user))
    if problem or not facts.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        # Nobody else can reach what lies in a folder without these bits.
        return problem
    return next(filter(None, (_with_place(f, _writers(s, user)) for f, s in _below(root))), "")


def _below(root: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in ("entries", "tmp", "quarantine", "locks"):
        folder = os.path.join(root, name)
        if os.path.lexists(folder):
            yield folder, os.stat(folder)
    try:
        with os.scandir(os.path.join(root, "entries")) as found:
            yield from ((f.path, f.stat()) for f in found if f.is_dir())
    except FileNotFoundError:
        return


def _with_place(folder: str, problem: str) -> str:
    return f"{folder}: {problem}" if problem else ""


def _writers(facts: os.stat_result, user: int) -> str:
    return _owner(facts, user) or _modes(facts)


def _modes(facts: os.stat_result) -> str:
    mode = stat.S_IMODE(facts.st_mode)
    bits = {f"group {facts.st_gid}": stat.S_IWGRP, "others": stat.S_IWOTH}
    who = " and ".join(who for who, bit in bits.items() if mode & bit)
    return f"mode {mode:04o}: {who} may write" if who else ""


def _owner(facts: os.stat_result, user: int) -> str:
    if facts.st_uid in (0, user):
        return ""
    return f"owned by uid {facts.st_uid}, and this process is uid {user}"


def _is_own_group(gid: int, user: int) -> bool:
    """Whether a group is the one that bears the user's name and has no other member, as many systems make one for each."""
    import grp
    import pwd

    try:
        name, group = pwd.getpwuid(user).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


@cache
def _outside() -> int | None:
    """The number that stands for every owner outside of this process's user namespace; None where there is none.

    In a container without root's powers the system's own folders have it. Of folders above the cache it is taken for root;
    of the cache itself it is not.
    """
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            number = int(file.read())
        with open("/proc/self/uid_map", "rb") as file:
            known = [[int(n) for n in line.split()] for line in file]
    except (OSError, ValueError):
        return None
    return None if any(first <= number < first + count for first, _, count in known) else number
