"""Reads what a warmup reported of itself, ``warmup --json``: what its graphs took, and what ran when."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from graphspec.capture.memory_model import GraphSample
from graphspec.capture.rank_sizes import made_for_others
from graphspec.capture.spans import Span
from graphspec.config.parallel import ParallelConfig
from graphspec.errors import Problem, WarmupFileError
from graphspec.formats.json_file import read_json_file
from graphspec.text import show

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class WarmupFile:
    """What a report says. `samples` is empty where no graph was measured, `timeline` where it has none."""

    path: str
    samples: tuple[GraphSample, ...]
    timeline: tuple[Span, ...]


def read_warmup(path: str, parallel: ParallelConfig) -> WarmupFile:
    """The report that the file at `path` holds. Raises `WarmupFileError` with every problem, among them that it is of other
    numbers of ranks than `parallel` has: a graph there holds another part of the model."""
    document = read_json_file(path, WarmupFileError, _no_report)
    data = document.data
    if not isinstance(data, Mapping) or not isinstance(data.get("graphs"), Mapping):
        raise WarmupFileError(_no_report(path, show(data)))
    problems = list(made_for_others(document, parallel))
    samples = _each(data["graphs"].get("samples", []), _sample, f"{path}: graphs.samples", problems)
    timeline = _each(data.get("timeline", []), _span, f"{path}: timeline", problems)
    if problems:
        raise WarmupFileError(problems)
    return WarmupFile(path=path, samples=tuple(samples), timeline=tuple(timeline))


def _each(
    listed: Any, read: Callable[[Mapping[str, Any]], T], where: str, problems: list[Problem]
) -> Sequence[T]:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        problems.append(Problem(where=where, found=show(listed), wanted="a list of objects"))
        return ()
    found = []
    for at, entry in enumerate(listed):
        try:
            found.append(read(entry))
        except (KeyError, TypeError, ValueError, OverflowError):
            wanted = "what warmup --json writes there"
            problems.append(Problem(where=f"{where}[{at}]", found=show(entry), wanted=wanted))
    return found


def _sample(entry: Mapping[str, Any]) -> GraphSample:
    return GraphSample(
        tokens=int(_number(entry["tokens"])),
        mib=_number(entry["mib"]),
        seconds=_number(entry["seconds"]),
        opens_pool=bool(entry.get("opens_pool", False)),
    )


def _span(entry: Mapping[str, Any]) -> Span:
    return Span(
        row=str(entry["row"]),
        kind=str(entry["kind"]),
        name=str(entry["name"]),
        start=_number(entry["start"]),
        seconds=_number(entry["seconds"]),
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    if not math.isfinite(value) or value < 0:
        raise ValueError(value)
    return float(value)


def _no_report(path: str, found: str) -> Problem:
    return Problem(
        where=path,
        found=found,
        wanted="the report of a warmup",
        hint="write one with: graphspec warmup --config FILE --json > report.json",
    )
