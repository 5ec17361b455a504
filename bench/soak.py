"""Does the cache ever give a wrong byte, hang, or lose count, while processes fight over one folder?

``soak.py --minutes N`` starts workers that put, get, damage and delete entries of a small set of keys in one folder with
small limits. The parent kills a worker with SIGKILL about once a second and starts another. Checked are:

- each hit has exactly the bytes that belong to its key, and each worker's counts add up, at every report;
- each worker makes progress: one that does not for a minute hangs;
- at the end every file in the folder is a whole, right entry or one that was damaged on purpose, no temporary is left,
  and the folder is within its limits.

The exit code is 0 when all of it holds. A put or get that ends in an error fails the run: this disk is a good one.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import write

from graphspec.cache.entry import Entry
from graphspec.cache.folder.bounded import BoundedStore
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps
from graphspec.cache.leftovers import sweep
from graphspec.cache.store import Outcome
from graphspec.cache.tiers.counting import Counters, CountingStore
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest

KEYS = 40
CAPS = Caps(max_bytes=3 << 20, max_entries=30, grace_seconds=0.5)
REPORT_EVERY_S = 0.5
HANG_S = 60.0
KEPT_MINUTES = 10.0
"""Results of shorter runs are printed and not kept."""


def key(number: int) -> EntryKey:
    text = encode({"unit": f"soak {number}"})
    return EntryKey(text, digest(text))


def payload(number: int) -> bytes:
    """Between 1 and 200 kB that only this key has."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return (seed * 6400)[: 1000 + number * 5000]


def entry(number: int) -> Entry:
    metadata = {"unit": f"soak {number}", "compile_seconds": float(number)}
    return Entry(key=key(number), metadata=metadata, payload=payload(number))


class Worker:
    """One process of the soak. It prints a line of JSON twice a second, and ends when its parent closes its input."""

    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = DiskStore(root)
        self.counters = Counters()
        self.store = CountingStore(BoundedStore(self.disk, CAPS), self.counters)
        self.wrong: list[str] = []
        self.own: dict[str, int] = collections.Counter()

    def run(self, until: float, pause: float) -> None:
        reported = 0.0
        while time.monotonic() < until:
            time.sleep(pause)
            self.act()
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                self.report()
        self.report()

    def act(self) -> None:
        number = self.random.randrange(KEYS)
        kind = self.random.choices(("get", "put", "damage", "delete", "sweep"), (60, 30, 5, 4, 1))[
            0
        ]
        self.own[kind] += 1
        if kind == "get":
            found = self.store.get(key(number))
            if found.entry is not None and bytes(found.entry.payload) != payload(number):
                self.wrong.append(f"wrong bytes under key {number}")
            if found.outcome is Outcome.ERROR:
                self.wrong.append(f"get ended in an error: {found.reason}")
        elif kind == "put":
            stored = self.store.put(entry(number))
            if stored.differs:
                self.wrong.append(f"other bytes were stored under key {number}")
            if stored.failed:
                self.wrong.append(f"put failed: {stored.reason}")
        elif kind == "sweep":
            sweep(os.path.join(self.disk.root, "tmp"))
        else:
            with contextlib.suppress(FileNotFoundError):
                self.damage(number) if kind == "damage" else os.unlink(
                    self.disk.path_of(key(number))
                )

    def damage(self, number: int) -> None:
        """Flips a bit, or cuts the file, where it lies: what a bad disk does."""
        path = self.disk.path_of(key(number))
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            at = self.random.randrange(max(size, 1))
            if self.random.random() < 0.5:
                file.truncate(at)
                return
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([(old[0] if old else 0) ^ 1 << self.random.randrange(8)]))

    def report(self) -> None:
        counts = self.counters.snapshot()
        problem = counts.problem()
        asked = {"lookups": self.own["get"], "puts": self.own["put"]}
        if not problem and (counts.lookups, counts.puts) != tuple(asked.values()):
            problem = (
                f"{counts.lookups} lookups and {counts.puts} puts are counted, {asked} were made"
            )
        if problem:
            self.wrong.append(problem)
        line = {
            "pid": os.getpid(),
            "actions": dict(self.own),
            "outcomes": {o.value: n for o, n in counts.outcomes.items() if n},
            "results": {r.value: n for r, n in counts.results.items() if n},
            "wrong": self.wrong[:5],
        }
        print(json.dumps(line), flush=True)


