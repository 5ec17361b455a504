"""Small entries for tests of the format and of stores."""

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import xxhash

from graphspec.cache.entry import Entry
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest

METADATA: Mapping[str, Any] = {"unit": "toy", "device": "cpu", "compile_seconds": 1.5}


def key_of(name: str) -> EntryKey:
    """A key whose text names `name`."""
    text = encode({"unit": name})
    return EntryKey(text, digest(text))


def entry_of(name: str, payload: bytes = b"library bytes") -> Entry:
    """A small entry under `key_of(name)`."""
    return Entry(key=key_of(name), metadata=METADATA, payload=payload)


def fixed_part(
    *,
    version=3,
    codec=0,
    header=0,
    zero=0,
    payload=0,
    digests=(b"", b""),
    public_key=bytes(32),
    signature=bytes(64),
    check=bytes(16),
):
    """The first 216 bytes of an entry with any content, and a right check."""
    data = struct.pack(
        "<8sIIIIQ32s32s32s",
        b"GSPECENT",
        version,
        codec,
        header,
        zero,
        payload,
        *digests,
        public_key,
    )
    data += signature + check
    return data + xxhash.xxh3_64_digest(data)


def with_header(header, payload=b""):
    """A file with right digests around any header."""
    fixed = fixed_part(
        header=len(header),
        payload=len(payload),
        digests=(hashlib.sha256(header).digest(), hashlib.sha256(payload).digest()),
        check=xxhash.xxh3_128_digest(payload),
    )
    return fixed + header + payload
