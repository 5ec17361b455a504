"""The bundle format: what is exported comes back, and whatever is not a whole bundle is refused before it is used."""

import hashlib
import io
import os
import struct
import tracemalloc

import attrs
import pytest
import xxhash

from graphspec.cache.bundle.reader import open_bundle, read_bundle
from graphspec.cache.entry import pack, unpack
from graphspec.cache.signing import PublicKey, SigningKey, trust_in
from graphspec.errors import BundleError, UntrustedError
from graphspec.keys.encoding import decode, encode, encode_decoded
from support.bundles import (
    MACHINE,
    around,
    bundle_of,
    exported,
    in_order,
    manifest_of,
    unit_entry,
    with_extra_header,
)
from support.entries import entry_of

OTHER = {**MACHINE, "toolchain": {"torch": "2.12.0", "system": "Linux"}}
PAIR = in_order(unit_entry("a", b"first"), unit_entry("b", b"second, longer"))
SMALL = bundle_of(*PAIR)
BODY = b"".join(PAIR)
TINY = bundle_of(pack(unit_entry("a", b"ab", machine={})), machines=[{}])


def refused(data, reason, **trust):
    """Asserts that the bytes are refused for the reason, from memory and from a file alike."""
    for source in (data, io.BytesIO(bytes(data))):
        with pytest.raises(BundleError) as caught:
            read_bundle(source, **trust)
        (problem,) = caught.value.problems
        assert reason in problem.found, problem.found


def test_fixed_part_is_as_documented(tmp_path):
    """Offsets and sizes of the fixed part are those of the module's table, so that other tools can read it."""
    path = exported(tmp_path, unit_entry("a"), unit_entry("b"))
    data = path.read_bytes()
    magic, version, zero, manifest, whole = struct.unpack_from("<8sIIQQ", data)
    assert (magic, version, zero, whole) == (b"GSPECBDL", 1, 0, len(data))
    assert data[32:64] == hashlib.sha256(data[168 : 168 + manifest]).digest()
    assert data[64:160] == bytes(96)
    assert data[160:168] == xxhash.xxh3_64_digest(data[:160])
    content = decode(data[168 : 168 + manifest])
    assert set(content) == {"created_by", "machines", "entries"}
    assert content["machines"] == [MACHINE]
    for digest, machine, offset, size, sha256 in content["entries"]:
        packed = data[168 + manifest + offset :][:size]
        assert hashlib.sha256(packed).digest() == sha256
        assert (unpack(packed).key.digest, machine) == (digest, 0)


def test_a_bundle_made_by_hand_is_one():
    """The helper that the refusals below are made with makes whole bundles, so each is refused for what it changes."""
    bundle = read_bundle(SMALL)
    assert [bytes(bundle.load(e).payload) for e in bundle.entries] == [
        bytes(unpack(p).payload) for p in PAIR
    ]
    assert bundle.machines == [MACHINE]
    assert bundle.created_by == {"graphspec": "0"}
    assert bundle.seal is None


def test_what_is_exported_comes_back(tmp_path):
    """Keys, metadata, payloads and seals are those of the stored entries, from bytes and from a file."""
    key = SigningKey.generate()
    entries = [unit_entry("a", b"x" * 1000), unit_entry("b", b"", OTHER), entry_of("keyless")]
    signed = [unpack(pack(e, key)) for e in entries]
    path = exported(tmp_path, *signed)
    wanted = {e.key.digest: e for e in signed}
    with open_bundle(str(path)) as file:
        bundles = [read_bundle(file), read_bundle(path.read_bytes())]
        for bundle in bundles:
            found = {e.digest: bundle.load(e) for e in bundle.entries}
            assert found == wanted
            assert {k: e.seal for k, e in found.items()} == {k: e.seal for k, e in wanted.items()}
            assert len(bundle.machines) == 3


def test_a_bundle_holds_the_very_files_of_the_cache(tmp_path):
    """Entries are not packed anew: their bytes stand in the bundle as they stood in the folder."""
    path = exported(tmp_path, unit_entry("a"), unit_entry("b"))
    data = path.read_bytes()
    files = sorted((tmp_path / "from" / "entries").glob("*/*"), key=lambda p: p.name)
    assert data.endswith(b"".join(p.read_bytes() for p in files))


def test_truncation_at_every_length_is_refused():
    """Cut anywhere, the file is no bundle, and the reason says that it is cut."""
    for length in range(len(SMALL)):
        with pytest.raises(BundleError, match="truncated"):
            read_bundle(SMALL[:length])


def test_every_flipped_bit_is_refused():
    """No single bit of fixed part, manifest or entries can change without being noticed."""
    assert len(read_bundle(TINY).entries) == 1
    for at in range(len(TINY) * 8):
        data = bytearray(TINY)
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(BundleError):
            read_bundle(data)


