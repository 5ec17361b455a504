"""Other processes that stop at a named step until the test lets them go on, so that a race has one order, without a sleep.

A `Troupe` is one process that has loaded the cache and forks an `Actor` in milliseconds.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import move_away
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.units import EntryKey
from support.entries import entry_of, key_of
from support.processes import TESTS

STEPS = ("half written", "before link", "after link", "entry opened", "before rename", "after rename",
         "before unlink")  # fmt: skip
_HOLDS = "the lock is held"


class Actor:
    """A process that does one thing to a cache folder, and stops the first time that it gets to its step.

    It is killed when the block that uses it ends.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = channel.makefile("r", encoding="utf-8")
        self._stopped = self._ended = False
        pid = self._lines.readline()
        if not pid:
            self._lines.close()
            channel.close()
            raise AssertionError("the process that forks actors has ended")
        self.pid = int(pid)

    def __enter__(self) -> "Actor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._lines.close()
        self._channel.close()

    def arrive(self) -> "Actor":
        """Waits until the process has stopped at its step."""
        said = self._said()
        assert "at" in said, said
        self._stopped = True
        return self

    def go_on(self) -> None:
        """Lets a process go on that has stopped."""
        self._stopped = False
        self._channel.sendall(b"\n")

    def result(self) -> Mapping[str, Any]:
        """What came of it, once the process is at its end. It goes on if it has stopped."""
        if self._stopped:
            self.go_on()
        said = self._said()
        if "at" in said:
            self.go_on()
            said = self._said()
        assert self._lines.readline() == ""
        self._ended = True
        return said

    def kill(self) -> None:
        """Ends the process where it stands, and waits until it is gone."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            while True:
                os.sched_yield()
                os.kill(self.pid, 0)

    def _said(self) -> Mapping[str, Any]:
        line = self._lines.readline()
        assert line, "the process has ended without a word"
        said: Mapping[str, Any] = json.loads(line)
        assert "error" not in said, said["error"]
        return said


class Troupe:
    """Starts actors. Use as a context manager; its process ends with the block."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.races", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                cwd=TESTS.parent,
            )

    def __enter__(self) -> "Troupe":
        return self

    def __exit__(self, *exception: object) -> None:
        self._control.close()
        self._process.wait()

    def send(
        self,
        root: str,
        do: str,
        name: str = "a",
        *,
        payload: str = "library bytes",
        at: str = "",
        links: bool = True,
        digest: str = "",
    ) -> Actor:
        """Starts a process. `do`: "put", "get", "remove" by eviction's own way, or "lock", which stops while it holds it.

        `at` is the step where it stops, one of `STEPS`. Without `links` it sees a file system that has no hard links.
        `digest` names the key of a lock in place of `name`.
        """
        ours, theirs = socket.socketpair()
        request = {
            "root": root,
            "do": do,
            "name": name,
            "digest": digest or key_of(name).digest,
            "payload": payload,
            "at": at,
            "links": links,
        }
        with theirs:
            socket.send_fds(self._control, [b"x"], [theirs.fileno()])
        ours.sendall(json.dumps(request).encode() + b"\n")
        return Actor(ours)


def _serve(control: socket.socket) -> None:
    # Nobody waits for actors: they are gone when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=descriptors[0]) as channel:
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _play(channel)
                os._exit(0)


class _Stage:
    """In an actor: the channel to the test."""

    def __init__(self, channel: socket.socket) -> None:
        self._lines = channel.makefile("rw", encoding="utf-8", buffering=1)

    def say(self, said: Mapping[str, Any] | int) -> None:
        self._lines.write(json.dumps(said) + "\n")

    def hear(self) -> str:
        return self._lines.readline()

    def stop(self, step: str) -> None:
        self.say({"at": step})
        self.hear()


def _play(channel: socket.socket) -> None:
    stage = _Stage(channel)
    stage.say(os.getpid())
    try:
        request = json.loads(stage.hear())
        if not request["links"]:
            os.link = _no_links
        if request["at"]:
            _stop_at(request["at"], stage)
        act = {"put": _put, "get": _get, "remove": _remove, "lock": _lock}[request["do"]]
        stage.say(act(request, stage))
    except BaseException:
        stage.say({"error": traceback.format_exc()})


def _no_links(source: str, target: str) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _stop_at(step: str, stage: _Stage) -> None:
    """Replaces the call of the step by one that stops once. Only this process sees it."""
    assert step in STEPS
    if step == "half written":
        _once(
            "write",
            "",
            lambda real, to, data: _after(stage, step, real, to, bytes(data)[: len(data) // 2]),
        )
    elif step == "entry opened":
        _once("open", ".entry", lambda real, *a: _after(stage, step, real, *a))
    else:
        when, call = step.split()
        how = _before if when == "before" else _after
        _once(call, "", lambda real, *a: how(stage, step, real, *a))


def _once(name: str, ending: str, how: Callable[..., Any]) -> None:
    real = getattr(os, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if not str(arguments[0]).endswith(ending):
            return real(*arguments, **named)
        setattr(os, name, real)
        return how(real, *arguments, **named)

    setattr(os, name, call)


def _before(stage: _Stage, step: str, real: Callable[..., Any], *arguments: Any) -> Any:
    stage.stop(step)
    return real(*arguments)


def _after(stage: _Stage, step: str, real: Callable[..., Any], *arguments: Any) -> Any:
    result = real(*arguments)
    stage.stop(step)
    return result


_Request = Mapping[str, Any]


def _put(request: _Request, stage: _Stage) -> Mapping[str, Any]:
    entry = entry_of(request["name"], request["payload"].encode())
    stored = DiskStore(request["root"]).put(entry)
    return {"written": stored.written, "reason": stored.reason, "differs": stored.differs}


def _get(request: _Request, stage: _Stage) -> Mapping[str, Any]:
    found = DiskStore(request["root"]).get(key_of(request["name"]))
    content = bytes(found.entry.payload).decode() if found.entry is not None else None
    return {"outcome": found.outcome.value, "reason": found.reason, "payload": content}


def _remove(request: _Request, stage: _Stage) -> Mapping[str, Any]:
    path = DiskStore(request["root"]).path_of(key_of(request["name"]))
    return {"removed": move_away(request["root"], path)}


def _lock(request: _Request, stage: _Stage) -> Mapping[str, Any]:
    with KeyLocks(request["root"]).try_lock(EntryKey(b"", request["digest"])) as free:
        stage.stop(_HOLDS)
    return {"free": free}


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _control:
        _serve(_control)
