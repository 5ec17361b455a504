"""``graphspec convert``: settings of another engine as a config of ours, and back."""

import click

from graphspec.cli.common import FINE, json_option, print_json

SOURCES = ("vllm", "sglang", "trtllm", "deepinfer", "hf", "graphspec")
TARGETS = ("graphspec", "vllm", "sglang", "trtllm")


@click.command()
@click.option(
    "--from", "source", required=True, type=click.Choice(SOURCES), help="Where it is from."
)
@click.option(
    "--to",
    "target",
    default="graphspec",
    show_default=True,
    type=click.Choice(TARGETS),
    help="What to write.",
)
@click.option("--model", metavar="SOURCE", help="The model, where the settings do not name it.")
@click.option("--output", metavar="FILE", help="Where to write; default: standard output.")
@json_option
@click.argument("settings", metavar="FILE")
def convert(
    source: str, target: str, model: str | None, output: str | None, as_json: bool, settings: str
) -> int:
    """Convert FILE, the settings of one engine, to those of another. What cannot be carried over is listed.

    FILE is a command line, YAML or JSON for vllm and sglang, YAML for trtllm, NAME=value lines for deepinfer, a folder
    with a config.json for hf. - is standard input.
    """
    from graphspec.formats.carry import NOT_GIVEN
    from graphspec.formats.convert import convert as run

    made = run(source, target, settings, model=model)
    left = [
        {"where": x.where, "found": x.found, "why": x.why, "changed_to": x.changed_to}
        for x in made.left
    ]
    if output is not None:
        _write(output, made.text)
    if as_json:
        print_json({"text": made.text, "left": left})
        return FINE
    for item in made.left:
        kind = (
            "changed" if item.changed_to else "default" if item.found == NOT_GIVEN else "left out"
        )
        click.echo(f"{kind}: {item.render()}", err=True)
    if output is None:
        click.echo(made.text, nl=False)
    return FINE


def _write(path: str, text: str) -> None:
    from graphspec.errors import EnvironmentProblem, Problem

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentProblem(
            Problem(
                where=path, found=f"not writable: {error.strerror}", wanted="a file to write to"
            )
        ) from None
