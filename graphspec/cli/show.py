"""``graphspec show``: the config as read, the contract it resolves to, and how each step decided."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.common import FINE, config_option, json_option, print_json, set_option

if TYPE_CHECKING:
    from graphspec.resolve import Resolution


@click.command()
@config_option
@set_option
@click.option("--resolved", is_flag=True, help="Show the contract instead of what was written.")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--trace", is_flag=True, help="Say what each step of resolution decided, and why.")
@json_option
def show(
    config: str,
    settings: tuple[str, ...],
    resolved: bool,
    origin: bool,
    trace: bool,
    as_json: bool,
) -> int:
    """Show a config: as read with its defaults, or resolved, with origins and the trace of decisions."""
    from graphspec.api import read_settings, resolve_document
    from graphspec.cli.shown import config_values, origins_of, spec_values
    from graphspec.formats.read import config_of

    document = read_settings(config, settings)
    made = resolve_document(document) if resolved or trace else None
    values: Mapping[str, Any] = {}
    if resolved and made is not None:
        values = spec_values(made.require())
    elif not trace:
        values = config_values(config_of(document))
    origins = origins_of(document, values, resolved=resolved) if origin else {}
    if as_json:
        _print_as_json(values, origins, made if trace else None)
        return FINE
    _print_values(values, origins)
    if trace and made is not None:
        for step in made.steps:
            click.echo(f"{step.name:<11} {step.decided}\n{'':<11} because {step.why}")
    return FINE


def _print_as_json(
    values: Mapping[str, Any], origins: Mapping[str, str], made: "Resolution | None"
) -> None:
    data: dict[str, Any] = {"values": values} if values else {}
    if origins:
        data["origins"] = origins
    if made is not None:
        data["trace"] = [{"step": s.name, "decided": s.decided, "why": s.why} for s in made.steps]
    print_json(data)


def _print_values(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    from graphspec.cli.shown import leaves
    from graphspec.formats.write import write_config

    if not values:
        return
    if not origins:
        click.echo(write_config(values, "yaml"), nl=False)
        return
    for path, value in leaves(values):
        click.echo(f"{path} = {value!r}  ({origins[path]})")
