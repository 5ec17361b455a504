"""A program for tests of fleets: units that cost nothing, and that do what their names say.

The workers of a fleet are processes that no test can patch. So the program's factory puts the stand-ins for tracing,
compiling and loading in place, in each process that is not the test's own.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.errors import CompileError, Problem
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec
from support import fake_compiler

NAME = "support.fleet_units:program"
FOLDER, UNITS, TEST = "FLEET_TEST_FOLDER", "FLEET_TEST_UNITS", "FLEET_TEST_PROCESS"
"""Where compiles are written down, the units' names, and the process that keeps its compiler."""


def build(spec: Any) -> Any:
    """Never called: tracing is a stand-in."""
    raise AssertionError(spec)


class FleetUnits:
    """Units of the names in the environment. Those whose names begin with ``tp`` depend on the tensor-parallel size."""

    def __init__(self, spec: EngineSpec) -> None:
        self._rows = spec.scheduler.max_num_batched_tokens

    def units(self) -> Sequence[CompileUnit]:
        rows = DynamicDim(name="rows", maximum=self._rows)
        return [
            CompileUnit(
                name=name,
                scope=Scope(("parallel.tensor_parallel_size",) if name.startswith("tp") else ()),
                modules=("support.fleet_units",),
                build=build,
                inputs=(TensorInput(name=f"x_{name}", shape=(rows, 8), dtype="float32"),),
            )
            for name in os.environ[UNITS].split()
        ]


def program(spec: EngineSpec) -> FleetUnits:
    """The program, and in workers the stand-ins."""
    if os.environ[TEST] != str(os.getpid()):
        fake_compiler.install(compile_unit)
    return FleetUnits(spec)


def compile_unit(unit: CompileUnit) -> bytes:
    """Writes down that it was called, and does what the name asks for."""
    folder = Path(os.environ[FOLDER])
    with open(folder / "compiles", "a", encoding="utf-8") as file:
        file.write(f"{unit.name} {os.getpid()}\n")
    if unit.name.startswith("poison"):
        raise CompileError(Problem(where=f"unit {unit.name}", found="poison", wanted="code"))
    if unit.name.startswith("deadly") or (
        unit.name.startswith("unlucky") and _first(folder / unit.name)
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    if unit.name.startswith("waits"):
        _wait_for(folder / "go")
    if unit.name.startswith("takes"):
        time.sleep(float(unit.name.split("_")[1]))
    return f"library of {unit.name}".encode() * 200


def _first(flag: Path) -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _wait_for(flag: Path) -> None:
    while not flag.exists():
        os.sched_yield()


def compiles(folder: Path) -> Iterator[str]:
    """The name of each unit that was compiled anywhere, once for each time."""
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "compiles").read_text().splitlines():
            yield line.split()[0]


def example(spec: EngineSpec) -> Any:
    """The reference program's units, with the stand-ins in workers: what the example of a page names as its program."""
    from graphspec.engine.llama import program as reference

    program(spec)
    return reference(spec)
