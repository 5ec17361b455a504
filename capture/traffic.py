"""`Traffic`: how often each batch size decodes, and what of that each depth of a schedule serves."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from graphspec.config.schedule import KSchedule
from graphspec.errors import Problem, TrafficError
from graphspec.text import show

SHOWN = 20
"""Problems of one kind that a message lists. A log has millions of lines, which can all have the same mistake."""


@attrs.frozen(kw_only=True)
class Demand:
    """The decode steps that one depth serves, as (batch size, weight), ascending, each weight above 0.

    `top` is the largest batch that the schedule gives this depth, whether or not the traffic has it.
    """

    k: int
    top: int
    steps: tuple[tuple[int, float], ...]

    @property
    def tokens_per_request(self) -> int:
        """Tokens of one request in a verify step: its drafts and the one that is always sampled."""
        return 1 + self.k


@attrs.frozen
class Traffic:
    """A histogram: (requests in a decode step, weight), ascending by size. Weights are steps, or any measure of them.

    >>> Traffic.of({2: 1, 1: 3}).share(2)
    0.25
    """

    weights: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, weights: Mapping[int, float]) -> "Traffic":
        """The traffic of a histogram. Sizes of weight 0 are left out.

        Raises `TrafficError` with every size below 1, every weight that is negative or not finite, and for a sum of 0.
        """
        problems = [p for size, w in weights.items() for p in entry_problems("traffic", size, w)]
        if not problems and not any(weights.values()):
            problems = [nothing("traffic")]
        if problems:
            raise TrafficError(problems)
        return cls(tuple(sorted((size, w) for size, w in weights.items() if w)))

    @classmethod
    def from_sizes(cls, sizes: Iterable[int]) -> "Traffic":
        """The traffic of a sequence of batch sizes, one for each decode step. Raises as `of` does."""
        return cls.of(Counter(sizes))

    @classmethod
    def uniform(cls, max_num_seqs: int) -> "Traffic":
        """Every batch size from 1 to `max_num_seqs` equally often: what stands for traffic that nobody has measured."""
        return cls.of(dict.fromkeys(range(1, max_num_seqs + 1), 1))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return math.fsum(weight for _, weight in self.weights)

    @property
    def largest(self) -> int:
        """The largest batch size that occurs."""
        return self.weights[-1][0]

    def share(self, size: int) -> float:
        """The share of steps that have `size` requests, 0 to 1."""
        return dict(self.weights).get(size, 0) / self.total

    def split(self, schedule: KSchedule) -> tuple[Demand, ...]:
        """What each depth of `schedule` serves while decoding is steady, deepest first.

        Tiers of equal depth share their graphs, so they are one demand. Raises `TrafficError` that names every size
        above `schedule.max_num_seqs`: no ladder could serve it, and leaving it out would make the rest look better.
        """
        beyond = [(size, w) for size, w in self.weights if size > schedule.max_num_seqs]
        if beyond:
            total = self.total
            raise TrafficError(
                listed(
                    [
                        attrs.evolve(
                            too_large("traffic", size, schedule.max_num_seqs),
                            found=f"{size} requests in {w / total:.2%} of the steps",
                        )
                        for size, w in beyond
                    ]
                )
            )
        steps: dict[int, list[tuple[int, float]]] = {k: [] for k in schedule.depths}
        for size, weight in self.weights:
            steps[schedule.k_for(size)].append((size, weight))
        tops = {k: last for _, last, k in schedule.tiers}
        return tuple(Demand(k=k, top=tops[k], steps=tuple(steps[k])) for k in schedule.depths)


def entry_problems(where: str, size: object, weight: object) -> list[Problem]:
    """What is wrong with one size and its weight."""
    problems = []
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        problems.append(
            Problem(where=where, found=f"a batch size of {show(size)}", wanted="an integer >= 1")
        )
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight) or weight < 0:  # type: ignore[arg-type,operator]
        problems.append(
            Problem(where=where, found=f"a weight of {show(weight)}", wanted="a number >= 0")
        )
    return problems


def nothing(where: str) -> Problem:
    """The problem of a histogram whose weights sum to 0."""
    return Problem(
        where=where,
        found="no decode step",
        wanted="at least one batch size with a weight above 0",
        hint="log the number of requests of each decode step, one number a line",
    )


def too_large(where: str, size: int, max_num_seqs: int) -> Problem:
    """The problem of a batch that the schedule does not have."""
    return Problem(
        where=where,
        found=f"{size} requests",
        wanted=f"at most scheduler.max_num_seqs, which is {max_num_seqs}",
        hint="raise scheduler.max_num_seqs, or take the steps of this engine only",
    )


def listed(problems: list[Problem]) -> list[Problem]:
    """The first `SHOWN` problems, and one that counts the others."""
    rest = problems[SHOWN:]
    if not rest:
        return problems
    more = Problem(
        where=rest[0].where,
        found=f"{len(rest)} more problems, the first here",
        wanted="none",
    )
    return [*problems[:SHOWN], more]
