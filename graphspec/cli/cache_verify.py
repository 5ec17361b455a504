"""``graphspec cache verify``: every entry read whole, or the units of a config compiled anew and compared."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.cache_text import entries, in_bytes
from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    set_option,
    visible,
)

if TYPE_CHECKING:
    from graphspec.cache.folder.check import Checked
    from graphspec.cache.recompile import Recompiled
    from graphspec.cache.units import CompileUnit


@click.command("verify")
@cache_dir_option
@json_option
@click.option("--repair", is_flag=True, help="Set aside what cannot be used.")
@click.option(
    "--trust", metavar="KEYFILE", help="Public keys: one of them must have signed each entry."
)
@click.option(
    "--recompile",
    "anew",
    is_flag=True,
    help="Compile the units of --config anew and compare their bytes with the stored ones.",
)
@click.option(
    "--config", metavar="FILE", help="With --recompile: config file; - for standard input."
)
@set_option
@click.option(
    "--unit", "units", multiple=True, metavar="NAME", help="Only this unit. Can be repeated."
)
def verify(
    cache_dir: str | None,
    as_json: bool,
    repair: bool,
    trust: str | None,
    anew: bool,
    config: str | None,
    settings: tuple[str, ...],
    units: tuple[str, ...],
) -> int:
    """Read every entry whole: sizes, digests, and key against name. Exit code 1 when one cannot be used.

    With --recompile: exit code 1 when a unit gives other bytes than are stored, or is not stored.
    """
    from graphspec.cache.location import cache_folder

    root = cache_folder(cache_dir)
    if not anew:
        if config is not None or settings or units:
            raise click.UsageError("--config, --set and --unit go with --recompile")
        return _check(root, as_json, repair, trust)
    if config is None:
        raise click.UsageError("--recompile needs --config")
    if repair or trust is not None:
        raise click.UsageError("--repair and --trust do not go with --recompile")
    return _recompile(root, as_json, config, settings, units)


def _check(root: str, as_json: bool, repair: bool, trust: str | None) -> int:
    from graphspec.cache.folder.check import check_folder
    from graphspec.cache.folder.disk import DiskStore

    trusted = None
    if trust is not None:
        from graphspec.cache.signing import read_public_keys, trust_in

        trusted = trust_in(read_public_keys(trust))
    found = check_folder(DiskStore(root), trust=trusted, repair=repair)
    if as_json:
        print_json(found.as_dict())
    else:
        _print_checked(found)
    return FINDINGS if found.damages else FINE


def _print_checked(found: "Checked") -> None:
    for damage in found.damages:
        done = " (set aside)" if damage.repaired else ""
        kept = f" (it had to stay: {damage.kept})" if damage.kept else ""
        click.echo(f"finding: {visible(f'{damage.path}: {damage.reason}{done}{kept}')}")
    click.echo(
        f"{entries(found.entries)} whole ({in_bytes(found.bytes)}), {len(found.damages)} not, in {visible(found.folder)}"
    )


def _recompile(
    root: str, as_json: bool, config: str, settings: tuple[str, ...], names: tuple[str, ...]
) -> int:
    from graphspec.api import load
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.recompile import recompile
    from graphspec.capture.program import load_program

    spec = load(config, settings)
    units = load_program(spec).units()
    _check_names(names, units)
    results = recompile(
        units,
        spec,
        DiskStore(root),
        names=names,
        listener=(lambda result: None) if as_json else _print_recompiled,
    )
    equal = sum(r.equal for r in results)
    if as_json:
        print_json({"folder": root, "equal": equal, "units": [_as_dict(r) for r in results]})
    else:
        click.echo(f"{equal} of {len(results)} units compile to the bytes in {visible(root)}")
    return FINE if equal == len(results) else FINDINGS


def _check_names(names: tuple[str, ...], units: "Sequence[CompileUnit]") -> None:
    from graphspec.text import did_you_mean

    known = [u.name for u in units]
    for name in names:
        if name not in known:
            raise click.UsageError(f"no unit {name!r}; {did_you_mean(name, known)}")


def _print_recompiled(result: "Recompiled") -> None:
    what = "finding: unit" if result.reason else "unit"
    click.echo(
        visible(f"{what} {result.unit}: {result.reason or 'equal'} ({result.seconds:.1f} s)")
    )


def _as_dict(result: "Recompiled") -> dict[str, Any]:
    import attrs

    return {**attrs.asdict(result), "equal": result.equal}
