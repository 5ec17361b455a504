"""The entry format: what is packed comes back, and what is not a whole entry is named as such."""

import hashlib
import pickle
import struct
import tracemalloc

import pytest

from graphspec.cache import entry as format_
from graphspec.cache.entry import (
    PREFIX_BYTES,
    EntryCorruptError,
    header_size,
    pack,
    payload_size,
    unpack,
)
from graphspec.keys.encoding import encode
from support.entries import METADATA, entry_of

SMALL = pack(entry_of("a"))
HEADER_END = PREFIX_BYTES + header_size(SMALL)

GOLDEN = "b571ef9f72f9640fb24fb172088251e06285a03b18396494db31b3930b76428a"


def with_header(header, payload=b""):
    """A file with right digests around any header."""
    prefix = struct.pack(
        "<8sIIQ32s32s",
        b"GSPECENT",
        1,
        len(header),
        len(payload),
        hashlib.sha256(header).digest(),
        hashlib.sha256(payload).digest(),
    )
    return prefix + header + payload


def test_fixed_part_is_as_documented():
    """Offsets and sizes of the fixed part are those of the module's table, so that other tools can read it."""
    magic, version, header, payload = struct.unpack_from("<8sIIQ", SMALL)
    assert (magic, version) == (b"GSPECENT", 1)
    assert (header, payload) == (header_size(SMALL), payload_size(SMALL))
    assert PREFIX_BYTES == 88
    assert SMALL[24:56] == hashlib.sha256(SMALL[88 : 88 + header]).digest()
    assert SMALL[56:88] == hashlib.sha256(SMALL[88 + header :]).digest()
    assert len(SMALL) == 88 + header + payload


def test_entry_is_self_describing():
    """Key, digest of the key and metadata come back from the bytes alone."""
    entry = unpack(SMALL)
    wanted = entry_of("a")
    assert entry.key == wanted.key
    assert entry.metadata == METADATA
    assert bytes(entry.payload) == wanted.payload


def test_without_payload_only_the_header_is_needed():
    """A listing reads the header and no byte of the payload."""
    entry = unpack(SMALL[:HEADER_END], with_payload=False)
    assert entry.key == entry_of("a").key
    assert entry.payload == b""


def test_truncation_at_every_length_is_corrupt():
    """Cut anywhere, the file is not an entry, and the reason says that it is cut."""
    for length in range(len(SMALL)):
        with pytest.raises(EntryCorruptError, match="truncated"):
            unpack(SMALL[:length])


def test_every_flipped_bit_is_corrupt():
    """No single bit of fixed part, header or payload can change without being noticed."""
    for at in range(len(SMALL) * 8):
        data = bytearray(SMALL)
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(EntryCorruptError):
            unpack(bytes(data))


def test_bytes_after_the_payload_are_corrupt():
    """Nothing may follow the payload."""
    with pytest.raises(EntryCorruptError, match="3 bytes follow the payload"):
        unpack(SMALL + b"abc")


def test_an_empty_file_is_corrupt():
    """A file of no bytes is not an entry."""
    with pytest.raises(EntryCorruptError, match="truncated: 0 bytes"):
        unpack(b"")


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_format_version_is_refused_by_its_number(version):
    """An entry of an older or newer format names both versions."""
    data = bytearray(SMALL)
    struct.pack_into("<I", data, 8, version)
    with pytest.raises(
        EntryCorruptError, match=f"format version {version}, this graphspec reads 1"
    ):
        unpack(bytes(data))


@pytest.mark.parametrize(("offset", "code", "size"), [(12, "<I", 2**32 - 1), (16, "<Q", 2**63)])
def test_a_huge_promised_size_allocates_nothing(offset, code, size):
    """The promise is refused from the fixed part alone, before memory is taken for it."""
    data = bytearray(SMALL)
    struct.pack_into(code, data, offset, size)
    tracemalloc.start()
    try:
        with pytest.raises(EntryCorruptError, match="beyond the limit"):
            unpack(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("offset", "code", "size"), [(12, "<I", 16 << 20), (16, "<Q", 4 << 30)])
def test_a_size_at_the_limit_is_a_truncation(offset, code, size):
    """A large size that is allowed is compared with what is there, and nothing is allocated for it either."""
    data = bytearray(SMALL)
    struct.pack_into(code, data, offset, size)
    tracemalloc.start()
    try:
        with pytest.raises(EntryCorruptError, match="truncated"):
            unpack(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "key",
        b"key",
        [],
        {},
        {"key": b"k"},
        {"metadata": {}},
        {"key": "text, not bytes", "metadata": {}},
        {"key": b"k", "metadata": [1]},
        {"key": b"k", "metadata": None},
        ("key", "metadata"),
    ],
    ids=repr,
)
def test_a_header_that_says_something_else_is_corrupt(value):
    """A canonical value with right digests that is not a header is refused, whatever it is."""
    with pytest.raises(EntryCorruptError, match="the header does not say what it should"):
        unpack(with_header(encode(value)))


@pytest.mark.parametrize(
    "header",
    [b"", b"x", b"i3:1", b"d4:", b"l" * 5000, b"s2:\xff\xfe", b"i1:x", b"f3:abc", b"e0:", b"o0:"],
    ids=repr,
)
def test_a_header_that_is_not_canonical_is_corrupt(header):
    """Bytes with right digests that no encoder made end in the same error, never in another."""
    with pytest.raises(EntryCorruptError):
        unpack(with_header(header))


def test_a_deeply_nested_header_is_corrupt():
    """Nesting deeper than the interpreter's stack is refused, and the process goes on."""
    header = b""
    for _ in range(20000):
        header = b"l" + str(len(header)).encode() + b":" + header
    with pytest.raises(EntryCorruptError):
        unpack(with_header(header))


class _Bomb:
    def __reduce__(self):
        return (_explode, ())


def _explode():
    raise AssertionError("a pickle was loaded")


def test_nothing_in_an_entry_is_executed():
    """A pickle in header or payload stays bytes: reading an entry never runs code from it."""
    bomb = pickle.dumps(_Bomb())
    entry = unpack(pack(entry_of("a", bomb)))
    assert bytes(entry.payload) == bomb
    with pytest.raises(EntryCorruptError):
        unpack(with_header(bomb))


def test_the_payload_is_not_copied():
    """The payload of an unpacked entry is a view of the file's bytes: libraries are large."""
    data = pack(entry_of("a", b"p" * 100))
    payload = unpack(data).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is data


def test_the_magic_and_version_are_constants_of_the_module():
    """Whoever changes the layout has to change the number: the golden bytes of a known entry stay as they are."""
    assert (format_.MAGIC, format_.FORMAT) == (b"GSPECENT", 1)
    assert hashlib.sha256(SMALL).hexdigest() == GOLDEN
