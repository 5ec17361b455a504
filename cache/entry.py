"""The file format of one entry: self-describing, digests checked before anything is interpreted, no pickle.

    offset  size  content
    0       8     magic  b"GSPECENT"
    8       4     format version, little-endian
    12      4     codec of the payload: 0, stored as it is
    16      4     header length in bytes
    20      4     zero
    24      8     payload length in bytes
    32      32    SHA-256 of the header
    64      32    SHA-256 of the payload
    96      32    Ed25519 public key of the signer, or zeros
    128     64    Ed25519 signature of bytes 0 to 127, or zeros
    192     16    XXH3-128 of the payload
    208     8     XXH3-64 of bytes 0 to 207
    216     ...   header: canonical encoding of {"key": key text, "metadata": {...}}
    ...     ...   payload

The payload's digests are in the fixed part, so that a reader checks both parts before it reads either, and a signature
of 128 bytes covers them both. XXH3-128 finds damage, ten times as fast as SHA-256, and is no protection against a person:
it is enough in a folder that nobody else can write to, where whoever could alter the payload could alter any digest.
Nothing follows the payload.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import xxhash

from graphspec.cache.units import EntryKey
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode, encode
from graphspec.keys.factors import digest

MAGIC = b"GSPECENT"
FORMAT = 3
_STORED = 0
_SIGNED = struct.Struct("<8sIIIIQ32s32s32s")
_CHECKED = struct.Struct(f"<{_SIGNED.size}s64s16s")
_PREFIX = struct.Struct(f"<{_CHECKED.size}s8s")
_NO_SIGNER, _NO_SIGNATURE = bytes(32), bytes(64)
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 4 << 30
PREFIX_BYTES = _PREFIX.size


@attrs.frozen(kw_only=True)
class Seal:
    """Who signed an entry, with which signature, over which bytes of its fixed part."""

    public_key: bytes
    signature: bytes
    signed: bytes = attrs.field(repr=False)


class Signer(Protocol):
    """What can sign an entry as it is packed."""

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the Ed25519 public key."""
        ...

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature."""
        ...


@attrs.frozen(kw_only=True)
class Entry:
    """A stored artifact: its key, what is known of it, and its bytes. `seal` is there for an entry that was signed."""

    key: EntryKey
    metadata: Mapping[str, Any]
    payload: bytes | memoryview = attrs.field(repr=False)
    seal: Seal | None = attrs.field(default=None, eq=False, repr=False)


Trust = Callable[[Seal | None], str]
"""Why entries with this seal are not trusted, in a sentence; an empty text where they are."""


class EntryCorruptError(ValueError):
    """The bytes are not a complete, unaltered, trusted entry. The text is the reason that the quarantine keeps."""


@attrs.frozen(kw_only=True)
class Sizes:
    """Lengths in bytes that the fixed part of an entry promises, SHA-256 digests, and the payload's XXH3-128."""

    header: int
    payload: int
    header_digest: bytes
    payload_digest: bytes
    payload_check: bytes
    seal: Seal | None

    @property
    def end(self) -> int:
        """Length of the whole entry in bytes."""
        return PREFIX_BYTES + self.header + self.payload


def pack(entry: Entry, signer: Signer | None = None) -> bytes:
    """The file content of an entry, signed by `signer`, or with the seal that it has."""
    header = encode({"key": entry.key.text, "metadata": entry.metadata})
    sizes = (MAGIC, FORMAT, _STORED, len(header), 0, len(entry.payload))
    digests = hashlib.sha256(header).digest(), hashlib.sha256(entry.payload).digest()
    if signer is not None:
        signed = _SIGNED.pack(*sizes, *digests, signer.public_key)
        signature = signer.sign(signed)
    elif entry.seal is not None:
        signed = _SIGNED.pack(*sizes, *digests, entry.seal.public_key)
        signature = entry.seal.signature
    else:
        signed, signature = _SIGNED.pack(*sizes, *digests, _NO_SIGNER), _NO_SIGNATURE
    checked = _CHECKED.pack(signed, signature, xxhash.xxh3_128_digest(entry.payload))
    prefix = _PREFIX.pack(checked, xxhash.xxh3_64_digest(checked))
    return b"".join((prefix, header, entry.payload))


