"""Programs of units that are alike: one for all sizes, one for each size, one for each layer. Each unit is the toy's scale."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import plan_capture
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec
from support.toy import WIDTH, build_scale

LAYERS = 32
Build = Callable[[Any], Callable[..., Any]]


def scale_unit(name: str, build: Build, rows: int | DynamicDim) -> CompileUnit:
    """A unit that scales rows of the toy's width."""
    return CompileUnit(
        name=name,
        scope=Scope(("model.rms_norm_eps",)),
        modules=("support.toy", "support.sized"),
        build=build,
        inputs=(TensorInput(name="x", shape=(rows, WIDTH), dtype="float32"),),
    )


def build_first(spec: Any) -> Callable[..., Any]:
    """What comes before the layers."""
    return build_scale(spec)


def build_last(spec: Any) -> Callable[..., Any]:
    """What comes after the layers."""
    return build_scale(spec)


class Chain:
    """Lists units; a step runs those that `chosen` names for its number of rows, one after the other."""

    def __init__(
        self,
        spec: EngineSpec,
        units: Sequence[CompileUnit],
        chosen: Callable[[int], Sequence[str]],
    ) -> None:
        self.spec = spec
        self._units = units
        self._chosen = chosen

    def units(self) -> Sequence[CompileUnit]:
        return self._units

    def start(self, artifacts: Mapping[str, Any]) -> "ChainSteps":
        rows = self.spec.scheduler.max_num_batched_tokens
        return ChainSteps(rows, artifacts, self._chosen)


class ChainSteps:
    """Steps on a static input."""

    def __init__(
        self, rows: int, artifacts: Mapping[str, Any], chosen: Callable[[int], Sequence[str]]
    ) -> None:
        self.x = torch.zeros(rows, WIDTH)
        self._artifacts = artifacts
        self._chosen = chosen

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        return {"x": self.x}

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        self.x[: key.tokens].fill_(2.0 + variant)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        out = self.x[: key.tokens]
        for name in self._chosen(key.tokens):
            (out,) = self._artifacts[name](out)
        return [out]


def _rows(spec: EngineSpec) -> DynamicDim:
    return DynamicDim(name="rows", maximum=spec.scheduler.max_num_batched_tokens)


def dynamic(spec: EngineSpec) -> Chain:
    """One unit that serves every size."""
    return Chain(spec, [scale_unit("scale", build_scale, _rows(spec))], lambda rows: ["scale"])


def static(spec: EngineSpec) -> Chain:
    """One unit for each size that is captured, the smallest first."""
    sizes = sorted({key.tokens for key in plan_capture(spec).keys})
    units = [scale_unit(f"scale of {rows}", build_scale, rows) for rows in sizes]
    return Chain(spec, units, lambda rows: [f"scale of {rows}"])


def layered(spec: EngineSpec) -> Chain:
    """A first unit, equal layers, a last unit: each layer is listed by its name."""
    layers = {f"layer {at}": build_scale for at in range(LAYERS)}
    builds = {"first": build_first, **layers, "last": build_last}
    units = [scale_unit(name, build, _rows(spec)) for name, build in builds.items()]
    return Chain(spec, units, lambda rows: list(builds))