def test_bytes_after_the_last_entry_are_refused():
    """Nothing may follow, whether the fixed part knows of it or not."""
    refused(SMALL + b"abc", "3 bytes follow the last entry")
    refused(
        around(encode_decoded(manifest_of(*PAIR)), BODY + b"abc"),
        f"entries of {len(BODY)} bytes are listed, and {len(BODY) + 3} are there",
    )


def test_an_empty_file_is_refused():
    """A file of no bytes is not a bundle."""
    refused(b"", "truncated: 0 bytes")


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_format_version_is_refused_by_its_number(version):
    """A bundle of an older or newer format names both versions."""
    refused(around(b"", b"", version=version), f"format version {version}, this graphspec reads 1")


def test_an_entry_is_no_bundle():
    """A file of another kind is called that."""
    refused(pack(unit_entry("a")), "this is no bundle")


HUGE = {
    "manifest beyond the limit": (
        {"manifest": (16 << 20) + 1, "whole": 1 << 40},
        "what cannot be",
    ),
    "manifest larger than the file": ({"manifest": 1000, "whole": 999}, "what cannot be"),
    "file of 2**64": ({"manifest": 10, "whole": 2**64 - 1}, "truncated"),
    "both": ({"manifest": 2**64 - 1, "whole": 2**64 - 1}, "what cannot be"),
    "manifest at the limit": (
        {"manifest": 16 << 20, "whole": 168 + (16 << 20)},
        "truncated",
    ),
}


@pytest.mark.parametrize("case", HUGE.values(), ids=HUGE)
def test_a_huge_promised_size_allocates_nothing(case):
    """Sizes are compared with the file's before memory is taken for them."""
    sizes, reason = case
    check_small(around(b"", b"rest", **sizes), reason)


@pytest.mark.parametrize("size", [1 << 32, 1 << 64, 1 << 200], ids=["2**32", "2**64", "2**200"])
def test_a_huge_listed_size_allocates_nothing(size):
    """The sizes that a manifest lists must add up to what is there."""
    rows = [(d, m, o, size, h) for d, m, o, _, h in manifest_of(PAIR[0])["entries"]]
    check_small(bundle_of(PAIR[0], entries=rows), f"entries of {size} bytes are listed")


def check_small(data, reason):
    tracemalloc.start()
    try:
        refused(data, reason)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def rows(**changes):
    """The rows of the two entries; each change is by the number of the row's column, as `c2=...`, for the first row."""
    first, second = manifest_of(*PAIR)["entries"]
    new = list(first)
    for column, value in changes.items():
        new[int(column[1:])] = value
    return [tuple(new), second]


ROWS = manifest_of(*PAIR)["entries"]
BAD_MANIFESTS = {
    "no mapping": ([1], "does not have the parts"),
    "nothing": ({}, "does not have the parts"),
    "a part more": ({**manifest_of(*PAIR), "more": 1}, "does not have the parts"),
    "facts that are no mapping": ({"created_by": "me"}, "created_by"),
    "facts that are no texts": ({"created_by": {"time": 1}}, "created_by"),
    "facts without names": ({"created_by": {1: "x"}}, "created_by"),
    "machines that are no list": ({"machines": {}}, "machines of the manifest"),
    "a machine that is no mapping": ({"machines": [1]}, "machines of the manifest"),
    "a machine with other parts": ({"machines": [{**MACHINE, "x": 1}]}, "machines of"),
    "a machine with numbers": ({"machines": [{1: 2}]}, "machines of the manifest"),
    "a machine too many": ({"machines": [MACHINE, OTHER]}, "not in order"),
    "machines that nobody uses": ({"machines": [OTHER, MACHINE]}, "not those of the entries"),
    "a machine twice": ({"machines": [MACHINE, MACHINE]}, "not in order"),
    "no machine": ({"machines": []}, "not those of the entries"),
    "another machine": ({"machines": [OTHER]}, "names another toolchain or device"),
    "entries that are no list": ({"entries": tuple(ROWS)}, "is no list"),
    "entries that are one mapping": ({"entries": {}}, "is no list"),
    "a row of another kind": ({"entries": [list(ROWS[0])]}, "not listed as one"),
    "a short row": ({"entries": [ROWS[0][:4]]}, "not listed as one"),
    "a digest of bytes": ({"entries": rows(c0=b"x" * 32)}, "not listed as one"),
    "true as a number": ({"entries": rows(c1=True)}, "not listed as one"),
    "a size with a fraction": ({"entries": rows(c3=1.0)}, "not listed as one"),
    "a digest like a path": ({"entries": rows(c0="../../../../etc/passwd".zfill(32))}, "cannot be"),
    "a digest with a newline": ({"entries": rows(c0="a" * 32 + "\n")}, "cannot be"),
    "a digest in capitals": ({"entries": rows(c0="A" * 32)}, "cannot be"),
    "a machine below zero": ({"entries": rows(c1=-1)}, "not those of the entries"),
    "a machine that is not there": ({"entries": rows(c1=1)}, "not those of the entries"),
    "an offset below zero": ({"entries": rows(c2=-1)}, "one behind the other"),
    "a gap": ({"entries": rows(c2=1)}, "one behind the other"),
    "a size below zero": ({"entries": rows(c3=-300)}, "cannot be"),
    "a size below the fixed part": ({"entries": rows(c3=199)}, "cannot be"),
    "a short digest": ({"entries": rows(c4=b"x" * 31)}, "cannot be"),
    "another digest": ({"entries": rows(c4=b"x" * 32)}, "SHA-256 is not the one"),
    "the wrong order": ({"entries": ROWS[::-1]}, "not in the order"),
    "an entry twice": ({"entries": [ROWS[0], ROWS[0]]}, "one is there twice"),
    "an entry too few": ({"entries": ROWS[:1]}, "bytes are listed"),
    "no entry": ({"machines": [], "entries": []}, "entries of 0 bytes are listed"),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS.values(), ids=BAD_MANIFESTS)
