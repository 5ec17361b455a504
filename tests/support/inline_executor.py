"""An executor in this process, for tests of what a fleet does with answers: to start a worker takes seconds, and tests of
workers are few."""

from collections.abc import Iterator
from typing import Self

from graphspec.fleet.executor import Ended
from graphspec.fleet.perform import Compilers, perform
from graphspec.fleet.task import Resources, Task


class InlineExecutor:
    """One task after another, in the order of submission. Needs the stand-ins of `fake_compiler` in this process."""

    name = "local"
    slots = 1

    def __init__(self, slots: int | None = None, *, memory_bytes: int = 0) -> None:
        self._waiting: list[Task] = []

    def why_not(self, resources: Resources) -> str:
        return ""

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def as_completed(self) -> Iterator[Ended]:
        with Compilers() as compilers:
            while self._waiting:
                task = self._waiting.pop(0)
                yield Ended(task=task, done=perform(task, compilers))

    def cancel(self) -> None:
        self._waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()
