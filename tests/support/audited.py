"""Programs of small units with one bug planted in each, for tests of the audit. None of them can be run."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

WIDTH = 8
_SLOT_OF_ASYNC = EngineSpec.__annotations__["scheduler"].async_scheduling
"""Python's own access to one slot, taken before anybody could watch it."""


class Program:
    """A list of units."""

    def __init__(self, *units: CompileUnit) -> None:
        self._units = units

    def units(self) -> Sequence[CompileUnit]:
        return self._units


def unit(
    name: str,
    build: Callable[[Any], Callable[..., Any]],
    *paths: str,
    shape: Sequence[int | DynamicDim] = (DynamicDim(name="rows", maximum=16), WIDTH),
) -> CompileUnit:
    return CompileUnit(
        name=name,
        scope=Scope(paths),
        modules=("support.audited",),
        build=build,
        inputs=(TensorInput(name="x", shape=tuple(shape), dtype="float32"),),
    )


def build_scale(spec: Any) -> Callable[..., Any]:
    """Reads what its scope names."""
    factor = spec.model.rms_norm_eps
    return lambda x: x * factor + 1


def build_double(spec: Any) -> Callable[..., Any]:
    """Reads nothing."""
    return lambda x: x * 2


def times(factor: float) -> Callable[..., Any]:
    """A build function that has its factor from elsewhere: nothing of it is read through the view."""

    def build(spec: Any) -> Callable[..., Any]:
        return lambda x: x * factor

    return build


def behind_the_view(raw: EngineSpec, path: str) -> Callable[..., Any]:
    """A build function that holds the whole spec, and reads a field of it while it is traced."""

    def build(spec: Any) -> Callable[..., Any]:
        return lambda x: x * (1 + int(functools.reduce(getattr, path.split("."), raw)))

    return build


def build_deeper(spec: Any) -> Callable[..., Any]:
    """Reads one field more when the head is wide, and its scope does not name that one."""
    if spec.model.head_dim > WIDTH:
        return lambda x: x * spec.model.vocab_size
    return lambda x: x


def zoo(spec: EngineSpec) -> Program:
    """Units that are right, and units with bugs of every kind that a single field can show."""
    blocks = spec.kv_cache.num_blocks
    return Program(
        unit("right", build_scale, "model.rms_norm_eps"),
        unit("wide", build_scale, "model"),
        unit("held", times(spec.scheduler.max_num_seqs)),
        unit("behind", behind_the_view(spec, "kv_cache.enable_prefix_caching")),
        unit("shape", build_double, shape=(blocks, WIDTH)),
        unit("deeper", build_deeper, "model.head_dim"),
        *(unit(f"layer{i}", build_double) for i in range(spec.model.num_hidden_layers // 2)),
    )


def build_set(spec: Any) -> Callable[..., Any]:
    """Adds constants in the order of a set of strings, which is another in every process."""

    def call(x: torch.Tensor) -> torch.Tensor:
        for name in {f"constant {i}" for i in range(9)}:
            x = x + int(name[-1])
        return x

    return call


def ordered(spec: EngineSpec) -> Program:
    """One unit that is the same everywhere, and one that depends on the order of a set."""
    return Program(unit("same", build_double), unit("set", build_set))


def restless(spec: EngineSpec) -> Program:
    """A unit whose graph is another at each trace."""

    def build(view: Any) -> Callable[..., Any]:
        now = time.perf_counter_ns()
        return lambda x: x + now

    return Program(unit("restless", build, "model.rms_norm_eps"))


def broken(spec: EngineSpec) -> Program:
    """A unit that traces, one that never does, and one that takes a single width."""

    def never(view: Any) -> Callable[..., Any]:
        raise ValueError("never built")

    def narrow(view: Any) -> Callable[..., Any]:
        if view.model.head_dim != WIDTH:
            raise ValueError("one width only")
        return lambda x: x

    return Program(
        unit("fine", build_scale, "model.rms_norm_eps"),
        unit("never", never),
        unit("narrow", narrow, "model.head_dim"),
    )


def choosy(spec: EngineSpec) -> Program:
    """Takes an even number of heads only, and asks for a drafter's model without which it makes no draft unit."""
    if spec.model.num_attention_heads % 8 == 0:
        raise ValueError("not so many heads")
    units = [unit("target", build_double)]
    draft = spec.speculative.draft_model if spec.speculative else None
    if draft is not None:
        units.append(unit("draft", times(draft.hidden_size)))
    return Program(*units)


def sly(spec: EngineSpec) -> Program:
    """Reads a field in a way that no watch over fields can see."""
    late = _SLOT_OF_ASYNC.__get__(spec.scheduler)
    return Program(unit("sly", times(2 if late else 3)))
