"""``graphspec methods``: what each drafting method declares of itself."""

import click

from graphspec.cli.common import FINE, json_option, print_json


@click.command()
@json_option
def methods(as_json: bool) -> int:
    """Compare the drafting methods, built in and registered, by what their classes declare."""
    from graphspec.speculators.comparison import COLUMNS, comparison

    rows = comparison()
    if as_json:
        print_json({"methods": [dict(zip(COLUMNS, row, strict=True)) for row in rows]})
        return FINE
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False, width=220).print(table)
    return FINE
