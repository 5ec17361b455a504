"""Runs tests against mutants: they are collected once, and for each mutant a forked process swaps the code of one function.

The swapped code has the file and the lines of the original, so tests that look at frames see what they always see.
"""

import ast
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import attrs
import pytest
from mutants import Mutant

_WALL_S = 600
"""How long a mutant's tests may take, on a machine that is busy with something else."""
_CPU_S = 20
_HEAVY = frozenset(("torch", "numpy", "sympy", "transformers", "tokenizers", "safetensors", "rich"))
_HITS = "__functions_that_ran__"


@attrs.frozen
class Verdict:
    """What became of a mutant: ``killed``, ``timeout``, ``survived`` or ``uncovered``, and the test that killed it."""

    mutant: Mutant
    outcome: str
    by: str = ""


class Forks:
    """A pytest plugin whose run loop is a fork for each mutant."""

    def __init__(self, mutants: Sequence[Mutant], tell: Callable[[Verdict], None]) -> None:
        self.verdicts: list[Verdict] = []
        self.broken: list[str] = []
        """Tests that fail without any mutant."""
        self._mutants = mutants
        self._tell = tell

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running each test once."""
        items = {item.nodeid: item for item in session.items}
        times, tests_of, self.broken = _statistics(session, self._mutants)
        if self.broken:
            return True
        last: dict[str, str] = {}
        for mutant in self._mutants:
            function = f"{mutant.module}.{mutant.function}"
            # What killed the one before kills the next one too, as a rule.
            order = sorted(tests_of[function], key=lambda t: (t != last.get(function), times[t]))
            seconds = sum(times[t] for t in order)
            verdict = _tried(session, [items[t] for t in order], mutant, seconds)
            if verdict.by:
                last[function] = verdict.by
            self.verdicts.append(verdict)
            self._tell(verdict)
        return True


def _statistics(
    session: pytest.Session, mutants: Iterable[Mutant]
) -> tuple[Mapping[str, float], Mapping[str, list[str]], list[str]]:
    """How long each test takes, which tests run each function, and which tests fail, by one run in a fork."""
    functions = {(m.module, m.function): m.file for m in mutants}

    def run(write: Callable[[Any], None]) -> None:
        hits: set[str] = set()
        for (module, function), file in functions.items():
            _noted(module, function, file, hits)
        for item, after in _in_order(session.items):
            hits.clear()
            failed, begin = session.testsfailed, time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            took = time.process_time() - begin
            write([item.nodeid, took, sorted(hits), session.testsfailed > failed])
        write(list(sys.modules))

    _, lines = _forked(session, run, cpu_s=3600)
    times: dict[str, float] = {}
    tests_of: dict[str, list[str]] = {f"{m}.{f}": [] for m, f in functions}
    broken = []
    if len(lines) > len(session.items):
        _preload(lines.pop())
    for test, took, hits, failed in lines:
        times[test] = took
        broken += [test] * failed
        for hit in hits:
            tests_of[hit].append(test)
    lost = len(session.items) - len(times)
    return times, tests_of, [*broken, *[f"{lost} tests that were not run"] * bool(lost)]


def _preload(names: Iterable[str]) -> None:
    """Imports what tests import inside themselves, once for all: torch takes longer than most tests."""
    for name in names:
        if name.partition(".")[0] in _HEAVY and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _noted(module: str, function: str, file: str, hits: set[str]) -> None:
    """Makes a function note that it ran, by one more statement at its begin and no frame of its own."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    node: Any = tree
    for part in function.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == part)
    # Also in what is defined inside: a writer that one test had made runs in the next.
    _Noting(f"{module}.{function}").visit(node)
    code: Any = compile(tree, file, "exec", dont_inherit=True)
    for name in function.split("."):
        code = next(c for c in code.co_consts if getattr(c, "co_name", None) == name)
    found = _function(module, function)
    found.__globals__[_HITS] = hits
    found.__code__ = code


