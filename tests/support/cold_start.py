"""Eight processes that start on a cold key at once. Run as ``python -m support.cold_start``; it prints what became of each.

Arguments: checkpoint folder, cache folder, processes, rounds, and "together" or "apart". Each round has a key of its own. In
"together" whoever compiles waits until all others have been refused the lock, so that all of them met.
"""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache import load
from graphspec.cache.disk import DiskStore
from graphspec.cache.load import load_or_compile
from graphspec.cache.locks import KeyLocks
from graphspec.cache.units import CompileUnit, EntryKey
from graphspec.config.engine import EngineConfig
from support import fake_compiler, toy
from support.processes import TESTS


def cold_start(
    checkpoint: str, root: str, *, processes: int = 8, rounds: int = 1, together: bool = False
) -> Sequence[Sequence[Mapping[str, Any]]]:
    """For each round and process: outcome, reason, whether it compiled, and the library it got, in a list of lists."""
    arguments = [checkpoint, root, str(processes), str(rounds), "together" if together else "apart"]
    ran = subprocess.run(
        [sys.executable, "-m", "support.cold_start", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    return [list(each) for each in zip(*found, strict=True)]


@attrs.frozen
class _Meeting:
    """What the processes of a cold start share."""

    barrier: Any
    refused: Any
    """A semaphore that each process raises once a round when it is refused the lock."""
    together: bool
    others: int


class _CountedLocks:
    """The locks of a folder; the first refusal of a round is told to whoever compiles."""

    def __init__(self, root: str, meeting: _Meeting) -> None:
        self._locks = KeyLocks(root)
        self._meeting = meeting
        self._told = False

    @contextlib.contextmanager
    def try_lock(self, key: EntryKey) -> Iterator[bool]:
        with self._locks.try_lock(key) as free:
            if not free and not self._told:
                self._told = True
                self._meeting.refused.release()
            yield free


def _start(root: str, spec: Any, rounds: int, meeting: _Meeting) -> Sequence[Mapping[str, Any]]:
    scale, _ = toy.program(spec).units()

    def compile(unit: CompileUnit) -> bytes:
        with open(os.path.join(root, "compiled"), "ab", buffering=0) as counter:
            counter.write(unit.name.encode() + b"\n")
        if meeting.together:
            for _ in range(meeting.others):
                assert meeting.refused.acquire(timeout=60)
        # Two compiles of one key would not give one library.
        return b"library of %s by %d" % (unit.name.encode(), os.getpid())

    fake_compiler.install(compile)
    found = []
    for number in range(rounds):
        unit = attrs.evolve(scale, name=f"round {number}")
        locks = _CountedLocks(root, meeting)
        meeting.barrier.wait(60)
        artifacts, (result,) = load_or_compile([unit], spec, DiskStore(root), locks)
        found.append(
            {
                "outcome": result.outcome.value,
                "reason": result.reason + result.store_problem,
                "compiled": result.compiled,
                "library": artifacts[unit.name].decode(),
            }
        )
    return found


def _main(checkpoint: str, root: str, processes: str, rounds: str, how: str) -> None:
    sections = {"model": {"source": checkpoint, "max_model_len": 128}, "program": toy.NAME}
    spec = EngineConfig.from_dict(sections).resolve()
    fork = multiprocessing.get_context("fork")
    meeting = _Meeting(
        fork.Barrier(int(processes)), fork.Semaphore(0), how == "together", int(processes) - 1
    )
    # Many rounds are not to take as long as many waits.
    load._LOCK_POLL_S = 0.01
    os.makedirs(root, exist_ok=True)
    pipes = []
    for _ in range(int(processes)):
        reading, writing = os.pipe()
        if os.fork() == 0:
            with open(writing, "w", encoding="utf-8") as pipe:
                json.dump(_start(root, spec, int(rounds), meeting), pipe)
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    found = []
    for reading in pipes:
        with open(reading, encoding="utf-8") as pipe:
            found.append(json.load(pipe))
    print(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
