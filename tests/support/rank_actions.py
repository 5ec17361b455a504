"""What ranks do in tests of ranks: processes in a gloo group, on toy steps and the tape, so that nothing is compiled.

Run as a module with a folder to meet in and the sizes of the groups. The answer is one line of JSON.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from graphspec.capture.agreement import Facts, agree_on, agree_on_step
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Step
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import CapturePlan
from graphspec.capture.ranks import Ranks, TorchRanks
from graphspec.config.schedule import KSchedule
from graphspec.errors import CaptureError
from support.graphs import FakeBackend, Steps

Cases = Mapping[str, Callable[[Ranks], Any]]

PLAN = CapturePlan(
    schedule=KSchedule(dense=(0, 3, 3, 3, 3, 1, 1, 1, 1)), buckets={3: (1, 2, 4), 1: (6, 8)}
)
"""Graphs of 16, 16, 12, 8 and 4 tokens."""


class SmallSteps(Steps):
    """Steps on a device with room for graphs of `room` tokens."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.x = torch.zeros(16, self.x.shape[1])
        self._room = room

    def step(self, key: Any) -> Any:
        if key.tokens > self._room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().step(key)


def sealed(ranks: Ranks, room: int) -> CaptureManager:
    """The manager of one rank, brought to serving."""
    manager = CaptureManager(PLAN, SmallSteps(room), TapeBackend(), ranks)
    manager.warm()
    manager.capture()
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    return manager


def described(manager: CaptureManager) -> dict[str, Any]:
    return {
        "captured": sorted(map(str, manager.captured)),
        "lost": {str(g.key): [g.loss.name, g.error] for g in manager.lost},
    }


def lacking(ranks: Ranks) -> Any:
    """Rank 1 has no memory for more than 12 tokens; afterwards all walk through the same steps."""
    manager = sealed(ranks, room=12 if ranks.rank == 1 else 16)
    answers = []
    for at in range(20):
        mine = Step(
            requests=(at + ranks.rank) % 3,
            proposed_k=(1, 3)[(at + ranks.rank) % 2],
            prefill=at % 7 == ranks.rank,
        )
        step = agree_on_step(ranks, mine)
        found = manager.dispatch(step)
        if found.key is not None:
            manager.replay(found.key)
        answers.append([step.requests, step.proposed_k, step.prefill, str(found.key), found.k])
    return {**described(manager), "answers": answers}


def failing(ranks: Ranks) -> Any:
    """The last rank cannot go on: its listener raises in the middle of capturing."""
    manager = CaptureManager(PLAN, SmallSteps(16), TapeBackend(), ranks)
    manager.warm()

    def listener(key: Any) -> None:
        if ranks.rank == ranks.size - 1:
            raise BrokenPipeError("nobody watches")

    error = ""
    try:
        manager.capture(listener)
    except (BrokenPipeError, CaptureError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {**described(manager), "error": error, "state": manager.state.value}


def unwarmed(ranks: Ranks) -> Any:
    """The last rank fails while it warms, strictly, and never comes to capture."""
    steps = SmallSteps(4 if ranks.rank == ranks.size - 1 else 16)
    manager = CaptureManager(PLAN, steps, FakeBackend(), ranks)
    error = ""
    try:
        manager.warm(strict=True)
        manager.capture(strict=True)
    except (torch.OutOfMemoryError, CaptureError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {**described(manager), "error": error, "state": manager.state.value}


def differing(ranks: Ranks) -> Any:
    """Rank 1 was started with another config."""
    odd = ranks.rank == 1
    plan = PLAN if not odd else CapturePlan(schedule=PLAN.schedule, buckets={3: (1, 4), 1: (8,)})
    facts = Facts(
        mode="FULL" if not odd else "NONE", capture_hash="abc" * (1 + odd), planned=plan.keys
    )
    try:
        agree_on(ranks, facts.as_texts())
    except CaptureError as error:
        return [[p.where, p.found, p.wanted] for p in error.problems]
    return []


def gathering(ranks: Ranks) -> Any:
    """Bytes of different lengths, none at all, zeros, and numbers."""
    given = [ranks.gather(bytes(range(ranks.rank))), ranks.gather(b""), ranks.gather(b"\0" * 3)]
    return [
        [[each.hex() for each in some] for some in given],
        ranks.gather_ints([ranks.rank, -(1 << 62)]),
        [ranks.broadcast(data[ranks.rank :]).hex() for data in (b"\0of rank 0", b"")],
    ]


CASES: Cases = {case.__name__: case for case in (lacking, failing, unwarmed, differing, gathering)}


def as_rank(rank: int, size: int, folder: Path, cases: Cases) -> None:
    """Joins the group, does every case and writes what came of each."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet-{size}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    try:
        ranks = TorchRanks()
        done = {name: case(ranks) for name, case in cases.items()}
        (folder / f"{size}-{rank}.json").write_text(json.dumps(done))
    finally:
        dist.destroy_process_group()


def answer(cases: Cases, folder: str, *sizes: str) -> None:
    """Prints, for each size, what each rank answered. Ranks are forks, so that torch is imported once."""
    there, answers = Path(folder), {}
    for size in map(int, sizes):
        ranks = []
        for rank in range(size):
            if not (pid := os.fork()):
                status = 1
                try:
                    as_rank(rank, size, there, cases)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            ranks.append(pid)
        ended = [os.waitpid(pid, 0)[1] for pid in ranks]
        assert not any(ended), ended
        answers[size] = [
            json.loads((there / f"{size}-{rank}.json").read_text()) for rank in range(size)
        ]
    print(json.dumps(answers))


if __name__ == "__main__":
    answer(CASES, *sys.argv[1:])
