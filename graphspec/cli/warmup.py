"""``graphspec warmup``: compile every unit and capture every graph ahead of time."""

import json

import click

from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    config_option,
    json_option,
    print_json,
    set_option,
    write_file,
)


@click.command()
@config_option
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
    "--trace", metavar="FILE", help="Also write what ran when, for chrome://tracing or Perfetto."
)
def warmup(
    config: str,
    settings: tuple[str, ...],
    cache_dir: str | None,
    as_json: bool,
    jobs: int | None,
    dry_run: bool,
    strict: bool,
    trace: str | None,
) -> int:
    """Compile every unit and capture every graph that the schedule can reach, ahead of time."""
    from graphspec.api import load

    spec = load(config, settings)
    if dry_run:
        from graphspec.capture.preview import preview

        seen = preview(spec, cache_dir=cache_dir)
        if as_json:
            print_json(seen.as_dict())
        else:
            from graphspec.cli.tables import show_preview

            show_preview(seen)
        return FINE
    if trace is not None:
        write_file("--trace", trace, "")
    from graphspec.capture.warmup import warmup as run

    if as_json:
        report = run(spec, cache_dir=cache_dir, jobs=jobs, strict=strict)
        print_json(report.as_dict())
    else:
        from graphspec.cli.progress import progress_display
        from graphspec.cli.tables import show_report

        with progress_display() as progress:
            report = run(spec, cache_dir=cache_dir, jobs=jobs, strict=strict, progress=progress)
        show_report(report)
    if trace is not None:
        from graphspec.capture.spans import trace_events

        write_file("--trace", trace, json.dumps(trace_events(report.timeline)))
    return FINDINGS if report.findings else FINE
