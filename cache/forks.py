"""`ForkLock`: a lock that is free in a forked child, with what it guards in one piece."""

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

_all: "weakref.WeakSet[ForkLock]" = weakref.WeakSet()
_list = threading.RLock()
_held: list["ForkLock"] = []
_registered = False


class ForkLock:
    """A lock that a fork waits for, so that the child finds it free and nothing half changed.

    Nobody may take a second lock of this kind inside: a fork takes them all, in any order. `in_child` is called in a
    forked child before it runs anything else. It is a method of a living object: only a weak reference is kept.
    """

    def __init__(self, in_child: Callable[[], None] | None = None) -> None:
        # Reentrant: a signal handler may run, or fork, inside.
        self.inner = threading.RLock()
        self._in_child = weakref.WeakMethod(in_child) if in_child is not None else None
        with _list:
            _register()
            _all.add(self)

    def __enter__(self) -> None:
        self.inner.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inner.release()

    def tell_child(self) -> None:
        """Calls `in_child`."""
        told = self._in_child() if self._in_child is not None else None
        if told is not None:
            told()


def _register() -> None:
    """On the first lock, because an import changes nothing."""
    global _registered  # noqa: PLW0603 - a process registers once, and can never take it back
    if not _registered:
        _registered = True
        os.register_at_fork(
            before=_before, after_in_parent=_release, after_in_child=_after_in_child
        )


def _before() -> None:
    _list.acquire()
    for lock in list(_all):
        lock.inner.acquire()
        _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().inner.release()
    _list.release()


def _after_in_child() -> None:
    # The thread that forks goes on in the child and holds what it took: it releases as in the parent.
    locks = list(_held)
    _release()
    for lock in locks:
        lock.tell_child()