class _Noting(ast.NodeTransformer):
    """Puts a note at the begin of a function and of all functions in it."""

    def __init__(self, name: str) -> None:
        self._note = f"{_HITS}.add({name!r})"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        first = node.body[0]
        has_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        node.body.insert(1 if has_text else 0, self._placed(ast.parse(self._note).body[0], first))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        body = node.body
        both = ast.parse(f"({self._note}, 0)[1]", mode="eval").body
        node.body = self._placed(both, body)
        node.body.value.elts[1] = body
        return node

    @staticmethod
    def _placed(note: Any, place: ast.AST) -> Any:
        for part in ast.walk(note):
            ast.copy_location(part, place)
        return note


def _function(module: str, function: str) -> FunctionType:
    found: Any = importlib.import_module(module)
    for name in function.split("."):
        found = vars(found)[name]
    found = getattr(found, "__func__", found)
    assert isinstance(found, FunctionType), f"{module}.{function}"
    return found


def swap(mutant: Mutant) -> None:
    """Puts the mutant's code and defaults in the place of its function's."""
    function = _function(mutant.module, mutant.function)
    code: CodeType = mutant.compiled()
    arguments = mutant.arguments()

    def value(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), mutant.file, "eval"), function.__globals__)

    function.__code__ = code
    function.__defaults__ = tuple(map(value, arguments.defaults)) or None
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    function.__kwdefaults__ = {a.arg: value(d) for a, d in named if d is not None} or None


def _tried(
    session: pytest.Session, items: Sequence[pytest.Item], mutant: Mutant, seconds: float
) -> Verdict:
    if not items:
        return Verdict(mutant, "uncovered")

    def run(write: Callable[[Any], None]) -> None:
        try:
            swap(mutant)
        except SyntaxError as error:
            write(f"the compiler: {error}")
            return
        for item, after in _in_order(items):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                write(item.nodeid)
                return

    status, lines = _forked(session, run, cpu_s=_CPU_S + int(10 * seconds))
    if lines:
        return Verdict(mutant, "killed", str(lines[0]))
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(mutant, "timeout")
    return Verdict(mutant, "killed" if status else "survived")


def _in_order(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def _forked(
    session: pytest.Session, run: Callable[[Callable[[Any], None]], None], cpu_s: int
) -> tuple[int, list[Any]]:
    """Runs something in a forked process. Its exit status, negative for a signal, and the values that it wrote."""
    folder = session.config.rootpath / "build" / "mutants" / f"tmp-{os.getpid()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 70
        with contextlib.suppress(BaseException):
            os.close(read)
            os.setpgid(0, 0)
            _limited(cpu_s)
            factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
            factory._basetemp, factory._given_basetemp = None, folder
            run(lambda value: _written(write, value))
            status = 0
        os._exit(status)
    os.close(write)
    try:
        text = _all_of(read, child)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        _, waited = os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
    return os.waitstatus_to_exitcode(waited), [json.loads(line) for line in text.splitlines()]


def _limited(cpu_s: int) -> None:
    with open(os.devnull, "r+b") as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    # A loop that only appends must not take the machine's memory.
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))


def _written(to: int, value: Any) -> None:
    os.write(to, json.dumps(value).encode() + b"\n")


def _all_of(read: int, child: int) -> str:
    """What comes until the child has ended. Its own children may hold the pipe, so its end is no sign."""
    import select

    parts: list[bytes] = []
    end = time.monotonic() + _WALL_S * 4
    while time.monotonic() < end:
        ready, _, _ = select.select([read], [], [], 0.2)
        part = os.read(read, 1 << 16) if ready else b""
        parts.append(part)
        if (ready and not part) or (not ready and _ended(child)):
            break
    return b"".join(parts).decode()


def _ended(child: int) -> bool:
    # Without waiting for it: the status is read once, by waitpid.
    state = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return state is not None
