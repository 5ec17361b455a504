"""Names for temporary files that tell whose they are, and the sweep of those whose process is gone."""

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable
from functools import cache

_counter = itertools.count()
_MARK = "graphspec"
NAME_PARTS = 6
UNKNOWN_KEPT_S = 2 * 24 * 3600.0
"""How long a file stays, in seconds since it was last written, where nobody can tell whether its process lives."""


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip().replace("-", "")[:12]
    except OSError:
        return "noboot"


@cache
def _host() -> str:
    return "".join(c if c.isalnum() else "_" for c in socket.gethostname())[:40] or "nohost"


def _processes() -> str:
    """The namespace that this process's number is counted in: containers of one host can have equal numbers."""
    try:
        return "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdecimal())
    except OSError:
        return "0"


def unique_name() -> str:
    """A file name that no other process makes, here or on another host that shares the folder."""
    machine = f"{_host()}.{_boot()}-{_processes()}"
    return f"{_MARK}.{machine}.{os.getpid()}.{next(_counter)}.{secrets.token_hex(4)}"


def is_ours(name: str) -> bool:
    """True for a name as `unique_name` makes them, here or elsewhere."""
    parts = name.split(".")
    return (
        len(parts) == NAME_PARTS
        and parts[0] == _MARK
        and parts[3].isdecimal()
        and parts[4].isdecimal()
    )


def sweep(folder: str) -> int:
    """Removes files and folders in `folder` that dead processes left, and returns how many. Only this user's.

    Whether a process of another host or container lives cannot be known from here. What it left goes when nothing has
    been written to it for two days, by the clock of the folder itself.
    """
    try:
        names = [n for n in os.listdir(folder) if is_ours(n)]
    except OSError:
        return 0
    now = cache(lambda: _clock_of(folder))
    return sum(_swept(os.path.join(folder, name), now) for name in names)


def _swept(path: str, now: Callable[[], float]) -> bool:
    try:
        facts = os.lstat(path)
        if facts.st_uid != os.getuid() or not _is_leftover(path, facts.st_mtime, now):
            return False
        if stat.S_ISDIR(facts.st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True


def _is_leftover(path: str, written: float, now: Callable[[], float]) -> bool:
    _, host, machine, pid, *_ = os.path.basename(path).split(".")
    boot, _, processes = machine.partition("-")
    if (host, boot, processes) == (_host(), _boot(), _processes()):
        return not _lives(int(pid))
    idle_s = now() - written
    if host == _host() and boot != _boot() and idle_s > _up_s():
        # Last written before this machine started. A living process of another machine with this name has written since.
        return True
    return idle_s > UNKNOWN_KEPT_S


def _up_s() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _clock_of(folder: str) -> float:
    """Now, as the folder's own file system tells it: clocks of hosts that share it differ."""
    probe = os.path.join(folder, unique_name())
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(probe)
