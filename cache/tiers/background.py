"""`BackgroundStore`: puts are queued, and written by a thread of their own while the caller goes on."""

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import attrs

from graphspec.cache.abilities import is_writable, look
from graphspec.cache.entry import Entry
from graphspec.cache.forks import ForkLock
from graphspec.cache.store import Lookup, Outcome, SetsAside, Store, Stored, set_aside
from graphspec.cache.tiers.memory import Held, hold
from graphspec.cache.units import EntryKey
from graphspec.text import plural


@attrs.frozen(kw_only=True)
class LatePut:
    """A queued put that did not end as its caller was told: it failed, or other bytes were there before."""

    key: EntryKey = attrs.field(repr=False)
    stored: Stored

    @property
    def reason(self) -> str:
        """What happened, in a sentence."""
        return self.stored.reason or "other bytes were stored under this key before, and stayed"


@attrs.frozen(kw_only=True)
class Flushed:
    """What became of the puts that were queued since the last report.

    `written` and `present` are counts of puts: written now, and there already with equal bytes. `problems` are the rest.
    `waiting` puts are still queued, because one write takes longer than the store's patience.
    """

    written: int
    present: int
    problems: Sequence[LatePut]
    waiting: int


@attrs.frozen(kw_only=True, eq=False)
class _Task:
    """One queued change of the inner store: a put of `held`, or without one, a set-aside for `reason`.

    `hides`: what the inner store has under this key is set aside by this task or one before it, so nobody may get it.
    """

    key: EntryKey
    held: Held | None = None
    reason: str = ""
    hides: bool

    @property
    def bytes(self) -> int:
        """What the task takes in memory while it waits."""
        return self.held.bytes if self.held is not None else 0

    def shown(self) -> Lookup:
        """What a get finds because of this task."""
        if self.held is None:
            return Lookup(outcome=Outcome.MISS, reason=f"the entry was set aside: {self.reason}")
        return Lookup(outcome=Outcome.HIT, entry=self.held.entry())


