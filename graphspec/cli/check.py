"""``graphspec check``: everything that is wrong with a config, at once."""

import click

from graphspec.cli.common import (
    FINE,
    config_option,
    json_option,
    print_json,
    set_option,
)


@click.command()
@config_option
@set_option
@json_option
def check(config: str, settings: tuple[str, ...], as_json: bool) -> int:
    """Check a config: types, rules, checkpoints and limits. All problems at once, each with file and line."""
    from graphspec.api import load

    spec = load(config, settings)
    notes = [{"code": n.code, "text": n.text} for n in spec.notes]
    lowered = [*spec.mode.reasons, *spec.runner.reasons]
    if spec.speculative is not None:
        lowered += spec.speculative.schedule.reasons
    if as_json:
        print_json({"config": config, "problems": [], "notes": notes, "lowered": lowered})
        return FINE
    click.echo(f"{config}: no problems")
    for reason in lowered:
        click.echo(f"lowered: {reason}")
    for note in spec.notes:
        click.echo(f"note: {note}")
    return FINE
