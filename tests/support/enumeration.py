"""Every outcome of a random decision, with its exact probability: the decision's own code, asked again for each branch."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


class Branches:
    """Chances that follow a given path of answers, and note where another path branches off."""

    def __init__(self, path: list[int]) -> None:
        self._path = path
        self.taken: list[int] = []
        self.probability = 1.0
        self.others: list[list[int]] = []

    def _choose(self, chances: list[float]) -> int:
        at = len(self.taken)
        possible = [i for i, c in enumerate(chances) if c > 0]
        if at < len(self._path):
            choice = self._path[at]
        else:
            choice = possible[0]
            self.others += [[*self.taken, other] for other in possible[1:]]
        self.taken.append(choice)
        self.probability *= chances[choice]
        return choice

    def accept(self, row: int, chance: float, *, or_equal: bool = False) -> bool:
        chance = min(max(chance, 0.0), 1.0)
        return self._choose([1 - chance, chance]) == 1

    def pick(self, row: int, weights: torch.Tensor) -> int:
        return self._choose((weights / weights.sum()).tolist())


def outcomes(decide: Callable[[Branches], T]) -> Iterator[tuple[T, float]]:
    """What `decide` can give, and how likely that is; equal outcomes may come more than once."""
    waiting: list[list[int]] = [[]]
    while waiting:
        branches = Branches(waiting.pop())
        made = decide(branches)
        yield made, branches.probability
        waiting += branches.others
