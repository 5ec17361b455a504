"""Programs of units that are cheap to trace and read many fields, for comparing what keys say with what code becomes."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.fields import Stage
from graphspec.keys.factors import factor_tree, flatten
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

WIDTH = 8


class Program:
    """A list of units."""

    def __init__(self, *units: CompileUnit) -> None:
        self._units = units

    def units(self) -> Sequence[CompileUnit]:
        return self._units


def unit(name: str, build: Callable[..., Any], *paths: str, x: TensorInput) -> CompileUnit:
    return CompileUnit(
        name=name,
        scope=Scope(paths),
        modules=("support.small_units", "graphspec.frozen"),
        build=build,
        inputs=(x,),
    )


def build_norm(spec: Any) -> Callable[..., Any]:
    """Reads one field, whatever its scope."""
    eps = spec.model.rms_norm_eps
    return lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def build_rotate(spec: Any) -> Callable[..., Any]:
    """x [rows, heads, head_dim] -> x turned by the angles of its rows."""
    theta, half = spec.model.rope_theta, spec.model.head_dim // 2

    def rotate(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(half, dtype=torch.float32) / half
        at = torch.arange(x.shape[0], dtype=torch.float32)[:, None, None] * theta**-steps
        one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = one * at.cos() - two * at.sin(), two * at.cos() + one * at.sin()
        return torch.cat((*turned, rest), dim=-1)

    return rotate


def build_draft(spec: Any) -> Callable[..., Any]:
    """x [rows, 8] -> one row for each draft of a request: k is a shape of the code."""
    k = spec.speculative.num_speculative_tokens
    return lambda x: x[:, None, :].expand(-1, k + 1, -1) * torch.arange(k + 1)[None, :, None]


def rows_of(spec: EngineSpec, *shape: int) -> TensorInput:
    """Rows of a step."""
    rows = DynamicDim(name="rows", maximum=spec.scheduler.max_num_batched_tokens)
    return TensorInput(name="x", shape=(rows, *shape), dtype="float32")


def few(spec: EngineSpec) -> Program:
    """A unit with the scope that it needs, one with a far wider scope, and where the method bakes k in, one that holds it."""
    x = rows_of(spec, WIDTH)
    units = [
        unit("norm", build_norm, "model.rms_norm_eps", x=x),
        unit("roomy", build_norm, "model", "parallel", x=x),
    ]
    drafting = spec.speculative
    if drafting is not None and drafting.speculator.bakes_k_into_graphs:
        units.append(unit("draft", build_draft, "speculative.num_speculative_tokens", x=x))
    return Program(*units)


def several(spec: EngineSpec) -> Program:
    """The same, and one of the size of the model's heads."""
    x = rows_of(spec, spec.model.num_attention_heads, spec.model.head_dim)
    rotate = unit("rotate", build_rotate, "model.rope_theta", "model.head_dim", x=x)
    return Program(*few(spec).units(), rotate)


def build_everything(spec: Any, paths: Sequence[str]) -> Callable[..., Any]:
    """A unit whose graph holds a number made of the value at each path that it is given."""
    values = [functools.reduce(getattr, path.split("."), spec) for path in paths]
    number = zlib.crc32(repr(values).encode())
    return lambda x: x + number


def everything(spec: EngineSpec) -> Program:
    """One unit that reads every COMPILE field of the spec that it may."""
    x = TensorInput(name="x", shape=(DynamicDim(name="rows", maximum=16), WIDTH), dtype="float32")
    paths = tuple(path for path, _ in flatten(factor_tree(spec, Stage.COMPILE)))
    return Program(
        unit("everything", functools.partial(build_everything, paths=paths), *paths, x=x)
    )
