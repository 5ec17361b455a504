"""``graphspec kernels``: which kernels there are, which one a device gets, and compiling them for GPUs elsewhere."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli import LazyGroup
from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    write_file,
)

if TYPE_CHECKING:
    from graphspec.capture.kernel_binaries import KernelResult
    from graphspec.kernels.resources import Resources


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (
            "graphspec.cli.kernels:list_kernels",
            "Every implementation, which one a device gets, and why.",
        ),
        "compile": (
            "graphspec.cli.kernels:compile_kernels",
            "Compile every Triton kernel for GPUs that need not be here.",
        ),
    },
)
def kernels() -> None:
    """Look at the drafting and verification kernels, and compile them ahead."""


@click.command("list")
@click.option(
    "--device", default="cpu", show_default=True, help="Kind of device: cpu, cuda or hip."
)
@click.option("--dtype", help="Type of the logits, as in bfloat16.")
@json_option
def list_kernels(device: str, dtype: str | None, as_json: bool) -> int:
    """For each kernel, which implementation a device gets, and why not each other one."""
    from graphspec.kernels.registry import choose, kernel_names

    choices = [choose(name, device=device, dtype=dtype) for name in kernel_names()]
    if as_json:
        print_json({"device": device, "kernels": [c.as_dict() for c in choices]})
        return FINE
    for choice in choices:
        click.echo(choice.explain())
    return FINE


@click.command("compile")
@click.option(
    "--target",
    "targets",
    required=True,
    metavar="GPU[,GPU...]",
    help="As in cuda:sm_80,cuda:sm_90,hip:gfx942.",
)
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this variant.")
@click.option(
    "--bounds", metavar="FILE", help="Exit code 1 for a kernel that takes more than this file says."
)
@click.option(
    "--write-bounds", metavar="FILE", help="Write what the kernels take, as a file for --bounds."
)
@cache_dir_option
@json_option
def compile_kernels(
    targets: str,
    names: tuple[str, ...],
    bounds: str | None,
    write_bounds: str | None,
    cache_dir: str | None,
    as_json: bool,
) -> int:
    """Compile every Triton kernel for the targets, which need not be on this machine, into the cache.

    Spills are bytes of a thread's stack and local memory on cuda, and registers on hip. Shared memory is in bytes.
    """
    from graphspec.cache.opened import open_cache
    from graphspec.capture.kernel_binaries import load_or_compile_kernels
    from graphspec.config.cache import CacheConfig
    from graphspec.kernels.resources import bounds_text, over_bounds, read_bounds
    from graphspec.kernels.targets import GpuTarget, triton_version
    from graphspec.kernels.variants import all_variants

    gpus = [GpuTarget.parse(text.strip()) for text in targets.split(",")]
    limits = read_bounds(bounds) if bounds is not None else None
    triton_version()
    listed = all_variants()
    if names:
        from graphspec.text import did_you_mean

        known = [v.name for v in listed]
        unknown = next((n for n in names if n not in known), None)
        if unknown is not None:
            raise click.UsageError(f"no variant {unknown!r}; {did_you_mean(unknown, known)}")
        listed = [v for v in listed if v.name in names]
    cache = open_cache(CacheConfig(), cache_dir)
    results = load_or_compile_kernels(listed, gpus, cache)
    taken = _by_name(results)
    found = [f"{r.variant} for {r.target}: {r.problem}" for r in results if r.problem]
    if limits is not None:
        kept = {n: limits[n] for n in limits if not names or n in names}
        found += over_bounds(taken, kept, [str(g) for g in gpus])
    if write_bounds is not None:
        write_file("--write-bounds", write_bounds, bounds_text(taken))
    if as_json:
        print_json(_as_dict(results, found, cache.note))
    else:
        _show(results, found, cache.note)
    return FINDINGS if found else FINE


def _by_name(results: Sequence["KernelResult"]) -> Mapping[str, Mapping[str, "Resources"]]:
    taken: dict[str, dict[str, Resources]] = {}
    for r in results:
        taken.setdefault(r.variant, {})[r.target] = r.resources
    return taken


def _as_dict(
    results: Sequence["KernelResult"], found: Sequence[str], note: str
) -> Mapping[str, Any]:
    import attrs

    return {
        "kernels": [
            {
                "kernel": r.variant,
                "target": r.target,
                "outcome": r.outcome.value,
                "compiled": r.compiled,
                "bytes": r.bytes,
                **attrs.asdict(r.resources),
                "seconds": r.seconds,
                "key": r.key,
            }
            for r in results
        ],
        "compiled": sum(r.compiled for r in results),
        "loaded": sum(not r.compiled for r in results),
        "findings": list(found),
        "note": note,
    }


def _show(results: Sequence["KernelResult"], found: Sequence[str], note: str) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = "kernel target outcome bytes registers spills shared seconds key".split()
    table = Table(*columns)
    for r in results:
        taken = r.resources
        table.add_row(
            *(r.variant, r.target, r.outcome.value, f"{r.bytes:,}", str(taken.registers)),
            *(str(taken.spills), f"{taken.shared:,}", f"{r.seconds:.2f}", r.key[:12]),
        )
    Console(highlight=False, width=140).print(table)
    if note:
        click.echo(f"note: {note}")
    for line in found:
        click.echo(f"finding: {line}")
    compiled = sum(r.compiled for r in results)
    click.echo(f"compiled {compiled}, loaded {len(results) - compiled}")
