"""The file format of a bundle: many packed entries and a manifest in one file that no unpacker has to trust.

    offset  size  content
    0       8     magic  b"GSPECBDL"
    8       4     format version, little-endian
    12      4     zero
    16      8     manifest length in bytes
    24      8     length of the whole file in bytes
    32      32    SHA-256 of the manifest
    64      32    Ed25519 public key of the signer, or zeros
    96      64    Ed25519 signature of bytes 0 to 95, or zeros
    160     8     XXH3-64 of bytes 0 to 159
    168     ...   manifest: canonical encoding
    ...     ...   the entries, each packed as in a cache folder, one behind the other

The manifest is {"created_by": texts by name, "machines": [...], "entries": [...]}. A machine is what the keys of its entries
say of toolchain, device and compiler options. An entry is (key digest, number of its machine, offset behind the manifest,
size in bytes, SHA-256 of the packed entry); entries stand in the order of their digests. The bundle holds no name of a
file, so none can lead out of a folder, and nothing in it is compressed, so none of it grows.
"""

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import xxhash

from graphspec.cache.entry import PREFIX_BYTES as ENTRY_PREFIX_BYTES
from graphspec.cache.entry import Seal, Signer
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import Record, decode, encode_decoded

MAGIC = b"GSPECBDL"
FORMAT = 1
_SIGNED = struct.Struct("<8sIIQQ32s32s")
_PREFIX = struct.Struct(f"<{_SIGNED.size}s64s8s")
_NO_SIGNER, _NO_SIGNATURE = bytes(32), bytes(64)
PREFIX_BYTES = _PREFIX.size
MAX_MANIFEST_BYTES = 16 << 20
_MAX_LEVELS = 16
_DIGEST = re.compile(r"[0-9a-f]{32}")

Machine = Mapping[str, Any]
"""The parts of a unit's key that say what it was compiled by and for: `PARTS`, those that the key has."""

PARTS = ("toolchain", "device", "options")


class MalformedError(ValueError):
    """The bytes are no part of a bundle. The text is the reason."""


@attrs.frozen(kw_only=True)
class Listed:
    """One entry as the manifest lists it. `offset` counts from the end of the manifest; sizes are in bytes."""

    digest: str
    machine: int
    offset: int
    size: int
    sha256: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Manifest:
    """What a bundle says of itself."""

    created_by: Mapping[str, str]
    machines: Sequence[Machine]
    entries: Sequence[Listed]

    @property
    def entries_size(self) -> int:
        """Length of all entries in bytes."""
        return sum(e.size for e in self.entries)


@attrs.frozen(kw_only=True)
class Sizes:
    """Lengths in bytes, digest and signature that the fixed part of a bundle promises."""

    manifest: int
    whole: int
    manifest_digest: bytes
    seal: Seal | None


HOST = "host"
"""Kind of the device in keys of code that is compiled for a processor by something else than the units' compiler."""


def machine_of(key_text: bytes) -> Machine:
    """The machine that a key is for. Empty for a key that does not name one."""
    try:
        key = decode(key_text)
    except KeyFactorError:
        return {}
    return {p: key[p] for p in PARTS if p in key} if isinstance(key, Mapping) else {}


def pack_front(manifest: Manifest, signer: Signer | None = None) -> bytes:
    """Fixed part and manifest, signed by `signer`: what stands before the entries. Raises `MalformedError` beyond the limit."""
    content = encode_decoded(
        {
            "created_by": manifest.created_by,
            "machines": list(manifest.machines),
            "entries": [attrs.astuple(e) for e in manifest.entries],
        }
    )
    if len(content) > MAX_MANIFEST_BYTES:
        raise MalformedError(f"a manifest of {len(content)} bytes is beyond {MAX_MANIFEST_BYTES}")
    whole = PREFIX_BYTES + len(content) + manifest.entries_size
    sizes = (MAGIC, FORMAT, 0, len(content), whole, hashlib.sha256(content).digest())
    signed = _SIGNED.pack(*sizes, signer.public_key if signer is not None else _NO_SIGNER)
    signature = signer.sign(signed) if signer is not None else _NO_SIGNATURE
    check = xxhash.xxh3_64_digest(signed + signature)
    return _PREFIX.pack(signed, signature, check) + content


