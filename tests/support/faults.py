"""Processes that are killed at any step of what they do with files: at each call of `os`, or at each system call.

Steps are counted in a child of a small server process, which forks and has no threads. A kill is a real SIGKILL.
"""

import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.processes import TESTS

STEPS = tuple("open close write fsync mkdir rmdir link unlink rename utime".split())
"""The calls of `os` by which the disk store changes files. A kill after one is a kill before the next: nothing else that
could be seen happens in between."""
AT_ONCE = 64
"""The least bytes that a write takes at once in a process that is to be killed, so that an entry is several steps."""


@contextlib.contextmanager
def memory_folder() -> Iterator[str]:
    """A folder that is fast to sync, where the machine has one: a kill does not depend on the disk."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def hooked(hook: Callable[..., Any]) -> Iterator[None]:
    """Inside the block each of `STEPS` is ``hook(name, real, *arguments, **named)``."""
    real = {name: getattr(os, name) for name in STEPS}

    def replaced(name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: hook(name, real[name], *arguments, **named)

    for name in STEPS:
        setattr(os, name, replaced(name))
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)


class Killer:
    """Runs actions on a cache folder in processes of their own, and kills them where it is told. A context manager.

    An action is a function of a module of tests, named ``module:function``; its argument is the folder.
    """

    def __enter__(self) -> "Killer":
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from support.faults import serve; serve()"],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            cwd=TESTS.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.communicate(timeout=60)

    def steps(self, action: str, root: str) -> list[str]:
        """The names of all steps of an action that runs to its end."""
        answer = self._ask(action=action, root=root)
        assert answer["status"] == 0, answer
        return list(answer["steps"])

    def kill(self, action: str, root: str, step: int) -> None:
        """Runs an action that is killed before one of its steps, or with the number of its steps, after the last."""
        answer = self._ask(action=action, root=root, step=step)
        assert answer["status"] == -signal.SIGKILL, answer

    def kill_at_system_call(self, action: str, root: str, number: int) -> bool:
        """Runs an action that is killed where it asks for its `number`-th system call. False when it makes fewer."""
        answer = self._ask(action=action, root=root, system_call=number)
        assert answer["status"] in (0, -signal.SIGKILL), answer
        return bool(answer["status"])

    def _ask(self, **request: Any) -> Mapping[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: Mapping[str, Any] = json.loads(self._server.stdout.readline())
        return answer


def serve() -> None:
    """The server: a request a line on its input, the answer a line on its output."""
    for line in sys.stdin:
        request = json.loads(line)
        module, name = request.pop("action").split(":")
        action = getattr(__import__(module, fromlist=[name]), name)
        # What the collector never touches, a fork need not copy.
        gc.disable()
        gc.freeze()
        run = _traced if "system_call" in request else _stepped
        print(json.dumps(run(action, **request)), flush=True)


def _stepped(action: Callable[[str], None], root: str, step: int = -1) -> Mapping[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        steps: list[str] = []

        def hook(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            if len(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            steps.append(name)
            if name == "write":
                descriptor, data = arguments
                arguments = (descriptor, bytes(data)[: max(AT_ONCE, len(data) // 4)])
            return real(*arguments, **named)

        def run() -> None:
            with hooked(hook):
                action(root)
            if len(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(writing, json.dumps(steps).encode())

        _end_with(run)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        steps = json.loads(pipe.read() or b"[]")
    return {"status": os.waitstatus_to_exitcode(status), "steps": steps}


_TRACE_ME, _TO_NEXT_STOP = 0, 24


def _traced(action: Callable[[str], None], root: str, system_call: int) -> Mapping[str, Any]:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    child = os.fork()
    if not child:
        ptrace(_TRACE_ME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        _end_with(lambda: action(root))
    status = os.waitpid(child, 0)[1]
    # Each call stops twice: where it is asked for, and where it returns.
    for _ in range(2 * system_call + 1):
        ptrace(_TO_NEXT_STOP, child, None, None)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSTOPPED(status):
            return {"status": os.waitstatus_to_exitcode(status)}
    os.kill(child, signal.SIGKILL)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def _end_with(action: Callable[[], None]) -> None:
    """Runs an action and ends this process, which is a fork and must not go on as its parent would."""
    try:
        action()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
