"""The entry format: what is packed comes back, and what is not a whole entry is named as such."""

import hashlib
import pickle
import struct
import tracemalloc

import pytest
import xxhash

from graphspec.cache import entry as format_
from graphspec.cache.entry import (
    PREFIX_BYTES,
    EntryCorruptError,
    pack,
    read_prefix,
    unpack,
)
from graphspec.keys.encoding import encode
from support.entries import METADATA, entry_of, fixed_part, with_header

SMALL = pack(entry_of("a"))
HEADER_END = PREFIX_BYTES + read_prefix(SMALL).header

GOLDEN = "139c7af82dd2dfd5d238b43792c8a8ffa3fb0dc2face9e894efe4811548e501a"


def test_fixed_part_is_as_documented():
    """Offsets and sizes of the fixed part are those of the module's table, so that other tools can read it."""
    magic, version, codec, header, zero, payload = struct.unpack_from("<8sIIIIQ", SMALL)
    assert (magic, version, codec, zero) == (b"GSPECENT", 3, 0, 0)
    sizes = read_prefix(SMALL)
    assert (header, payload) == (sizes.header, sizes.payload)
    assert PREFIX_BYTES == 216
    assert SMALL[32:64] == hashlib.sha256(SMALL[216 : 216 + header]).digest()
    assert SMALL[64:96] == hashlib.sha256(SMALL[216 + header :]).digest()
    assert SMALL[96:192] == bytes(96)
    assert SMALL[192:208] == xxhash.xxh3_128_digest(SMALL[216 + header :])
    assert SMALL[208:216] == xxhash.xxh3_64_digest(SMALL[:208])
    assert len(SMALL) == 216 + header + payload == sizes.end


def test_entry_is_self_describing():
    """Key, digest of the key and metadata come back from the bytes alone."""
    entry = unpack(SMALL)
    wanted = entry_of("a")
    assert entry.key == wanted.key
    assert entry.metadata == METADATA
    assert bytes(entry.payload) == wanted.payload


def test_without_payload_only_the_header_is_needed():
    """A listing reads the header and no byte of the payload."""
    for data in (SMALL[:HEADER_END], SMALL):
        entry = unpack(data, with_payload=False)
        assert entry.key == entry_of("a").key
        assert entry.payload == b""


def test_truncation_at_every_length_is_corrupt():
    """Cut anywhere, the file is not an entry, and the reason says that it is cut."""
    for length in range(len(SMALL)):
        with pytest.raises(EntryCorruptError, match="truncated"):
            unpack(SMALL[:length])


@pytest.mark.parametrize("quick", [False, True])
def test_every_flipped_bit_is_corrupt(quick):
    """No single bit of fixed part, header or payload can change without being noticed, by either digest."""
    for at in range(len(SMALL) * 8):
        data = bytearray(SMALL)
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(EntryCorruptError):
            unpack(bytes(data), quick=quick)


def with_payload_digests(payload, sha256_of, xxh3_of):
    header = encode({"key": b"k", "metadata": {}})
    fixed = fixed_part(
        header=len(header),
        payload=len(payload),
        digests=(hashlib.sha256(header).digest(), hashlib.sha256(sha256_of).digest()),
        check=xxhash.xxh3_128_digest(xxh3_of),
    )
    return fixed + header + payload


def nobody(seal):
    return ""


def test_quick_leaves_out_the_sha_256_alone_and_never_with_trust():
    """A writer that lies about one of the two digests: each reader finds what it checks, and a seal needs the SHA-256."""
    lies = with_payload_digests(b"payload", b"other", b"payload")
    assert unpack(lies, quick=True).payload == b"payload"
    for asked in ({}, {"trust": nobody}, {"trust": nobody, "quick": True}):
        with pytest.raises(EntryCorruptError, match=r"^the payload's SHA-256 differs$"):
            unpack(lies, **asked)
    lies = with_payload_digests(b"payload", b"payload", b"other")
    for asked in ({}, {"quick": True}, {"trust": nobody}):
        with pytest.raises(EntryCorruptError, match=r"^the payload's XXH3-128 differs$"):
            unpack(lies, **asked)


def test_bytes_after_the_payload_are_corrupt():
    """Nothing may follow the payload."""
    with pytest.raises(EntryCorruptError, match=r"^3 bytes follow the payload$"):
        unpack(SMALL + b"abc")


def test_an_empty_file_is_corrupt():
    """A file of no bytes is not an entry."""
    with pytest.raises(EntryCorruptError, match="truncated: 0 bytes"):
        unpack(b"")


@pytest.mark.parametrize("version", [0, 1, 2, 4, 2**32 - 1])
def test_another_format_version_is_refused_by_its_number(version):
    """An entry of an older or newer format names both versions."""
    data = bytearray(SMALL)
    struct.pack_into("<I", data, 8, version)
    with pytest.raises(
        EntryCorruptError, match=f"format version {version}, this graphspec reads 3"
    ):
        unpack(bytes(data))


@pytest.mark.parametrize(
    "size", [{"header": 2**32 - 1}, {"payload": 2**63}], ids=["header", "payload"]
)
def test_a_huge_promised_size_allocates_nothing(size):
    """The promise is refused from the fixed part alone, before memory is taken for it."""
    check_small(fixed_part(**size) + b"rest", "beyond the limit")


@pytest.mark.parametrize(
    "size", [{"header": 16 << 20}, {"payload": 4 << 30}], ids=["header", "payload"]
)
def test_a_size_at_the_limit_is_a_truncation(size):
    """A large size that is allowed is compared with what is there, and nothing is allocated for it either."""
    check_small(fixed_part(**size) + b"rest", "truncated")


def check_small(data, reason):
    tracemalloc.start()
    try:
        with pytest.raises(EntryCorruptError, match=reason):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("half", [{"public_key": b"k" * 32}, {"signature": b"s" * 64}], ids=list)
def test_half_a_seal_is_a_seal(half):
    """A signer without a signature, or the other way round, is not taken for an entry that nobody has signed."""
    seal = read_prefix(fixed_part(**half)).seal
    assert {name: getattr(seal, name) for name in half} == half


@pytest.mark.parametrize("field", ["codec", "zero"])
def test_a_codec_that_is_not_known_is_refused(field):
    """What a later version may compress is not taken for plain bytes by this one."""
    with pytest.raises(EntryCorruptError, match="codec"):
        unpack(fixed_part(**{field: 1}))


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
    with pytest.raises(EntryCorruptError, match=r"^the header does not say what it should"):
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
    assert (format_.MAGIC, format_.FORMAT) == (b"GSPECENT", 3)
    assert hashlib.sha256(SMALL).hexdigest() == GOLDEN
