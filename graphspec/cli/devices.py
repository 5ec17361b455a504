"""``graphspec devices``: GPUs that caches can be built for elsewhere, and what ``warmup --device`` shows of one."""

from typing import TYPE_CHECKING

import click

from graphspec.cli.common import FINDINGS, FINE, json_option, print_json

if TYPE_CHECKING:
    from graphspec.fleet.cross import CrossReport


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
    config: str, settings: tuple[str, ...], device: str, *, cache_dir: str | None, as_json: bool
) -> int:
    """Runs ``warmup --device``, and returns its exit code."""
    from graphspec.api import load
    from graphspec.fleet.cross import warm_for
    from graphspec.fleet.devices import describe_device

    described = describe_device(device)
    report = warm_for(
        load(config, [*settings, "device.target=cuda"]), described, cache_dir=cache_dir
    )
    if as_json:
        print_json(report.as_dict())
    else:
        _show(report)
    return FINDINGS if report.findings else FINE


def _show(report: "CrossReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=140)
    units = Table("unit", "key", "stored")
    for unit in report.units:
        units.add_row(unit.name, unit.key, "yes" if unit.stored else "no")
    if report.units:
        console.print(units)
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
    compiled = sum(k.compiled for k in report.kernels)
    console.print(f"compiled {compiled}, stored before {len(report.kernels) - compiled}")
