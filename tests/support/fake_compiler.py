"""A compiler and a loader that take no time, for tests of what several processes make of one cold key."""

from collections.abc import Callable
from typing import Any

import attrs

from graphspec.cache import load
from graphspec.cache.compiling import trace
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.loading import artifact
from graphspec.cache.units import CompileUnit


@attrs.frozen
class _Traced:
    outputs: tuple[Any, ...] = ()
    reads: tuple[str, ...] = ()
    seconds: float = 0.0


class FakeCompiler:
    """Gives each unit the library that `compile` returns. What is loaded of an entry is its bytes."""

    def __init__(self, compile: Callable[[CompileUnit], bytes]) -> None:
        self._compile = compile

    def __enter__(self) -> "FakeCompiler":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def compile(self, unit: CompileUnit, traced: Any) -> Compiled:
        library = self._compile(unit)
        return Compiled(library=library, seconds=1.0, provenance={"compiler": "none"})


def install(
    compile: Callable[[CompileUnit], bytes], patch: Callable[[Any, str, Any], None] = setattr
) -> None:
    """Puts the stand-ins for tracing, compiling and loading in place, with `patch` or for good."""
    patch(load.CompileRun, "_compiler", lambda run: FakeCompiler(compile))
    patch(trace, "trace", lambda unit, spec, device: _Traced())
    patch(artifact, "load_artifact", lambda entry, *, single_threaded: bytes(entry.payload))
