"""Opening a compiled library from verified bytes, without a file that could be changed in between."""

import json
import os
import tempfile
import zipfile
from typing import Any

import torch
import xxhash

from graphspec.cache.leftovers import unique_name

_mapped: dict[bytes, "list[_MemoryFile]"] = {}
"""Open files by a hash of their content. The content itself is compared: the hash only says where to look."""
_PACKAGE_FOLDER = "unit/data/aotinductor/model/"


def open_library(payload: bytes | memoryview, device: str, *, single_threaded: bool) -> Any:
    """The runner of an AOTInductor library for ``cpu`` or ``cuda``. Imports no compiler.

    `single_threaded`: the runner takes no locks and asks no events, as a CUDA graph capture demands.
    Raises RuntimeError when the library does not load, and OSError when there is no place to load it from.
    """
    aoti = torch._C._aoti
    if single_threaded:
        # Only the loader of packages takes the flag (torch 2.11 to 2.14). It unpacks into a private folder of its own.
        with _package(payload, device) as path:
            return aoti.AOTIModelPackageLoader(path, "model", True, 1, -1)
    if device == "cpu":
        return aoti.AOTIModelContainerRunnerCpu(_mapped_path(payload), 1)
    return aoti.AOTIModelContainerRunnerCuda(_mapped_path(payload), 1, device)


def _mapped_path(payload: bytes | memoryview) -> str:
    """A path in this process that holds exactly the given bytes, for good.

    Its descriptor is never closed, and equal content shares one. The dynamic loader knows a library by its path, and
    C++ libraries with unique symbols are never unmapped: a reused descriptor number would silently give the library
    that had it before.
    """
    same_hash = _mapped.setdefault(xxhash.xxh3_128_digest(payload), [])
    for file in same_hash:
        if file.holds(payload):
            return file.path
    same_hash.append(_MemoryFile())
    same_hash[-1].write(payload)
    return same_hash[-1].path


class _MemoryFile:
    """An anonymous file; a private temporary file where the system has none. Open until it is left as a context."""

    def __init__(self) -> None:
        self._anonymous = True
        try:
            self.descriptor = os.memfd_create("graphspec", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            self._anonymous = False
        self.path = f"/proc/self/fd/{self.descriptor}" if self._anonymous else self._named()

    def _named(self) -> str:
        # By this name, the next compiler process removes it when this process has ended.
        path = os.path.join(tempfile.gettempdir(), unique_name())
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return path

    def write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def holds(self, content: bytes | memoryview) -> bool:
        with open(self.path, "rb") as file:
            return file.read() == bytes(content)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *exception: object) -> None:
        os.close(self.descriptor)
        if not self._anonymous:
            os.unlink(self.path)


def _package(payload: bytes | memoryview, device: str) -> _MemoryFile:
    """The smallest archive that torch's package loader accepts: the library, and which device it is for."""
    file = _MemoryFile()
    # Written in place: a second copy of the library in memory would be as large as the library.
    with (
        open(file.descriptor, "w+b", closefd=False) as content,
        zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive,
    ):
        with archive.open(_PACKAGE_FOLDER + "unit.wrapper.so", "w") as library:
            library.write(payload)
        archive.writestr(_PACKAGE_FOLDER + "unit.wrapper.cpp", "")
        facts = json.dumps({"AOTI_DEVICE_KEY": device})
        archive.writestr(_PACKAGE_FOLDER + "unit.wrapper_metadata.json", facts)
    return file
