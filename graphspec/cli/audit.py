"""``graphspec audit``: each field is changed alone, and unit keys are compared with traced graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from graphspec.cli.common import (
    FINDINGS,
    FINE,
    config_option,
    json_option,
    print_json,
    set_option,
    write_file,
)

if TYPE_CHECKING:
    from rich.table import Table

    from graphspec.testing.audit_report import Report


@click.command()
@config_option
@set_option
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Audit for this kind of device, which need not be there. Default: the config's.",
)
@click.option(
    "--unit", "units", multiple=True, metavar="NAME", help="Only this unit. Can be repeated."
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="PATH",
    help="Only this field or section, as in --field model. Can be repeated.",
)
@click.option(
    "--values",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many other values of each field.",
)
@click.option(
    "--one-by-one",
    is_flag=True,
    help="Trace every unit for every field, also where nothing has read the field. Slow.",
)
@click.option(
    "--seeds",
    metavar="N,N,...",
    help="Also trace the config in a process with each PYTHONHASHSEED; graphs that differ are a finding.",
)
@click.option("--html", "html", metavar="FILE", help="Also write the report as one HTML page.")
@json_option
def audit(
    config: str,
    settings: tuple[str, ...],
    device: str | None,
    units: tuple[str, ...],
    fields: tuple[str, ...],
    values: int,
    one_by_one: bool,
    seeds: str | None,
    html: str | None,
    as_json: bool,
) -> int:
    """Change each field of the contract alone, trace every unit, and compare keys with graphs.

    A graph that moves under the same key is unsound (exit 1). A key that moves under the same graph is a needless
    miss. Needs no device and no weights.
    """
    from graphspec.api import load

    hash_seeds = _seeds(seeds)
    spec = load(config, [*settings, *([f"device.target={device}"] if device else [])])
    if html is not None:
        write_file("--html", html, "")  # what cannot be written should fail before the work
    from graphspec.testing.audit import audit as run

    with _progress(quiet=as_json) as told:
        report = run(
            spec,
            units=units,
            fields=fields,
            one_by_one=one_by_one,
            values=values,
            hash_seeds=hash_seeds,
            listener=told,
        )
    if html is not None:
        from graphspec.testing.audit_html import audit_html

        write_file("--html", html, audit_html(report, config))
    if as_json:
        print_json({"config": config, **report.as_dict()})
    else:
        _show(report)
    return FINDINGS if report.findings else FINE


def _seeds(text: str | None) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        seeds = (-1,)
    if any(not 0 <= seed < 1 << 32 for seed in seeds):
        raise click.BadParameter(
            f"{text!r} is no list of numbers from 0 to 4294967295, as in 0,1", param_hint="--seeds"
        )
    return seeds


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows the field that is being changed, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda path: None
        return
    with console.status("tracing the units as they are") as status:
        yield lambda path: status.update(f"changing {path}")


def _show(report: "Report") -> None:
    from rich.console import Console
    from rich.text import Text

    from graphspec.testing.audit_report import Verdict

    # A pipe has no width, and a matrix that is folded cannot be read.
    console = Console(highlight=False, width=None if Console().is_terminal else _WIDE)
    console.print(_matrix(report))
    for verdict in Verdict:
        count = report.counts[verdict.value]
        console.print(Text(f"{verdict.symbol} {verdict.value:<9}{count:>5}  {verdict.meaning}"))
    lines = [
        *(f"not changed: {row.path}: {row.skipped}" for row in report.rows if row.skipped),
        *(f"refused: {where}: {reason}" for where, reason in report.caught),
        *(f"needless: {_rate(report, path)}" for path, r in report.needless_rates.items() if r),
        *(f"note: {note}" for note in report.notes),
    ]
    for finding in report.findings:
        lines.append(f"finding: {finding.kind}: {finding.where}: {finding.text}")
        lines += [f"    {line}" for line in finding.diff]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    needless, moved = report.misses()
    console.print(
        f"{report.traces} traces in {report.seconds:.1f} s; findings {len(report.findings)}, "
        f"needless misses {needless} of {moved}, "
        f"fields not changed {sum(bool(row.skipped) for row in report.rows)}",
        soft_wrap=True,
    )


def _matrix(report: "Report") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "declared", "change", "known by", *report.columns)
    table.columns[0].overflow = table.columns[2].overflow = "fold"
    for at, row in enumerate(report.rows):
        after = report.rows[at + 1 : at + 2]
        last = not after or _section(after[0].path) != _section(row.path)
        cells = [row.cells.get(name) for name in report.columns]
        table.add_row(
            Text(row.path),
            row.stage,
            Text(f"{row.old} -> {row.new}" if row.cells else row.old),
            row.methods if row.cells else "not changed",
            *(
                Text(c.verdict.symbol, style=_STYLES.get(c.verdict.value, "")) if c else ""
                for c in cells
            ),
            end_section=last,
        )
    return table


def _rate(report: "Report", path: str) -> str:
    needless, moved = report.misses(path)
    return f"{path}: {needless} of {moved} misses ({needless / moved:.0%})"


_WIDE = 1000
_STYLES = {"sound": "green", "needless": "yellow", "unsound": "bold red", "failed": "bold red"}


def _section(path: str) -> str:
    return path.partition(".")[0]
