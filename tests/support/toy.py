"""A program of two small units, for tests of everything around a program. It needs no weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.capture.keys import CaptureKey
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

NAME = "support.toy:program"
WIDTH = 8


def build_scale(spec: Any) -> Callable[..., Any]:
    """x [rows, 8] -> x scaled by the model's rms_norm_eps, plus one."""
    factor = spec.model.rms_norm_eps

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor + 1

    return scale


def build_mix(spec: Any) -> Callable[..., Any]:
    """x [rows, 8], w [8, 8] -> relu(x @ w) and its row sums."""

    def mix(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = torch.relu(x @ w)
        return out, out.sum(dim=-1)

    return mix


class Toy:
    """Lists the two units; its step source runs one after the other."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def units(self) -> Sequence[CompileUnit]:
        rows = DynamicDim(name="rows", maximum=self.spec.scheduler.max_num_batched_tokens)
        x = TensorInput(name="x", shape=(rows, WIDTH), dtype="float32")
        return (
            CompileUnit(
                name="scale",
                scope=Scope(("model.rms_norm_eps",)),
                modules=("support.toy",),
                build=build_scale,
                inputs=(x,),
            ),
            CompileUnit(
                name="mix",
                scope=Scope(()),
                modules=("support.toy",),
                build=build_mix,
                inputs=(x, TensorInput(name="w", shape=(WIDTH, WIDTH), dtype="float32")),
            ),
        )

    def start(self, artifacts: Mapping[str, Any]) -> "ToySteps":
        return ToySteps(self.spec.scheduler.max_num_batched_tokens, artifacts)


class ToySteps:
    """Steps on a static input; also usable with plain functions in place of artifacts."""

    def __init__(self, rows: int, artifacts: Mapping[str, Any]) -> None:
        self.x = torch.zeros(rows, WIDTH)
        self.w = torch.eye(WIDTH)
        self._artifacts = artifacts

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        return {"x": self.x, "w": self.w}

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        self.x[: key.tokens].fill_(2.0 + variant)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        (scaled,) = self._artifacts["scale"](self.x[: key.tokens])
        mixed, sums = self._artifacts["mix"](scaled, self.w)
        return [mixed, sums]


def program(spec: EngineSpec) -> Toy:
    """The toy program for a spec."""
    return Toy(spec)
