"""What a worker does with a task: makes the key again, and compiles into its own cache unless the entry is stored."""

import os
import platform
import time
from typing import Self

from graphspec.cache.compiling.compiler import Compiler
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.load import UnitResult, keyed_units, load_or_compile
from graphspec.cache.opened import open_cache
from graphspec.cache.units import CompileUnit, EntryKey
from graphspec.capture.program import load_program
from graphspec.config.device import DeviceConfig, Target
from graphspec.errors import CompileError, GraphspecError, Problem
from graphspec.fleet.task import Done, Task, Verdict
from graphspec.keys.compare import compare
from graphspec.keys.encoding import decode

_SHOWN_DIFFERENCES = 5


def node_name() -> str:
    """Host and process, for reports."""
    return f"{platform.node()}:{os.getpid()}"


class Compilers:
    """The compiler processes of one worker, which stay open from task to task: to start one takes as long as to compile a
    small unit. Use as a context manager, in the thread that performs the tasks."""

    def __init__(self) -> None:
        self._open: dict[DeviceConfig, Compiler] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for compiler in self._open.values():
            compiler.__exit__(None, None, None)

    def of(self, device: DeviceConfig) -> Compiler:
        """The compiler for a device, not started before it is first used."""
        if device not in self._open:
            options, flags = compiler_options(device), compiler_flags(device)
            self._open[device] = Compiler(flags, options, device.target.value)
        return self._open[device]


def perform(task: Task, compilers: Compilers) -> Done:
    """Compiles the unit into the worker's cache, unless it is stored. Never raises for what the unit or the cache does."""
    began = time.perf_counter()
    try:
        verdict, reason, result = _performed(task, compilers)
    except GraphspecError as error:
        verdict, reason, result = Verdict.FAILED, error.problems[0].render(), None
    except Exception as error:
        # A unit's own code runs while it is traced, and can raise anything.
        verdict, reason, result = Verdict.FAILED, f"{type(error).__name__}: {error}", None
    return Done(
        verdict=verdict,
        node=node_name(),
        seconds=time.perf_counter() - began,
        reason=reason,
        result=result,
    )


def _performed(task: Task, compilers: Compilers) -> tuple[Verdict, str, UnitResult | None]:
    unit = _unit_of(task)
    (keyed,) = keyed_units([unit], task.spec)
    if keyed.key != task.key:
        return Verdict.DIFFERS, differences(task.key, keyed.key), None
    cache = open_cache(task.spec.cache, task.cache_dir)
    # What is compiled is loaded as well, here as in every warmup: a library that does not load is never published.
    _, (result,) = load_or_compile(
        [unit],
        task.spec,
        cache.store,
        cache.locks,
        single_threaded=task.spec.device.target is Target.CUDA,
        lock_wait_seconds=task.spec.cache.lock_wait_seconds,
        offline=cache.offline,
        compiler=compilers.of(task.spec.device),
    )
    cache.record([result])
    if result.store_problem:
        return Verdict.NOT_STORED, result.store_problem, result
    return (Verdict.COMPILED if result.compiled else Verdict.FOUND), "", result


def _unit_of(task: Task) -> CompileUnit:
    found = [unit for unit in load_program(task.spec).units() if unit.name == task.unit]
    if not found:
        raise CompileError(
            Problem(
                where=f"unit {task.unit}",
                found="no such unit in this worker's program",
                wanted="the program of the driver",
                hint="install the same version of the engine on every node",
            )
        )
    return found[0]


def differences(wanted: EntryKey, found: EntryKey) -> str:
    """The factors in which a worker's key differs from the one that it was asked for, by name."""
    all_of_them = compare(decode(wanted.text), decode(found.text))
    shown = [str(difference) for difference in all_of_them[:_SHOWN_DIFFERENCES]]
    rest = len(all_of_them) - len(shown)
    return "; ".join([*shown, *([f"and {rest} more"] if rest else [])])
