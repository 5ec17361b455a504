"""A plan as tables for people."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphspec.capture.left_out import left_out_of
from graphspec.capture.plan_report import PlanReport
from graphspec.capture.plan_text import ASSUMED, compared, padding, ranges, told
from graphspec.capture.traffic_report import TrafficReport
from graphspec.text import plural

_WIDE = 200


def show_plan(report: PlanReport, chosen: TrafficReport | None) -> None:
    """A table of the tiers, what runs without a graph, the traffic's ladder, and one line with the counts."""
    # A pipe has no width, and a table that is folded cannot be read.
    console = Console(highlight=False, width=None if Console().is_terminal else _WIDE)

    def say(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    tiers = Table(
        "requests", "k", "buckets", "graphs", "reachable", "padded tokens a step", "MiB", "seconds"
    )
    for tier in report.tiers:
        tiers.add_row(
            f"{tier.first} to {tier.last}",
            str(tier.k),
            ranges(tier.buckets),
            str(len(tier.keys)),
            str(tier.reachable),
            padding(tier.padded_tokens, tier.waste),
            told(tier.mib),
            told(tier.seconds),
        )
    console.print(tiers)
    if report.pieces:
        largest = max(key.bucket for key in report.pieces)
        say(
            f"{plural(len(report.pieces), 'piecewise graph')} up to {largest} tokens, for steps of any requests"
        )
    mode = report.spec.mode
    say(f"graph mode {mode.granted.value} (asked {mode.asked.value})")
    for reason in mode.reasons:
        say(f"  {reason}")
    for steps in report.eager:
        say(f"without a graph: {steps} ({steps.reason.name})")
    for part in left_out_of(report.plan):
        say(str(part))
    if report.captures_assumed:
        say(ASSUMED)
    if chosen is not None:
        _show_traffic(console, chosen)
    without = len(report.plan.fallthrough())
    say(
        f"planned {len(report.plan.keys)}, reachable {len(report.reachable)}, batch sizes without a graph {without}, "
        f"padded tokens a step {report.padded_tokens:.4g}, memory {told(report.mib)}, time {told(report.seconds)}"
    )


def _show_traffic(console: Console, found: TrafficReport) -> None:
    choice = found.choice
    ladders = Table(
        "ladder", "graphs", "padded tokens a step", "MiB", "seconds", "buckets by depth"
    )
    for name, ladder in (("best", choice.best), ("default", choice.default)):
        ladders.add_row(
            name,
            str(ladder.graphs),
            f"{ladder.padding.padded_tokens:.4g}",
            told(ladder.mib),
            told(ladder.seconds),
            "; ".join(f"k={k}: {ranges(s)}" for k, s in ladder.buckets.items()),
        )
    console.print(ladders)
    lines = [
        f"traffic {found.source or 'not given: every batch size alike'}: "
        f"the best ladder pads {compared(choice)}"
    ]
    if not choice.best_known:
        lines.append("several limits bind at once: all hold, and a better ladder may exist")
    if found.budgeted is not None:
        dropped = found.budgeted.dropped
        lines.append(
            f"of the default ladder the budget would drop {plural(len(dropped), 'bucket')}"
        )
        lines += [f"  {one}" for one in dropped]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
