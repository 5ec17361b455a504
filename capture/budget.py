"""Drops the least valuable graphs until limits hold, and says which went and what each costs."""

import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import attrs

from graphspec.capture.limits import CostLimit
from graphspec.capture.padding import Buckets, Padding, expected_padding
from graphspec.capture.traffic import Demand

DROPPED_BY_BUDGET = "dropped by budget"
"""The reason of a batch size without a graph, and of a graph that was planned and is not captured, in words; plans have
it as `Fallthrough.DROPPED_BY_BUDGET`."""


@attrs.frozen(kw_only=True)
class Dropped:
    """A bucket that was given up, and what an average step then pays for it.

    Either its batches run in the next larger bucket, `padded_tokens` more a step, or, after a depth's last bucket, a
    share `without_graph` of all steps (0 to 1) runs without a graph.
    """

    k: int
    bucket: int
    padded_tokens: float
    without_graph: float

    def __str__(self) -> str:
        price = (
            f"{self.without_graph:.2%} of the steps run without a graph"
            if self.without_graph
            else f"{self.padded_tokens:.4g} more padded tokens a step"
        )
        return f"k={self.k} requests={self.bucket}: {DROPPED_BY_BUDGET}: {price}"


@attrs.frozen(kw_only=True)
class Budgeted:
    """What is left of planned buckets within limits, what was dropped in order, and the padding before and after."""

    buckets: Buckets
    dropped: tuple[Dropped, ...]
    before: Padding
    after: Padding

    @property
    def dropped_buckets(self) -> Buckets:
        """The dropped sizes of each depth, ascending: what a plan keeps under the reason `DROPPED_BY_BUDGET`."""
        sizes: dict[int, list[int]] = {}
        for one in self.dropped:
            sizes.setdefault(one.k, []).append(one.bucket)
        return {k: tuple(sorted(s)) for k, s in sizes.items()}

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data for a report."""
        return {
            "dropped": [
                {
                    "k": one.k,
                    "requests": one.bucket,
                    "padded_tokens_mean": one.padded_tokens,
                    "without_graph": one.without_graph,
                    "reason": DROPPED_BY_BUDGET.replace(" ", "_"),
                }
                for one in self.dropped
            ],
            "padded_tokens_mean": {
                "before": self.before.padded_tokens,
                "after": self.after.padded_tokens,
            },
            "without_graph": self.after.without_graph,
        }


def apply_budget(
    buckets: Buckets, demands: Sequence[Demand], limits: Sequence[CostLimit]
) -> Budgeted:
    """What of `buckets` is left when all `limits` hold.

    The value of a bucket is the expected padded tokens that it saves a step, for each part that it takes of the limits
    that are exceeded: per MiB, where that is the one.

    One by one, the bucket of least value goes; with it, the value of its neighbours changes. A depth's last bucket,
    without which its batches have no graph, goes only after every other bucket that helps. Of such, those of the fewest
    tokens a step go first. Of equal value, more tokens go first: they are what a pool is sized by.

    Unlike `best_ladder` it takes buckets as they are and moves none, so it is a good set and not the best.
    """
    served = {d.k: _Served.of(d) for d in demands}
    steps = sum(s.below[-1] for s in served.values())
    left = {k: sorted(sizes) for k, sizes in buckets.items() if sizes}
    dropped = []
    while exceeded := [limit for limit in limits if not limit.keeps(_frozen(left))]:
        best: tuple[tuple[bool, float, int, int], Dropped] | None = None
        spent = [limit.spent(_frozen(left)) for limit in exceeded]
        for k, sizes in left.items():
            for place, size in enumerate(sizes):
                share = sum(
                    limit.of(k, size) / all_ for limit, all_ in zip(exceeded, spent, strict=True)
                )
                if not share:
                    continue
                lower = sizes[place - 1] if place else 0
                upper = sizes[place + 1] if place + 1 < len(sizes) else None
                weight, tokens = served[k].between(lower, size) if k in served else (0.0, 0.0)
                saved = tokens if upper is None else weight * (upper - size) * (1 + k)
                rank = (upper is None, saved / share, -size * (1 + k), -k)
                if best is None or rank < best[0]:
                    gone = Dropped(
                        k=k,
                        bucket=size,
                        padded_tokens=0.0 if upper is None else saved / steps,
                        without_graph=weight / steps if upper is None else 0.0,
                    )
                    best = (rank, gone)
        if best is None:
            break
        _, gone = best
        left[gone.k].remove(gone.bucket)
        if not left[gone.k]:
            del left[gone.k]
        dropped.append(gone)
    kept = _frozen(left)
    return Budgeted(
        buckets=kept,
        dropped=tuple(dropped),
        before=expected_padding(buckets, demands),
        after=expected_padding(kept, demands),
    )


def _frozen(left: Mapping[int, Sequence[int]]) -> Buckets:
    return {k: tuple(sizes) for k, sizes in left.items()}


@attrs.frozen
class _Served:
    """A demand with running sums: weight, and tokens, of all sizes below each place."""

    sizes: Sequence[int]
    below: Sequence[float]
    tokens_below: Sequence[float]

    @classmethod
    def of(cls, demand: Demand) -> "_Served":
        each = demand.tokens_per_request
        return cls(
            [size for size, _ in demand.steps],
            list(accumulate((w for _, w in demand.steps), initial=0.0)),
            list(accumulate((size * w * each for size, w in demand.steps), initial=0.0)),
        )

    def between(self, lower: int, upper: int) -> tuple[float, float]:
        """Weight and tokens of the sizes above `lower` and up to `upper`."""
        first, last = (bisect.bisect_right(self.sizes, at) for at in (lower, upper))
        return (
            self.below[last] - self.below[first],
            self.tokens_below[last] - self.tokens_below[first],
        )
