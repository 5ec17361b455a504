"""``graphspec hash``: the hashes of a config's contract, and what is in them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.common import FINE, F, config_option, json_option, print_json, set_option

if TYPE_CHECKING:
    from graphspec.fields import Stage
    from graphspec.keys.explain import Factor
    from graphspec.resolve.spec import EngineSpec


def stage_option(function: F) -> F:
    """``--stage compile|capture``."""
    return click.option(
        "--stage", type=click.Choice(["compile", "capture"]), help="Only this key. Default: both."
    )(function)


@click.command("hash")
@config_option
@set_option
@stage_option
@click.option("--explain", is_flag=True, help="List every field: its value, its keys, and why.")
@json_option
def hash_command(
    config: str, settings: tuple[str, ...], stage: str | None, explain: bool, as_json: bool
) -> int:
    """Print the hash of a config's contract: the same on every machine. With --explain, what is in it."""
    from graphspec.api import load
    from graphspec.fields import Stage
    from graphspec.keys.encoding import EPOCH
    from graphspec.keys.explain import factors_of

    spec = load(config, settings)
    stages = [Stage(stage)] if stage else list(Stage)
    factors = factors_of(spec) if explain else ()
    if as_json:
        data: dict[str, Any] = {"epoch": EPOCH, "hashes": _hashes(spec, stages)}
        if explain:
            data["factors"] = [_as_dict(f) for f in factors]
        print_json(data)
        return FINE
    for name, value in _hashes(spec, stages).items():
        # One hash alone is what a script asks for.
        click.echo(value if stage and not explain else f"{name:<8} {value}")
    _print_groups(factors, stages)
    return FINE


def _hashes(spec: "EngineSpec", stages: Sequence["Stage"]) -> Mapping[str, str]:
    return {stage.value: spec.compute_hash(stage) for stage in stages}


def _as_dict(factor: "Factor") -> Mapping[str, Any]:
    return {
        "path": factor.path,
        "value": _shown(factor),
        "keys": [stage.value for stage in factor.stages],
        "why": factor.why,
    }


def _shown(factor: "Factor") -> str:
    from graphspec.keys.compare import describe

    return describe(factor.value, factor.path.rpartition(".")[2])


def _print_groups(factors: Sequence["Factor"], stages: Sequence["Stage"]) -> None:
    groups: dict[tuple[Stage, ...], list[Factor]] = {}
    for factor in factors:
        groups.setdefault(factor.stages, []).append(factor)
    # What all asked keys contain comes first, what none contains last.
    order = sorted(groups, key=lambda g: (-len(set(g) & set(stages)), -len(g)))
    for group in order:
        names = " and ".join(stage.name for stage in group)
        click.echo(f"\nin the {names} key{'s' * (len(group) > 1)}:" if group else "\nin no key:")
        for factor in groups[group]:
            click.echo(f"  {factor.path} = {_shown(factor)}  ({factor.why})")
