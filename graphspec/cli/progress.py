"""Progress of a warmup: a bar per unit on a terminal, plain lines elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from graphspec.cache.load import UnitResult
from graphspec.cache.units import CompileUnit
from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import CapturePlan
from graphspec.capture.progress import Progress
from graphspec.cli.tables import done_with
from graphspec.text import plural


@contextmanager
def progress_display() -> Iterator[Progress]:
    """A progress listener that shows on standard error what is going on while the block runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console) as bars:
        yield _Bars(bars)


def _describe(result: UnitResult) -> str:
    if result.same_as:
        return f"unit {result.name}: {done_with(result)}"
    why = f" after {result.outcome.value}: {result.reason}" if result.compiled else ""
    return f"unit {result.name}: {done_with(result)} in {result.seconds:.2f} s, {result.bytes} bytes{why}"


class _Lines(Progress):
    def __init__(self, console: Console) -> None:
        self._console = console

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, units: Sequence[CompileUnit], plan: CapturePlan) -> None:
        self._say(f"plan: {plural(len(units), 'unit')}, {plural(len(plan.keys), 'graph')}")
        for key in plan.keys:
            self._say(f"  graph {key} ({key.tokens} tokens)")

    def unit_done(self, result: UnitResult) -> None:
        self._say(_describe(result))

    def phase(self, name: str) -> None:
        self._say(f"phase: {name}")


class _Bars(Progress):
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._units: dict[str, TaskID] = {}
        self._graphs: dict[str, TaskID] = {}
        self._planned = 0

    def started(self, units: Sequence[CompileUnit], plan: CapturePlan) -> None:
        self._planned = len(plan.keys)
        for unit in units:
            self._units[unit.name] = self._bars.add_task(f"unit {unit.name}", total=None)

    def unit_done(self, result: UnitResult) -> None:
        task, done = self._units[result.name], done_with(result)
        description = f"{result.name}: {done}" if result.same_as else f"{done} {result.name}"
        self._bars.update(task, total=1, completed=1, description=description)
        self._bars.stop_task(task)

    def phase(self, name: str) -> None:
        for task in self._graphs.values():
            self._bars.update(task, total=1, completed=1)
            self._bars.stop_task(task)
        if name in ("warm", "capture"):
            self._graphs = {name: self._bars.add_task(f"{name} graphs", total=self._planned)}
        elif name != "units":
            self._graphs = {name: self._bars.add_task(name, total=None)}

    def graph_done(self, phase: str, key: CaptureKey) -> None:
        self._bars.advance(self._graphs[phase])
