"""Small entries for tests of the format and of stores."""

from collections.abc import Mapping
from typing import Any

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
