"""Reads `Traffic` from a file: a histogram in JSON or CSV, or a plain log of batch sizes."""

import os
import re
from collections import Counter
from collections.abc import Iterator

import attrs

from graphspec.capture.traffic import (
    Traffic,
    entry_problems,
    listed,
    nothing,
    too_large,
)
from graphspec.errors import Problem, SpecError, TrafficError
from graphspec.formats.json_reader import read_json
from graphspec.text import plural, show

HISTOGRAM = "batch_sizes"
"""The key of a JSON histogram. Beside it a file may say anything about itself."""

_Entry = tuple[str, object, object, int]
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def read_traffic(path: str, *, max_num_seqs: int | None = None) -> Traffic:
    """The traffic that a file holds. What it is, its name says.

    | name | content |
    |---|---|
    | ``*.json`` | ``{"batch_sizes": {"1": 120, "2": 40}}``; other keys say where the numbers come from |
    | ``*.csv`` | a line ``size,count`` for each size, below a header or not |
    | others | a log: a line for each decode step, ``size``, or ``size count``; blank lines and ``#`` are passed over |

    A size that stands twice is added up. Raises `TrafficError` with every problem and the first line that has it; with
    `max_num_seqs`, larger sizes are problems too.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeError) as error:
        raise TrafficError(_unreadable(path, error)) from error
    kind = os.path.splitext(path)[1].lower()
    if kind == ".json":
        entries = _json_entries("\n".join(lines), path)
    else:
        entries = _line_entries(lines, path, "," if kind == ".csv" else None)
    return _added_up(entries, path, max_num_seqs)


def _added_up(entries: Iterator[_Entry], path: str, max_num_seqs: int | None) -> Traffic:
    weights: dict[int, float] = {}
    problems: list[Problem] = []
    beyond: dict[int, tuple[str, int]] = {}
    for where, size, weight, times in entries:
        wrong = [size] if isinstance(size, Problem) else entry_problems(where, size, weight)
        problems += (_also_elsewhere(problem, times) for problem in wrong)
        if wrong:
            continue
        assert isinstance(size, int) and isinstance(weight, int | float)  # noqa: PT018 - told by entry_problems
        weights[size] = weights.get(size, 0) + weight * times
        if max_num_seqs is not None and size > max_num_seqs:
            place, so_far = beyond.get(size, (where, 0))
            beyond[size] = place, so_far + times
    for size, (place, times) in sorted(beyond.items()):
        problems.append(_also_elsewhere(too_large(place, size, max_num_seqs or 0), times))
    if not problems and not any(weights.values()):
        problems.append(nothing(path))
    if problems:
        raise TrafficError(listed(problems))
    return Traffic.of(weights)


def _also_elsewhere(problem: Problem, times: int) -> Problem:
    if times == 1:
        return problem
    return attrs.evolve(
        problem, found=f"{problem.found}, here and on {plural(times - 1, 'more line')}"
    )


def _line_entries(lines: list[str], path: str, separator: str | None) -> Iterator[_Entry]:
    # A log of a million steps has some hundred different lines: each is read once, at its first place.
    places = dict(zip(reversed(lines), range(len(lines), 0, -1), strict=True))
    header_is_possible = separator is not None
    for line, times in Counter(lines).items():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = f"{path}:{places[line]}"
        cells = [cell.strip() for cell in text.split(separator)]
        is_header = header_is_possible and not any(map(_NUMBER.fullmatch, cells))
        header_is_possible = False
        if is_header and times == 1:
            continue
        wrong_count = len(cells) > 2 or (separator and len(cells) < 2)
        size, weight = _number(cells[0]), _number(cells[1]) if cells[1:] else 1
        if wrong_count or size is None or weight is None:
            yield where, _problem(where, text, separator), None, times
        else:
            yield where, size, weight, times


def _number(cell: str) -> int | float | None:
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) else None


def _problem(where: str, text: str, separator: str | None) -> Problem:
    if separator:
        return Problem(where=where, found=show(text), wanted="a batch size and a count: 8,120")
    return Problem(
        where=where,
        found=show(text),
        wanted="a batch size, or a batch size and a count: 8 or 8 120",
        hint="a histogram belongs in a file named *.csv or *.json",
    )


def _json_entries(text: str, path: str) -> Iterator[_Entry]:
    try:
        document = read_json(text, path)
    except SpecError as error:
        raise TrafficError(error.problems) from error
    data = document.data
    sizes = data.get(HISTOGRAM) if isinstance(data, dict) else None
    if not isinstance(sizes, dict):
        found = "no such key" if isinstance(data, dict) and sizes is None else show(sizes or data)
        line = document.lines.get((HISTOGRAM,), 1)
        wanted = "a mapping of batch sizes to counts"
        hint = f'write {{"{HISTOGRAM}": {{"1": 120, "2": 40}}}}'
        place = f"{path}:{line}: {HISTOGRAM}"
        raise TrafficError(Problem(where=place, found=found, wanted=wanted, hint=hint))
    for name, weight in sizes.items():
        size = int(name) if _INTEGER.fullmatch(name) else name
        yield f"{path}:{document.lines[HISTOGRAM, name]}", size, weight, 1


def _unreadable(path: str, error: OSError | UnicodeError) -> Problem:
    reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
    return Problem(
        where=path,
        found=f"a file that cannot be read: {reason}",
        wanted="a histogram in JSON or CSV, or a log of batch sizes, one a line",
    )