def read_prefix(data: bytes | memoryview) -> Sizes:
    """What the fixed part promises. Raises `MalformedError` for one that is damaged or beyond the limits."""
    if len(data) < PREFIX_BYTES:
        raise MalformedError(f"truncated: {len(data)} bytes, the fixed part has {PREFIX_BYTES}")
    signed, signature, check = _PREFIX.unpack_from(data)
    magic, version, zero, manifest, whole, digest, public_key = _SIGNED.unpack(signed)
    if magic != MAGIC:
        raise MalformedError("the magic number differs: this is no bundle")
    if version != FORMAT:
        raise MalformedError(f"format version {version}, this graphspec reads {FORMAT}")
    if xxhash.xxh3_64_digest(signed + signature) != check:
        raise MalformedError("the fixed part's XXH3-64 differs")
    if zero or manifest > MAX_MANIFEST_BYTES or whole < PREFIX_BYTES + manifest:
        raise MalformedError("the fixed part promises what cannot be")
    unsigned = public_key == _NO_SIGNER and signature == _NO_SIGNATURE
    return Sizes(
        manifest=manifest,
        whole=whole,
        manifest_digest=digest,
        seal=None if unsigned else Seal(public_key=public_key, signature=signature, signed=signed),
    )


def read_manifest(data: bytes, entries_size: int) -> Manifest:
    """The manifest in `data`, for entries of `entries_size` bytes in all. Raises `MalformedError` for anything else."""
    try:
        content = decode(data)
    except KeyFactorError as error:
        raise MalformedError(f"the manifest cannot be read: {error.problems[0].found}") from None
    if not isinstance(content, Mapping) or set(content) != {"created_by", "machines", "entries"}:
        raise MalformedError("the manifest does not have the parts of one")
    created_by, machines = content["created_by"], content["machines"]
    if not isinstance(created_by, Mapping) or not all(
        isinstance(text, str) for pair in created_by.items() for text in pair
    ):
        raise MalformedError("created_by of the manifest holds more than texts")
    if not isinstance(machines, list) or not all(map(_is_machine, machines)):
        raise MalformedError("machines of the manifest holds something else")
    rows = content["entries"]
    if not isinstance(rows, list):
        raise MalformedError("entries of the manifest is no list")
    manifest = Manifest(created_by=created_by, machines=machines, entries=tuple(map(_listed, rows)))
    _check_order(manifest, entries_size)
    return manifest


def _is_machine(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) <= set(PARTS) and _is_flat(value, _MAX_LEVELS)


def _is_flat(value: Any, levels: int) -> bool:
    """Whether a value is nested no deeper than that. Machines are compared and shown, level by level."""
    if isinstance(value, Record):
        value = value.fields
    if isinstance(value, Mapping):
        value = (*value, *value.values())
    if isinstance(value, tuple | list | frozenset):
        return levels > 0 and all(_is_flat(v, levels - 1) for v in value)
    return True


def _listed(row: Any) -> Listed:
    kinds = (str, int, int, int, bytes)
    if not isinstance(row, tuple) or tuple(map(type, row)) != kinds:
        raise MalformedError("an entry of the manifest is not listed as one")
    digest, machine, offset, size, sha256 = row
    if not _DIGEST.fullmatch(digest) or len(sha256) != 32 or size < ENTRY_PREFIX_BYTES:
        raise MalformedError("an entry of the manifest is listed with what cannot be")
    return Listed(digest=digest, machine=machine, offset=offset, size=size, sha256=sha256)


def _check_order(manifest: Manifest, entries_size: int) -> None:
    """One set of entries has one manifest: everything in order, each thing once, no gap, nothing over."""
    texts = [encode_decoded(m) for m in manifest.machines]
    if texts != sorted(set(texts)):
        raise MalformedError("the machines are not in order, or one is there twice")
    digests = [e.digest for e in manifest.entries]
    if digests != sorted(set(digests)):
        raise MalformedError(
            "the entries are not in the order of their keys, or one is there twice"
        )
    if {e.machine for e in manifest.entries} != set(range(len(texts))):
        raise MalformedError("the machines are not those of the entries")
    end = 0
    for entry in manifest.entries:
        if entry.offset != end:
            raise MalformedError("the entries do not stand one behind the other")
        end += entry.size
    if end != entries_size:
        raise MalformedError(f"entries of {end} bytes are listed, and {entries_size} are there")
