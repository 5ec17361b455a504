"""`LocalExecutor`: tasks in processes of this machine, each behind a thread that notices when it is gone."""

import contextlib
import heapq
import itertools
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from graphspec.fleet.executor import Ended
from graphspec.fleet.task import Done, Resources, Task
from graphspec.fleet.worker import pack, receive, send
from graphspec.processors import usable_cpus

_WORKER = ("-P", "-m", "graphspec.fleet.worker")
_SAID = 300
_PATIENCE_S = 10.0


class LocalExecutor:
    """At most `slots` processes at once, started when first needed; by default one for each CPU that may be used, and no
    more than memory has room for."""

    name = "local"

    def __init__(self, slots: int | None = None, *, memory_bytes: int = 0) -> None:
        self.slots = slots or _slots(memory_bytes)
        self._waiting: list[tuple[float, int, Task]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._open = 0
        self._closed = False
        self._workers: set[_Worker] = set()
        self._threads: list[threading.Thread] = []

    def why_not(self, resources: Resources) -> str:
        if resources.cpus > self.slots:
            return f"it takes {resources.cpus} CPUs, and {self.slots} may be used"
        if resources.gpus and not _gpus():
            return "it takes a GPU, and this machine has none that torch can use"
        return ""

    def submit(self, task: Task) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (-task.expected_seconds, next(self._count), task))
            self._open += 1
            self._changed.notify()
        if len(self._threads) < min(self.slots, self._open):
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()

    def as_completed(self) -> Iterator[Ended]:
        while self._open:
            ended = self._ended.get()
            self._open -= 1
            yield ended

    def cancel(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            if self._open:
                # One without a task ends by itself, and cleans up after its compilers.
                for worker in self._workers:
                    worker.kill()
            self._open = 0
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (task := self._next()) is not None:
            ended, worker = self._run(task, worker)
            self._ended.put(ended)
        if worker is not None:
            with self._changed:
                self._workers.discard(worker)
            worker.end()

    def _next(self) -> Task | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return None if self._closed else heapq.heappop(self._waiting)[-1]

    def _run(self, task: Task, worker: "_Worker | None") -> "tuple[Ended, _Worker | None]":
        try:
            message = pack(task)
        except Exception as error:
            # A class of a plugin that can be imported nowhere, say: what pickle raises for it has no common base.
            lost = f"it cannot be sent to a process: {type(error).__name__}: {error}"
            return Ended(task=task, lost=lost), worker
        try:
            if worker is None:
                with self._changed:
                    if self._closed:
                        return Ended(task=task, lost="the run was cancelled"), None
                    worker = _Worker()
                    self._workers.add(worker)
            return Ended(task=task, done=worker.ask(message)), worker
        except (OSError, EOFError) as error:
            if worker is None:
                return Ended(task=task, lost=f"no process could be started: {error}"), None
            with self._changed:
                self._workers.discard(worker)
            return Ended(task=task, lost=worker.last_words()), None


class _Worker:
    """One process that performs tasks. Belongs to the thread that makes it, and dies with it."""

    def __init__(self) -> None:
        # A file: a pipe that nobody reads would fill and stop the worker.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        try:
            # A session of its own: an interrupt at the terminal is for the driver, which then ends its workers.
            self._process = subprocess.Popen(
                [sys.executable, *_WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_folders())},
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise

    def ask(self, message: bytes) -> Done:
        """Sends a packed task and waits for what became of it. Raises `OSError` or `EOFError` when the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send(self._process.stdin, message)
        done: Done = receive(self._process.stdout)
        return done

    def kill(self) -> None:
        """Ends the process at once. From any thread."""
        self._process.kill()

    def end(self) -> None:
        """Lets the process end by itself, with its compilers, and frees what it had."""
        self._close_pipes()
        try:
            self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def last_words(self) -> str:
        """How a process ended that is gone, and the last that it said."""
        self._close_pipes()
        self._process.kill()
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._log.seek(0)
        said = " ".join(self._log.read().decode(errors="replace").split())[-_SAID:]
        self._log.close()
        text = f"process {self._process.pid} ended with {how}"
        return f"{text}, and said: {said}" if said else text

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            # What a process that died did not take is flushed once more.
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _slots(memory_bytes: int) -> int:
    cpus, free = usable_cpus(), _free_bytes()
    return max(1, min(cpus, free // memory_bytes if memory_bytes and free else cpus))


def _free_bytes() -> int:
    """Memory that processes may still take, 0 where that cannot be told."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    return 0


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _folders() -> Sequence[str]:
    return [os.path.realpath(p) for p in sys.path if p and os.path.isdir(p)]
