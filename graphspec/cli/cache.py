"""``graphspec cache``: look into the cache folder."""

import click

from graphspec.cli.common import FINDINGS, FINE, cache_dir_option, json_option, print_json


@click.group()
def cache() -> None:
    """Look into the cache folder."""


@cache.command("ls")
@cache_dir_option
@json_option
def ls(cache_dir: str | None, as_json: bool) -> int:
    """List every entry: unit, key, size, and the seconds its compile took."""
    import os

    from graphspec.cache.disk import DiskStore
    from graphspec.cache.location import cache_folder

    root = cache_folder(cache_dir)
    rows = []
    for path, entry, size in DiskStore(root).entries():
        metadata = entry.metadata if entry else {}
        rows.append(
            {
                "key": os.path.basename(path).split(".")[0],
                "unit": metadata.get("unit"),
                "device": metadata.get("device"),
                "bytes": size,
                "compile_seconds": metadata.get("compile_seconds"),
                "torch": (metadata.get("provenance") or {}).get("torch"),
                "readable": entry is not None,
            }
        )
    if as_json:
        print_json({"folder": root, "entries": rows, "bytes": sum(r["bytes"] for r in rows)})
    else:
        _show(root, rows)
    return FINE if all(r["readable"] for r in rows) else FINDINGS


def _show(root: str, rows: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("key", "unit", "device", "bytes", "compile seconds", "torch")
    for r in rows:
        seconds = r["compile_seconds"]
        table.add_row(
            str(r["key"]),
            str(r["unit"]) if r["readable"] else "unreadable: replaced when it is next needed",
            str(r["device"] or ""),
            f"{r['bytes']:,}",
            f"{seconds:.1f}" if isinstance(seconds, float) else "",
            str(r["torch"] or ""),
        )
    console.print(table)
    console.print(f"{len(rows)} entries in {root}", soft_wrap=True)
