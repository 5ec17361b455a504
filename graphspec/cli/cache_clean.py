"""``graphspec cache gc`` and ``prune``: remove what nobody needs, and remove what you choose."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from graphspec.cli.cache_text import duration, entries, in_bytes, size, when
from graphspec.cli.common import (
    FINDINGS,
    FINE,
    cache_dir_option,
    json_option,
    print_json,
    visible,
)

if TYPE_CHECKING:
    from graphspec.cache.folder.listing import StoredFile
    from graphspec.cache.folder.tidy import Tidied
    from graphspec.cache.prune import Removed

_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be removed; remove nothing."
)


@click.command("gc")
@cache_dir_option
@json_option
@click.option("--max-bytes", type=size, help="Cap on bytes, as 5GB or 4GiB. Default: 20 GiB.")
@click.option("--max-entries", type=click.IntRange(min=0), help="Cap on files. Default: 20,000.")
@click.option(
    "--grace",
    type=duration,
    help="How long after its last use an entry goes only if nothing older is left, as 12h. Default: a day.",
)
@click.option(
    "--keep-quarantine",
    type=duration,
    help="How long files stay that were set aside. Default: 30 days.",
)
@_dry_run_option
def gc(
    cache_dir: str | None,
    as_json: bool,
    max_bytes: int | None,
    max_entries: int | None,
    grace: float | None,
    keep_quarantine: float | None,
    dry_run: bool,
) -> int:
    """Remove files that dead processes left, old quarantine, and the least valuable entries beyond the caps.

    Exit code 1 when the folder is still above a cap, or something could not be removed.
    """
    from graphspec.cache.folder.evict import Caps
    from graphspec.cache.folder.tidy import QUARANTINE_KEPT_S, tidy
    from graphspec.cache.location import cache_folder

    given = {"max_bytes": max_bytes, "max_entries": max_entries, "grace_seconds": grace}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    done = tidy(
        cache_folder(cache_dir),
        Caps(**chosen),
        quarantine_kept_s=QUARANTINE_KEPT_S if keep_quarantine is None else keep_quarantine,
        dry_run=dry_run,
    )
    if as_json:
        print_json({"dry_run": dry_run, **done.as_dict()})
    else:
        _print_tidied(done, dry_run)
    return FINDINGS if done.over or done.refused else FINE


def _print_tidied(done: "Tidied", dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    _print_files(done.eviction.removed, verb)
    if done.temporaries:
        click.echo(f"{verb} {done.temporaries} files of dead processes")
    if done.quarantined:
        click.echo(f"{verb} {len(done.quarantined)} files from the quarantine")
    if done.eviction.young:
        click.echo(
            f"note: {entries(done.eviction.young)} of them were used within the grace period: nothing older was left"
        )
    for reason in done.refused:
        click.echo(f"finding: {visible(reason)}")
    held, caps = done.eviction.held, done.caps
    click.echo(
        f"{visible(done.folder)}: {in_bytes(held.bytes)} of {in_bytes(caps.max_bytes)}, "
        f"{held.files:,} files of {caps.max_entries:,}{' (above a cap)' if done.over else ''}"
    )


def _print_files(files: "Sequence[StoredFile]", verb: str) -> None:
    for file in files:
        click.echo(
            f"{verb} {visible(file.key)}  {file.bytes:,} bytes, last used {when(file.last_used)}"
        )


@click.command("prune")
@cache_dir_option
@json_option
@click.option("--all", "everything", is_flag=True, help="Every entry.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Entries that were not used for so many days.",
)
@click.option("--unit", metavar="NAME", help="Entries of this unit.")
@click.option(
    "--toolchain-other-than-this",
    "other_toolchain",
    is_flag=True,
    help="Entries that this installation of torch and graphspec cannot use, and another one could.",
)
@_dry_run_option
@click.option("--yes", is_flag=True, help="Remove them.")
def prune(
    cache_dir: str | None,
    as_json: bool,
    everything: bool,
    older_than: float | None,
    unit: str | None,
    other_toolchain: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove the entries that meet every condition given. Processes that run go on; they compile what they need anew.

    Needs --yes, or --dry-run to see what would go. Exit code 1 when something could not be removed.
    """
    from graphspec.cache.location import cache_folder
    from graphspec.cache.prune import Removed, Wanted, choose, remove

    conditions = older_than is not None or unit is not None or other_toolchain
    if everything == conditions:
        raise click.UsageError(
            "give --all, or one or more of --older-than, --unit and --toolchain-other-than-this"
        )
    root = cache_folder(cache_dir)
    since = None if older_than is None else time.time() - older_than * 86_400
    chosen = choose(root, Wanted(unused_since=since, unit=unit, other_toolchain=other_toolchain))
    if not (dry_run or yes):
        held = in_bytes(sum(f.bytes for f in chosen))
        raise click.UsageError(
            f"this would remove {entries(len(chosen))} ({held}) from {root}: repeat it with --yes, or with --dry-run "
            "to see which"
        )
    done = Removed(files=chosen, refused={}) if dry_run else remove(root, chosen)
    if as_json:
        print_json(_as_dict(root, done, dry_run))
    else:
        _print_removed(root, done, dry_run)
    return FINDINGS if done.refused else FINE


def _as_dict(root: str, done: "Removed", dry_run: bool) -> dict[str, Any]:
    return {
        "folder": root,
        "dry_run": dry_run,
        "removed": [
            {"key": f.key, "path": f.path, "bytes": f.bytes, "last_used": f.last_used}
            for f in done.files
        ],
        "freed_bytes": sum(f.bytes for f in done.files),
        "refused": [{"path": path, "reason": reason} for path, reason in done.refused.items()],
    }


def _print_removed(root: str, done: "Removed", dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    _print_files(done.files, verb)
    for path, reason in done.refused.items():
        click.echo(f"finding: {visible(f'{path}: {reason}')}")
    freed = in_bytes(sum(f.bytes for f in done.files))
    click.echo(f"{verb} {entries(len(done.files))} ({freed}) from {visible(root)}")