class Soak:
    """The parent: workers, their last reports, and what was found wrong."""

    def __init__(
        self, root: str, seconds: float, processes: int, seed: int, pause: float = 0.0
    ) -> None:
        self.root, self.until, self.pause = root, time.monotonic() + seconds, pause
        self.random = random.Random(seed)
        self.processes: dict[int, tuple[subprocess.Popen, Path]] = {}
        self.seen: dict[int, tuple[str, float]] = {}
        self.last: dict[int, dict] = {}
        self.count, self.killed, self.number = processes, 0, 0
        self.wrong: list[str] = []

    def start(self) -> None:
        self.number += 1
        log = Path(self.root + f".worker{self.number}")
        left = max(self.until - time.monotonic(), 0.1)
        with log.open("w") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    __file__,
                    "--worker",
                    self.root,
                    str(self.number),
                    str(left),
                    "--pause",
                    str(self.pause),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self.processes[process.pid] = (process, log)
        self.seen[process.pid] = ("", time.monotonic())

    def run(self) -> None:
        for _ in range(self.count):
            self.start()
        while time.monotonic() < self.until and not self.wrong:
            time.sleep(1.0)
            self.look()
            victim = self.random.choice(sorted(self.processes))
            # Not before its first report: a worker that is still importing would prove nothing.
            if self.seen[victim][0] and time.monotonic() < self.until - 2:
                self.processes[victim][0].send_signal(signal.SIGKILL)
                self.killed += 1
                self.reap(victim, killed=True)
                self.start()
        for pid in sorted(self.processes):
            self.reap(pid, killed=False)

    def look(self) -> None:
        for pid, (process, log) in self.processes.items():
            if process.poll() is not None and time.monotonic() < self.until:
                self.wrong.append(f"worker {pid} ended by itself: {log.read_text()[-500:]}")
            text = log.read_text()
            if text != self.seen[pid][0]:
                self.seen[pid] = (text, time.monotonic())
            elif time.monotonic() - self.seen[pid][1] > HANG_S:
                self.wrong.append(f"worker {pid} made no progress for {HANG_S:.0f} s")

    def reap(self, pid: int, *, killed: bool) -> None:
        process, log = self.processes.pop(pid)
        try:
            code = process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            self.wrong.append(f"worker {pid} did not end")
        text = log.read_text()
        lines = [line for line in text.splitlines() if line.endswith("}")]
        log.unlink()
        if code and not killed:
            self.wrong.append(f"worker {pid} ended with {code}: {text[-500:]}")
        if lines:
            self.last[pid] = json.loads(lines[-1])
            self.wrong += self.last[pid]["wrong"]

    def check_folder(self) -> None:
        """What is left is right, or damaged on purpose; and it is within the limits after one more put."""
        store = BoundedStore(DiskStore(self.root), CAPS)
        store.put(entry(0))
        sweep(os.path.join(self.root, "tmp"))
        left = os.listdir(os.path.join(self.root, "tmp"))
        if left:
            self.wrong.append(f"temporaries are left: {left[:3]}")
        files = [p for p in Path(self.root, "entries").rglob("*") if p.is_file()]
        held = sum(p.stat().st_size for p in files)
        if held > CAPS.max_bytes or len(files) > CAPS.max_entries:
            self.wrong.append(f"{len(files)} files of {held} bytes are beyond the limits")
        for number in range(KEYS):
            found = DiskStore(self.root).get(key(number))
            if found.entry is not None and bytes(found.entry.payload) != payload(number):
                self.wrong.append(f"wrong bytes under key {number} in the end")

    def totals(self, name: str) -> dict:
        return dict(
            sum((collections.Counter(w[name]) for w in self.last.values()), collections.Counter())
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.0,
        help="seconds between actions, where other work runs too",
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        root, seed, seconds = asked.worker
        Worker(root, int(seed)).run(time.monotonic() + float(seconds), asked.pause)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        root, seconds = os.path.join(folder, "cache"), asked.minutes * 60
        soak = Soak(root, seconds, asked.processes, asked.seed, asked.pause)
        soak.run()
        soak.check_folder()
    result = {
        "minutes": asked.minutes,
        "processes": asked.processes,
        "workers_killed": soak.killed,
        "actions": soak.totals("actions"),
        "outcomes": soak.totals("outcomes"),
        "puts": soak.totals("results"),
        "wrong": soak.wrong,
        "load_average": os.getloadavg(),
    }
    print(json.dumps(result, indent=2))
    said = "nothing wrong" if not soak.wrong else f"{len(soak.wrong)} things wrong"
    print(f"soak of {asked.minutes:g} minutes: {sum(result['actions'].values())} actions, {said}")
    if soak.wrong or not all(result["actions"].get(kind) for kind in ("get", "put", "damage")):
        return 1
    if asked.minutes >= KEPT_MINUTES:
        write("soak", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
