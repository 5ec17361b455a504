"""``graphspec warmup``: compile every unit and capture every graph ahead of time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    set_option,
    write_file,
)

if TYPE_CHECKING:
    from graphspec.capture.memory_model import GraphCosts
    from graphspec.capture.progress import Progress
    from graphspec.resolve.spec import EngineSpec


@click.command()
@click.option(
    "--config",
    "configs",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Config file; - for standard input. Several of them fill caches only.",
)
@set_option
@cache_dir_option
@json_option
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Compiler processes at once. Default: one per CPU."
)
@click.option(
    "--dry-run", is_flag=True, help="Print the plan and what the cache holds; compile nothing."
)
@click.option(
    "--strict", is_flag=True, help="Fail (exit 4) when the cache folder cannot take entries."
)
@click.option(
    "--buckets",
    "buckets_file",
    metavar="FILE",
    help="Capture these sizes, as graphspec plan --output writes them.",
)
@click.option(
    "--report",
    "report_file",
    metavar="FILE",
    help="JSON of an earlier warmup: its graphs predict what these take.",
)
@click.option(
    "--trace", metavar="FILE", help="Also write what ran when, for chrome://tracing or Perfetto."
)
@click.option(
    "--matrix",
    multiple=True,
    metavar="NAME=V1,V2",
    help="Fill the cache for each value of a field, as in --matrix tp=1,2,4. Can be repeated.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    help="Fill the cache by processes of this machine or of a Ray cluster, and capture nothing.",
)
@click.option("--address", metavar="ADDRESS", help="The Ray cluster. Default: one of this machine.")
@click.option(
    "--memory",
    "memory_gib",
    type=click.FloatRange(min=0),
    metavar="GIB",
    help="Memory that one compile of a matrix is said to take. Default: 1.5.",
)
@click.option(
    "--device",
    metavar="NAME|FILE",
    help="Build what a GPU that is not here will load. graphspec devices lists names.",
)
def warmup(
    configs: tuple[str, ...],
    settings: tuple[str, ...],
    cache_dir: str | None,
    as_json: bool,
    jobs: int | None,
    dry_run: bool,
    strict: bool,
    buckets_file: str | None,
    report_file: str | None,
    trace: str | None,
    matrix: tuple[str, ...],
    executor: str | None,
    address: str | None,
    memory_gib: float | None,
    device: str | None,
) -> int:
    """Compile every unit and capture every graph that the schedule can reach, ahead of time."""
    from graphspec.api import load

    many = bool(len(configs) > 1 or matrix or executor or address) or memory_gib is not None
    if many or device is not None:
        asked: dict[str, Any] = {"strict": strict, "buckets": buckets_file}
        asked |= {"report": report_file, "trace": trace}
        if device is not None:
            asked |= {"matrix": many, "dry-run": dry_run}
        if alone := [f"--{name}" for name, value in asked.items() if value]:
            raise click.UsageError(
                f"{', '.join(alone)}: only for one config on this machine, where graphs are captured"
                if device is None
                else f"--device does not go with {', '.join(alone)}"
            )
    if device is not None:
        from graphspec.cli.devices import warm_described

        (config,) = configs
        return warm_described(
            config, settings, device, cache_dir=cache_dir, jobs=jobs, as_json=as_json
        )
    if many:
        from graphspec.cli.fleet import MEMORY_GIB, warm_fleet

        return warm_fleet(
            configs,
            matrix,
            settings,
            executor=executor or "local",
            address=address,
            cache_dir=cache_dir,
            jobs=jobs,
            memory_gib=MEMORY_GIB if memory_gib is None else memory_gib,
            dry_run=dry_run,
            as_json=as_json,
        )
    (config,) = configs
    if dry_run and trace is not None:
        raise click.UsageError("--trace tells of a warmup that runs, and with --dry-run none does")
    spec = load(config, settings)
    buckets = None
    if buckets_file is not None:
        from graphspec.capture.buckets_file import read_buckets

        buckets = read_buckets(buckets_file, spec.parallel)
    if dry_run:
        from graphspec.capture.preview import preview

        seen = preview(spec, cache_dir=cache_dir, buckets=buckets)
        if as_json:
            print_json(seen.as_dict())
        else:
            from graphspec.cli.tables import show_preview

            show_preview(seen)
        return FINE
    from graphspec.capture.progress import Progress
    from graphspec.capture.warmup import warmup as run

    options: dict[str, Any] = {"cache_dir": cache_dir, "jobs": jobs, "strict": strict}
    options |= {"buckets": buckets, "costs": _costs(report_file, spec)}
    if as_json:
        with _traced(trace, Progress()) as told:
            report = run(spec, **options, progress=told)
        print_json(report.as_dict())
    else:
        from graphspec.cli.progress import progress_display
        from graphspec.cli.tables import show_report

        with progress_display() as shown, _traced(trace, shown) as told:
            report = run(spec, **options, progress=told)
        show_report(report)
    return FINDINGS if report.findings else FINE


def _costs(report_file: str | None, spec: "EngineSpec") -> "GraphCosts | None":
    if report_file is None:
        return None
    from graphspec.capture.memory_model import GraphCosts
    from graphspec.capture.warmup_file import read_warmup

    return GraphCosts.from_samples(read_warmup(report_file, spec.parallel).samples)


@contextmanager
def _traced(file: str | None, told: "Progress") -> Iterator["Progress"]:
    """A listener that tells `told` the same. Writes what ran when into `file`, also of a warmup that fails."""
    if file is None:
        yield told
        return
    from graphspec.capture.spans import trace_events
    from graphspec.capture.timeline import Timeline

    write_file("--trace", file, "")
    timeline = Timeline(told)
    try:
        yield timeline
    finally:
        timeline.ended()
        write_file("--trace", file, json.dumps(trace_events(timeline.spans())))
