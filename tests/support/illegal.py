"""A program with operations that no graph can repeat, in units and in its step: for tests of the lint.

Each illegal line ends in a comment with the operation, so that a test finds the lines by their text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.capture.keys import CaptureKey
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

NAME = "support.illegal:program"
WIDTH = 8


def _largest(x: torch.Tensor) -> float:
    return x.max().item()  # illegal: Tensor.item


def build_reads(spec: Any) -> Callable[..., Any]:
    """Reads a value twice on the way, in a helper and in a loop."""

    def reads(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x / _largest(x)
        while (x > 0.5).any():  # illegal: Tensor.__bool__
            x.sub_(0.5)
        return x

    return reads


def build_shapes(spec: Any) -> Callable[..., Any]:
    """Picks rows by their content, and draws numbers."""

    def shapes(x: torch.Tensor) -> torch.Tensor:
        rows = torch.nonzero(x[:, 0])  # illegal: aten.nonzero.default
        noise = torch.rand(x.shape)  # illegal: aten.rand.default
        return x + noise + rows.sum()

    return shapes


class Program:
    """Two units; the step calls both, and makes a constant of its own."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def units(self) -> Sequence[CompileUnit]:
        rows = DynamicDim(name="rows", maximum=self.spec.scheduler.max_num_batched_tokens)
        x = TensorInput(name="x", shape=(rows, WIDTH), dtype="float32")
        return [
            CompileUnit(name=name, scope=Scope(()), modules=(), build=build, inputs=(x,))
            for name, build in (("reads", build_reads), ("shapes", build_shapes))
        ]

    def start(self, artifacts: Mapping[str, Any]) -> "Steps":
        return Steps(self.spec.scheduler.max_num_batched_tokens, artifacts)


class Steps:
    """Steps on one static input. `scale` is made in the first run, which comes before a capture and so is legal."""

    def __init__(self, rows: int, artifacts: Mapping[str, Any]) -> None:
        self.x = torch.zeros(rows, WIDTH)
        self.scale: torch.Tensor | None = None
        self._artifacts = artifacts

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        return {"x": self.x}

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        self.x[: key.tokens].fill_(2.0 + variant)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        if self.scale is None:
            self.scale = torch.tensor([2.0])
        (read,) = self._artifacts["reads"](self.x[: key.tokens] * self.scale)
        (shaped,) = self._artifacts["shapes"](read)
        return [shaped + torch.tensor([1.0])]  # illegal: aten.lift_fresh.default


def program(spec: EngineSpec) -> Program:
    """The program for a spec."""
    return Program(spec)


class Broken(Program):
    """Its first unit fails on the way, and it cannot start."""

    def units(self) -> Sequence[CompileUnit]:
        first, second = super().units()
        return [
            CompileUnit(
                name="fails", scope=Scope(()), modules=(), build=build_fails, inputs=first.inputs
            ),
            second,
        ]

    def start(self, artifacts: Mapping[str, Any]) -> Steps:
        raise OSError("no weights here")


def build_fails(spec: Any) -> Callable[..., Any]:
    """Finds something, and then fails."""

    def fails(x: torch.Tensor) -> torch.Tensor:
        x.tolist()  # illegal: Tensor.tolist
        raise ValueError("odd rows")

    return fails


def broken(spec: EngineSpec) -> Broken:
    """The program that fails."""
    return Broken(spec)
