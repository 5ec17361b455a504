"""The buckets that minimise expected padded tokens, exactly, within a number of graphs and a sum of costs."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

import attrs

from graphspec.capture.limits import CostLimit
from graphspec.capture.padding import Buckets
from graphspec.capture.traffic import Demand
from graphspec.errors import BudgetError, Problem
from graphspec.text import plural

_EXACT_CELLS, _ROUNDED_CELLS = 1_000_000, 250_000
"""Sizes times states that a limit on costs may take: some seconds for an exact result, about one where costs are rounded
anyway. They decide into how many steps the limit falls."""
_FEWEST_STEPS, _MOST_STEPS = 100, 1000
"""Steps into which a limit falls whose costs are rounded. Fewer would waste too much of it, more would gain nothing."""


def best_ladder(
    demands: Sequence[Demand], max_graphs: int | None = None, costs: CostLimit | None = None
) -> Buckets:
    """The ladder of least expected padded tokens among all that keep both limits.

    The largest size of each depth is always a bucket. So a batch that shrank below its tier has one of its k too, and
    no pair of steps falls through. Other buckets are sizes that occur: one between two of them could be lowered, since
    costs must not fall as a bucket of the same depth grows.

    One dynamic program over the sizes of all depths in turn, with what is spent as its state, also splits the limits
    over the depths. With S sizes and G graphs it takes S * G steps: for each number of graphs, the cost of ending a
    bucket at size s is a lower envelope of lines in s (the convex hull trick), because padding is ``s * W - B`` with
    sums W and B of weights. Weights are taken as exact integers, so nothing is rounded and ties are true ties.

    A sum of costs makes this a knapsack. Costs are counted in their common unit where the limit has few enough of it
    (a million / S; S * G in place of S where both limits bind; 100 always), and the result is exact. Else each cost is
    rounded up to a 1000th of the limit, or a coarser part for many sizes: the limit holds, and the rounded costs have
    no better ladder.

    Ties: read from the last depth's largest bucket down, then the depth before it, each next bucket is as small as
    possible, and none is smaller than any. Depths are in the order of `demands`.

    Raises `BudgetError` where the limits do not even hold one bucket for each depth.
    """
    exact = _in_integers(demands)
    most = sum(len(d.sizes) for d in exact)
    graphs = most if max_graphs is None else min(max_graphs, most)
    if graphs < len(exact):
        raise BudgetError(_too_few_graphs(exact, graphs))
    # Two limits at once multiply the states. Mostly one of them does not bind, and then the other's optimum keeps both.
    every = {d.k: d.sizes for d in exact}
    found = every if graphs == most else _solve(exact, _Spending.of_graphs(graphs))
    if costs is None or costs.keeps(found):
        return found
    by_cost = _Spending.of_costs(exact, costs, graphs=0)
    if by_cost is not None:
        found = _solve(exact, by_cost)
        if sum(map(len, found.values())) <= graphs:
            return found
        by_cost = _Spending.of_costs(exact, costs, graphs=graphs)
    if by_cost is None:
        raise BudgetError(_too_low(exact, costs))
    return _solve(exact, by_cost)


@attrs.frozen
class _Exact:
    """A demand with its top among the sizes, and prefix sums of weights and weighted sizes in whole tokens."""

    k: int
    sizes: tuple[int, ...]
    weights_below: tuple[int, ...]
    filled_below: tuple[int, ...]


def _in_integers(demands: Sequence[Demand]) -> list[_Exact]:
    # A float is an integer over a power of two, so the largest denominator makes integers of all of them.
    scale = max((w.as_integer_ratio()[1] for d in demands for _, w in d.steps), default=1)
    exact = []
    for demand in demands:
        steps = list(demand.steps)
        if not steps or steps[-1][0] < demand.top:
            steps.append((demand.top, 0))
        weights = []
        for _, weight in steps:
            over, under = weight.as_integer_ratio()
            weights.append(over * (scale // under) * demand.tokens_per_request)
        sizes = tuple(size for size, _ in steps)
        filled = (size * w for size, w in zip(sizes, weights, strict=True))
        exact.append(
            _Exact(
                demand.k,
                sizes,
                tuple(accumulate(weights, initial=0)),
                tuple(accumulate(filled, initial=0)),
            )
        )
    return exact


@attrs.frozen
class _Spending:
    """What buckets spend, as states 0..n: `before(k, size)` has, for each state, the one before that bucket, or -1."""

    states: int
    before: Callable[[int, int], Sequence[int]]

    @classmethod
    def of_graphs(cls, graphs: int) -> "_Spending":
        previous = range(-1, graphs)
        return cls(graphs + 1, lambda _k, _size: previous)

    @classmethod
    def of_costs(
        cls, demands: Sequence[_Exact], costs: CostLimit, *, graphs: int
    ) -> "_Spending | None":
        """States of cost steps, times graphs if `graphs` is not 0. None where the limit is below the least need."""
        prices = {(d.k, s): Fraction(max(costs.of(d.k, s), 0)) for d in demands for s in d.sizes}
        limit = Fraction(costs.most)
        width = graphs + 1
        exact, rounded = (
            max(_FEWEST_STEPS, cells // (len(prices) * width))
            for cells in (_EXACT_CELLS, _ROUNDED_CELLS)
        )
        positive = [price for price in prices.values() if price]
        unit = _common_unit(positive) if positive else Fraction(1)
        if limit > unit * exact:
            unit = limit / min(rounded, _MOST_STEPS)
        most = math.floor(limit / unit)
        in_steps = {bucket: math.ceil(price / unit) for bucket, price in prices.items()}
        need = sum(in_steps[d.k, d.sizes[-1]] for d in demands)
        if need > most:
            return None
        known: dict[int, Sequence[int]] = {}

        def before(k: int, size: int) -> Sequence[int]:
            step = in_steps[k, size]
            if step not in known:
                known[step] = [
                    (spent - step) * width + count - bool(graphs)
                    if spent >= step and (count or not graphs)
                    else -1
                    for spent in range(most + 1)
                    for count in range(width)
                ]
            return known[step]

        return cls((most + 1) * width, before)


def _common_unit(prices: Sequence[Fraction]) -> Fraction:
    """The largest number of which every price is a whole multiple."""
    under = math.lcm(*(price.denominator for price in prices))
    return Fraction(math.gcd(*(int(price * under) for price in prices)), under)


def _solve(demands: Sequence[_Exact], spending: _Spending) -> Buckets:
    """The best ladder with at most what the last state says."""
    least: list[int | None] = [0] * spending.states
    tables: list[list[list[int]]] = []
    for demand in demands:
        least, table = _serve(demand, least, spending)
        tables.append(table)
    state = spending.states - 1
    assert least[state] is not None, "the limits hold one bucket for each depth"
    chosen: dict[int, tuple[int, ...]] = {}
    for demand, table in zip(reversed(demands), reversed(tables), strict=True):
        sizes = []
        end = len(demand.sizes)
        while end:
            size = demand.sizes[end - 1]
            sizes.append(size)
            end, state = table[end - 1][state], spending.before(demand.k, size)[state]
        chosen[demand.k] = tuple(reversed(sizes))
    return {demand.k: chosen[demand.k] for demand in demands}


def _serve(
    demand: _Exact, least: list[int | None], spending: _Spending
) -> tuple[list[int | None], list[list[int]]]:
    """One depth: the least padding up to and with it for each state, given that without it, and for each size and state
    the place where the bucket that ends there begins."""
    weights, filled = demand.weights_below, demand.filled_below
    # A line for each place where a bucket may begin: what all before it cost, and what its size then pads.
    # Its value at s is heights - s * slopes; `first` is the one that was lowest last, and sizes only rise.
    heights: list[list[int]] = [[] if value is None else [value] for value in least]
    slopes: list[list[int]] = [[] if value is None else [0] for value in least]
    begins: list[list[int]] = [[] if value is None else [0] for value in least]
    first = [0] * spending.states
    table: list[list[int]] = []
    ended: list[int | None] = []
    for place, size in enumerate(demand.sizes, 1):
        before = spending.before(demand.k, size)
        weight, fill = weights[place], filled[place]
        row = [0] * spending.states
        ended = [None] * spending.states
        table.append(row)
        # Downwards: a state asks one below it, which must not have the line of this size yet.
        for state in range(spending.states - 1, -1, -1):
            asked = before[state]
            if asked < 0 or not heights[asked]:
                continue
            height, slope = heights[asked], slopes[asked]
            lowest = first[asked]
            value = height[lowest] - size * slope[lowest]
            while lowest + 1 < len(height):
                following = height[lowest + 1] - size * slope[lowest + 1]
                if following >= value:
                    break
                value = following
                lowest += 1
            first[asked] = lowest
            value += size * weight - fill
            ended[state] = value
            row[state] = begins[asked][lowest]
            height, slope, begin = heights[state], slopes[state], begins[state]
            value += fill
            while len(height) >= 2 and (value - height[-1]) * (slope[-1] - slope[-2]) <= (
                height[-1] - height[-2]
            ) * (weight - slope[-1]):
                height.pop()
                slope.pop()
                begin.pop()
            height.append(value)
            slope.append(weight)
            begin.append(place)
            if first[state] >= len(height):
                first[state] = len(height) - 1
    return ended, table


def _too_few_graphs(demands: Sequence[_Exact], graphs: int) -> Problem:
    depths = ", ".join(f"k={d.k}: {d.sizes[-1]}" for d in demands)
    return Problem(
        where="max_graphs",
        found=plural(graphs, "graph"),
        wanted=f"at least {len(demands)}: one of the largest size of each depth ({depths})",
        hint="raise the limit, or give the schedule fewer depths",
    )


def _too_low(demands: Sequence[_Exact], costs: CostLimit) -> Problem:
    tops = {d.k: d.sizes[-1] for d in demands}
    need = math.fsum(costs.of(k, top) for k, top in tops.items())
    depths = ", ".join(f"k={k}: {top}" for k, top in tops.items())
    return Problem(
        where=costs.name,
        found=f"{costs.most:.6g} {costs.unit}",
        wanted=f"at least {need:.6g} {costs.unit}: one graph of the largest size of each depth ({depths})",
        hint="raise the limit, or give the schedule fewer depths",
    )
