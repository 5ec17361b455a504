"""Steps and backends for tests of capture: toy steps of plain functions, a backend that logs, graphs that lie."""

from collections.abc import Sequence
from typing import Any

import torch

from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.plan import CapturePlan
from graphspec.config.schedule import KSchedule
from support.toy import WIDTH, ToySteps

PLAN = CapturePlan(schedule=KSchedule(dense=(0, 2, 2, 1, 1)), buckets={2: (1, 2), 1: (4,)})
"""Depth 2 to two requests, depth 1 to four: graphs of 8, 6 and 3 tokens."""


def key(k: int, bucket: int) -> CaptureKey:
    """A key of the target's verify step."""
    return CaptureKey(Phase.TARGET_VERIFY, k, bucket)


def scale(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """What the toy's first unit computes, in place of its artifact."""
    return [x * 0.5 + 1]


def mix(x: torch.Tensor, w: torch.Tensor) -> Sequence[torch.Tensor]:
    """What the toy's second unit computes."""
    out = torch.relu(x @ w)
    return [out, out.sum(dim=-1)]


class Steps(ToySteps):
    """The toy's steps on plain functions. Logs each step's key; `fail` is raised by the step of `fail_at`."""

    def __init__(self, log: list[Any] | None = None, device: str = "cpu") -> None:
        super().__init__(16, {"scale": scale, "mix": mix})
        self.log = [] if log is None else log
        self.fail_at: CaptureKey | None = None
        self.fail: BaseException = RuntimeError("no more memory")
        self.x = self.x.to(device)
        self.w = torch.linspace(-1, 1, WIDTH * WIDTH, device=device).view(WIDTH, WIDTH)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        self.log.append(key)
        if key == self.fail_at:
            raise self.fail
        return super().step(key)

    def expected(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """What the step gives on the present content of the static input, without any capture."""
        return mix(*scale(self.x[: key.tokens]), self.w)


class FakeGraph:
    """A graph that runs its call again; `error` is added to what it gives."""

    memory_bytes = 100

    def __init__(self, call: Any, error: float) -> None:
        self._call = call
        self._error = error
        self.outputs = [t.clone() for t in call()]
        self.released = False

    def release(self) -> None:
        self.released = True
        self.outputs = []

    def replay(self) -> Sequence[torch.Tensor]:
        assert not self.released
        for static, made in zip(self.outputs, self._call(), strict=True):
            static.copy_(made + self._error)
        return self.outputs


class FakeBackend:
    """A backend that, like CUDA, needs a warm run before capture. Puts what is asked of it into `log`."""

    name = "fake"
    needs_warmup = True

    def __init__(self, log: list[Any] | None = None) -> None:
        self.log = [] if log is None else log
        self.lies: dict[int, float] = {}
        self.made: list[FakeGraph] = []
        self._captured = 0

    @property
    def held(self) -> int:
        """Graphs that were captured and not released."""
        return sum(not graph.released for graph in self.made)

    def warm(self, call: Any) -> Sequence[torch.Tensor]:
        self.log.append("warm")
        return call()

    def capture(self, call: Any) -> FakeGraph:
        self.log.append("capture")
        error = self.lies.get(self._captured, 0.0)
        self._captured += 1
        self.made.append(FakeGraph(call, error))
        return self.made[-1]

    def give_back(self) -> None:
        """Where a device would return memory."""
