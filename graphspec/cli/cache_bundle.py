"""``graphspec cache export``, ``import`` and ``keygen``: entries as one file that travels, and keys to sign it with."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

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
    from graphspec.cache.bundle.exporter import Candidate, Exported
    from graphspec.cache.bundle.importer import Imported
    from graphspec.cache.entry import Trust
    from graphspec.cache.folder.disk import DiskStore

Missing = Sequence[Mapping[str, str]]


@click.command("export")
@click.argument("file", metavar="FILE")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--config",
    metavar="FILE",
    help="Take the units of this config's program; - for standard input.",
)
@set_option
@cache_dir_option
@click.option("--sign", metavar="KEYFILE", help="Private key to sign the bundle with.")
@click.option(
    "--trust",
    metavar="KEYFILE",
    help="For a shared cache: take only entries that one of these public keys signed.",
)
@click.option(
    "--fact",
    "facts",
    multiple=True,
    metavar="NAME=VALUE",
    help="Written into the bundle, as in --fact built=2026-11-30. Can be repeated.",
)
@json_option
def export(
    file: str,
    keys: tuple[str, ...],
    config: str | None,
    settings: tuple[str, ...],
    cache_dir: str | None,
    sign: str | None,
    trust: str | None,
    facts: tuple[str, ...],
    as_json: bool,
) -> int:
    """Write entries of the cache folder into one FILE: all of them, those of the KEYs, or those of a config's units.

    A KEY can be cut short. Equal entries give equal files. Exit code 1 when a unit of the config is not in the cache, or
    a file of the cache is not whole; the bundle then holds the others.
    """
    from graphspec.cache.bundle.exporter import all_entries, export_bundle
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.location import cache_folder

    if config is None and settings:
        raise click.UsageError("--set changes a config: give --config too")
    if config is not None and keys:
        raise click.UsageError("give KEYs or --config, not both")
    signer = _signing_key(sign) if sign is not None else None
    store = DiskStore(cache_folder(cache_dir))
    missing: Missing = ()
    if config is not None:
        candidates, missing, named = _of_config(config, settings, store)
        trust = trust if trust is not None else named
    elif keys:
        candidates = [_named(key, all_entries(store)) for key in keys]
    else:
        candidates = all_entries(store)
    done = export_bundle(
        file, candidates, signer=signer, trust=_entry_trust(trust, store), facts=_facts(facts)
    )
    found = [f"unit {m['unit']} is not in the bundle: {m['reason']} ({m['key']})" for m in missing]
    found += [f"{path} is not in the bundle: {reason}" for path, reason in done.left_out.items()]
    if not done.entries:
        found.append(f"nothing was written: no entry to export in {store.root}")
    if as_json:
        print_json(_exported(done, missing, found))
    else:
        _print_exported(done, found)
    return FINDINGS if found else FINE


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option(
    "--trust", metavar="KEYFILE", help="Public keys: one of them must have signed the bundle."
)
@click.option(
    "--shared",
    is_flag=True,
    help="For a shared cache: one of the keys must have signed each entry too.",
)
@click.option(
    "--any-device",
    is_flag=True,
    help="Take entries for another toolchain or device: to fill a cache for other machines.",
)
@cache_dir_option
@json_option
def import_command(
    file: str,
    trust: str | None,
    shared: bool,
    any_device: bool,
    cache_dir: str | None,
    as_json: bool,
) -> int:
    """Read the bundle FILE into the cache folder, after all of it was checked. What is stored there stays.

    A bundle that is damaged, not trusted, or for another toolchain or device is refused as a whole. Exit code 1 when an
    entry differs from what is stored under its key, or could not be stored.
    """
    from graphspec.cache.bundle.importer import import_bundle
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.location import cache_folder

    if shared and trust is None:
        raise click.UsageError("--shared asks who signed the entries: give --trust too")
    store = DiskStore(cache_folder(cache_dir))
    entry_trust = _entry_trust(trust if shared else None, store)
    done = import_bundle(
        file,
        store,
        trust=_trust(trust, "the bundle") if trust is not None else None,
        entry_trust=entry_trust,
        any_device=any_device,
    )
    found = [_finding(e.digest, e.unit, e.reason) for e in done.entries if e.is_finding]
    if as_json:
        print_json(_imported(done, found, trusted=trust is not None))
    else:
        _print_imported(done, found)
    return FINDINGS if found else FINE


@click.command("keygen")
@click.argument("file", metavar="FILE")
@click.option("--comment", default="", help="Whose key it is, for those who read the trust file.")
@json_option
def keygen(file: str, comment: str, as_json: bool) -> int:
    """Make a private key in FILE, and print the line of its public key for others' trust files."""
    from graphspec.cache.signing import PublicKey, SigningKey

    key = SigningKey.generate()
    key.save(file)
    line = PublicKey(key.public_key, comment).line
    if as_json:
        print_json({"private_key": file, "public_key": line})
    else:
        click.echo(line)
    return FINE


