"""The file format of one entry: self-describing, digests checked before anything is interpreted, no pickle.

    offset  size  content
    0       8     magic  b"GSPECENT"
    8       4     format version, little-endian
    12      4     header length in bytes
    16      8     payload length in bytes
    24      32    SHA-256 of the header
    56      32    SHA-256 of the payload
    88      ...   header: canonical encoding of {"key": key text, "metadata": {...}}
    ...     ...   payload

The payload's digest is in the fixed part so that a reader checks both parts before it reads either. Nothing
follows the payload.
"""

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.cache.units import EntryKey
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode, encode
from graphspec.keys.factors import digest

MAGIC = b"GSPECENT"
FORMAT = 1
_PREFIX = struct.Struct("<8sIIQ32s32s")
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 4 << 30


@attrs.frozen(kw_only=True)
class Entry:
    """A stored artifact: its key, what is known of it, and its bytes."""

    key: EntryKey
    metadata: Mapping[str, Any]
    payload: bytes | memoryview = attrs.field(repr=False)


class EntryCorruptError(ValueError):
    """The bytes are not a complete, unaltered entry. The text is the reason that the quarantine keeps."""


def pack(entry: Entry) -> bytes:
    """The file content of an entry."""
    header = encode({"key": entry.key.text, "metadata": entry.metadata})
    prefix = _PREFIX.pack(
        MAGIC,
        FORMAT,
        len(header),
        len(entry.payload),
        hashlib.sha256(header).digest(),
        hashlib.sha256(entry.payload).digest(),
    )
    return b"".join((prefix, header, entry.payload))


def unpack(data: bytes | memoryview, *, with_payload: bool = True) -> Entry:
    """The entry that `data` holds. Raises `EntryCorruptError` with the first thing that is wrong.

    Without `with_payload` only the header is checked and the payload is left empty: for listings, never for loading.
    """
    view = memoryview(data)
    header_bytes, payload_bytes, header_digest, payload_digest = _read_prefix(view)
    end = _PREFIX.size + header_bytes
    if len(view) < end or (with_payload and len(view) < end + payload_bytes):
        raise EntryCorruptError(
            f"truncated: {len(view)} bytes, the header promises {end + payload_bytes}"
        )
    if len(view) > end + payload_bytes:
        raise EntryCorruptError(f"{len(view) - end - payload_bytes} bytes follow the payload")
    header = view[_PREFIX.size : end]
    if hashlib.sha256(header).digest() != header_digest:
        raise EntryCorruptError("the header's SHA-256 differs")
    payload = view[end:]
    if with_payload and hashlib.sha256(payload).digest() != payload_digest:
        raise EntryCorruptError("the payload's SHA-256 differs")
    return _interpret(bytes(header), payload if with_payload else b"")


def payload_size(data: bytes) -> int:
    """Payload length in bytes that the fixed part of an entry promises."""
    return _read_prefix(memoryview(data))[1]


PREFIX_BYTES = _PREFIX.size


def header_size(data: bytes) -> int:
    """Header length in bytes that the fixed part of an entry promises."""
    return _read_prefix(memoryview(data))[0]


def _read_prefix(view: memoryview) -> tuple[int, int, bytes, bytes]:
    if len(view) < _PREFIX.size:
        raise EntryCorruptError(f"truncated: {len(view)} bytes, the fixed part has {_PREFIX.size}")
    magic, version, header_bytes, payload_bytes, header_digest, payload_digest = (
        _PREFIX.unpack_from(view)
    )
    if magic != MAGIC:
        raise EntryCorruptError("the magic number differs")
    if version != FORMAT:
        raise EntryCorruptError(f"format version {version}, this graphspec reads {FORMAT}")
    if header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
        raise EntryCorruptError("the promised size is beyond the limit")
    return header_bytes, payload_bytes, header_digest, payload_digest


def _interpret(header: bytes, payload: bytes | memoryview) -> Entry:
    try:
        content = decode(header)
        text, metadata = content["key"], content["metadata"]
    except (KeyFactorError, KeyError, TypeError) as error:
        raise EntryCorruptError(f"the header does not say what it should: {error}") from None
    if not isinstance(text, bytes) or not isinstance(metadata, Mapping):
        raise EntryCorruptError("the header does not say what it should")
    return Entry(key=EntryKey(text, digest(text)), metadata=metadata, payload=payload)
