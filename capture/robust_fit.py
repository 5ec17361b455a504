"""A line through measured points that a few wild ones do not move, and how far points lie from it."""

import itertools
import math
import statistics
from collections.abc import Sequence

import attrs

_COVERED = 0.9
_ENOUGH = 3


@attrs.frozen(kw_only=True)
class Line:
    """``constant + slope * x``, with `error`: 9 of 10 of the points it was fitted to lie within that of it.

    `error` is None below three points: two always lie on a line, which says nothing about a third.
    """

    constant: float
    slope: float
    error: float | None
    points: int

    def at(self, x: float) -> float:
        """The value at `x`, never below 0: it is an amount."""
        return max(0.0, self.constant + self.slope * x)


def fit_line(points: Sequence[tuple[float, float]]) -> Line | None:
    """The Theil-Sen line of (x, y): the median of the slopes of all pairs, then the median of what is left.

    Below 29 percent of many points may be arbitrarily wrong, one in five of few (Sen 1968). The slope is not below 0,
    because more tokens take no less; with one x only it is 0. None without points: nothing measured is nothing known.

    >>> fit_line([(1, 12), (2, 14), (3, 16), (4, 900), (5, 20)]).slope
    2.0
    """
    if not points:
        return None
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in itertools.combinations(points, 2)
        if earlier[0] != later[0]
    ]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    constant = statistics.median(y - slope * x for x, y in points)
    residuals = sorted(abs(y - constant - slope * x) for x, y in points)
    enough = len(points) >= _ENOUGH
    return Line(
        constant=constant,
        slope=slope,
        error=residuals[math.ceil(_COVERED * len(residuals)) - 1] if enough else None,
        points=len(points),
    )
