"""``graphspec cache ls`` and ``stats``: the entries one by one, and in numbers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.cache_text import entries, in_bytes, when
from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    visible,
)

if TYPE_CHECKING:
    from graphspec.cache.folder.holdings import Holdings, Past, Share
    from graphspec.cache.folder.listing import StoredFile


@click.command("ls")
@cache_dir_option
@json_option
def ls(cache_dir: str | None, as_json: bool) -> int:
    """List every entry: unit, key, size, and the seconds its compile took.

    Exit code 1 when a file is no readable entry.
    """
    from graphspec.cache.folder.listing import entry_files
    from graphspec.cache.location import cache_folder

    root = cache_folder(cache_dir)
    rows = [_row(file) for file in entry_files(root)]
    if as_json:
        print_json({"folder": root, "entries": rows, "bytes": sum(r["bytes"] for r in rows)})
    else:
        _show(root, rows)
    return FINE if all(r["readable"] or r["other_format"] for r in rows) else FINDINGS


def _row(file: "StoredFile") -> dict[str, Any]:
    from graphspec.cache.folder.glance import glance

    seen = glance(file.path) if file.readable_format else None
    return {
        "key": file.key,
        "unit": seen.unit if seen else None,
        "device": seen.device if seen else None,
        "bytes": file.bytes,
        "compile_seconds": seen.compile_seconds if seen else None,
        "torch": seen.torch if seen else None,
        "signed": seen is not None and seen.public_key is not None,
        "last_used": file.last_used,
        "readable": seen is not None,
        "other_format": not file.readable_format,
    }


def _show(root: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table("key", "unit", "device", "bytes", "compile seconds", "torch", "last use")
    for r in rows:
        seconds = r["compile_seconds"]
        table.add_row(
            visible(r["key"]),
            _unit(r),
            visible(r["device"] or ""),
            f"{r['bytes']:,}",
            f"{seconds:.1f}" if seconds is not None else "",
            visible(r["torch"] or ""),
            when(r["last_used"]),
        )
    console.print(table)
    console.print(f"{entries(len(rows))} in {root}", soft_wrap=True)


def _unit(row: Mapping[str, Any]) -> str:
    if row["other_format"]:
        return "of another version of graphspec"
    if not row["readable"]:
        return "unreadable: replaced when it is next needed"
    return visible(row["unit"] or "")


@click.command("stats")
@cache_dir_option
@json_option
def stats(cache_dir: str | None, as_json: bool) -> int:
    """Count what the folder holds, by unit and device, and what lies beside the entries."""
    from graphspec.cache.folder.holdings import holdings
    from graphspec.cache.location import cache_folder

    found = holdings(cache_folder(cache_dir))
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    return FINE


def _print(found: "Holdings") -> None:
    from rich.console import Console
    from rich.table import Table

    from graphspec.text import plural

    click.echo(f"{visible(found.folder)}: {_share(found.entries)}")
    if found.units:
        table = Table("unit", "entries", "bytes", "compile seconds")
        for name, share in found.units.items():
            table.add_row(visible(name), *_cells(share))
        table.add_section()
        for name, share in found.devices.items():
            table.add_row(f"all for {visible(name)}", *_cells(share))
        Console(highlight=False, markup=False).print(table)
    if found.newest_use is not None:
        click.echo(f"last use: {when(found.oldest_use)} to {when(found.newest_use)}")
    beside = {
        "signed": found.signed,
        "unreadable": found.unreadable,
        "of another version of graphspec": found.other_formats,
    }
    for what, count in beside.items():
        if count:
            click.echo(f"{what}: {entries(count)}")
    for what, total in (("quarantine", found.quarantine), ("temporaries", found.temporaries)):
        click.echo(f"{what}: {plural(total.files, 'file')}, {in_bytes(total.bytes)}")
    click.echo(f"locks: {plural(found.locks, 'file')}")
    _print_past(found.past)


def _share(share: "Share") -> str:
    return f"{entries(share.entries)}, {in_bytes(share.bytes)}, {share.compile_seconds:,.1f} s of compiling"


def _cells(share: "Share") -> tuple[str, str, str]:
    return f"{share.entries:,}", f"{share.bytes:,}", f"{share.compile_seconds:,.1f}"


def _print_past(past: "Past") -> None:
    if not past.runs:
        click.echo("no run is on record")
        return
    outcomes = ", ".join(f"{count} {name}" for name, count in past.outcomes.items())
    click.echo(
        f"{past.runs} runs since {when(past.since)}: {outcomes}; {past.compiled} compiles in {past.seconds:,.1f} s, "
        f"{past.seconds_saved:,.1f} s saved"
    )
