"""Reports of a warmup as tables for people."""

from rich.console import Console
from rich.table import Table

from graphspec.cache.load import UnitResult
from graphspec.capture.plan_report import graph_as_dict
from graphspec.capture.preview import Preview
from graphspec.capture.report import Decisions, WarmupReport


def _console() -> Console:
    return Console(highlight=False)


def done_with(result: UnitResult) -> str:
    """What became of a unit, in words."""
    if result.same_as:
        return f"same as {result.same_as}"
    return "compiled" if result.compiled else "loaded"


def show_report(report: WarmupReport) -> None:
    """Two tables, the findings, and one line with the counts that scripts look for."""
    console = _console()
    units = Table("unit", "outcome", "done", "seconds", "bytes", "key")
    for u in report.units:
        units.add_row(
            u.name, u.outcome.value, done_with(u), f"{u.seconds:.3f}", f"{u.bytes:,}", u.key[:12]
        )
    console.print(units)
    g = report.graphs
    graphs = Table(
        "graphs planned", "captured", "reachable", "equal to eager", "fall through", "memory"
    )
    graphs.add_row(
        str(g.planned),
        str(g.captured),
        str(g.reachable),
        f"{len(g.verified) - len(g.differing)} of {len(g.verified)}",
        ", ".join(map(str, g.fallthrough)) or "none",
        f"{g.memory_bytes / 2**20:.2f} MiB",
    )
    console.print(graphs)
    for u in report.units:
        if u.reason and u.outcome.value != "miss" and not u.same_as:
            console.print(
                f"unit {u.name}: {u.outcome.value}: {u.reason}", soft_wrap=True, markup=False
            )
    _show_decisions(console, report.decisions)
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.phases.items())
    traced = f"; tracing {report.trace_seconds:.2f} s of it" if report.trace_seconds else ""
    console.print(f"{report.seconds:.2f} s in all: {phases}{traced}")
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    for finding in report.findings:
        console.print(f"finding: {finding}", soft_wrap=True, markup=False)
    console.print(
        f"compiled {report.compiled}, loaded {report.loaded}, seconds saved {report.seconds_saved:.1f}"
    )


def _show_decisions(console: Console, decisions: Decisions) -> None:
    mode, schedule = decisions.mode, decisions.schedule
    console.print(f"graph mode {mode.granted.value} (asked {mode.asked.value})")
    if schedule is not None:
        tiers = ", ".join(f"{a} to {b}: {k}" for a, b, k in schedule.granted.tiers)
        table = "asked by table" if schedule.asked is not None else "one depth"
        console.print(f"draft depth by requests ({table}): {tiers}", soft_wrap=True)


def show_preview(seen: Preview) -> None:
    """What a warmup would do."""
    console = _console()
    units = Table("unit", "would be", "key", "why")
    for u in seen.units:
        units.add_row(u.name, "loaded" if u.stored else "compiled", u.key, u.reason)
    console.print(units)
    graphs = Table("phase", "k", "requests", "tokens")
    for key in seen.plan.keys:
        told = graph_as_dict(key)
        requests = "any" if told["requests"] is None else str(told["requests"])
        graphs.add_row(key.phase.value, str(key.k), requests, str(key.tokens))
    console.print(graphs)
    falling = ", ".join(map(str, seen.plan.fallthrough())) or "none"
    _show_decisions(console, seen.decisions)
    for sentence in seen.decisions.lowered:
        console.print(f"  {sentence}", soft_wrap=True, markup=False)
    for note in seen.decisions.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    console.print(f"batch sizes without a full graph: {falling}")
    console.print(
        f"would compile {seen.missing}, would load {seen.present}, "
        f"would capture {len(seen.plan.keys)}"
    )