def _signing_key(path: str) -> Any:
    from graphspec.cache.signing import SigningKey

    return SigningKey.load(path)


def _trust(path: str, what: str) -> "Trust":
    from graphspec.cache.signing import read_public_keys, trust_in

    return trust_in(read_public_keys(path), what)


def _entry_trust(path: str | None, store: "DiskStore") -> "Trust | None":
    """Whose entries the cache folder holds: those of trusted keys, or else this user's alone, if nobody else can write."""
    if path is not None:
        return _trust(path, "the entry")
    from graphspec.cache.trust import require_private

    require_private(store.root)
    return None


def _of_config(
    config: str, settings: tuple[str, ...], store: "DiskStore"
) -> "tuple[Sequence[Candidate], Missing, str | None]":
    from graphspec.api import load
    from graphspec.cache.bundle.exporter import entries_of
    from graphspec.cache.load import keyed_units
    from graphspec.capture.program import load_program

    spec = load(config, settings)
    found, missing = entries_of(keyed_units(load_program(spec).units(), spec), store)
    rows = [{"unit": k.unit.name, "key": k.key.digest, "reason": why} for k, why in missing]
    return found, rows, spec.cache.trust


def _named(key: str, candidates: "Sequence[Candidate]") -> "Candidate":
    found = [c for c in candidates if c.digest.startswith(key.lower())]
    if len(found) != 1 or not key:
        count = f"{len(found)} entries have" if found else "no entry has"
        raise click.UsageError(f"{count} a key that begins with {key!r}; see graphspec cache ls")
    return found[0]


def _facts(given: tuple[str, ...]) -> Mapping[str, str]:
    facts = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--fact {text!r} is not NAME=VALUE")
        facts[name] = value
    return facts


def _exported(done: "Exported", missing: Missing, findings: Sequence[str]) -> Mapping[str, Any]:
    return {
        "bundle": done.path,
        "bytes": done.size,
        "machines": done.machines,
        "signed_by": _signer(done.signer),
        "entries": [{"key": e.digest, "unit": e.unit, "bytes": e.size} for e in done.entries],
        "missing": [dict(m) for m in missing],
        "left_out": [{"path": p, "reason": reason} for p, reason in done.left_out.items()],
        "findings": list(findings),
    }


def _print_exported(done: "Exported", findings: Sequence[str]) -> None:
    for e in done.entries:
        click.echo(f"{e.digest}  {visible(e.unit)}  {e.size:,} bytes")
    for finding in findings:
        click.echo(f"finding: {visible(finding)}")
    if done.entries:
        signed = _signer(done.signer)
        count = "1 entry" if len(done.entries) == 1 else f"{len(done.entries)} entries"
        machines = (
            "one toolchain and device"
            if done.machines == 1
            else (f"{done.machines} toolchains or devices")
        )
        click.echo(
            f"{count} for {machines} in {done.path}, {done.size:,} bytes, "
            f"{f'signed by {signed}' if signed else 'not signed'}"
        )


def _imported(done: "Imported", findings: Sequence[str], *, trusted: bool) -> Mapping[str, Any]:
    return {
        "bundle": done.path,
        "folder": done.folder,
        "created_by": dict(done.created_by),
        "signed_by": _signer(done.signer),
        "signature_checked": trusted,
        **{outcome: done.count(outcome) for outcome in _OUTCOMES},
        "entries": [{"key": e.digest, "unit": e.unit, "outcome": e.outcome} for e in done.entries],
        "notes": list(done.notes),
        "findings": list(findings),
    }


_OUTCOMES = ("imported", "present", "differs", "failed")


def _print_imported(done: "Imported", findings: Sequence[str]) -> None:
    for e in done.entries:
        click.echo(f"{e.digest}  {visible(e.unit)}  {e.outcome}")
    for note in done.notes:
        click.echo(f"note: {visible(note)}")
    for finding in findings:
        click.echo(f"finding: {visible(finding)}")
    counts = ", ".join(f"{done.count(outcome)} {outcome}" for outcome in _OUTCOMES)
    click.echo(f"{counts}; cache folder {done.folder}")


def _finding(digest: str, unit: str, reason: str) -> str:
    why = reason or (
        "other bytes are stored under its key, and stayed: a compile is not deterministic, or the key forgets something"
    )
    return f"entry {digest} of unit {unit}: {why}"


def _signer(public_key: bytes | None) -> str | None:
    from graphspec.cache.signing import PublicKey

    return PublicKey(public_key).line if public_key is not None else None
