"""``graphspec explain``: which units of a config's program would miss the cache, and why."""

from typing import TYPE_CHECKING

import click

from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    config_option,
    json_option,
    print_json,
    set_option,
)

if TYPE_CHECKING:
    from graphspec.cache.explain import Explanation, KeyDifference, UnitExplanation


@click.command()
@config_option
@set_option
@cache_dir_option
@json_option
def explain(config: str, settings: tuple[str, ...], cache_dir: str | None, as_json: bool) -> int:
    """Say of each unit whether the cache has it, and else what the nearest stored entry differs in.

    Exit code 0 when every unit would be loaded, 1 when one would be compiled. Nothing is traced, compiled or changed.
    """
    from graphspec.api import load
    from graphspec.cache.explain import explain as run
    from graphspec.capture.program import load_program

    spec = load(config, settings)
    found = run(load_program(spec).units(), spec, cache_dir=cache_dir)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    return FINDINGS if found.missing else FINE


def _print(found: "Explanation") -> None:
    for unit in found.units:
        click.echo(f"unit {unit.unit} ({unit.outcome.value}): {unit.verdict}")
        _print_nearest(unit)
    unreadable = (
        f", {found.unreadable} of them unreadable and left alone" if found.unreadable else ""
    )
    click.echo(
        f"would compile {found.missing}, would load {len(found.units) - found.missing}; "
        f"{found.entries + found.unreadable} files in {found.folder}{unreadable}"
    )


def _print_nearest(unit: "UnitExplanation") -> None:
    from graphspec.text import plural

    if unit.nearest is None:
        return
    count = plural(len(unit.nearest.differences), "factor")
    click.echo(
        f"  nearest: entry {unit.nearest.key} of unit {unit.nearest.unit}, which differs in {count}:"
    )
    for row in unit.nearest.differences:
        click.echo(f"    {row.part}: {row.difference}{_reading(row)}")


def _reading(row: "KeyDifference") -> str:
    if row.part != "scope":
        return ""
    if row.read is None:
        return "  (whether the stored trace depends on it cannot be told)"
    return f"  ({'' if row.read else 'not '}read by the stored trace)"
