"""Several processes that start on a cold key at once. Run as ``python -m support.cold_start``; it prints what became of each.

Arguments: cache folder, processes, rounds, and "together" or "apart". Each round has a key of its own. In "together" whoever
compiles waits until all others have been refused the lock, so that all of them met. Keys, tracing, compiling and
loading are stand-ins that need no torch; the store, the locks and all that `load_or_compile` makes of them are real.
"""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs

from graphspec.cache import load
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import Keyed, load_or_compile
from graphspec.cache.units import CompileUnit, EntryKey
from graphspec.keys.scope import Scope
from support.entries import key_of
from support.processes import TESTS


def cold_start(
    root: str, *, processes: int = 8, rounds: int = 1, together: bool = False
) -> Sequence[Sequence[Mapping[str, Any]]]:
    """For each round and process: outcome, reason, whether it compiled, and the library it got, in a list of lists."""
    arguments = [root, str(processes), str(rounds), "together" if together else "apart"]
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
    """What the processes of a cold start share. `refused` counts those that were refused the lock."""

    barrier: Any
    refused: Any
    together: bool
    others: int


class _CountedLocks:
    """The locks of a folder; the first refusal is told to whoever compiles."""

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


class _Compiler:
    def __init__(self, compile: Callable[[CompileUnit], bytes]) -> None:
        self._compile = compile

    def __enter__(self) -> "_Compiler":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def compile(self, unit: CompileUnit, traced: Any) -> Any:
        return SimpleNamespace(library=self._compile(unit), seconds=1.0, provenance={}, demands=())


def _stand_in(compile: Callable[[CompileUnit], bytes]) -> None:
    load.keyed_units = lambda units, spec, **_: [Keyed(unit=u, key=key_of(u.name)) for u in units]
    load.CompileRun._compiler = lambda run: _Compiler(compile)
    trace = ModuleType("graphspec.cache.compiling.trace")
    trace.trace = lambda unit, spec, device: SimpleNamespace(outputs=(), reads=(), seconds=0.0)
    artifact = ModuleType("graphspec.cache.loading.artifact")
    artifact.load_artifact = lambda entry, **options: bytes(entry.payload)
    sys.modules.update({module.__name__: module for module in (trace, artifact)})


def _start(root: str, rounds: int, meeting: _Meeting) -> Sequence[Mapping[str, Any]]:
    def compile(unit: CompileUnit) -> bytes:
        with open(os.path.join(root, "compiled"), "ab", buffering=0) as counter:
            counter.write(unit.name.encode() + b"\n")
        if meeting.together:
            for _ in range(meeting.others):
                assert meeting.refused.acquire(timeout=60)
        # Two compiles of one key would not give one library.
        return b"library of %s by %d" % (unit.name.encode(), os.getpid())

    _stand_in(compile)
    spec = SimpleNamespace(device=SimpleNamespace(target=SimpleNamespace(value="cpu")))
    found = []
    for number in range(rounds):
        name = f"round {number}"
        unit = CompileUnit(name=name, scope=Scope(()), modules=(), build=print, inputs=())
        locks = _CountedLocks(root, meeting)
        meeting.barrier.wait(60)
        artifacts, (result,) = load_or_compile([unit], spec, DiskStore(root), locks)
        found.append(
            {
                "outcome": result.outcome.value,
                "reason": result.reason,
                "problem": result.store_problem,
                "compiled": result.compiled,
                "library": artifacts[name].decode(),
            }
        )
    return found


def _main(root: str, processes: str, rounds: str, how: str) -> int:
    fork, count = multiprocessing.get_context("fork"), int(processes)
    meeting = _Meeting(fork.Barrier(count), fork.Semaphore(0), how == "together", count - 1)
    # Many rounds are not to take as long as many waits.
    load._LOCK_POLL_S = 0.01
    os.makedirs(root, exist_ok=True)
    children = {}
    for _ in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with open(writing, "w", encoding="utf-8") as pipe:
                json.dump(_start(root, int(rounds), meeting), pipe)
            os._exit(0)
        os.close(writing)
        children[child] = reading
    found = []
    for reading in children.values():
        with open(reading, encoding="utf-8") as pipe:
            found.append(json.loads(pipe.read() or "[]"))
    print(json.dumps(found))
    return max(os.waitpid(child, 0)[1] for child in children) != 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
