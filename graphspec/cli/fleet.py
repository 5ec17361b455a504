"""The part of ``graphspec warmup`` that is for many configs or many workers: progress, tables, exit code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from graphspec.cli.common import FINDINGS, FINE, print_json
from graphspec.fleet.executor import Executor
from graphspec.fleet.matrix import Axis, expand
from graphspec.fleet.places import Place
from graphspec.fleet.plan import FleetPlan, Job, plan_fleet
from graphspec.fleet.report import FleetReport, JobReport, State
from graphspec.fleet.run import FleetProgress, run_fleet
from graphspec.text import plural

INTERRUPTED = 130
MEMORY_GIB = 1.5
"""What one compile is said to take. Up to three processes run for it, the worker, its compiler and that one's g++; of the
example's units the largest of them took 453 MiB."""


def warm_fleet(
    configs: Sequence[str],
    matrix: Sequence[str],
    settings: Sequence[str],
    *,
    executor: str,
    address: str | None,
    cache_dir: str | None,
    jobs: int | None,
    memory_gib: float,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Runs ``warmup`` over a matrix, and returns its exit code."""
    if address is not None and executor != "ray":
        raise click.UsageError("--address is of a Ray cluster: add --executor ray")
    memory_bytes = int(memory_gib * 2**30)
    variants = expand(configs, [Axis.parse(text) for text in matrix], settings)
    plan = plan_fleet(variants, cache_dir=cache_dir, memory_bytes=memory_bytes)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return FINE
    workers = _executor(executor, address, jobs, memory_bytes)
    if as_json:
        report = run_fleet(plan, workers)
        print_json(report.as_dict())
    else:
        with _display() as progress:
            report = run_fleet(plan, workers, progress=progress)
        _show_report(report)
    if report.cancelled:
        return INTERRUPTED
    return FINDINGS if report.findings else FINE


def _executor(
    name: str, address: str | None, jobs: int | None, memory_bytes: int
) -> Callable[[], Executor]:
    if name == "ray":
        from graphspec.fleet.on_ray import RayExecutor

        # Made here, and started by the run: that Ray is not installed is said before any work.
        ray = RayExecutor(address, slots=jobs)
        return lambda: ray
    from graphspec.fleet.local import LocalExecutor

    return lambda: LocalExecutor(jobs, memory_bytes=memory_bytes)


@contextmanager
def _display() -> Iterator[FleetProgress]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeElapsedColumn(), console=console) as bars:
        yield _Bar(bars)


class _Lines(FleetProgress):
    def __init__(self, console: Console) -> None:
        self._console = console

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, plan: FleetPlan, executor: str, slots: int) -> None:
        self._say(
            f"{plural(len(plan.variants), 'variant')}, {plural(len(plan.jobs), 'key')}: "
            f"{len(plan.missing)} to compile on {plural(slots, 'worker')} ({executor})"
        )

    def ended(self, report: JobReport) -> None:
        self._say(_ended(report))

    def lost(self, job: Job, attempt: int, reason: str) -> None:
        self._say(f"unit {job.unit}: worker lost in attempt {attempt}, tried again: {reason}")


class _Bar(FleetProgress):
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("looking into the cache", total=None)

    def started(self, plan: FleetPlan, executor: str, slots: int) -> None:
        what = f"compiling on {plural(slots, 'worker')} ({executor})"
        self._bars.update(self._task, total=len(plan.missing), description=what)

    def ended(self, report: JobReport) -> None:
        if report.state is State.PUBLISHED:
            return
        self._bars.advance(self._task)
        if report.state is not State.COMPILED:
            self._bars.console.print(_ended(report), highlight=False, soft_wrap=True, markup=False)

    def lost(self, job: Job, attempt: int, reason: str) -> None:
        self._bars.console.print(f"unit {job.unit}: worker lost, tried again", highlight=False)


def _ended(report: JobReport) -> str:
    why = f": {report.reason}" if report.reason else ""
    where = f" on {report.node} in {report.seconds:.2f} s" if report.node else ""
    return (
        f"unit {report.job.unit} ({report.job.key.digest[:12]}): {report.state.value}{where}{why}"
    )


def _show_plan(plan: FleetPlan, *, as_json: bool) -> None:
    counts = {place: sum(job.place is place for job in plan.jobs) for place in Place}
    if as_json:
        print_json(
            {
                "variants": list(plan.variants),
                "units": plan.units,
                "jobs": [
                    {
                        "unit": job.unit,
                        "key": job.key.digest,
                        "place": job.place.value,
                        "wanted_by": list(job.wanted_by),
                        "expected_seconds": job.expected_seconds,
                        "expected_from": job.expected_from,
                    }
                    for job in plan.jobs
                ],
                "would_compile": counts[Place.NOWHERE],
                "would_publish": counts[Place.HERE],
                "present": counts[Place.SHARED],
            }
        )
        return
    console = Console(highlight=False)
    table = Table("unit", "key", "variants", "would be", "expected", "from")
    words = {
        Place.NOWHERE: "compiled",
        Place.HERE: "published",
        Place.SHARED: "left: it is stored",
    }
    for job in plan.jobs:
        missing = job.place is Place.NOWHERE
        table.add_row(
            job.unit,
            job.key.digest[:12],
            str(len(job.wanted_by)),
            words[job.place],
            f"{job.expected_seconds:.1f} s" if missing else "",
            job.expected_from if missing else "",
        )
    console.print(table)
    console.print(_counted(plan), soft_wrap=True)
    console.print(f"would compile {counts[Place.NOWHERE]}, stored {counts[Place.SHARED]}")


def _counted(plan: FleetPlan) -> str:
    return (
        f"{plural(len(plan.variants), 'variant')} with {plural(plan.units, 'unit')}, "
        f"{plural(len(plan.jobs), 'key')} among them"
    )


def _show_report(report: FleetReport) -> None:
    console = Console(highlight=False)
    variants = Table("variant", "ready", "missing")
    for label in report.plan.variants:
        missing = report.missing_of(label)
        variants.add_row(label, "no" if missing else "yes", ", ".join(missing))
    console.print(variants)
    table = Table("unit", "key", "variants", "state", "node", "attempts", "seconds")
    for job in report.jobs:
        if job.state is not State.PRESENT:
            table.add_row(
                job.job.unit,
                job.job.key.digest[:12],
                str(len(job.job.wanted_by)),
                job.state.value,
                job.node,
                str(job.attempts or ""),
                f"{job.seconds:.2f}",
            )
    if table.row_count:
        console.print(table)
    console.print(_counted(report.plan), soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    for finding in report.findings:
        console.print(f"finding: {finding}", soft_wrap=True, markup=False)
    said = report.as_dict()
    console.print(
        f"compiled {said['compiled']}, present {said['present']}, "
        f"{report.compile_seconds:.1f} s of compiling in {report.seconds:.1f} s"
    )
