"""`Compiler`: turns traced units into library bytes in processes of its own, with reproducible build paths."""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs
import torch

from graphspec.cache.compiling.torch_state import torch_state
from graphspec.cache.compiling.trace import Trace
from graphspec.cache.compiling.without_driver import cuda_home
from graphspec.cache.compiling.worker import __file__ as _WORKER
from graphspec.cache.leftovers import sweep, unique_name
from graphspec.cache.units import CompileUnit
from graphspec.errors import CompileError, EnvironmentProblem, Problem
from graphspec.keys.environment import code_environment

if TYPE_CHECKING:
    from graphspec.cache.compiling.described import DescribedGpu

_KEPT_VARIABLES = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    "SYSTEMROOT",
)
"""What the compiler process inherits beside the variables that are in the key of each unit. Anything else in the
environment could change code without changing a key."""

_NO_GPU: Mapping[str, str] = {
    # A GPU that happens to be here must not answer for the described one.
    "CUDA_VISIBLE_DEVICES": "",
    # Helpers that inductor starts would ask this machine for its GPU. Read when inductor is imported.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

_DRIVER = """#!/bin/sh
# Stands before the C++ compiler: maps build paths to fixed names, so that equal units give equal bytes anywhere.
# -s, because the table of local symbols names source files, whose names are hashes over build paths.
maps=
for argument in "$@"; do
  case "$argument" in
    *.wrapper.cpp) maps="$maps -ffile-prefix-map=$argument=/graphspec/wrapper.cpp" ;;
    *.kernel.cpp) maps="$maps -ffile-prefix-map=$argument=/graphspec/kernel.cpp" ;;
  esac
done
exec {compiler} "$@" -s {flags} -ffile-prefix-map={torch}=/torch -ffile-prefix-map={build}=/graphspec $maps
"""


@attrs.frozen(kw_only=True)
class Compiled:
    """A compiled unit: the bytes of its shared library, seconds it took, and where it came from.

    `demands` is what the library takes for granted of the sizes that it is called with, as `dynamo_sizes` writes it.
    `kernels` tells of each kernel what `described_gpu` does, where the library is for a described GPU.
    """

    library: bytes = attrs.field(repr=False)
    seconds: float
    provenance: Mapping[str, str]
    demands: Sequence[Any] = ()
    kernels: Sequence[Mapping[str, Any]] = ()


class OutsideOperatorsError(CompileError):
    """A unit calls operators that no compiled library can call by itself. No further compile would change that."""


class Compiler:
    """One compiler process, started on first use. Use as a context manager; leaving it ends the process.

    `described`: the GPU to compile for, where it is not in this machine.
    """

    def __init__(
        self,
        flags: tuple[str, ...],
        options: Mapping[str, Any],
        device: str,
        described: "DescribedGpu | None" = None,
    ) -> None:
        self._flags = flags
        self._described = described
        self._options = options
        self._device = device
        self._folder = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def compile(self, unit: CompileUnit, traced: Trace) -> Compiled:
        """The library of a traced unit. Raises `CompileError` with the compiler's own words."""
        inputs = [(s, i.dtype) for s, i in zip(traced.sizes, unit.inputs, strict=True)]
        libraries = [library.path() for library in unit.libraries]
        compiled = self.compile_program(
            traced.program, unit.name, inputs, unit.own_modules, libraries
        )
        return attrs.evolve(compiled, seconds=traced.seconds + compiled.seconds)

    def compile_program(
        self,
        program: torch.export.ExportedProgram,
        name: str,
        inputs: Sequence[tuple[Sequence[int], str]],
        modules: Sequence[str] = (),
        libraries: Sequence[str] = (),
        symbols: Mapping[str, int] | None = None,
    ) -> Compiled:
        """The library of an exported program, which `name` stands for in errors.

        `inputs` are sizes and dtypes of example inputs. With `symbols`, the numbers of the program's symbols by name, the
        answer has the demands on their sizes. Raises `CompileError` with the compiler's own words.
        """
        process = self._started()
        folder = os.path.join(self._folder, "unit")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        path = os.path.join(folder, "unit.pt2")
        program.example_inputs = None
        torch.export.save(program, path)
        request = {
            "program": path,
            "output": os.path.join(folder, "unit.so"),
            "inputs": list(inputs),
            "device": self._device,
            "options": dict(self._options),
            "modules": list(modules),
            "libraries": list(libraries),
            "torch_state": dict(torch_state()),
            "symbols": symbols,
            "described": None if self._described is None else attrs.asdict(self._described),
        }
        answer = self._ask(process, request, name)
        outside = _outside_operators(os.path.dirname(answer["library"]))
        if outside:
            raise OutsideOperatorsError(
                Problem(
                    where=f"unit {name}",
                    found=f"calls of {', '.join(outside)}, which a compiled library cannot make by itself",
                    wanted="operators that inductor compiles, or has a C entry point for",
                    hint="call the operator between units, as the attention over the paged cache is called",
                )
            )
        library = self._library(answer["library"], name)
        shutil.rmtree(folder, ignore_errors=True)
        return Compiled(
            library=library,
            seconds=answer["seconds"],
            provenance={"compiler": _compiler_version(), "torch": str(torch.__version__)},
            demands=answer["demands"],
            kernels=answer["kernels"],
        )

    def _library(self, path: str, name: str) -> bytes:
        """What the compiler has written. That it ended well does not mean that it did."""
        try:
            with open(path, "rb") as file:
                library = file.read()
        except OSError as error:
            raise self._failed(
                name, f"no library, although it ended well: {error.strerror}"
            ) from None
        if not library:
            raise self._failed(name, "an empty library, although it ended well")
        return library

    def _ask(
        self, process: "subprocess.Popen[str]", request: Mapping[str, Any], name: str
    ) -> Mapping[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._failed(name, f"the compiler process ended with status {process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(name, answer["error"])
        return answer

    def _failed(self, name: str, found: str) -> CompileError:
        return CompileError(
            Problem(
                where=f"unit {name}",
                found=found,
                wanted="a compiled library",
                hint=f"the compiler's own output ends with:\n{self._log_tail()}",
            )
        )

    def _log_tail(self) -> str:
        with (
            contextlib.suppress(OSError),
            open(os.path.join(self._folder, "log"), encoding="utf-8", errors="replace") as f,
        ):
            return "".join(f.readlines()[-12:])
        return ""

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        base = tempfile.gettempdir()
        sweep(base)
        # A fresh name that nobody can guess, and mkdir fails where it exists: others may write to the base folder.
        self._folder = os.path.join(base, unique_name())
        os.mkdir(self._folder, mode=0o700)
        os.makedirs(os.path.join(self._folder, "bin"), mode=0o700)
        self._write_driver()
        # The log is a file: a pipe that nobody reads would fill and stop the compiler.
        with open(os.path.join(self._folder, "log"), "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-s", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(),
                cwd=self._folder,
            )
        return self._process

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        if self._device.startswith("cuda"):
            # Line tables have the paths of this build, and no code depends on them.
            kept["TRITON_DISABLE_LINE_INFO"] = "1"
        if self._described is not None:
            kept |= {**_NO_GPU, "CUDA_HOME": cuda_home()}
        folders = [os.path.realpath(p) for p in sys.path if p and os.path.isdir(p)]
        return {
            **kept,
            **code_environment(os.environ),
            "PATH": os.path.join(self._folder, "bin")
            + os.pathsep
            + os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONHASHSEED": "0",
            "TMPDIR": self._folder,
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(self._folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(self._folder, "triton"),
        }

    def _write_driver(self) -> None:
        real = shutil.which("g++")
        if real is None:
            raise EnvironmentProblem(
                Problem(
                    where="C++ compiler",
                    found="no g++ on PATH",
                    wanted="g++, to compile the units that the cache does not hold",
                    hint="install it (Debian: apt install g++), or warm the cache elsewhere and copy the folder",
                )
            )
        path = os.path.join(self._folder, "bin", "g++")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                _DRIVER.format(
                    compiler=real,
                    flags=" ".join(self._flags),
                    torch=os.path.dirname(torch.__file__),
                    build=self._folder,
                )
            )
        os.chmod(path, 0o700)


def _outside_operators(folder: str) -> Sequence[str]:
    """Operators that inductor leaves to an interpreter: it lists them in a file beside the library, and the library,
    which is loaded from memory, would not find it."""
    names = set()
    for path in glob.glob(os.path.join(folder, "*.wrapper.json")):
        with open(path, encoding="utf-8") as file:
            names |= {str(node["node"]["target"]) for node in json.load(file).get("nodes", ())}
    return sorted(names)


def _compiler_version() -> str:
    real = shutil.which("g++")
    if real is None:
        return "none"
    out = subprocess.run([real, "--version"], capture_output=True, text=True, check=False)
    return (out.stdout.splitlines() or [""])[0]