class BackgroundStore:
    """Puts of the inner store, done later by one thread. A get sees what is in the inner store, and else what is queued.

    A put is told as written when it is queued; what really became of it is told by `flush` and `close`, and logged as a
    warning where nobody asks: at the end of a ``with`` block and of the process. A counting store inside this one counts
    what was really written. A queue that holds `max_bytes` refuses further entries with a reason, so a store that is
    stuck takes no more memory than that, or than one entry. The thread is there only while something is queued.

    A normal end of the process waits for what is queued. One write that takes longer than `patience_s` ends this wait, as
    it ends that of `flush` and `close`. A forked child begins with an empty queue: its parent writes what was queued.
    """

    def __init__(
        self, inner: Store, *, max_bytes: int = 256 << 20, patience_s: float = 60.0
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._lock = ForkLock(in_child=self._begin_empty)
        self._closed = False
        self._begin_empty()
        _stores[id(self)] = self

    def _begin_empty(self) -> None:
        self._changed = threading.Condition(self._lock.inner)
        self._queue: deque[_Task] = deque()
        self._newest: dict[bytes, _Task] = {}
        self._bytes = 0
        self._taken = self._done = 0
        self._writing = False
        self._written = self._present = 0
        self._problems: list[LatePut] = []

    @property
    def writable(self) -> bool:
        """False when the inner store refuses puts."""
        return is_writable(self._inner)

    def get(self, key: EntryKey) -> Lookup:
        return self._found(key, self._inner.get)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find, without a change of the inner store."""
        return self._found(key, lambda key: look(self._inner, key))

    def put(self, entry: Entry) -> Stored:
        if not self.writable:
            return self._inner.put(entry)
        held = hold(entry)
        with self._changed:
            newest = self._newest.get(held.key.text)
            if newest is not None and newest.held is not None:
                return Stored(written=False, differs=newest.held.payload != held.payload)
            if self._closed:
                return Stored(written=False, reason="the background store is closed")
            if self._queue and self._bytes + held.bytes > self._max_bytes:
                reason = f"{self._bytes} bytes wait to be written, of {self._max_bytes} that may"
                return Stored(written=False, reason=reason)
            task = _Task(key=held.key, held=held, hides=newest is not None)
            alone = self._add(task)
        if alone:
            self._write_all()
        return Stored(written=True)

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Queued like a put, and after those before it. A get misses from now on, until the next put.

        Nothing happens where the inner store cannot set aside.
        """
        if not isinstance(self._inner, SetsAside):
            return
        with self._changed:
            alone = self._add(_Task(key=key, reason=reason, hides=True))
        if alone:
            self._write_all()

    def flush(self) -> Flushed:
        """Waits until all that is queued now is written, and says what became of the puts since the last report."""
        with self._changed:
            target = self._taken
        while self._wait_for_one(target):
            pass
        with self._changed:
            report = Flushed(
                written=self._written,
                present=self._present,
                problems=tuple(self._problems),
                waiting=sum(task.held is not None for task in self._queue),
            )
            self._written = self._present = 0
            self._problems = []
        return report

    def close(self) -> Flushed:
        """Refuses further puts and flushes. Gets go on working."""
        with self._changed:
            self._closed = True
        return self.flush()

    def __enter__(self) -> "BackgroundStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        log_flushed(self.close())

    def _found(self, key: EntryKey, ask: Callable[[EntryKey], Lookup]) -> Lookup:
        # The queue first: what has left it since is in the inner store already.
        with self._changed:
            newest = self._newest.get(key.text)
        if newest is None:
            return ask(key)
        if newest.hides:
            return newest.shown()
        # The first writer wins, also when that is another process and this one's entry is still queued.
        lookup = ask(key)
        return lookup if lookup.entry is not None else newest.shown()

    def _add(self, task: _Task) -> bool:
        """Queues a task. True when the caller must write it, for want of a thread."""
        self._queue.append(task)
        self._newest[task.key.text] = task
        self._bytes += task.bytes
        self._taken += 1
        if self._writing:
            return False
        self._writing = True
        return not _started(self._write_all)

    def _wait_for_one(self, target: int) -> bool:
        """Waits for one more task. False when `target` tasks are done, or the patience has ended."""
        with self._changed:
            done = self._done
            if done >= target:
                return False
            if self._writing:
                return self._changed.wait_for(
                    lambda: self._done > done or not self._writing, self._patience_s
                )
            # Whoever wrote was interrupted.
            self._writing = True
        self._write_all()
        return True

    def _write_all(self) -> None:
        """Works off the queue until it is empty. Only who has set `_writing` may call it."""
        try:
            while (task := self._next()) is not None:
                stored = Stored(written=False, reason="the write was interrupted")
                try:
                    stored = self._write(task)
                finally:
                    self._finish(task, stored)
        except BaseException:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
            raise

    def _next(self) -> _Task | None:
        with self._changed:
            self._writing = bool(self._queue)
            return self._queue[0] if self._queue else None

    def _write(self, task: _Task) -> Stored:
        try:
            if task.held is not None:
                return self._inner.put(task.held.entry())
            set_aside(self._inner, task.key, task.reason)
        except Exception as error:
            # No store should raise. One that does must not end the thread that writes everything else.
            return Stored(written=False, reason=f"{type(error).__name__}: {error}")
        return Stored(written=False)

    def _finish(self, task: _Task, stored: Stored) -> None:
        with self._changed:
            if not self._queue or self._queue[0] is not task:
                # A child that was forked by the writing thread itself: the queue is the parent's.
                return
            self._queue.popleft()
            if self._newest.get(task.key.text) is task:
                del self._newest[task.key.text]
            self._bytes -= task.bytes
            self._done += 1
            if stored.reason or stored.differs:
                self._problems.append(LatePut(key=task.key, stored=stored))
            elif task.held is not None:
                self._written += stored.written
                self._present += not stored.written
            self._changed.notify_all()


def log_flushed(report: Flushed) -> None:
    """Logs what could not be written as it should, as warnings of the logger ``graphspec.cache``."""
    logger = logging.getLogger("graphspec.cache")
    for late in report.problems:
        extra = {"event": "cache_late_put", "key": late.key.digest, "reason": late.reason}
        logger.warning("a queued put: %s", late.reason, extra=extra)
    if report.waiting:
        logger.warning(
            "not written yet: %s",
            plural(report.waiting, "queued put"),
            extra={"event": "cache_not_written", "puts": report.waiting},
        )


_stores: "weakref.WeakValueDictionary[int, BackgroundStore]" = weakref.WeakValueDictionary()
_exit_hook_of: int | None = None
_exiting = False


def _started(work: Callable[[], None]) -> bool:
    """Runs `work` in a thread; False where none can be had: too many, or the interpreter is ending."""
    if _exiting:
        return False
    _flush_at_exit()
    try:
        threading.Thread(target=work, name="graphspec-cache", daemon=True).start()
    except RuntimeError:
        return False
    return True


def _flush_at_exit() -> None:
    """Once in each process: a child of multiprocessing drops the hooks of its parent, or ends without any of atexit."""
    global _exit_hook_of  # noqa: PLW0603 - hooks are the process's, and so is what tells that they are set
    if _exit_hook_of != os.getpid():
        _exit_hook_of = os.getpid()
        atexit.register(_flush_all)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, _flush_all, exitpriority=0)


def _flush_all() -> None:
    global _exiting  # noqa: PLW0603 - what other exit hooks put from now on must not wait for a thread
    if _exiting:
        return
    _exiting = True
    for reference in _stores.valuerefs():
        store = reference()
        if store is not None:
            log_flushed(store.flush())
