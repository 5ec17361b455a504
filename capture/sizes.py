"""Which sizes a plan captures for each depth: the ladder within each tier, neighbours for hysteresis, those of deeper drafts
that are trimmed, or sizes of one's own."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

from graphspec.capture.ladder import request_ladder
from graphspec.config.schedule import KSchedule
from graphspec.errors import CaptureError, Problem

Buckets = Mapping[int, tuple[int, ...]]


def tier_buckets(schedule: KSchedule, given: Mapping[int, Sequence[int]] | None = None) -> Buckets:
    """The sizes of each depth in requests, ascending, deepest first.

    For each tier they are the ladder within it, and its last size. `given` replaces those of the depths that it names.
    Raises `CaptureError` for sizes that no step could use, and for a tier whose last size they do not hold.
    """
    problems = list(_problems(schedule, given or {}))
    if problems:
        raise CaptureError(problems)
    sizes: dict[int, set[int]] = {k: set() for k in schedule.depths}
    for first, last, k in schedule.tiers:
        sizes[k].update(request_ladder(first, last))
    chosen = {**sizes, **(given or {})}
    return {k: tuple(sorted(set(chosen[k]))) for k in schedule.depths}


def neighbours(schedule: KSchedule, without: Collection[int] = ()) -> Buckets:
    """The ladder's next size below and above each tier, by depth, but for depths of `without`: for a batch that goes back
    and forth over a threshold.

    Below, such a batch is padded less when it has just shrunk; above, it keeps the depth that its drafts were made at.
    """
    ladder = request_ladder(1, schedule.max_num_seqs)
    sizes: dict[int, set[int]] = {}
    for first, last, k in schedule.tiers:
        if k in without:
            continue
        below = ladder[: bisect_left(ladder, first)][-1:]
        above = ladder[bisect_left(ladder, last + 1) :][:1]
        sizes.setdefault(k, set()).update(below, above)
    return {k: tuple(sorted(found)) for k, found in sizes.items()}


def shallower(buckets: Buckets, without: Collection[int] = ()) -> Buckets:
    """For each depth the sizes of all deeper ones, but for depths of `without`: a batch whose drafts are trimmed to a depth of
    the schedule keeps its size.

    >>> shallower({3: (1, 2), 1: (3, 4), 0: (5,)})
    {3: (), 1: (1, 2), 0: (1, 2, 3, 4)}
    """
    return {
        k: ()
        if k in without
        else tuple(sorted({size for other in buckets if other > k for size in buckets[other]}))
        for k in buckets
    }


def draft_buckets(schedule: KSchedule, buckets: Buckets) -> Buckets:
    """Of these sizes, those that a draft phase uses: a batch is given drafts at the depth of its own size only."""
    used: dict[int, set[int]] = {}
    for first, last, k in schedule.tiers:
        sizes = buckets.get(k, ())
        if k:
            held = sizes[bisect_left(sizes, first) : bisect_left(sizes, last) + 1]
            used.setdefault(k, set()).update(held)
    return {k: tuple(sorted(found)) for k, found in sorted(used.items(), reverse=True)}


def _problems(schedule: KSchedule, given: Mapping[int, Sequence[int]]) -> Iterator[Problem]:
    most = schedule.max_num_seqs
    for k, sizes in given.items():
        where = f"buckets of k = {k}"
        if k not in schedule.depths:
            yield Problem(
                where=where,
                found=_listed(sizes),
                wanted=f"sizes of the depths that the schedule has: {_listed(schedule.depths)}",
                hint="no batch size is given this depth, so no step would use such a graph",
            )
            continue
        outside = [size for size in sizes if not 1 <= size <= most]
        if outside:
            yield Problem(
                where=where,
                found=_listed(outside),
                wanted=f"sizes of 1 to scheduler.max_num_seqs ({most}) requests",
            )
        last = max(tier[1] for tier in schedule.tiers if tier[2] == k)
        if max(sizes, default=0) < last:
            yield Problem(
                where=where,
                found=f"{max(sizes, default=0)} requests as the largest",
                wanted=f"at least {last}: the schedule gives this depth to batches of up to {last}",
                hint="to do without a graph on purpose, take it out of the plan: CapturePlan.without says so in reports",
            )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
