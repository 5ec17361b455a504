"""Tracing a unit under watch: torch.export on fake tensors, every field read and every file run recorded."""

import contextlib
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graphspec.cache.native import operator_problems
from graphspec.cache.units import CompileUnit, DynamicDim
from graphspec.errors import CompileError, GraphspecError, Problem, UndeclaredFactorError
from graphspec.keys.scope import RecordingView, reads_as_text
from graphspec.keys.undeclared import undeclared, variable_problems
from graphspec.keys.watch import Watch
from graphspec.resolve.spec import EngineSpec

_HINTS = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
"""Sizes that dynamic dimensions have while traced: different primes, so that no two are taken for the same."""


@attrs.frozen(kw_only=True)
class Trace:
    """An exported unit and what its trace read.

    `outputs` describes each output as `signature` describes inputs; a shape that is more than plain dimensions is None.
    """

    program: torch.export.ExportedProgram = attrs.field(repr=False)
    reads: Sequence[str]
    sizes: Sequence[Sequence[int]]
    outputs: Sequence[Mapping[str, Any]]
    seconds: float


def trace(unit: CompileUnit, spec: EngineSpec, device: str) -> Trace:
    """Exports a unit for `device` without touching one.

    Raises `UndeclaredFactorError` for a read outside the unit's scope, code outside its modules, and whatever else the
    watch sees that the key does not cover; `CompileError` for what torch.export refuses.
    """
    began = time.perf_counter()
    reads: dict[str, Any] = {}
    watch = Watch()
    view = RecordingView(spec, unit.scope, reads)
    hints = _hints(unit)
    sizes = [[hints[d] if isinstance(d, DynamicDim) else d for d in i.shape] for i in unit.inputs]
    with _no_garbage_collection(), _plain_state():
        try:
            with watch.watching():
                function = unit.build(view)
            program = _export(unit, _Watched(function, watch), sizes, hints, device)
        except UndeclaredFactorError:
            raise
        except Exception as error:
            # What a variable held may be the reason, and another machine would not see this error.
            read = variable_problems(watch, unit.environment, unit.name)
            if read:
                raise UndeclaredFactorError(read) from error
            raise
    problems = [
        *undeclared(watch, unit.own_modules, unit.environment, unit.name),
        *operator_problems(program, unit.own_modules, unit.libraries, unit.name),
    ]
    if problems:
        raise UndeclaredFactorError(problems)
    return Trace(
        program=program,
        reads=reads_as_text(reads),
        sizes=sizes,
        outputs=_outputs(unit, program),
        seconds=time.perf_counter() - began,
    )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keeps the collector out of a trace: it would run the host application's callbacks and finalizers in the middle,
    and the watch could not tell their code from the unit's. Dynamo collects by itself, so callbacks are set aside too."""
    was_enabled, callbacks = gc.isenabled(), list(gc.callbacks)
    gc.disable()
    gc.callbacks.clear()
    try:
        yield
    finally:
        gc.callbacks[:0] = callbacks
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _plain_state() -> Iterator[None]:
    """Keeps out what a thread may have switched on around a trace: autocast would add conversions to the graph. Units are
    compiled by threads that have nothing switched on, and a trace elsewhere should see the same."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _outputs(
    unit: CompileUnit, program: torch.export.ExportedProgram
) -> Sequence[Mapping[str, Any]]:
    nodes = {node.name: node for node in program.graph.nodes}
    symbols: dict[str, DynamicDim] = {}
    for declared, name in zip(unit.inputs, program.graph_signature.user_inputs, strict=True):
        traced = nodes[str(name)].meta["val"]
        for dim, size in zip(declared.shape, traced.shape, strict=True):
            if isinstance(dim, DynamicDim):
                symbols[str(size)] = dim
    return [
        {"dtype": str(value.dtype).removeprefix("torch."), "shape": _plain_shape(value, symbols)}
        for value in (nodes[str(name)].meta["val"] for name in program.graph_signature.user_outputs)
    ]


def _plain_shape(value: torch.Tensor, symbols: Mapping[str, DynamicDim]) -> list[Any] | None:
    shape: list[Any] = []
    for size in value.shape:
        if str(size) in symbols:
            dim = symbols[str(size)]
            shape.append((dim.name, dim.minimum, dim.maximum))
        elif str(size).isdigit():
            shape.append(int(size))
        else:
            return None
    return shape


def _hints(unit: CompileUnit) -> Mapping[DynamicDim, int]:
    dims = dict.fromkeys(d for i in unit.inputs for d in i.shape if isinstance(d, DynamicDim))
    if len(dims) > len(_HINTS):
        raise CompileError(
            Problem(
                where=f"unit {unit.name}",
                found=f"{len(dims)} dynamic dimensions",
                wanted=f"at most {len(_HINTS)}",
            )
        )
    return {d: max(d.minimum, min(h, d.maximum)) for d, h in zip(dims, _HINTS, strict=False)}


def _export(
    unit: CompileUnit,
    module: torch.nn.Module,
    sizes: Sequence[Sequence[int]],
    hints: Mapping[DynamicDim, int],
    device: str,
) -> torch.export.ExportedProgram:
    symbols = {
        d: torch.export.Dim(d.name, min=d.minimum, max=d.maximum)
        for d in hints
        if d.minimum < d.maximum
    }
    dynamic = tuple(
        {
            at: symbols[d]
            for at, d in enumerate(i.shape)
            if isinstance(d, DynamicDim) and d in symbols
        }
        for i in unit.inputs
    )
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        examples = tuple(
            torch.empty(size, dtype=getattr(torch, i.dtype), device=device)
            for size, i in zip(sizes, unit.inputs, strict=True)
        )
    try:
        with torch.no_grad():
            return torch.export.export(module, examples, dynamic_shapes=(dynamic,), strict=False)
    except GraphspecError:
        raise
    except Exception as error:  # torch.export raises its own, the unit's and Python's errors alike
        undeclared = _cause(error)
        if undeclared is not None:
            raise undeclared from None
        raise CompileError(
            Problem(
                where=f"unit {unit.name}",
                found=f"torch.export refuses it: {type(error).__name__}: {error}",
                wanted="a call whose operations do not depend on the values in its tensors",
                hint="see https://docs.pytorch.org/docs/stable/export.html for what a trace can hold",
            )
        ) from error


def _cause(error: BaseException) -> GraphspecError | None:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, GraphspecError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


class _Watched(torch.nn.Module):
    """The traced callable as a module; it is watched only while it runs, not while torch.export works."""

    def __init__(self, function: Any, watch: Watch) -> None:
        super().__init__()
        self._function = function
        self._watch = watch

    def forward(self, *tensors: torch.Tensor) -> Any:
        with self._watch.watching():
            return self._function(*tensors)
