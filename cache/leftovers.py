"""Names for temporary files that tell whose they are, and the sweep of those whose process is gone."""

import itertools
import os
import secrets
import shutil
import socket
from functools import cache

_counter = itertools.count()
_MARK = "graphspec"


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


def unique_name() -> str:
    """A file name that no other process makes, here or on another host that shares the folder."""
    return f"{_MARK}.{_host()}.{_boot()}.{os.getpid()}.{next(_counter)}.{secrets.token_hex(4)}"


def sweep(folder: str) -> int:
    """Removes files and folders in `folder` that dead processes of this host left, and returns how many.

    What another host left stays: whether its process lives cannot be known from here.
    """
    removed = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        if _is_dead(name):
            path = os.path.join(folder, name)
            try:
                if os.lstat(path).st_uid != os.getuid():
                    continue
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
                removed += 1
            except OSError:
                continue
    return removed


def _is_dead(name: str) -> bool:
    parts = name.split(".")
    if len(parts) != 6 or parts[0] != _MARK or parts[1] != _host() or not parts[3].isdecimal():
        return False
    if parts[2] != _boot():
        return True
    try:
        os.kill(int(parts[3]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
