"""Bundles for tests: made the right way from small entries, and made by hand with right digests around anything."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from graphspec.cache.bundle.exporter import all_entries, export_bundle
from graphspec.cache.entry import Entry, pack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode, encode_decoded
from graphspec.keys.factors import digest
from support.entries import METADATA

MACHINE: Mapping[str, Any] = {
    "toolchain": {"torch": "2.13.0", "system": "Linux"},
    "device": {"kind": "cpu", "capability": ("avx2",)},
    "options": {"flags": ()},
}


def unit_entry(
    name: str, payload: bytes = b"library", machine: Mapping[str, Any] = MACHINE
) -> Entry:
    """An entry whose key names a unit and a machine, as that of a compiled unit does."""
    text = encode_decoded({"kind": "unit", "unit": name, **machine})
    return Entry(
        key=EntryKey(text, digest(text)), metadata={**METADATA, "unit": name}, payload=payload
    )


def store_of(folder: Path, *entries: Entry, signer: Any = None) -> DiskStore:
    """A cache folder that holds the entries."""
    store = DiskStore(str(folder), signer=signer)
    for entry in entries:
        assert store.put(entry).written
    return DiskStore(str(folder))


def exported(folder: Path, *entries: Entry, signer: Any = None) -> Path:
    """A bundle of the entries, in a new folder."""
    path = folder / "a.bundle"
    done = export_bundle(str(path), all_entries(store_of(folder / "from", *entries)), signer=signer)
    assert len(done.entries) == len(entries)
    return path


def bundle_of(*packed: bytes, **parts: Any) -> bytes:
    """A bundle around packed entries, made by hand: `parts` replace what the manifest would say."""
    return around(encode_decoded(manifest_of(*packed, **parts)), b"".join(packed))


def manifest_of(*packed: bytes, **parts: Any) -> dict[str, Any]:
    """The manifest of packed entries that were made by `unit_entry` on one machine."""
    return {
        "created_by": {"graphspec": "0"},
        "machines": [MACHINE] if packed else [],
        "entries": rows_of(packed),
        **parts,
    }


def rows_of(packed: Sequence[bytes]) -> list[tuple[Any, ...]]:
    """How a manifest lists packed entries that stand in this order."""
    from graphspec.cache.entry import unpack

    rows, offset = [], 0
    for data in packed:
        key = unpack(data).key
        rows.append((key.digest, 0, offset, len(data), hashlib.sha256(data).digest()))
        offset += len(data)
    return rows


def in_order(*entries: Entry) -> list[bytes]:
    """The entries packed, in the order in which a bundle has them."""
    return [pack(e) for e in sorted(entries, key=lambda e: e.key.digest)]


def around(manifest: bytes, body: bytes, /, **sizes: Any) -> bytes:
    """A bundle of any manifest and any bytes behind it, with right digests; `sizes` replace what is in the fixed part."""
    wanted = {
        "magic": b"GSPECBDL",
        "version": 1,
        "zero": 0,
        "manifest": len(manifest),
        "whole": 168 + len(manifest) + len(body),
        "digest": hashlib.sha256(manifest).digest(),
        "public_key": bytes(32),
        **sizes,
    }
    signature = wanted.pop("signature", bytes(64))
    signed = struct.pack("<8sIIQQ32s32s", *wanted.values()) + signature
    return signed + xxhash.xxh3_64_digest(signed) + manifest + body


def with_extra_header(entry: Entry) -> bytes:
    """The entry, packed with one name more in its header than a header has."""
    from support.entries import with_header

    header = encode({"key": entry.key.text, "metadata": entry.metadata, "more": 1})
    return with_header(header, bytes(entry.payload))
