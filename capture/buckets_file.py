"""Buckets in a file: what ``graphspec plan --output`` writes, and ``graphspec warmup --buckets`` captures."""

import json
from collections.abc import Mapping, Sequence

from graphspec.capture.rank_sizes import PARALLEL, made_for_others, rank_sizes
from graphspec.capture.sizes import Buckets
from graphspec.config.parallel import ParallelConfig
from graphspec.errors import BucketsError, Problem
from graphspec.formats.json_file import read_json_file
from graphspec.text import show

BUCKETS = "buckets"


def buckets_text(buckets: Buckets, parallel: ParallelConfig) -> str:
    """The file's content for these sizes, chosen for so many ranks."""
    sizes = {str(k): list(found) for k, found in buckets.items()}
    return json.dumps({BUCKETS: sizes, PARALLEL: rank_sizes(parallel)}) + "\n"


def read_buckets(path: str, parallel: ParallelConfig) -> Buckets:
    """The sizes of each depth that the file at `path` holds: ``{"buckets": {"4": [1, 3, 8]}}``. Depths that it does not
    name keep the ladder.

    Raises `BucketsError` with every problem, among them that it was written for other numbers of ranks than `parallel`
    has: what graphs take, and so which are worth it, depends on them. Whether a schedule can use the sizes,
    `plan_capture` says.
    """
    document = read_json_file(path, BucketsError, _no_buckets)
    listed = document.data.get(BUCKETS) if isinstance(document.data, Mapping) else None
    if not isinstance(listed, Mapping):
        raise BucketsError(_no_buckets(path, show(document.data)))
    problems = list(made_for_others(document, parallel))
    found: dict[int, tuple[int, ...]] = {}
    for depth, sizes in listed.items():
        where = f"{path}:{document.lines[BUCKETS, depth]}: {BUCKETS}.{depth}"
        if not (depth.isascii() and depth.isdigit()):
            problems.append(
                Problem(where=where, found=show(depth), wanted="a number of drafts as the key")
            )
        if not _are_sizes(sizes):
            problems.append(
                Problem(where=where, found=show(sizes), wanted="a list of numbers of requests")
            )
        if not problems:
            found[int(depth)] = tuple(sorted(set(sizes)))
    if problems:
        raise BucketsError(problems)
    return found


def _are_sizes(sizes: object) -> bool:
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        return False
    return all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)


def _no_buckets(path: str, found: str) -> Problem:
    return Problem(
        where=path,
        found=found,
        wanted='sizes by depth: {"buckets": {"4": [1, 2, 8]}}',
        hint="write them with: graphspec plan --config FILE --traffic FILE --output FILE",
    )