def test_a_manifest_that_says_something_else_is_refused(case):
    """A canonical value with right digests around it that does not describe these entries is refused for what is wrong."""
    parts, reason = case
    whole = {**manifest_of(*PAIR), **parts} if isinstance(parts, dict) and parts else parts
    refused(around(encode_decoded(whole), BODY), reason)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"d4:", b"l" * 500, b"i3:1", b"s2:\xff\xfe", b"d0:x"], ids=repr
)
def test_a_manifest_that_is_not_canonical_is_refused(content):
    """Bytes with right digests that no encoder made end in the same error."""
    refused(around(content, BODY), "the manifest cannot be read")


def test_a_deeply_nested_manifest_is_refused():
    """Nesting beyond the interpreter's stack ends in the same error, and below it where machines are shown."""
    deep = b""
    for _ in range(20000):
        deep = b"l%d:%b" % (len(deep), deep)
    refused(around(deep, BODY), "the manifest cannot be read")
    value = ()
    for _ in range(100):
        value = (value,)
    refused(bundle_of(*PAIR, machines=[{"toolchain": value}]), "machines of the manifest")


def test_swapped_entries_are_refused():
    """Two entries of equal length that have changed places are noticed, though each is whole."""
    a, b = in_order(unit_entry("a", b"1" * 9), unit_entry("b", b"2" * 9))
    assert len(a) == len(b)
    refused(around(encode_decoded(manifest_of(a, b)), b + a), "SHA-256 is not the one")


def test_an_entry_under_another_key_is_refused():
    """A whole entry that is listed, digest and all, under the key of another would be a wrong graph."""
    a, b = in_order(unit_entry("a", b"1" * 9), unit_entry("b", b"2" * 9))
    keys = [row[0] for row in manifest_of(a, b)["entries"]]
    rows = [(k, *row[1:]) for k, row in zip(keys, manifest_of(b, a)["entries"], strict=True)]
    refused(bundle_of(b, a, entries=rows), "it has the key")


def test_an_entry_of_another_size_than_its_own_is_refused():
    """The entry's own fixed part and the manifest must agree before anything is read."""
    longer = PAIR[0] + b"z"
    row = (*ROWS[0][:3], len(longer), hashlib.sha256(longer).digest())
    manifest = encode_decoded(manifest_of(PAIR[0], entries=[row]))
    refused(around(manifest, longer), "its size is not the one that is listed")


def test_a_damaged_entry_with_a_right_listing_is_refused():
    """The entry's own digests hold, whatever the manifest vouches for."""
    whole = bytearray(PAIR[0])
    whole[-1] ^= 1
    row = (*manifest_of(PAIR[0])["entries"][0][:4], hashlib.sha256(whole).digest())
    refused(
        around(encode_decoded(manifest_of(PAIR[0], entries=[row])), bytes(whole)),
        "the payload's SHA-256 differs",
    )


def test_an_entry_that_a_cache_could_not_keep_is_refused():
    """A header with a name more, or with values that only keys have, would be stored otherwise than it was signed."""
    reason = "its header holds more than a header does"
    refused(bundle_of(with_extra_header(unit_entry("a"))), reason)
    record = decode(encode(attrs.make_class("Fact", ["x"])(1)))
    entry = unit_entry("a")
    from support.entries import with_header

    header = encode_decoded({"key": entry.key.text, "metadata": {"fact": record}})
    refused(bundle_of(with_header(header, b"library")), reason)


