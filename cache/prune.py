"""Which entries to remove on demand, and their removal: all of them first lose their names, and then their bytes."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.entry import EntryCorruptError, unpack
from graphspec.cache.folder.glance import glance
from graphspec.cache.folder.listing import StoredFile, entry_files
from graphspec.cache.folder.reading import read_header
from graphspec.cache.folder.usage import RunningTotal
from graphspec.cache.leftovers import unique_name
from graphspec.config.device import DeviceConfig, Target
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode, encode

_VERSIONS = (
    "graphspec pipeline torch torch_git torch_debug cxx11_abi python system cuda rocm triton"
).split()
"""What of a key's toolchain another installation can have otherwise. The rest are settings of one process."""


@attrs.frozen(kw_only=True)
class Wanted:
    """Which entries are meant: those that meet each condition that is given. Times are in seconds since the epoch."""

    unused_since: float | None = None
    unit: str | None = None
    other_toolchain: bool = False


@attrs.frozen(kw_only=True)
class Removed:
    """What a removal did. `refused` has the reason by path for what had to stay."""

    files: tuple[StoredFile, ...]
    refused: Mapping[str, str]


def choose(root: str, wanted: Wanted) -> tuple[StoredFile, ...]:
    """The entries that are meant. Imports torch when toolchains are compared."""
    found = list(entry_files(root))
    if wanted.unused_since is not None:
        found = [f for f in found if f.last_used < wanted.unused_since]
    if wanted.unit is not None:
        found = [f for f in found if _unit(f) == wanted.unit]
    if wanted.other_toolchain:
        here = [_versions(_toolchain(target)) for target in Target]
        found = [f for f in found if _is_of_another(f, here)]
    return tuple(found)


def remove(root: str, files: Sequence[StoredFile]) -> Removed:
    """Removes files. A process that looks for one of them meanwhile finds all of it or nothing, and compiles."""
    folder = os.path.join(root, "tmp", unique_name())
    moved, refused = [], {}
    for number, file in enumerate(files):
        aside = os.path.join(folder, str(number))
        try:
            _move(file.path, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused[file.path] = error.strerror or str(error)
            continue
        moved.append(file)
    shutil.rmtree(folder, ignore_errors=True)
    RunningTotal(root).forget()
    return Removed(files=tuple(moved), refused=refused)


def _move(path: str, aside: str) -> None:
    try:
        os.makedirs(os.path.dirname(aside), mode=0o700, exist_ok=True)
        os.rename(path, aside)
    except FileNotFoundError:
        raise
    except OSError:
        # A disk that is full may have no room for another name. To remove one needs none.
        os.unlink(path)


def _unit(file: StoredFile) -> str | None:
    seen = glance(file.path)
    return seen.unit if seen is not None else None


def _is_of_another(file: StoredFile, here: Sequence[Mapping[str, bytes]]) -> bool:
    """Whether this installation could not use the entry. One whose key says nothing of a toolchain is none of them."""
    if not file.readable_format:
        return True
    try:
        entry = unpack(read_header(file.path), with_payload=False)
        key = decode(entry.key.text)
    except (OSError, EntryCorruptError, KeyFactorError):
        return False
    stored = key.get("toolchain") if isinstance(key, Mapping) else None
    if not isinstance(stored, Mapping):
        return False
    # A kernel's key names fewer versions than a unit's: those that it names must be here.
    asked = _versions(stored).items()
    return not any(asked <= mine.items() for mine in here)


def _versions(toolchain: Mapping[str, Any]) -> Mapping[str, bytes]:
    return {name: encode(toolchain[name]) for name in _VERSIONS if name in toolchain}


def _toolchain(target: Target) -> Mapping[str, Any]:
    from graphspec.cache.compiling.toolchain import toolchain

    return toolchain(DeviceConfig(target=target))
