"""The source digest: content of the modules a unit declares, and which code may run without being declared.

A host that only loads never traces, so the digest must be known without a trace: a unit lists its modules and the
digest is their content. While tracing, each function that runs is recorded (`graphspec.keys.watch`), and one from a
file outside the declared modules is an error, so that the list cannot be short.
"""

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence

from graphspec.errors import KeyFactorError, Problem

TOOLCHAIN_PACKAGES = frozenset(
    "torch triton functorch torchgen numpy sympy mpmath networkx jinja2 markupsafe fsspec filelock "
    "typing_extensions optree setuptools _distutils_hack packaging attr attrs".split()
)
"""Packages whose code may run in a trace undeclared: torch, for which its version stands in the key, and what torch runs
to trace. Hosts that only load may have other versions of the latter, so these are provenance of an entry, not key."""

MODULE = "module "
"""How the origin of code without a file begins: the module that it was made in follows."""

_FOLDER = os.path.dirname(os.path.realpath(__file__))
_OWN_FILES = frozenset(
    os.path.join(_FOLDER, name) for name in ("scope.py", "source.py", "factors.py", "watch.py")
) | {os.path.join(os.path.dirname(_FOLDER), "fields.py")}
# The watching machinery itself: it runs inside every trace and decides nothing about the graph.


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


def file_problems(seen: Iterable[str], modules: Sequence[str], unit: str) -> Sequence[Problem]:
    """One problem for each recorded origin of code that neither a declared module nor the toolchain covers."""
    declared = {module_file(name) for name in modules}
    toolchain = ToolchainCode()
    strays = sorted(
        origin
        for origin in map(real_origin, seen)
        if origin not in declared
        and origin.removeprefix(MODULE) not in modules
        and not toolchain.covers(origin)
    )
    return [
        Problem(
            where=f"unit {unit}",
            found=f"code from {path} ran while it was traced",
            wanted=f"code from its declared modules {tuple(modules)} or the toolchain",
            hint="add the module to the unit's `modules`, so that a change of its content changes the key",
        )
        for path in strays
    ]


def real_origin(origin: str) -> str:
    """The origin with links in its path resolved, as the files of modules are."""
    return origin if origin.startswith((MODULE, "<")) else os.path.realpath(origin)


def is_toolchain_module(name: str) -> bool:
    """True for a module of the standard library or of a package for which versions in the key stand."""
    head = name.partition(".")[0]
    return head in TOOLCHAIN_PACKAGES or head in sys.stdlib_module_names


class ToolchainCode:
    """Tells the toolchain's code from the unit's, by its origin. Looks at `sys.path` once, when it is made."""

    def __init__(self) -> None:
        self._packages = tuple(
            os.path.realpath(p) + os.sep
            for p in sys.path
            if p.endswith(("site-packages", "dist-packages"))
        )
        self._library = tuple(
            os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
        )

    def covers(self, origin: str) -> bool:
        """True when code of this origin may run undeclared."""
        if origin in _OWN_FILES or origin.startswith("<"):
            return True
        if origin.startswith(MODULE):
            name = origin.removeprefix(MODULE)
            # The methods that collections makes for a named tuple only hold values.
            return is_toolchain_module(name) or name.startswith("namedtuple_")
        for folder in self._packages:
            if origin.startswith(folder):
                head = origin.removeprefix(folder).partition(os.sep)[0]
                return head.removesuffix(".py") in TOOLCHAIN_PACKAGES
        return origin.startswith(self._library)