def test_a_source_that_shrinks_is_refused(tmp_path):
    """A file that is cut after it was checked gives an error, not half an entry."""
    path = tmp_path / "a.bundle"
    path.write_bytes(SMALL)
    with open_bundle(str(path)) as file:
        bundle = read_bundle(file, where=str(path))
        path.write_bytes(SMALL[:-1])
        with pytest.raises(BundleError, match="shorter") as caught:
            bundle.load(bundle.entries[-1])
    assert caught.value.problems[0].where == str(path)


def test_a_source_that_changes_is_refused(tmp_path):
    """What is loaded is checked again: the file may be another's to write."""
    path = tmp_path / "a.bundle"
    path.write_bytes(SMALL)
    with open_bundle(str(path)) as file:
        bundle = read_bundle(file)
        with path.open("r+b") as other:
            other.seek(-1, 2)
            other.write(b"!")
        assert bundle.load(bundle.entries[0]).key.digest == bundle.entries[0].digest
        with pytest.raises(BundleError, match="SHA-256"):
            bundle.load(bundle.entries[-1])


class Broken(io.BytesIO):
    """A file on a disk that fails."""

    def read(self, *count):
        raise OSError(5, "Input/output error")


class Pipe(io.BytesIO):
    """A file that cannot seek."""

    def seek(self, *where):
        raise OSError(29, "Illegal seek")


@pytest.mark.parametrize("kind", [Broken, Pipe], ids=["broken", "pipe"])
def test_a_source_that_fails_is_refused(kind):
    """Errors of the disk are the same kind of error as everything else that is wrong with a bundle."""
    with pytest.raises(BundleError, match=r"Input/output error|Illegal seek"):
        read_bundle(kind(SMALL))


def test_what_is_no_file_is_refused(tmp_path):
    """A folder, a name that leads nowhere and a pipe that nobody writes to are called what they are, without waiting."""
    os.mkfifo(tmp_path / "pipe")
    names = {".": "no regular file", "x": "No such file", "pipe": "no regular file"}
    for path, why in ((tmp_path / name, why) for name, why in names.items()):
        with pytest.raises(BundleError, match=why), open_bundle(str(path)):
            pass


def trusting(*keys, what="the bundle"):
    return trust_in([PublicKey(k.public_key) for k in keys], what)


def test_a_signed_bundle_is_trusted_by_its_key(tmp_path):
    """Each reason to distrust a bundle has its own sentence; unsigned bundles are read where nobody asks."""
    key, stranger = SigningKey.generate(), SigningKey.generate()
    data = exported(tmp_path, unit_entry("a"), signer=key).read_bytes()
    assert read_bundle(data, trust=trusting(stranger, key)).seal.public_key == key.public_key
    assert read_bundle(data).seal.public_key == key.public_key
    for source, keys, why in (
        (SMALL, [key], "the bundle is not signed"),
        (data, [stranger], "the bundle is signed by a key that is not trusted here"),
        (resigned(data, bytes(64)), [key], "the bundle has a wrong signature"),
        (resigned(SMALL, data[96:160], key.public_key), [key], "the bundle has a wrong signature"),
    ):
        with pytest.raises(UntrustedError, match=why):
            read_bundle(source, trust=trusting(*keys))


def resigned(data, signature, public_key=None):
    """The bundle with another signature, and a right check."""
    front = data[:64] + (public_key or data[64:96]) + signature
    return front + xxhash.xxh3_64_digest(front) + data[168:]


def test_a_signature_comes_before_the_manifest():
    """What a stranger wrote is not interpreted at all."""
    with pytest.raises(UntrustedError):
        read_bundle(around(b"no manifest", BODY), trust=trusting(SigningKey.generate()))


def test_a_signature_of_an_entry_is_none_of_a_bundle(tmp_path):
    """What a key signed as an entry cannot be passed off as a bundle: the two begin with other words."""
    key = SigningKey.generate()
    seal = unpack(pack(unit_entry("a"), key)).seal
    data = resigned(SMALL, seal.signature, key.public_key)
    with pytest.raises(UntrustedError, match="wrong signature"):
        read_bundle(data, trust=trusting(key))


def test_entries_of_a_shared_cache_need_seals_of_their_own():
    """With trust in entries asked for, the first one without a trusted seal refuses the bundle, by its key."""
    key = SigningKey.generate()
    trust = trusting(key, what="the entry")
    signed = sorted(
        (pack(unit_entry(n), key) for n in "ab"), key=lambda data: unpack(data).key.digest
    )
    assert len(read_bundle(bundle_of(*signed), entry_trust=trust).entries) == 2
    mixed = [signed[0], pack(attrs.evolve(unpack(signed[1]), seal=None))]
    with pytest.raises(UntrustedError, match="is not signed") as caught:
        read_bundle(bundle_of(*mixed), entry_trust=trust)
    assert unpack(signed[1]).key.digest in caught.value.problems[0].found
