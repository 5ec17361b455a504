"""Bundles of any entries survive a round trip, and no bytes but a bundle's, or a key file's, are taken for one."""

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.cache.bundle.layout import MAGIC
from graphspec.cache.bundle.reader import read_bundle
from graphspec.cache.entry import Entry, pack
from graphspec.cache.signing import LINE, PublicKey, SigningKey, read_public_keys
from graphspec.cache.units import EntryKey
from graphspec.errors import BundleError, UntrustedError
from graphspec.keys.encoding import encode, encode_decoded
from graphspec.keys.factors import digest
from support.bundles import around, exported, manifest_of, unit_entry
from support.faults import memory_folder

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text("abc", max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text("abc", max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
machines = st.dictionaries(st.sampled_from(["toolchain", "device", "options"]), plain)
key_texts = st.binary(max_size=40) | st.builds(
    lambda name, machine: encode({"unit": name, **machine}), st.text("abc"), machines
)
entries = st.builds(
    lambda text, payload: Entry(
        key=EntryKey(text, digest(text)), metadata={"unit": "u"}, payload=payload
    ),
    key_texts,
    st.binary(max_size=64),
)
sets = st.lists(entries, min_size=1, max_size=4, unique_by=lambda e: e.key.digest)
PACKED = pack(unit_entry("a", b"1"))
LITTLE = [unit_entry("a", b"1"), unit_entry("b", b"22", machine={})]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a signed bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    return exported(folder, *LITTLE, signer=SigningKey.generate()).read_bytes()


@given(chosen=sets)
def test_what_is_exported_comes_back(chosen):
    """Any entries, of keys that name a machine and of those that do not, are equal after a round trip."""
    with memory_folder() as folder:
        data = exported(Path(folder), *chosen).read_bytes()
    bundle = read_bundle(io.BytesIO(data))
    found = [bundle.load(listed) for listed in bundle.entries]
    assert found == sorted(chosen, key=lambda e: e.key.digest)


@given(data=st.data())
def test_a_changed_bundle_is_refused(whole, data):
    """Bytes replaced, cut, doubled or swapped anywhere in a bundle are noticed."""
    at = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(at, min(len(whole), at + 64)))
    changed = data.draw(
        st.binary(max_size=64).map(lambda new: whole[:at] + new + whole[end:])
        | st.just(whole[:at])
        | st.just(whole + whole[at:])
        | st.just(whole[:at] + whole[end:] + whole[at:end])
    )
    if changed != whole:
        with pytest.raises(BundleError):
            read_bundle(changed)


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_and_nothing_else(data):
    """Any bytes, with or without the right magic and check, end in BundleError only."""
    for candidate in (data, MAGIC + data, MAGIC + b"\1\0\0\0" + data, around(data, b"")):
        with pytest.raises(BundleError):
            read_bundle(candidate)


mutated = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=6
)


@given(
    part=st.sampled_from(["created_by", "machines", "entries", "more"]),
    value=mutated
    | st.lists(machines, max_size=3)
    | st.dictionaries(st.text("abc"), st.text("abc"))
    | st.just(manifest_of(PACKED)["machines"]),
)
def test_arbitrary_manifests_are_refused_and_nothing_else(part, value):
    """A canonical manifest with right digests in which one part is anything at all cannot crash the reader."""
    right = manifest_of(PACKED)
    data = around(encode_decoded({**right, part: value}), PACKED)
    try:
        read_bundle(data)
    except BundleError:
        assert part not in right or encode_decoded(value) != encode_decoded(right[part])
    else:
        # Facts may be any texts; of all else there is one right value.
        assert part == "created_by" or encode_decoded(value) == encode_decoded(right[part])


@given(
    row=st.tuples(
        st.just(LITTLE[0].key.digest) | st.text("0af", min_size=32, max_size=32),
        st.integers(),
        st.integers(),
        st.integers(),
        st.binary(min_size=32, max_size=32),
    ),
    body=st.binary(max_size=400),
)
def test_arbitrary_rows_are_refused_and_nothing_else(row, body):
    """Whatever a row promises of size, place and machine, the reader compares it with what is there."""
    manifest = encode_decoded({"created_by": {}, "machines": [{}], "entries": [row]})
    with pytest.raises(BundleError):
        read_bundle(around(manifest, body))


@given(sizes=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_arbitrary_promised_sizes_are_refused_and_nothing_else(sizes):
    """Whatever the fixed part promises, the reader compares it with what is there."""
    manifest, whole = sizes
    with pytest.raises(BundleError):
        read_bundle(around(b"d0:", b"", manifest=manifest, whole=whole))


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    return tmp_path_factory.mktemp("keys") / "file"


key_lines = (
    st.binary(max_size=80)
    | st.text(max_size=40).map(lambda t: f"{LINE} {t}".encode())
    | st.binary(max_size=40).map(lambda raw: PublicKey(raw, "someone").line.encode())
    | st.just(b"-----BEGIN PRIVATE KEY-----")
    | st.just(b"-----END PRIVATE KEY-----")
    | st.just(b"MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC")
)


@given(lines=st.lists(key_lines, max_size=5))
def test_arbitrary_key_files_are_read_or_refused_and_nothing_else(lines, key_file):
    """Any lines in a key file, of either kind, give keys or an UntrustedError whose problems name the file."""
    path = key_file
    path.write_bytes(b"\n".join(lines))
    path.chmod(0o600)
    for read in (SigningKey.load, read_public_keys):
        problems = []
        try:
            assert read(str(path))
        except UntrustedError as error:
            problems = error.problems
        assert all(p.where.startswith(str(path)) for p in problems)


@given(data=st.binary(max_size=60))
def test_arbitrary_entries_in_a_right_bundle_are_refused_and_nothing_else(data):
    """A bundle that is right in itself around an entry that is none ends in BundleError only."""
    body = PACKED[:200] + data
    row = (LITTLE[0].key.digest, 0, 0, len(body), hashlib.sha256(body).digest())
    manifest = encode_decoded({"created_by": {}, "machines": [{}], "entries": [row]})
    with pytest.raises(BundleError):
        read_bundle(around(manifest, body))


def test_the_strategies_reach_whole_bundles(whole):
    """What the tests above spoil is right before they do."""
    assert len(read_bundle(whole).entries) == len(LITTLE)
    assert len(read_bundle(around(encode_decoded(manifest_of(PACKED)), PACKED)).entries) == 1
