"""`KSchedule`: the draft depth k that each batch size is given."""

import itertools
from collections.abc import Sequence

from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed
from graphspec.text import show

Range = tuple[int, int, int]


@config_class
class KSchedule:
    """Draft depth by the number of requests scheduled in a step.

    `dense[b]` is k for b requests, 1 <= b <= max_num_seqs; index 0 holds 0 and is not used. Gaps of the user's table
    take the previous range's k, the tail keeps the last, and no k is above num_speculative_tokens.
    """

    dense: tuple[int, ...] = keyed(Stage.CAPTURE, doc="k by batch size; index 0 is unused.")

    def k_for(self, requests: int) -> int:
        """The depth to propose after a step of `requests` requests. IndexError outside 1..max_num_seqs."""
        if not 1 <= requests < len(self.dense):
            raise IndexError(f"{requests} requests are outside 1..{len(self.dense) - 1}")
        return self.dense[requests]

    @property
    def max_num_seqs(self) -> int:
        """Largest batch that the schedule covers."""
        return len(self.dense) - 1

    @property
    def depths(self) -> tuple[int, ...]:
        """Distinct depths, largest first."""
        return tuple(sorted(set(self.dense[1:]), reverse=True))

    @property
    def tiers(self) -> tuple[Range, ...]:
        """Maximal runs of equal k as (first, last, k), in order of batch size."""
        runs: list[Range] = []
        for requests in range(1, len(self.dense)):
            k = self.dense[requests]
            if runs and runs[-1][2] == k:
                runs[-1] = (runs[-1][0], requests, k)
            else:
                runs.append((requests, requests, k))
        return tuple(runs)


def table_problems(table: Sequence[Range]) -> list[Problem]:
    """Everything that is wrong with a table of inclusive ranges (first, last, k)."""
    problems = []
    if not table:
        problems.append(
            Problem(where="", found="an empty list", wanted="at least one [first, last, k]")
        )
    for i, entry in enumerate(table):
        first, last, k = entry
        if first < 1 or last < first or k < 0:
            problems.append(
                Problem(
                    where=f"[{i}]",
                    found=show(list(entry)),
                    wanted="[first, last, k] with 1 <= first <= last and k >= 0",
                )
            )
    if problems:
        return problems
    ordered = sorted(table)
    if ordered[0][0] != 1:
        problems.append(
            Problem(
                where="",
                found=f"a first range that starts at {ordered[0][0]}",
                wanted="a range that starts at 1",
                hint="one request must have a depth too",
            )
        )
    problems.extend(
        Problem(
            where="",
            found=f"ranges {list(before)} and {list(after)}, which overlap",
            wanted="ranges without overlap; both ends are inclusive",
        )
        for before, after in itertools.pairwise(ordered)
        if after[0] <= before[1]
    )
    return problems


def dense_schedule(
    table: Sequence[Range] | None, num_speculative_tokens: int, max_num_seqs: int
) -> KSchedule:
    """The schedule that a checked table gives; without a table every batch size has the full depth.

    >>> dense_schedule([(1, 2, 4), (5, 6, 1)], 3, 8).dense
    (0, 3, 3, 3, 3, 1, 1, 1, 1)
    """
    ordered = sorted(table) if table else [(1, max_num_seqs, num_speculative_tokens)]
    starts = [min(first, max_num_seqs + 1) for first, _, _ in ordered]
    dense = [0]
    for (_, _, k), start, end in zip(ordered, starts, [*starts[1:], max_num_seqs + 1], strict=True):
        dense += [min(k, num_speculative_tokens)] * (end - start)
    return KSchedule(dense=tuple(dense))
