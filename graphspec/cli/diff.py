"""``graphspec diff``: the fields in which two configs' contracts differ, and the keys that each moves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.common import FINDINGS, FINE, json_option, print_json, set_option
from graphspec.cli.hash import stage_option

if TYPE_CHECKING:
    from graphspec.keys.explain import SpecDifference


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="[B]", required=False)
@set_option
@stage_option
@json_option
def diff(
    one: str, other: str | None, settings: tuple[str, ...], stage: str | None, as_json: bool
) -> int:
    """Compare two configs by what they resolve to: B with --set applied, or A with --set applied.

    Exit code 0 when the hashes are equal, 1 when they differ. Fields that move no key are listed too.
    """
    from graphspec.api import load
    from graphspec.fields import Stage
    from graphspec.keys.explain import differences

    if other is None and not settings:
        raise click.UsageError("give a second config, or a change with --set")
    before, after = load(one), load(other or one, settings)
    stages = [Stage(stage)] if stage else list(Stage)
    found = differences(before, after)
    hashes = {s: (before.compute_hash(s), after.compute_hash(s)) for s in stages}
    equal = all(a == b for a, b in hashes.values())
    if as_json:
        print_json(
            {
                "equal": equal,
                "hashes": {s.value: {"before": a, "after": b} for s, (a, b) in hashes.items()},
                "differences": [_as_dict(d) for d in found],
            }
        )
        return FINE if equal else FINDINGS
    for s, (a, b) in hashes.items():
        click.echo(f"{s.value:<8} {a} {'equal' if a == b else f'-> {b}'}")
    _print_groups(found)
    return FINE if equal else FINDINGS


def _as_dict(found: "SpecDifference") -> Mapping[str, Any]:
    before, after = found.difference.texts
    return {
        "path": found.difference.path,
        "kind": found.difference.kind.value,
        "before": before,
        "after": after,
        "moves": [stage.value for stage in found.moves],
        "why": found.why,
    }


def _print_groups(found: Sequence["SpecDifference"]) -> None:
    groups: dict[str, list[SpecDifference]] = {}
    for one in sorted(found, key=lambda d: -len(d.moves)):
        names = " and ".join(stage.name for stage in one.moves)
        title = f"move the {names} key{'s' * (len(one.moves) > 1)}" if names else "move no key"
        groups.setdefault(title, []).append(one)
    for title, rows in groups.items():
        click.echo(f"\n{title}:")
        for row in rows:
            click.echo(f"  {row.difference}" + ("" if row.moves else f"  ({row.why})"))
