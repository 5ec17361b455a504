"""Many processes that put, get, remove, evict, damage and die on a few keys of one folder, and check what they get.

Run as ``python -m support.hammer ROOT PROCESSES KEYS SECONDS SEED KIND``; it prints what was counted.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, evict, move_away
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.store import Outcome
from support.entries import entry_of
from support.processes import TESTS

_LARGEST = 60_000


def hammer(
    root: str, *, processes: int, keys: int, seconds: float, seed: int = 0, gentle: bool = False
) -> Mapping[str, int]:
    """How often each thing was done, and how each lookup ended. Fails for wrong bytes, an exception or a hang.

    A `gentle` hammer only puts and gets, and nobody dies.
    """
    numbers = map(str, (processes, keys, seconds, seed))
    ran = subprocess.run(
        [sys.executable, "-m", "support.hammer", root, *numbers, "gentle" if gentle else "hard"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 120,
    )
    assert ran.returncode == 0, ran.stderr
    counted: Mapping[str, int] = json.loads(ran.stdout)
    return counted


def hammered_entry(name: str) -> Entry:
    """The one entry that belongs under a name; sizes differ widely from name to name."""
    drawn = random.Random(name)
    return entry_of(name, drawn.randbytes(drawn.randrange(_LARGEST)))


class _Hammer:
    def __init__(self, root: str, keys: int, drawn: random.Random, *, gentle: bool = False) -> None:
        self._root = root
        self._weights = (40, 25) if gentle else (40, 25, 6, 2, 8, 6, 2)
        self._drawn = drawn
        self._store = DiskStore(root)
        self._locks = KeyLocks(root)
        self._entries = [hammered_entry(str(n)) for n in range(keys)]
        self.counted: Counter[str] = Counter()

    def strike(self) -> None:
        """Does one thing to one key."""
        entry = self._drawn.choice(self._entries)
        acts = (
            self._get,
            self._put,
            self._remove,
            self._evict,
            self._damage,
            self._lock,
            self._new,
        )
        (act,) = self._drawn.choices(acts[: len(self._weights)], self._weights)
        self.counted[act.__name__.strip("_")] += 1
        act(entry)

    def _get(self, entry: Entry) -> None:
        found = self._store.get(entry.key)
        self.counted[f"lookup {found.outcome.value}"] += 1
        assert (found.entry is not None) is (found.outcome is Outcome.HIT)
        if found.entry is not None:
            assert bytes(found.entry.payload) == entry.payload, (
                f"wrong bytes for {entry.key.text!r}"
            )
            assert found.entry.metadata == entry.metadata
        else:
            assert found.reason
            assert found.outcome in (Outcome.MISS, Outcome.CORRUPT), found.reason

    def _put(self, entry: Entry) -> None:
        stored = self._store.put(entry)
        assert not stored.differs
        self.counted["written" if stored.written else "failed" if stored.failed else "kept"] += 1
        # In a hammered folder a put may give up; it does not fail for any other reason.
        assert not stored.failed or "other processes write and remove" in stored.reason, stored

    def _remove(self, entry: Entry) -> None:
        move_away(self._root, self._store.path_of(entry.key))

    def _evict(self, entry: Entry) -> None:
        caps = Caps(max_bytes=4 * _LARGEST, max_entries=len(self._entries), grace_seconds=0.0)
        assert evict(self._root, caps).refused == ""

    def _damage(self, entry: Entry) -> None:
        path = self._store.path_of(entry.key)
        how = self._drawn.randrange(4)
        try:
            with open(path, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(self._drawn.randrange(max(size, 1)))
                if how == 0:
                    file.truncate()
                elif how == 1:
                    file.write(bytes([self._drawn.randrange(256)]))
                elif how == 2:
                    file.seek(0, os.SEEK_END)
                    file.write(b"more")
                else:
                    # Another key's bytes under this name.
                    with open(
                        self._store.path_of(self._drawn.choice(self._entries).key), "rb"
                    ) as other:
                        data = other.read()
                    file.seek(0)
                    file.write(data)
                    file.truncate()
        except FileNotFoundError:
            pass

    def _lock(self, entry: Entry) -> None:
        with self._locks.try_lock(entry.key) as free:
            self.counted["free" if free else "held"] += 1
            if free:
                self._put(entry)

    def _new(self, entry: Entry) -> None:
        """A new store, as in a new process: its first put sweeps."""
        self._store = DiskStore(self._root)


def _die_at_link(path: str, target: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def _worker(root: str, keys: int, until: float, seed: int, gentle: bool, report: int) -> None:
    drawn = random.Random(seed)
    hammer = _Hammer(root, keys, drawn, gentle=gentle)
    deaths = 0
    while time.monotonic() < until:
        for _ in range(50):
            hammer.strike()
        if gentle:
            continue
        # Another process dies in the middle of a put, and leaves its temporary to the living.
        deaths += 1
        child = _in_child(lambda: _die(root, keys, drawn.random()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    hammer.counted["killed"] = deaths
    os.write(report, json.dumps(hammer.counted).encode() + b"\n")


def _die(root: str, keys: int, seed: float) -> None:
    hammer = _Hammer(root, keys, random.Random(seed))
    os.link = _die_at_link
    while True:
        hammer.strike()


def _main(root: str, processes: str, keys: str, seconds: str, seed: str, kind: str) -> int:
    until = time.monotonic() + float(seconds)
    reading, writing = os.pipe()
    gentle, seeds = kind == "gentle", range(int(seed) * 1000, int(seed) * 1000 + int(processes))
    children = [
        _in_child(lambda n=n: _worker(root, int(keys), until, n, gentle, writing)) for n in seeds
    ]
    os.close(writing)
    total: Counter[str] = Counter()
    with open(reading, encoding="utf-8") as lines:
        for line in lines:
            total.update(json.loads(line))
    print(json.dumps(total))
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
