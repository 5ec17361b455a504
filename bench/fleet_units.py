"""A program for bench/fleet.py: 200 units that take a stated time to compile, with stand-ins for tracing and loading.

What is measured is everything around the compiler: keys, scheduling, worker processes, locks, stores and reports.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from graphspec.cache import load
from graphspec.cache.compiling import trace
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.loading import artifact
from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

UNITS, SECONDS, DRIVER = "FLEET_BENCH_UNITS", "FLEET_BENCH_SECONDS", "FLEET_BENCH_DRIVER"


class Traced:
    outputs = reads = ()
    seconds = 0.0


class Sleeper:
    """A compiler that takes its time and no processor."""

    def __enter__(self) -> "Sleeper":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compile(self, unit: CompileUnit, traced: Any) -> Compiled:
        seconds = float(os.environ[SECONDS])
        time.sleep(seconds)
        library = unit.name.encode() * 4096
        return Compiled(library=library, seconds=seconds, provenance={"compiler": "none"})


class Program:
    def units(self) -> Sequence[CompileUnit]:
        rows = DynamicDim(name="rows", maximum=64)
        return [
            CompileUnit(
                name=f"unit_{at}",
                scope=Scope(()),
                modules=(__name__,),
                build=build,
                inputs=(TensorInput(name=f"x_{at}", shape=(rows, 8), dtype="float32"),),
            )
            for at in range(int(os.environ[UNITS]))
        ]


def build(spec: Any) -> Callable[..., Any]:
    raise AssertionError(spec)


def program(spec: EngineSpec) -> Program:
    if os.environ[DRIVER] != str(os.getpid()):
        load.CompileRun._compiler = lambda run: Sleeper()
        trace.trace = lambda unit, spec, device: Traced()
        artifact.load_artifact = lambda entry, *, single_threaded: bytes(entry.payload)
    return Program()
