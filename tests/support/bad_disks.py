"""Disks that fail when a test says so: the n-th call below a folder, small real mounts, and other views of a folder."""

import builtins
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_BY_PATH = ("mkdir", "link", "rename", "unlink", "utime")
_BY_DESCRIPTOR = ("write", "fsync", "close")


class BadDisk:
    """Inside the block, the `nth` call below `root` that opens or changes something raises `error`; the first is 0.

    Reads of files that were opened are not counted. `most` is how many bytes a write takes at once.
    """

    def __init__(self, root: str, error: OSError, nth: int, *, most: int | None = None) -> None:
        self._root = root
        self._error = error
        self._left = nth
        self._most = most
        self._descriptors: set[int] = set()
        self._real: dict[tuple[Any, str], Callable[..., Any]] = {}
        self.failed = ""
        """The name of the call that failed, or an empty text where none did."""

    def __enter__(self) -> "BadDisk":
        self._replace(os, "open", self._open)
        self._replace(builtins, "open", self._checked)
        for name in _BY_PATH:
            self._replace(os, name, self._checked)
        for name in _BY_DESCRIPTOR:
            self._replace(os, name, self._on_descriptor)
        return self

    def __exit__(self, *exception: object) -> None:
        for (module, name), real in self._real.items():
            setattr(module, name, real)

    def _replace(self, module: Any, name: str, how: Callable[..., Any]) -> None:
        real = self._real[module, name] = getattr(module, name)
        setattr(module, name, lambda *a, **named: how(name, real, *a, **named))

    def _step(self, name: str) -> None:
        self._left -= 1
        if self._left == -1:
            self.failed = name
            raise self._error

    def _is_below(self, path: Any) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(self._root)

    def _checked(self, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if any(self._is_below(a) for a in args[:2]):
            self._step(name)
        return real(*args, **named)

    def _open(
        self, name: str, real: Callable[..., int], path: Any, *args: Any, **named: Any
    ) -> int:
        descriptor: int = self._checked(name, real, path, *args, **named)
        if self._is_below(path):
            self._descriptors.add(descriptor)
        return descriptor

    def _on_descriptor(
        self, name: str, real: Callable[..., Any], descriptor: int, *args: Any
    ) -> Any:
        if descriptor not in self._descriptors:
            return real(descriptor, *args)
        if name == "close":
            # A close that reports an error has closed all the same.
            self._descriptors.discard(descriptor)
            real(descriptor)
            return self._step(name)
        self._step(name)
        if name == "write" and self._most is not None:
            return real(descriptor, bytes(args[0])[: self._most])
        return real(descriptor, *args)


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory with mount's `options`, mounted on a new folder for the time of the block."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    ran = subprocess.run(command, check=False, capture_output=True)
    if ran.returncode:
        pytest.skip(f"this machine does not let the test mount a tmpfs: {ran.stderr!r}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path | str, option: str) -> None:
    """Turns a mount read-only (``ro``) or writable (``rw``) while it is in use."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def files_below(folder: str) -> list[str]:
    """Every file and link below a folder, as sorted paths relative to it."""
    return sorted(
        os.path.relpath(os.path.join(where, name), folder)
        for where, _, names in os.walk(folder)
        for name in names
    )
