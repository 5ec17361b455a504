"""``graphspec cache show``: all that one entry says of itself."""

from typing import TYPE_CHECKING

import click

from graphspec.cli.cache_text import entries, when
from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    visible,
)

if TYPE_CHECKING:
    from graphspec.cache.folder.contents import Contents
    from graphspec.cache.folder.listing import StoredFile

_LISTED = 8


@click.command("show")
@click.argument("key", metavar="KEY")
@cache_dir_option
@json_option
def show(key: str, cache_dir: str | None, as_json: bool) -> int:
    """Print one entry: sizes, signer, metadata, and each part of its key. The beginning of KEY is enough.

    The whole file is checked. Exit code 1 when it cannot be used. Values of secret variables are hidden.
    """
    from graphspec.cache.folder.contents import contents_of
    from graphspec.cache.location import cache_folder

    found = contents_of(_only(cache_folder(cache_dir), key))
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    return FINDINGS if found.problem else FINE


def _only(root: str, key: str) -> "StoredFile":
    from graphspec.cache.folder.contents import find_entries

    if not key:
        raise click.UsageError("KEY is empty")
    found = find_entries(root, key)
    if not found:
        raise click.UsageError(
            f"no entry in {root} has a key that begins with {key!r}; see graphspec cache ls"
        )
    if len(found) > 1:
        named = ", ".join(f.key for f in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise click.UsageError(
            f"{entries(len(found))} have a key that begins with {key!r}: {named}{more}"
        )
    return found[0]


def _print(found: "Contents") -> None:
    sizes = found.sizes
    click.echo(f"key {found.file.key}")
    click.echo(f"path {visible(found.file.path)}")
    if found.problem:
        click.echo(f"finding: {visible(found.problem)}")
    if sizes is not None:
        click.echo(
            f"bytes {found.file.bytes:,}: header {sizes.header:,}, payload {sizes.payload:,}"
        )
        click.echo(f"payload SHA-256 {sizes.payload_digest.hex()}")
        signer = f"by {sizes.seal.public_key.hex()}" if sizes.seal else "by nobody"
        click.echo(f"signed {signer}")
    click.echo(f"last use {when(found.file.last_used)}")
    for name, value in {**found.metadata, **found.provenance}.items():
        click.echo(f"{visible(name)} {visible(value)}")
    if found.reads:
        click.echo(f"the trace read {len(found.reads)} fields:")
        for name in found.reads:
            click.echo(f"  {visible(name)}")
    if found.key:
        click.echo("its key is made of:")
    for part, values in found.key.items():
        for path, value in values.items():
            name = f"{part}: {path}" if path else part
            click.echo(f"  {visible(name)} = {visible(value)}")
