"""`glance`: the few facts of an entry that listings show, without decoding all of its header."""

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from graphspec.cache.entry import PREFIX_BYTES, EntryCorruptError, read_prefix
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode

_AT_ONCE = 16384
_FRAME = re.compile(rb"d(\d{1,12}):")
_MEMBER = re.compile(rb"s(\d{1,12}):([^:]*)([A-Za-z])(\d{1,12}):")


@attrs.frozen(kw_only=True)
class Glance:
    """What listings need of an entry. None for what its header does not say.

    `size` is that of the file in bytes, `last_used` in seconds since the epoch. `public_key` is that of the signer; whether
    the signature is right is not looked at.
    """

    size: int
    last_used: float
    unit: str | None
    device: str | None
    compile_seconds: float | None
    torch: str | None
    public_key: bytes | None


def glance(path: str) -> Glance | None:
    """What a listing says of an entry; None for a file that is not a whole entry as far as its header tells.

    10,000 entries take half a second. To decode their headers takes ten times as long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(descriptor, _AT_ONCE)
        sizes = read_prefix(data)
        missing = PREFIX_BYTES + sizes.header - len(data)
        if missing > 0:
            data += os.read(descriptor, missing)
        facts = os.fstat(descriptor)
        if facts.st_size != sizes.end:
            return None
    except (OSError, EntryCorruptError):
        return None
    finally:
        os.close(descriptor)
    header = data[PREFIX_BYTES : PREFIX_BYTES + sizes.header]
    if hashlib.sha256(header).digest() != sizes.header_digest:
        return None
    try:
        found: Mapping[str, Any] | None = _quick(header)
    except (ValueError, OverflowError):
        found = _decoded(header)
    if found is None:
        return None
    return Glance(
        size=facts.st_size,
        last_used=facts.st_mtime,
        unit=_text(found.get("unit")),
        device=_text(found.get("device")),
        torch=_text(found.get("torch")),
        compile_seconds=_seconds(found.get("compile_seconds")),
        public_key=sizes.seal.public_key if sizes.seal is not None else None,
    )


def _quick(header: bytes) -> Mapping[str, Any]:
    """The facts, found by skipping all other values. Raises ValueError for a header that needs a closer look."""
    top = _FRAME.match(header)
    if top is None:
        raise ValueError("no mapping")
    members = _members(header, (b"d", top.end(), len(header)), b"metadata")
    # Members are sorted by their encoding, which begins with the length of the name: device is the last one wanted.
    members = _members(header, members.get(b"metadata"), b"device")
    origin = members.get(b"provenance")
    inside = _members(header, origin, b"torch") if origin is not None else {}
    facts = {}
    for name, place in (*inside.items(), *members.items()):
        read = _PLAIN.get(place[0])
        if name in _FACTS and read is not None:
            facts[name.decode()] = read(header[place[1] : place[2]].decode())
    return facts


_FACTS = frozenset((b"unit", b"device", b"compile_seconds", b"torch"))
_PLAIN: Mapping[bytes, Callable[[str], Any]] = {
    b"s": str,
    b"f": float.fromhex,
    b"i": int,
    b"I": lambda text: int(text, 16),
}
_Place = tuple[bytes, int, int]
"""Tag of a value, and where its body begins and ends."""


def _members(data: bytes, place: _Place | None, last: bytes) -> Mapping[bytes, _Place]:
    """Where the values of a mapping are, up to that of `last`. See `graphspec.keys.encoding` for how they are written."""
    if place is None or place[0] != b"d":
        raise ValueError("no mapping")
    found: dict[bytes, _Place] = {}
    match, (_, at, end) = _MEMBER.match, place
    while at < end and last not in found:
        member = match(data, at)
        if member is None:
            raise ValueError(f"no member at byte {at}")
        size, name, tag, length = member.groups()
        begin = member.end()
        at = begin + int(length)
        if int(size) != len(name) or at > end:
            raise ValueError(f"no member at byte {begin}")
        found[name] = (tag, begin, at)
    return found


def _decoded(header: bytes) -> Mapping[str, Any] | None:
    """The facts, where skipping did not find them: metadata may have any names. None for a header of something else."""
    try:
        metadata = decode(header)["metadata"]
    except (KeyFactorError, KeyError, TypeError):
        return None
    if not isinstance(metadata, Mapping):
        return None
    inside = metadata.get("provenance")
    return {**metadata, "torch": inside.get("torch") if isinstance(inside, Mapping) else None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _seconds(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        return None
    try:
        return float(value)
    except OverflowError:
        return None
