"""``graphspec lint``: every operation of the program that no captured graph can repeat, with its line."""

import os
from typing import TYPE_CHECKING

import click

from graphspec.cli.common import (
    FINDINGS,
    FINE,
    config_option,
    json_option,
    print_json,
    set_option,
)

if TYPE_CHECKING:
    from graphspec.capture.lint import LintReport


@click.command()
@config_option
@set_option
@click.option("--units-only", is_flag=True, help="Do not run decode steps, which need the weights.")
@json_option
def lint(config: str, settings: tuple[str, ...], units_only: bool, as_json: bool) -> int:
    """Run every unit and each depth's decode step on a CPU, and list what no captured graph can repeat.

    Exit code 0 when everything ran and nothing was found, else 1. Nothing is compiled or captured, and no GPU is needed.
    """
    from graphspec.api import read_settings, resolve_document
    from graphspec.capture.lint import lint as run
    from graphspec.config.device import Target
    from graphspec.formats.assign import assign

    document = read_settings(config, settings)
    spec = on_cpu = resolve_document(document).require()
    if spec.device.target is not Target.CPU and not units_only:
        on_cpu = resolve_document(assign(document, "device.target=cpu")).require()
    report = run(spec, on_cpu=on_cpu, steps=not units_only)
    if as_json:
        print_json({"config": config, **report.as_dict()})
    else:
        _print(report)
    return FINE if report.clean else FINDINGS


def _print(report: "LintReport") -> None:
    from graphspec.text import plural

    for finding in report.findings:
        place = f"{_shortest(finding.file)}:{finding.line}" if finding.file else "no line"
        click.echo(f"{place}: {finding.operation}: {finding.what}")
        click.echo(f"    {finding.code}")
        click.echo(f"    in {', '.join(finding.seen_in)}: {finding.hint}")
    for one in report.not_run:
        click.echo(f"not run to its end: {one.where}: {one.reason}")
    click.echo(
        f"ran {plural(len(report.units), 'unit')} and {plural(len(report.steps), 'step')}; "
        f"findings {len(report.findings)}, not run to the end {len(report.not_run)}"
    )


def _shortest(file: str) -> str:
    below = os.path.relpath(file)
    return file if below.startswith("..") else below
