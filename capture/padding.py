"""Expected padded tokens: what a ladder costs the traffic it serves."""

import math
from collections.abc import Mapping, Sequence

import attrs

from graphspec.capture.traffic import Demand

Buckets = Mapping[int, tuple[int, ...]]
"""The captured sizes of each depth, in requests, ascending."""


@attrs.frozen(kw_only=True)
class Padding:
    """What one decode step costs on average, in tokens, and the share of steps that no graph serves (0 to 1).

    A step of b requests at depth k that runs in the bucket of s requests computes ``(s - b) * (1 + k)`` tokens for
    nobody. Steps without a graph run their own size, so they add to `without_graph` and not to `padded_tokens`.
    """

    padded_tokens: float
    useful_tokens: float
    without_graph: float

    @property
    def waste(self) -> float:
        """Padded tokens in proportion to useful ones."""
        return self.padded_tokens / self.useful_tokens


def expected_padding(buckets: Buckets, demands: Sequence[Demand]) -> Padding:
    """The padding of steady decoding: each batch runs in the smallest bucket of its own depth that holds it."""
    padded, useful, without, total = [], [], [], []
    for demand in demands:
        sizes = iter(sorted(buckets.get(demand.k, ())))
        bucket = next(sizes, 0)
        for size, weight in demand.steps:
            while 0 < bucket < size:
                bucket = next(sizes, 0)
            total.append(weight)
            useful.append(weight * size * demand.tokens_per_request)
            if bucket:
                padded.append(weight * (bucket - size) * demand.tokens_per_request)
            else:
                without.append(weight)
    steps = math.fsum(total)
    return Padding(
        padded_tokens=math.fsum(padded) / steps,
        useful_tokens=math.fsum(useful) / steps,
        without_graph=math.fsum(without) / steps,
    )
