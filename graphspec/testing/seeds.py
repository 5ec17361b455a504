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


def compare_seeds(
    spec: EngineSpec, side: Side, machine: Machine, seeds: Sequence[int]
) -> Sequence[Finding]:
    """Traces the units of `side` once for each PYTHONHASHSEED, each in a process of its own.

    A unit whose graph, or whose key on the same `machine`, is not the same everywhere is a finding.
    """
    here = {
        name: {"key": machine.key(unit, spec).digest, "lines": _lines(side, name)}
        for name, unit in side.units.items()
    }
    findings: dict[tuple[str, str], Finding] = {}
    for seed in seeds:
        there = _in_child((spec, list(here), machine.known), seed)
        for name, mine in here.items():
            for text, diff in _differences(mine, there.get(name)):
                found = Finding(
                    kind="unstable",
                    where=f"unit {name}",
                    text=f"with PYTHONHASHSEED {seed} it {text}",
                    diff=diff,
                )
                findings.setdefault((name, text), found)
    return list(findings.values())


def _differences(
    here: Mapping[str, Any], there: Mapping[str, Any] | None
) -> Iterator[tuple[str, Sequence[str]]]:
    if there is None:
        yield "is not in the program's list", ()
        return
    if there["lines"] != here["lines"]:
        text = "has another graph: what is traced depends on the order of a set, or on the process"
        yield text, diff_of(here["lines"], there["lines"])
    if there["key"] != here["key"]:
        yield "has another key", ()


def _lines(side: Side, name: str) -> Sequence[str]:
    failure = side.failure(name)
    return list(side.graph(name).lines) if failure is None else [f"no graph: {brief(failure)}"]


def _in_child(asked: tuple[Any, ...], seed: int) -> Mapping[str, Any]:
    paths = [path for path in sys.path if path]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=pickle.dumps(paths) + pickle.dumps(asked),
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            timeout=_TIMEOUT_S,
            check=False,
        )
        failure = (done.stderr or b"it ended") if done.returncode else b""
    except subprocess.TimeoutExpired as late:
        failure = late.stderr or f"nothing after {_TIMEOUT_S} s".encode()
    if failure:
        raise EnvironmentProblem(
            Problem(
                where=f"process with PYTHONHASHSEED {seed}",
                found=failure.decode(errors="replace").strip()[-500:],
                wanted="the graphs of the spec's units",
                hint="the program and its drafting method must be importable in a fresh process",
            )
        )
    answered: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


def answer() -> None:
    """What the child runs: reads a spec from standard input, and writes keys and graphs as one line of JSON."""
    spec, names, known = pickle.load(sys.stdin.buffer)
    machine = Machine(known)
    with cuda_traceable():
        side = Side(spec, machine, names)
        found = {
            name: {"key": machine.key(unit, spec).digest, "lines": _lines(side, name)}
            for name, unit in side.units.items()
        }
    sys.stdout.write("\n" + json.dumps(found) + "\n")
