"""Reports of ``graphspec doctor --json`` from many nodes, compared: what would give their units different keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.errors import NodeReportError, Problem
from graphspec.formats.json_file import read_json_file
from graphspec.text import plural, show

_ABSENT = "nothing"


@attrs.frozen(kw_only=True)
class NodeReport:
    """What one node said of itself. `facts` are what its keys are made of, `checks` what doctor found, by name."""

    name: str
    facts: Mapping[str, str]
    checks: Mapping[str, str]
    problems: tuple[str, ...]


@attrs.frozen(kw_only=True)
class NodeDifference:
    """One thing in which nodes differ: each value with the nodes that have it, the most common first."""

    field: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def odd(self) -> Sequence[str]:
        """The nodes that are not with the most."""
        _, *others = self.values.values()
        return [name for names in others for name in names]

    def __str__(self) -> str:
        said = "; ".join(f"{value} on {', '.join(names)}" for value, names in self.values.items())
        return f"{self.field}: {said}"


@attrs.frozen(kw_only=True)
class FleetComparison:
    """`keys`: differences that give units other keys. `other`: differences that do not. `problems`: what doctor found."""

    nodes: tuple[str, ...]
    keys: tuple[NodeDifference, ...]
    other: tuple[NodeDifference, ...]
    problems: tuple[str, ...]

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``doctor --fleet --json`` prints."""

        def plain(found: Sequence[NodeDifference]) -> list[Mapping[str, Any]]:
            return [
                {"field": d.field, "values": {v: list(n) for v, n in d.values.items()}}
                for d in found
            ]

        return {
            "nodes": list(self.nodes),
            "keys": plain(self.keys),
            "other": plain(self.other),
            "problems": list(self.problems),
        }


def read_nodes(paths: Sequence[str]) -> Sequence[NodeReport]:
    """The reports in these files. Raises `NodeReportError` with every problem; a node that is there twice is one."""
    reports: dict[str, NodeReport] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            report = _read(path)
        except NodeReportError as error:
            problems += error.problems
            continue
        if report.name in reports:
            problems.append(
                Problem(where=path, found=f"node {report.name} again", wanted="each node once")
            )
        reports[report.name] = report
    if len(paths) < 2:
        problems.append(
            Problem(
                where="doctor --fleet",
                found=plural(len(paths), "report"),
                wanted="the reports of two nodes or more",
                hint="write one on each node with: graphspec doctor --json > NODE.json",
            )
        )
    if problems:
        raise NodeReportError(problems)
    return list(reports.values())


def compare_nodes(reports: Sequence[NodeReport]) -> FleetComparison:
    """What differs between the nodes, fields in order of their names."""
    return FleetComparison(
        nodes=tuple(report.name for report in reports),
        keys=tuple(_differences(reports, [report.facts for report in reports])),
        other=tuple(_differences(reports, [report.checks for report in reports])),
        problems=tuple(f"{r.name}: {problem}" for r in reports for problem in r.problems),
    )


def _differences(
    reports: Sequence[NodeReport], sides: Sequence[Mapping[str, str]]
) -> Sequence[NodeDifference]:
    found = []
    for field in sorted(set().union(*sides)):
        by_value: dict[str, list[str]] = {}
        for report, side in zip(reports, sides, strict=True):
            by_value.setdefault(side.get(field, _ABSENT), []).append(report.name)
        if len(by_value) > 1:
            # Stable: of values that are equally common, the one of the first node comes first.
            counts = Counter({value: len(names) for value, names in by_value.items()})
            values = {value: tuple(by_value[value]) for value, _ in counts.most_common()}
            found.append(NodeDifference(field=field, values=values))
    return found


def _read(path: str) -> NodeReport:
    data = read_json_file(path, NodeReportError, _no_report).data
    try:
        node, checks = data["node"], data["checks"]
        return NodeReport(
            name=_text(node["name"]),
            facts={_text(k): _text(v) for k, v in node["facts"].items()},
            checks={_text(c["name"]): _text(c["found"]) for c in checks},
            problems=tuple(f"{c['name']}: {c['found']}" for c in checks if c["ok"] is not True),
        )
    except (KeyError, TypeError, AttributeError):
        raise NodeReportError(_no_report(path, show(data))) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _no_report(path: str, found: str) -> Problem:
    return Problem(
        where=path,
        found=found,
        wanted="the report of a node",
        hint="write one with: graphspec doctor --json > NODE.json",
    )
