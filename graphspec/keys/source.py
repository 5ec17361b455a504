"""The source digest: content of the modules a unit declares, and a watch for code outside them.

A host that only loads never traces, so the digest must be known without a trace: a unit lists its modules and the
digest is their content. While tracing, each function that runs is recorded, and one from a file outside the declared
modules is an error, so that the list cannot be short.
"""

import hashlib
import importlib.util
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from graphspec.errors import KeyFactorError, Problem, UndeclaredFactorError

TOOLCHAIN_PACKAGES = frozenset(
    "torch triton functorch torchgen numpy sympy mpmath networkx jinja2 markupsafe fsspec filelock "
    "typing_extensions optree setuptools _distutils_hack packaging attr attrs".split()
)
"""Packages whose code may run in a trace undeclared: torch and what it depends on, keyed by version in the toolchain."""

_OWN_FILES = frozenset(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    for name in ("scope.py", "source.py", "factors.py")
) | {os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fields.py")}
# The watching machinery itself: it runs inside every trace and decides nothing about the graph.


_ASIDE = frozenset(
    (
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
        str(logging.__file__),
        str(warnings.__file__),
    )
)
"""Files whose callees say nothing about the graph: imports, log calls and warnings."""


def module_file(name: str) -> str:
    """The file that holds a module's code, found without running it. Raises `KeyFactorError` when there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        # ValueError: a module without a spec, such as a script's __main__.
        spec = None
    if spec is None or not spec.origin or not os.path.isfile(spec.origin):
        raise KeyFactorError(
            Problem(
                where=f"module {name}",
                found="no file with its code",
                wanted="an importable module that lies in a file",
                hint="list in `modules` the dotted names of the files that the unit's code comes from",
            )
        )
    return os.path.realpath(spec.origin)


def source_digest(modules: Sequence[str]) -> Mapping[str, str]:
    """SHA-256 of the content of each declared module, by dotted name: no path and no time enters.

    A native extension is digested as its binary.
    """
    digests = {}
    for name in modules:
        with open(module_file(name), "rb") as file:
            digests[name] = hashlib.sha256(file.read()).hexdigest()
    return digests


@contextmanager
def watched_files(seen: set[str]) -> Iterator[None]:
    """Adds to `seen` the file of every Python function that runs inside the block on this thread.

    Left out is what runs below an import, a log call or a warning: module bodies, import hooks and handlers of the host
    application, which torch reaches while it traces. A graph is not made from them.
    """

    # Above the caller anything may stand: a script that is being imported, a log handler that warms an engine.
    caller = sys._getframe(2)

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if (
            event == "call"
            and frame.f_code.co_filename not in seen
            and not _is_aside(frame, caller)
        ):
            seen.add(frame.f_code.co_filename)

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_aside(frame: FrameType | None, caller: FrameType) -> bool:
    while frame is not None and frame is not caller:
        if frame.f_code.co_filename in _ASIDE:
            return True
        frame = frame.f_back
    return False


def check_files(seen: set[str], modules: Sequence[str], unit: str) -> None:
    """Raises `UndeclaredFactorError` naming each recorded file that no declared module covers."""
    declared = {module_file(name) for name in modules}
    strays = sorted(f for f in map(_real, seen) if f and f not in declared and not _is_toolchain(f))
    if strays:
        raise UndeclaredFactorError(
            Problem(
                where=f"unit {unit}",
                found=f"code from {path} ran while it was traced",
                wanted=f"code from its declared modules {tuple(modules)} or the toolchain",
                hint="add the module to the unit's `modules`, so that a change of its content changes the key",
            )
            for path in strays
        )


def _real(name: str) -> str:
    # "<string>", "<frozen importlib._bootstrap>" and generated code have no file; what generated them has.
    return "" if name.startswith("<") else os.path.realpath(name)


def _is_toolchain(path: str) -> bool:
    if path in _OWN_FILES:
        return True
    for folder in _package_folders():
        if path.startswith(folder + os.sep):
            head = os.path.relpath(path, folder).split(os.sep)[0]
            return head.removesuffix(".py") in TOOLCHAIN_PACKAGES
    return any(path.startswith(folder + os.sep) for folder in _standard_library())


def _package_folders() -> list[str]:
    return [os.path.realpath(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]


def _standard_library() -> list[str]:
    return [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
