"""``graphspec schema``: the JSON Schema of config files."""

import click

from graphspec.cli.common import FINE


@click.command()
def schema() -> int:
    """Print the JSON Schema (2020-12) of config files, for editors and for checks without graphspec."""
    from graphspec.formats.schema import schema_text

    click.echo(schema_text(), nl=False)
    return FINE
