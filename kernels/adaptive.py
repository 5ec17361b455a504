"""How many drafts are worth verifying: the budget of a step, and how it is dealt to the requests."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Self

import attrs

from graphspec.errors import KernelError, Problem

_LEAST_VERIFY_COST = 1e-6


def survival(confidences: Sequence[float]) -> list[float]:
    """The chance that each draft of a request is reached and kept: the running product of the chances that it is kept if
    those before it are. Raises `KernelError` for a chance that is none.

    >>> survival([0.5, 0.5])
    [0.5, 0.25]
    """
    problems = [
        Problem(where=f"confidences[{at}]", found=str(c), wanted="a probability, 0 to 1")
        for at, c in enumerate(confidences)
        if not 0 <= c <= 1
    ]
    if problems:
        raise KernelError(problems)
    scores, so_far = [], 1.0
    for confidence in confidences:
        so_far *= confidence
        scores.append(so_far)
    return scores


def deal(scores: Sequence[Sequence[float]], budget: int) -> list[int]:
    """Drafts to verify of each request: the `budget` best scores of all. Scores never rise along a request, so the best are
    the first of each.

    Of equal scores that of the earlier request, and in a request the earlier draft, comes first. Every rank deals alike:
    ranks that disagree would run steps of different shapes.

    >>> deal([[0.9, 0.72, 0.36], [0.4, 0.36, 0.324]], 3)
    [2, 1]
    """
    lengths = [0] * len(scores)
    for request in _in_order(scores)[: max(budget, 0)]:
        lengths[request] += 1
    return lengths


def longest_dealt(scores: Sequence[Sequence[float]]) -> list[int]:
    """The largest of the lengths that `deal` gives, by budget from 0 to that of all drafts.

    >>> longest_dealt([[0.9, 0.72, 0.36], [0.4, 0.36, 0.324]])
    [0, 1, 2, 2, 3, 3, 3]
    """
    lengths, longest = [0] * len(scores), [0]
    for request in _in_order(scores):
        lengths[request] += 1
        longest.append(max(longest[-1], lengths[request]))
    return longest


def _in_order(scores: Sequence[Sequence[float]]) -> list[int]:
    """The request of each draft, best scores first."""
    ranked = sorted(
        (-score, request, step)
        for request, row in enumerate(scores)
        for step, score in enumerate(row)
    )
    return [request for _, request, _ in ranked]


@attrs.frozen
class CostTable:
    """Seconds of a step by its size, from measurements: costs by size, ascending, never falling.

    A step of at most `captured` (the largest captured size) is padded, so it costs what the next measured size does.
    Beyond, where steps run without a graph, it costs what lies on the line between the two sizes around it, if both were
    measured without one, else what the next size does; behind the last size, on the line through the last two.
    """

    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    captured: int

    @classmethod
    def measured(cls, seconds: Mapping[int, float], *, captured: int, least: float = 0.0) -> Self:
        """From seconds by size. A size that was measured faster than a smaller one gets the smaller one's cost, and none
        costs less than `least`. Raises `KernelError` for an empty table, and for one without its `captured` size."""
        if not seconds or captured not in seconds or min(seconds) < 0:
            raise KernelError(
                Problem(
                    where="cost table",
                    found=f"sizes {sorted(seconds)}",
                    wanted=f"sizes of steps, with the largest captured one, {captured}",
                )
            )
        sizes = sorted(seconds)
        costs, highest = [], least
        for size in sizes:
            highest = max(highest, seconds[size])
            costs.append(highest)
        return cls(tuple(sizes), tuple(costs), captured)

    @classmethod
    def of_verify(cls, seconds: Mapping[int, float], *, captured: int) -> Self:
        """A table of verification steps, which cost at least a microsecond: their cost is divided by."""
        return cls.measured(seconds, captured=captured, least=_LEAST_VERIFY_COST)

    def at(self, size: int) -> float:
        """Seconds of a step of this size."""
        sizes, costs, following = self.sizes, self.costs, bisect_left(self.sizes, size)
        if following == len(sizes):
            # Behind all of them, where the last two lead; a single one leads nowhere.
            before, following = max(len(sizes) - 2, 0), len(sizes) - 1
        elif following == 0 or size <= self.captured or sizes[following - 1] <= self.captured:
            return costs[following]
        else:
            before = following - 1
        s0, c0, s1, c1 = sizes[before], costs[before], sizes[following], costs[following]
        return c1 if s1 == s0 else c0 + (c1 - c0) * (size - s0) / (s1 - s0)


def choose_budget(
    scores: Sequence[Sequence[float]],
    *,
    non_draft_tokens: int,
    draft_cost: CostTable,
    verify_cost: CostTable,
    sampling_requests: int | None = None,
    logits_cap: int | None = None,
) -> int:
    """How many drafts to verify, for the most expected tokens a second.

    b drafts give the requests that sample one token each and as many more as the b best scores sum to; they cost a draft
    step of all requests and a verification of `non_draft_tokens` + b tokens. The b of the largest ratio wins, the smallest
    such b. `sampling_requests` is by default all; `logits_cap` is how many rows of logits a step may have, of which each
    sampling request takes one.
    """
    requests = len(scores)
    sampling = requests if sampling_requests is None else sampling_requests
    ranked = sorted((s for row in scores for s in row), reverse=True)
    most = len(ranked)
    if logits_cap is not None:
        most = max(0, min(most, logits_cap - sampling))
    fixed = draft_cost.at(requests)
    best, best_value, gained = 0, -math.inf, 0.0
    for b in range(most + 1):
        gained += ranked[b - 1] if b else 0.0
        value = (sampling + gained) / (fixed + verify_cost.at(non_draft_tokens + b))
        if value > best_value:
            best, best_value = b, value
    return best
