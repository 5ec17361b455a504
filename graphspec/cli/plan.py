"""``graphspec plan``: which graphs a config's schedule can reach, what they pad and take, and what runs without one."""

from typing import TYPE_CHECKING

import click

from graphspec.cli.common import (
    FINE,
    config_option,
    json_option,
    print_json,
    set_option,
    write_file,
)

if TYPE_CHECKING:
    from graphspec.capture.keys import GraphKind
    from graphspec.resolve.spec import EngineSpec


@click.command()
@config_option
@set_option
@click.option(
    "--traffic",
    "traffic_file",
    metavar="FILE",
    help="Choose the best buckets for this histogram or log of batch sizes.",
)
@click.option("--max-graphs", type=click.IntRange(min=0), help="At most so many full graphs.")
@click.option("--max-mib", type=click.FloatRange(min=0), help="At most so much memory for them.")
@click.option(
    "--max-seconds", type=click.FloatRange(min=0), help="At most so long to capture them."
)
@click.option(
    "--report",
    "report_file",
    metavar="FILE",
    help="JSON of an earlier warmup: what graphs took, and what ran when.",
)
@click.option(
    "--output", metavar="FILE", help="Also write the buckets, for graphspec warmup --buckets."
)
@click.option("--html", metavar="FILE", help="Also write the plan as one HTML page.")
@click.option(
    "--ask-program",
    is_flag=True,
    help="Import the program, and with it torch, for the kinds of graphs it can be captured as.",
)
@json_option
def plan(
    config: str,
    settings: tuple[str, ...],
    traffic_file: str | None,
    max_graphs: int | None,
    max_mib: float | None,
    max_seconds: float | None,
    report_file: str | None,
    output: str | None,
    html: str | None,
    ask_program: bool,
    as_json: bool,
) -> int:
    """Print which graphs the schedule can reach, tier by tier: sizes, padding, memory, and what runs without one.

    With --traffic or a limit, the buckets are the best for the traffic within the limits; without a file, every batch
    size counts alike. Needs no device, no weights and, without --ask-program, no torch.
    """
    from graphspec.api import load
    from graphspec.capture.limits import Limits
    from graphspec.capture.memory_model import GraphCosts
    from graphspec.capture.plan import plan_capture
    from graphspec.capture.plan_report import PlanReport

    spec = load(config, settings)
    earlier = None
    if report_file is not None:
        from graphspec.capture.warmup_file import read_warmup

        earlier = read_warmup(report_file, spec.parallel)
    costs = GraphCosts() if earlier is None else GraphCosts.from_samples(earlier.samples)
    limits = Limits(max_graphs=max_graphs, max_mib=max_mib, max_seconds=max_seconds)
    captures = _captures(spec, ask=ask_program)
    chosen = traffic = None
    if traffic_file is not None or limits != Limits():
        from graphspec.capture.traffic import Traffic
        from graphspec.capture.traffic_file import read_traffic
        from graphspec.capture.traffic_report import report_of_traffic

        most = spec.schedule.max_num_seqs
        traffic = read_traffic(traffic_file, max_num_seqs=most) if traffic_file else None
        chosen = report_of_traffic(
            spec,
            traffic or Traffic.uniform(most),
            limits,
            costs=costs,
            captures=captures,
            source=traffic_file or "",
        )
    report = PlanReport(
        spec=spec,
        plan=plan_capture(spec, captures=captures) if chosen is None else chosen.plan,
        captures=captures,
        captures_assumed=not ask_program,
        traffic=traffic,
        costs=costs,
    )
    if output is not None:
        from graphspec.capture.buckets_file import buckets_text

        write_file("--output", output, buckets_text(report.plan.buckets, spec.parallel))
    if html is not None:
        from graphspec.capture.plan_html import plan_html

        timeline = () if earlier is None else earlier.timeline
        write_file("--html", html, plan_html(report, config, traffic=chosen, timeline=timeline))
    if as_json:
        told = None if chosen is None else chosen.as_dict()
        print_json({**report.as_dict(), "traffic": told})
    else:
        from graphspec.cli.plan_tables import show_plan

        show_plan(report, chosen)
    return FINE


def _captures(spec: "EngineSpec", *, ask: bool) -> "frozenset[GraphKind]":
    if not ask:
        from graphspec.capture.keys import FULL_VERIFY

        return FULL_VERIFY
    from graphspec.capture.program import captures_of, load_program

    return captures_of(load_program(spec))
