"""Graphs that depend on the order of a set: the spec's own units traced in processes with other string hashes."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.audit_report import Finding
from graphspec.testing.described import cuda_traceable
from graphspec.testing.sides import Machine, Side, brief, diff_of

_CHILD = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from graphspec.testing.seeds import answer; answer()"
)
_TIMEOUT_S = 600


def compare_seeds(spec: EngineSpec, side: Side, seeds: Sequence[int]) -> Sequence[Finding]:
    """Traces the units of `side` once for each PYTHONHASHSEED, each in a process of its own.

    A unit whose graph, or whose key, is not the same everywhere is a finding.
    """
    machine = Machine()
    here = {
        name: {"key": machine.key(unit, spec).digest, "lines": _lines(side, name)}
        for name, unit in side.units.items()
    }
    findings: dict[tuple[str, str], Finding] = {}
    for seed in seeds:
        there = _in_child(spec, list(here), seed)
        for name, mine in here.items():
            for what, found in _differences(mine, there.get(name), seed):
                findings.setdefault((name, what), found(name))
    return list(findings.values())


def _differences(
    here: Mapping[str, Any], there: Mapping[str, Any] | None, seed: int
) -> Iterator[Any]:
    where = f"with PYTHONHASHSEED {seed} the unit"

    def finding(text: str, diff: Sequence[str] = ()) -> Any:
        return lambda name: Finding(
            kind="unstable", where=f"unit {name}", text=f"{where} {text}", diff=diff
        )

    if there is None:
        yield "list", finding("is not in the program's list")
    else:
        if there["lines"] != here["lines"]:
            text = "has another graph: its trace depends on the order of a set"
            yield "graph", finding(text, diff_of(here["lines"], there["lines"]))
        if there["key"] != here["key"]:
            yield "key", finding("has another key")


def _lines(side: Side, name: str) -> Sequence[str]:
    failure = side.failure(name)
    return list(side.graph(name).lines) if failure is None else [f"no graph: {brief(failure)}"]


def _in_child(spec: EngineSpec, names: Sequence[str], seed: int) -> Mapping[str, Any]:
    asked = pickle.dumps([p for p in sys.path if p]) + pickle.dumps((spec, list(names)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD],
        input=asked,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise EnvironmentProblem(
            Problem(
                where=f"process with PYTHONHASHSEED {seed}",
                found=done.stderr.decode(errors="replace").strip()[-500:] or "no answer",
                wanted="the graphs of the spec's units",
                hint="the program and its drafting method must be importable in a fresh process",
            )
        )
    answered: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


def answer() -> None:
    """What the child runs: reads a spec from standard input, and writes keys and graphs as one line of JSON."""
    spec, names = pickle.load(sys.stdin.buffer)
    machine = Machine()
    with cuda_traceable():
        side = Side(spec, machine, names)
        found = {
            name: {"key": machine.key(unit, spec).digest, "lines": _lines(side, name)}
            for name, unit in side.units.items()
        }
    sys.stdout.write("\n" + json.dumps(found) + "\n")
