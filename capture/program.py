"""`Program`: what an engine implements to be warmed, and how its factory is found by name."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from graphspec.cache.loading.artifact import Artifact
from graphspec.cache.units import CompileUnit
from graphspec.capture.keys import FULL_VERIFY, GraphKind
from graphspec.capture.source import StepSource
from graphspec.errors import EnvironmentProblem, GraphspecError, Problem
from graphspec.resolve.spec import EngineSpec


class Program(Protocol):
    """An engine's model code for one spec. Its factory, ``factory(spec)``, is named by the config's `program`.

    A program whose steps can be captured in other phases and modes than the target's whole decode steps states them in
    an attribute `captures`: a frozenset of `GraphKind`, as in `graphspec.capture.keys`. See `captures_of`.
    """

    def units(self) -> Sequence[CompileUnit]:
        """What there is to compile. Needs no weights and no device."""
        ...

    def start(self, artifacts: Mapping[str, Artifact]) -> StepSource:
        """Reads the weights, allocates buffers, and returns what decode steps are captured from."""
        ...


def captures_of(program: Program) -> frozenset[GraphKind]:
    """The phases and modes that the program's steps can be captured in: what its `captures` states, if it has that."""
    stated: frozenset[GraphKind] = getattr(program, "captures", FULL_VERIFY)
    return stated


def load_program(spec: EngineSpec) -> Program:
    """The program that the spec names. Raises `EnvironmentProblem` when it cannot be imported."""
    module, _, name = spec.program.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            Problem(
                where=f"program {spec.program}",
                found=str(error),
                wanted="an importable module:factory",
                hint="install the engine's package, or put its folder on PYTHONPATH",
            )
        ) from None
    try:
        program: Program = factory(spec)
    except GraphspecError:
        raise
    except Exception as error:
        raise EnvironmentProblem(
            Problem(
                where=f"program {spec.program}",
                found=f"{type(error).__name__}: {error}",
                wanted="a factory that takes the spec and returns a program",
            )
        ) from error
    return program
