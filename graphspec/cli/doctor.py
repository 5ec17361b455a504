"""``graphspec doctor``: what this machine has and lacks, what to do about it, and in what the nodes of a fleet differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from graphspec.cli.common import FINDINGS, FINE, cache_dir_option, json_option, print_json


@click.command()
@cache_dir_option
@json_option
@click.option(
    "--fleet", is_flag=True, help="Compare what doctor --json said on several nodes: one file each."
)
@click.argument("reports", nargs=-1, metavar="[REPORT]...")
def doctor(cache_dir: str | None, as_json: bool, fleet: bool, reports: Sequence[str]) -> int:
    """Check compiler, torch, devices, packages and the cache folder of this machine.

    With --fleet: compare nodes by their reports. Exit code 1 where their units would have different keys.
    """
    if fleet:
        return _compare(reports, as_json=as_json)
    if reports:
        raise click.UsageError("reports of nodes are compared with --fleet")
    from graphspec.cli.checks import run_checks

    checks = run_checks(cache_dir)
    healthy = all(c.ok for c in checks)
    if as_json:
        print_json(
            {
                "healthy": healthy,
                "node": _node(),
                "checks": [
                    {"name": c.name, "ok": c.ok, "found": c.found, "hint": c.hint} for c in checks
                ],
            }
        )
    else:
        for c in checks:
            click.echo(f"{'ok     ' if c.ok else 'PROBLEM'}  {c.name}: {c.found}")
            if not c.ok and c.hint:
                click.echo(f"         {c.hint}")
    return FINE if healthy else FINDINGS


def _node() -> Mapping[str, Any]:
    import importlib.util
    import platform

    if importlib.util.find_spec("torch") is None:
        return {"name": platform.node(), "facts": {}}
    from graphspec.fleet.facts import facts_of_node

    return {"name": platform.node(), "facts": dict(facts_of_node())}


def _compare(paths: Sequence[str], *, as_json: bool) -> int:
    from graphspec.fleet.nodes import compare_nodes, read_nodes

    found = compare_nodes(read_nodes(paths))
    if as_json:
        print_json(found.as_dict())
    else:
        for difference in found.keys:
            click.echo(f"KEYS DIFFER  {difference}")
        for difference in found.other:
            click.echo(f"differs      {difference}")
        for problem in found.problems:
            click.echo(f"PROBLEM      {problem}")
        same = "" if found.keys else ", and units have the same keys on all of them"
        click.echo(f"{len(found.nodes)} nodes{same}")
    return FINDINGS if found.keys or found.problems else FINE
