"""``graphspec doctor``: what this machine has and lacks, and what to do about it."""

import click

from graphspec.cli.common import FINDINGS, FINE, cache_dir_option, json_option, print_json


@click.command()
@cache_dir_option
@json_option
def doctor(cache_dir: str | None, as_json: bool) -> int:
    """Check compiler, torch, devices, packages and the cache folder of this machine."""
    from graphspec.cli.checks import run_checks

    checks = run_checks(cache_dir)
    healthy = all(c.ok for c in checks)
    if as_json:
        print_json(
            {
                "healthy": healthy,
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
