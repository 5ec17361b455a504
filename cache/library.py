"""Opening a compiled library from verified bytes, without a file that could be changed in between."""

import hashlib
import io
import json
import os
import tempfile
import zipfile
from typing import Any

import torch

_mapped: dict[bytes, str] = {}
_PACKAGE_FOLDER = "unit/data/aotinductor/model/"


def open_library(payload: bytes | memoryview, device: str, *, single_threaded: bool) -> Any:
    """The runner of an AOTInductor library for ``cpu`` or ``cuda``. Imports no compiler.

    `single_threaded`: the runner takes no locks and asks no events, as a CUDA graph capture demands.
    Raises RuntimeError when the library does not load.
    """
    aoti = torch._C._aoti
    if single_threaded:
        # Only the loader of packages takes the flag (torch 2.11 to 2.14). It unpacks into a private folder of its own.
        with _MemoryFile(_package(payload, device)) as path:
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
    content = hashlib.sha256(payload).digest()
    if content not in _mapped:
        file = _MemoryFile(payload)
        file.keep()
        _mapped[content] = file.path
    return _mapped[content]


class _MemoryFile:
    """An anonymous file with the given content; a private temporary file where the system has none."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._anonymous = hasattr(os, "memfd_create")
        if self._anonymous:
            self._descriptor = os.memfd_create("graphspec", os.MFD_CLOEXEC)
            self.path = f"/proc/self/fd/{self._descriptor}"
        else:
            self._descriptor, self.path = tempfile.mkstemp(prefix="graphspec-", suffix=".so")
        view = memoryview(content)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def keep(self) -> None:
        """Leaves the file open until the process ends."""
        self._descriptor = -1

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *exception: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            if not self._anonymous:
                os.unlink(self.path)


def _package(payload: bytes | memoryview, device: str) -> bytes:
    """The smallest archive that torch's package loader accepts: the library, and which device it is for."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_PACKAGE_FOLDER + "unit.wrapper.so", bytes(payload))
        archive.writestr(_PACKAGE_FOLDER + "unit.wrapper.cpp", "")
        facts = json.dumps({"AOTI_DEVICE_KEY": device})
        archive.writestr(_PACKAGE_FOLDER + "unit.wrapper_metadata.json", facts)
    return content.getvalue()
