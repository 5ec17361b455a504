"""``graphspec devices``: GPUs that caches can be built for elsewhere, and what ``warmup --device`` shows of one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from graphspec.cli.common import FINDINGS, FINE, json_option, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from graphspec.fleet.cross import CrossReport, CrossUnit


@click.command()
@click.option(
    "--record",
    is_flag=True,
    help="Print the facts of this machine's GPU, as JSON for warmup --device on another machine.",
)
@json_option
def devices(record: bool, as_json: bool) -> int:
    """List the GPUs that warmup --device knows, with where their facts are from."""
    from graphspec.fleet.devices import KNOWN, recorded

    if record:
        from graphspec.cache.compiling.device import measure_device
        from graphspec.config.device import DeviceConfig, Target

        print_json(recorded(measure_device(DeviceConfig(target=Target.CUDA))))
        return FINE
    if as_json:
        print_json({"devices": [device.as_dict() for device in KNOWN.values()]})
        return FINE
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "device", "reported as", "code for", "processors", "memory", "shared", "facts from"
    )
    for device in KNOWN.values():
        profile = device.profile
        table.add_row(
            device.name,
            profile.name,
            profile.capability[0],
            str(profile.multiprocessors),
            f"{profile.memory_bytes / 2**30:.1f} GiB",
            f"{device.limits.shared_bytes >> 10} KiB",
            device.source,
        )
    Console(highlight=False, width=160).print(table)
    return FINE


def warm_described(
    config: str,
    settings: tuple[str, ...],
    device: str,
    *,
    cache_dir: str | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Runs ``warmup --device``, and returns its exit code."""
    from graphspec.api import load
    from graphspec.fleet.cross import warm_for
    from graphspec.fleet.devices import describe_device

    described = describe_device(device)
    spec = load(config, [*settings, "device.target=cuda"])
    report = warm_for(spec, described, cache_dir=cache_dir, jobs=jobs)
    if as_json:
        print_json(report.as_dict())
    else:
        _show(report)
    return FINDINGS if report.findings else FINE


def _show(report: "CrossReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=140)
    if report.units:
        console.print(_units(report.units))
    if any(unit.kernels for unit in report.units):
        console.print(_kernels_of_units(report.units))
    kernels = Table("kernel", "for", "done", "bytes", "registers", "spills", "shared", "key")
    for k in report.kernels:
        taken, done = k.resources, "compiled" if k.compiled else "stored"
        kernels.add_row(
            *(k.variant, k.target, done, f"{k.bytes:,}", str(taken.registers)),
            *(str(taken.spills), f"{taken.shared:,}", k.key[:12]),
        )
    console.print(kernels)
    console.print(f"device: {report.device.profile.name}, {report.device.source}", soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    for finding in report.findings:
        console.print(f"finding: {finding}", soft_wrap=True, markup=False)
    before = sum(u.stored and not u.compiled for u in report.units)
    before += sum(not k.compiled for k in report.kernels)
    console.print(f"compiled {report.compiled}, stored before {before}")


def _units(units: "Sequence[CrossUnit]") -> "Table":
    from rich.table import Table

    table = Table("unit", "key", "stored", "done", "seconds")
    for unit in units:
        done = "compiled" if unit.compiled else "found" if unit.stored else "nothing"
        seconds = f"{unit.seconds:.1f}" if unit.compiled else ""
        table.add_row(unit.name, unit.key, "yes" if unit.stored else "no", done, seconds)
    return table


def _kernels_of_units(units: "Sequence[CrossUnit]") -> "Table":
    """What the kernels in the units' libraries take, and which configuration was taken of how many."""
    from rich.table import Table

    columns = "unit", "kernel", "registers", "spills", "shared", "threads", "configuration", "of"
    table = Table(*columns)
    for unit in units:
        for k in unit.kernels or ():
            taken = str(k.registers), str(k.spills), f"{k.shared:,}", str(k.threads)
            table.add_row(unit.name, k.kernel, *taken, k.config, str(k.configs))
    return table
