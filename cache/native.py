"""Custom operators of a unit: the library files behind them by content, and a check that none is undeclared."""

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.errors import KeyFactorError, Problem
from graphspec.keys.source import ToolchainCode, module_file

if TYPE_CHECKING:
    import torch

TORCH_NAMESPACES = frozenset(
    "aten prim prims higher_order inductor inductor_prims quantized quantized_decomposed _quantized quantization mkl mkldnn "
    "mkldnn_prepacked onednn c10d c10d_functional _c10d_functional _c10d_functional_autograd _dtensor _native symm_mem fsdp "
    "sparse static_runtime streams profiler debugprims rngprims debug_mode_ops export flex_lib onnx onnx_symbolic".split()
)
"""Operators that come with torch: its version stands in the key."""


@attrs.frozen(kw_only=True)
class NativeLibrary:
    """A library file that registers the operators of one namespace, `torch.ops.NAMESPACE`.

    `file` is ``package:path/in/the/package.so``, the dotted name of an extension module, or the bare name of a file
    (``libops.so``) that `torch.ops.load_library` has loaded. Only its content enters the key.
    """

    namespace: str
    file: str

    def path(self) -> str:
        """Where the file lies on this machine. Raises `KeyFactorError` when there is none."""
        package, colon, inside = self.file.partition(":")
        if colon:
            found = self._in_package(package, inside)
        elif self.file.endswith(".so"):
            found = self._loaded()
        else:
            return module_file(self.file)
        if not os.path.isfile(found):
            raise KeyFactorError(
                Problem(
                    where=f"library {self.file} of the operators {self.namespace}",
                    found="no such file",
                    wanted="package:path, an extension module, or the name of a library that is loaded",
                    hint="load it with torch.ops.load_library before keys are made, or name its package",
                )
            )
        return found

    def _in_package(self, package: str, inside: str) -> str:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        return os.path.join(folders[0], inside) if folders else ""

    def _loaded(self) -> str:
        # Whoever has not imported torch has loaded no library of its operators.
        loaded = sys.modules["torch"].ops.loaded_libraries if "torch" in sys.modules else ()
        return next((p for p in sorted(loaded) if os.path.basename(p) == self.file), "")


def library_digests(libraries: Sequence[NativeLibrary]) -> Mapping[str, str]:
    """SHA-256 of each library's content, by the namespace of its operators: part of a unit's key."""
    digests = {}
    for library in libraries:
        with open(library.path(), "rb") as file:
            digests[library.namespace] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def operator_problems(
    program: "torch.export.ExportedProgram",
    modules: Sequence[str],
    libraries: Sequence[NativeLibrary],
    unit: str,
) -> Sequence[Problem]:
    """One problem for each operator in a graph whose Python file or library the key does not cover."""
    declared = {module_file(name) for name in modules}
    native = {library.namespace for library in libraries}
    toolchain = ToolchainCode()
    problems = []
    for operator in _operators(program):
        namespace = operator.partition("::")[0]
        for origin in sorted(set(_origins(operator))):
            is_python = origin.endswith(".py")
            path = os.path.realpath(origin)
            if (
                path in declared
                or toolchain.covers(path)
                or (namespace in native and not is_python)
            ):
                continue
            where = path if is_python else f"a library built from {os.path.basename(origin)}"
            problems.append(
                Problem(
                    where=f"unit {unit}",
                    found=f"the operator {operator}, registered by {where}",
                    wanted="operators of torch, of the unit's `modules` or of its `libraries`",
                    hint="add the module to `modules`"
                    if is_python
                    else f"add NativeLibrary(namespace={namespace!r}, file=...) to `libraries`, so that a rebuilt "
                    "library changes the key",
                )
            )
    return problems


def _operators(program: "torch.export.ExportedProgram") -> Sequence[str]:
    """The names of the operators in a graph and the graphs inside it that are not torch's own."""
    names = {
        str(node.target._schema.name)
        for module in program.graph_module.modules()
        for node in getattr(getattr(module, "graph", None), "nodes", ())
        if node.op == "call_function" and hasattr(node.target, "_schema")
    }
    return sorted(n for n in names if n.partition("::")[0] not in TORCH_NAMESPACES)


_REGISTERED = re.compile(r"registered at (.+?):\d+", re.MULTILINE)


def _origins(operator: str) -> Iterator[str]:
    """The source files that registered an operator and its kernels. Those of a library are where it was built."""
    import torch
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton

    yield from _REGISTERED.findall(torch._C._dispatch_dump(operator))
    for kernel in singleton.find(operator).fake_impl.kernels:
        yield kernel.source.rpartition(":")[0]
    definition = OPDEFS.get(operator)
    functions: list[Any] = [getattr(definition, n, None) for n in ("_init_fn", "_abstract_fn")]
    for function in functions:
        if function is not None and hasattr(function, "__code__"):
            yield function.__code__.co_filename
