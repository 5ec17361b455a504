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
"""Packages whose code may run in a trace undeclared: torch, for which its version stands in the key, and what torch runs
to trace. Hosts that only load may have other versions of the latter, so these are provenance of an entry, not key."""

_OWN_FILES = frozenset(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    for name in ("scope.py", "source.py", "factors.py")
) | {os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fields.py")}
# The watching machinery itself: it runs inside every trace and decides nothing about the graph.


_MODULE = "module "
_GENERATED = ("<frozen ", "<eval_with_key>", "<attrs generated", "<__array_function__")
"""Code that Python, torch.fx, attrs and numpy make from other code, which is recorded where it lies."""

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

    A native extension is digested as its binary. Raises `KeyFactorError` when there is no module at all: the key would
    cover no code.
    """
    if not modules:
        raise KeyFactorError(
            Problem(
                where="modules of a unit",
                found="none, and its build function lies in no importable module",
                wanted="the modules that its code comes from",
                hint="move the unit's code from the script or notebook into a module, and list it in `modules`",
            )
        )
    digests = {}
    for name in modules:
        with open(module_file(name), "rb") as file:
            digests[name] = hashlib.sha256(file.read()).hexdigest()
    return digests


@contextmanager
def watched_files(seen: set[str]) -> Iterator[None]:
    """Adds to `seen` the origin of every Python function that runs inside the block on this thread: its file, or for
    code that was made from a string, ``module NAME`` after the module it was made in.

    Left out is what runs below an import, a log call or a warning: module bodies, import hooks and handlers of the host
    application, which torch reaches while it traces. A graph is not made from them.
    """

    # Above the caller anything may stand: a script that is being imported, a log handler that warms an engine.
    caller = sys._getframe(2)

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            origin = _origin(frame)
            if origin not in seen and not _is_aside(frame, caller):
                seen.add(origin)

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(before)


def _origin(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    if not name.startswith("<") or name.startswith(_GENERATED):
        return name
    return f"{_MODULE}{frame.f_globals.get('__name__', '?')}"


def _is_aside(frame: FrameType | None, caller: FrameType) -> bool:
    while frame is not None and frame is not caller:
        if frame.f_code.co_filename in _ASIDE:
            return True
        frame = frame.f_back
    return False


def check_files(seen: set[str], modules: Sequence[str], unit: str) -> None:
    """Raises `UndeclaredFactorError` naming each recorded file that no declared module covers."""
    declared = {module_file(name) for name in modules}
    strays = sorted(
        origin
        for origin in map(_real, seen)
        if origin not in declared
        and origin.removeprefix(_MODULE) not in modules
        and not _is_toolchain(origin)
    )
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


def _real(origin: str) -> str:
    return origin if origin.startswith((_MODULE, "<")) else os.path.realpath(origin)


def _is_toolchain(path: str) -> bool:
    if path in _OWN_FILES or path.startswith("<"):
        return True
    if path.startswith(_MODULE):
        head = path.removeprefix(_MODULE).split(".")[0]
        if head.startswith("namedtuple_"):
            # The methods that collections makes for a named tuple only hold values.
            return True
        return head in TOOLCHAIN_PACKAGES or (
            head in sys.stdlib_module_names and head != "__main__"
        )
    for folder in _package_folders():
        if path.startswith(folder + os.sep):
            head = os.path.relpath(path, folder).split(os.sep)[0]
            return head.removesuffix(".py") in TOOLCHAIN_PACKAGES
    return any(path.startswith(folder + os.sep) for folder in _standard_library())


def _package_folders() -> list[str]:
    return [os.path.realpath(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]


def _standard_library() -> list[str]:
    return [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
