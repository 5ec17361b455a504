"""``graphspec keys``: the fields that keys are made of, and golden keys for CI."""

from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.common import FINDINGS, FINE, json_option, print_json, set_option

if TYPE_CHECKING:
    from graphspec.keys.golden import Golden
    from graphspec.keys.inventory import FieldRow
    from graphspec.testing.goldens import Verdict


@click.group()
def keys() -> None:
    """What keys are made of, and golden keys that show when one changes."""


@keys.command("fields")
@json_option
def fields(as_json: bool) -> int:
    """List every field of every config class, of registered methods too: its stage, or why no key contains it."""
    from graphspec.config.engine import EngineConfig
    from graphspec.keys.inventory import inventory
    from graphspec.resolve.spec import EngineSpec
    from graphspec.speculators.registry import known_methods, speculator_config_class

    for method in known_methods():
        # Loading a method makes its classes known, those that it specialises to included.
        speculator_config_class(method)
    rows = inventory([EngineConfig, EngineSpec])
    if as_json:
        print_json({"fields": [_row(row) for row in rows]})
    else:
        _show_fields(rows)
    return FINE


def _row(row: "FieldRow") -> dict[str, str]:
    return {
        "class": row.class_name,
        "field": row.field,
        "type": row.type,
        "stage": row.stage.value if row.stage else "unkeyed",
        "doc": row.doc,
        "reason": row.reason,
    }


def _show_fields(rows: "tuple[FieldRow, ...]") -> None:
    from rich.console import Console
    from rich.table import Table

    from graphspec.text import plural

    table = Table(
        "class", "field", "type", "stage", "what it is for; if unkeyed, why", show_lines=False
    )
    before = None
    for row in rows:
        if before not in (None, row.cls):
            table.add_section()
        name = row.cls.__qualname__ if row.cls is not before else ""
        stage = row.stage.name if row.stage else "unkeyed"
        text = row.doc if row.stage else f"{row.doc} Unkeyed: {row.reason}."
        table.add_row(name, row.field, row.type, stage, text)
        before = row.cls
    Console(highlight=False, markup=False, width=200).print(table)
    without = sum(row.stage is None for row in rows)
    click.echo(f"{plural(len(rows), 'field')}, {without} of them unkeyed")


@keys.command("lock")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE",
    help="Config to lock under the name of its file. Can be repeated. Without any, what the goldens hold is locked anew.",
)
@set_option
@click.option("--output", required=True, metavar="FILE", help="Where the goldens are written.")
@json_option
def lock(configs: tuple[str, ...], settings: tuple[str, ...], output: str, as_json: bool) -> int:
    """Write golden keys of configs, for review and for keys check. The checkpoints' own configs are kept with them.

    A golden of the same config gets no other key while the epoch of keys stays the same.
    """
    from graphspec.testing.goldens import lock as run

    made = run(output, _documents(configs, settings) if configs else None)
    if as_json:
        hashes = {name: _hashes(golden) for name, golden in made.goldens.items()}
        print_json({"goldens": output, "epoch": made.epoch, "specs": hashes})
        return FINE
    for name, golden in made.goldens.items():
        click.echo(f"{name}: {', '.join(f'{s} {h}' for s, h in _hashes(golden).items())}")
    click.echo(f"epoch {made.epoch}, written to {output}")
    return FINE


def _documents(configs: tuple[str, ...], settings: tuple[str, ...]) -> dict[str, Any]:
    import os

    from graphspec.api import read_settings, resolve_document
    from graphspec.errors import Problem, SpecError

    found: dict[str, Any] = {}
    for path in configs:
        name = os.path.splitext(os.path.basename(path))[0]
        if name in found:
            raise SpecError(
                Problem(
                    where=f"--config {path}",
                    found=f"a second config named {name!r}",
                    wanted="files of different names",
                    hint="goldens are named after the files of their configs",
                )
            )
        document = read_settings(path, settings)
        resolve_document(document)  # its problems have file and line
        found[name] = document.data
    return found


def _hashes(golden: "Golden") -> dict[str, str]:
    return {stage.value: key.hash for stage, key in golden.keys.items()}


@keys.command("check")
@click.option("--goldens", required=True, metavar="FILE", help="File that keys lock wrote.")
@json_option
def check(goldens: str, as_json: bool) -> int:
    """Make the keys of goldens again. Exit code 1 when one differs, with each factor that does."""
    from graphspec.testing.goldens import check_goldens
    from graphspec.text import plural

    report = check_goldens(goldens)
    if as_json:
        print_json(
            {
                "goldens": goldens,
                "epoch": report.epoch,
                "advice": report.advice,
                "specs": [_verdict(v) for v in report.verdicts],
            }
        )
    else:
        for line in (line for verdict in report.drifted for line in verdict.lines):
            click.echo(line)
        count = plural(len(report.verdicts), "golden")
        click.echo(
            f"{count}, {len(report.drifted)} of them changed"
            if report.advice
            else f"{count}: no key changed"
        )
        if report.advice:
            click.echo(report.advice)
    return FINDINGS if report.advice else FINE


def _verdict(verdict: "Verdict") -> dict[str, Any]:
    from graphspec.keys.golden import changes

    stages = {}
    for stage, before in verdict.before.keys.items():
        after = verdict.after.keys[stage] if verdict.after is not None else None
        found = changes(before, after) if after is not None else ()
        stages[stage.value] = {
            "before": before.hash,
            "after": after.hash if after is not None else None,
            "changes": [
                {"kind": c.kind, "path": c.path, "before": c.before, "after": c.after}
                for c in found
            ],
        }
    return {"name": verdict.name, "changed": bool(verdict.lines), "lines": verdict.lines, **stages}