def unpack(
    data: bytes | memoryview,
    *,
    with_payload: bool = True,
    trust: Trust | None = None,
    quick: bool = False,
) -> Entry:
    """The entry that `data` holds. Raises `EntryCorruptError` with the first thing that is wrong.

    Nothing is interpreted before sizes, digests and, with `trust`, the seal are found right. `quick` leaves the payload's
    SHA-256 out and trusts its XXH3-128: for a private folder, and not together with `trust`, since a seal covers the
    SHA-256. Without `with_payload` only the header is checked and the payload is left empty: for listings, never for loading.
    """
    view = memoryview(data)
    sizes = read_prefix(view)
    end = PREFIX_BYTES + sizes.header
    if len(view) < end or (with_payload and len(view) < sizes.end):
        raise EntryCorruptError(f"truncated: {len(view)} bytes, the header promises {sizes.end}")
    if len(view) > sizes.end:
        raise EntryCorruptError(f"{len(view) - sizes.end} bytes follow the payload")
    header = view[PREFIX_BYTES:end]
    if hashlib.sha256(header).digest() != sizes.header_digest:
        raise EntryCorruptError("the header's SHA-256 differs")
    payload = view[end:]
    if with_payload:
        _check_payload(payload, sizes, quick=quick and trust is None)
    distrust = trust(sizes.seal) if trust is not None else ""
    if distrust:
        raise EntryCorruptError(distrust)
    return _interpret(bytes(header), payload if with_payload else b"", sizes.seal)


def _check_payload(payload: memoryview, sizes: Sizes, *, quick: bool) -> None:
    if not quick and hashlib.sha256(payload).digest() != sizes.payload_digest:
        raise EntryCorruptError("the payload's SHA-256 differs")
    if xxhash.xxh3_128_digest(payload) != sizes.payload_check:
        raise EntryCorruptError("the payload's XXH3-128 differs")


def read_prefix(data: bytes | memoryview) -> Sizes:
    """What the fixed part of an entry promises. Raises `EntryCorruptError` for one that is damaged or beyond the limits."""
    if len(data) < PREFIX_BYTES:
        raise EntryCorruptError(f"truncated: {len(data)} bytes, the fixed part has {PREFIX_BYTES}")
    checked, check = _PREFIX.unpack_from(data)
    signed, signature, payload_check = _CHECKED.unpack(checked)
    magic, version, codec, header, zero, payload, *digests, public_key = _SIGNED.unpack(signed)
    if magic != MAGIC:
        raise EntryCorruptError("the magic number differs")
    if version != FORMAT:
        raise EntryCorruptError(f"format version {version}, this graphspec reads {FORMAT}")
    if xxhash.xxh3_64_digest(checked) != check:
        raise EntryCorruptError("the fixed part's XXH3-64 differs")
    if codec != _STORED or zero:
        raise EntryCorruptError(f"payload codec {codec}, this graphspec reads {_STORED}")
    if header > _MAX_HEADER_BYTES or payload > _MAX_PAYLOAD_BYTES:
        raise EntryCorruptError("the promised size is beyond the limit")
    unsigned = public_key == _NO_SIGNER and signature == _NO_SIGNATURE
    return Sizes(
        header=header,
        payload=payload,
        header_digest=digests[0],
        payload_digest=digests[1],
        payload_check=payload_check,
        seal=None if unsigned else Seal(public_key=public_key, signature=signature, signed=signed),
    )


def _interpret(header: bytes, payload: bytes | memoryview, seal: Seal | None) -> Entry:
    try:
        content = decode(header)
        text, metadata = content["key"], content["metadata"]
    except (KeyFactorError, KeyError, TypeError) as error:
        raise EntryCorruptError(f"the header does not say what it should: {error}") from None
    if not isinstance(text, bytes) or not isinstance(metadata, Mapping):
        raise EntryCorruptError("the header does not say what it should")
    return Entry(key=EntryKey(text, digest(text)), metadata=metadata, payload=payload, seal=seal)
