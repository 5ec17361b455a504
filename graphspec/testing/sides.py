"""One side of an audit's comparison: the units of one spec, their keys and their graphs, each made when it is asked for."""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import attrs
import torch

from graphspec.cache.compiling.fingerprint import graph_fingerprint, graph_lines
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.compiling.trace import trace
from graphspec.cache.units import CompileUnit, DynamicDim, EntryKey, unit_key
from graphspec.capture.program import load_program
from graphspec.config.device import CpuIsa, DeviceConfig
from graphspec.errors import CompileError, EnvironmentProblem, GraphspecError, Problem
from graphspec.fields import evolve
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.described import device_profile
from graphspec.testing.raw_reads import RawReads, unshared

_WATCHING = "graphspec.testing.raw_reads"
_BY_TRACE = frozenset({"device.target"})
"""What the trace itself takes from the spec: the device that its example tensors are on."""


class Machine:
    """Toolchain and device that every key of an audit is made with, looked at once for each device section.

    `traces` counts the traces that were made. `known` is what another process has looked at.
    """

    def __init__(self, known: Mapping[DeviceConfig, Mapping[str, Any]] | None = None) -> None:
        self.traces = 0
        self.known = dict(known or {})

    def given(self, device: DeviceConfig) -> Mapping[str, Any]:
        """What the compiler is given beside a graph."""
        if device not in self.known:
            self.known[device] = {
                "toolchain": _toolchain(device),
                "device": device_profile(device),
                "options": {**compiler_options(device), "flags": compiler_flags(device)},
            }
        return self.known[device]

    def key(self, unit: CompileUnit, spec: EngineSpec) -> EntryKey:
        """The unit's entry key. Raises `UndeclaredFactorError` for a scope that this spec does not have."""
        return unit_key(unit, spec, **self.given(spec.device))


def _toolchain(device: DeviceConfig) -> Mapping[str, Any]:
    try:
        return toolchain(device)
    except (
        EnvironmentProblem
    ):  # this processor is below the baseline; another host may compile for it
        described = toolchain(evolve(device, isa=CpuIsa.NATIVE))
        return {**described, "host": device.isa}


@attrs.frozen(kw_only=True)
class Graph:
    """A traced unit. `reads`: the fields of the spec that were read meanwhile, by their dotted paths."""

    program: torch.export.ExportedProgram = attrs.field(repr=False)
    fingerprint: str
    reads: frozenset[str]

    @property
    def lines(self) -> Sequence[str]:
        """The canonical text of the graph."""
        return graph_lines(self.program)


class Side:
    """The units of one spec. Raises `GraphspecError` where the program refuses the spec.

    With `watch`, `reads` are the fields that were read while the program was made and listed its units, and each
    graph has those that were read while it was traced.
    """

    def __init__(
        self, spec: EngineSpec, machine: Machine, names: Sequence[str] = (), *, watch: bool = False
    ) -> None:
        self.spec = unshared(spec) if watch else spec
        self._machine = machine
        self._raw = RawReads(self.spec) if watch else None
        self._graphs: dict[str, Graph | GraphspecError] = {}
        with self._recording() as reads:
            listed = _units(self.spec)
        self.reads = frozenset(reads)
        self.units: Mapping[str, CompileUnit] = {
            u.name: u for u in listed if not names or u.name in names
        }

    def _recording(self) -> Any:
        return nullcontext(set[str]()) if self._raw is None else self._raw.recording()

    def failure(self, name: str) -> GraphspecError | None:
        """Why a unit cannot be traced; None where it can."""
        found = self._found(name)
        return found if isinstance(found, GraphspecError) else None

    def graph(self, name: str) -> Graph:
        """The graph of a unit. Raises `UndeclaredFactorError` or `CompileError` where it cannot be traced."""
        found = self._found(name)
        if isinstance(found, GraphspecError):
            raise found
        return found

    def fresh(self, name: str) -> Graph:
        """The graph of a unit, traced again."""
        found = self._traced(self.units[name])
        if isinstance(found, GraphspecError):
            raise found
        return found

    def _found(self, name: str) -> Graph | GraphspecError:
        if name not in self._graphs:
            self._graphs[name] = self._traced(self.units[name])
        return self._graphs[name]

    def _traced(self, unit: CompileUnit) -> Graph | GraphspecError:
        if self._raw is not None:
            # The recorder runs in the middle of the trace, and is no code of the unit's.
            unit = attrs.evolve(unit, modules=(*unit.own_modules, _WATCHING))
        self._machine.traces += 1
        try:
            with self._recording() as reads:
                program = trace(unit, self.spec, self.spec.device.target.value).program
        except GraphspecError as error:
            return error
        except Exception as error:  # a unit's own build may raise anything
            return CompileError(
                Problem(
                    where=f"unit {unit.name}",
                    found=f"{type(error).__name__}: {error}",
                    wanted="a build function that returns a callable",
                )
            )
        return Graph(
            program=program,
            fingerprint=graph_fingerprint(program),
            reads=frozenset(reads) | _BY_TRACE,
        )


def _units(spec: EngineSpec) -> Sequence[CompileUnit]:
    program = load_program(spec)
    try:
        return list(program.units())
    except GraphspecError:
        raise
    except Exception as error:  # the engine's code may raise anything
        raise CompileError(
            Problem(
                where=f"program {spec.program}",
                found=f"{type(error).__name__}: {error}",
                wanted="a list of units",
            )
        ) from error


def inputs_of(unit: CompileUnit) -> Sequence[Any]:
    """What of a unit's inputs stands in its graph: dtypes, sizes and bounds, and no names."""
    return [
        (i.dtype, [(d.minimum, d.maximum) if isinstance(d, DynamicDim) else d for d in i.shape])
        for i in unit.inputs
    ]


def brief(error: GraphspecError) -> str:
    """The first problem of an error in one line."""
    problem = error.problems[0]
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    return " ".join(
        f"{problem.where}: found {problem.found}; wanted {problem.wanted}{more}".split()
    )


def diff_of(before: Sequence[str], after: Sequence[str]) -> Sequence[str]:
    """The unified diff of two graphs."""
    return list(difflib.unified_diff(before, after, "before", "after", lineterm=""))
