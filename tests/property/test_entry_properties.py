"""Entries of any content survive a round trip, and no bytes but an entry's are taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.cache.entry import MAGIC, Entry, EntryCorruptError, pack, unpack
from graphspec.cache.units import EntryKey
from graphspec.keys.factors import digest
from support.entries import fixed_part, with_header

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.builds(
    lambda text, metadata, payload: Entry(
        key=EntryKey(text, digest(text)), metadata=metadata, payload=payload
    ),
    st.binary(max_size=64),
    st.dictionaries(st.text("abc", max_size=3), plain, max_size=4),
    st.binary(max_size=256),
)


@given(entry=entries)
def test_what_is_packed_comes_back(entry):
    """Key, metadata and payload of any entry are equal after a round trip, and packing is deterministic."""
    data = pack(entry)
    again = unpack(data)
    assert again.key == entry.key
    assert dict(again.metadata) == dict(entry.metadata)
    assert bytes(again.payload) == entry.payload
    assert pack(again) == data


@given(entry=entries, data=st.data())
def test_a_truncated_entry_is_corrupt(entry, data):
    """An entry cut at any length is refused, and so is one with anything behind it."""
    whole = pack(entry)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(EntryCorruptError):
        unpack(whole[:cut])
    with pytest.raises(EntryCorruptError):
        unpack(whole + data.draw(st.binary(min_size=1, max_size=8)))


@given(entry=entries, data=st.data())
def test_a_flipped_bit_is_corrupt(entry, data):
    """One changed bit anywhere is noticed."""
    whole = bytearray(pack(entry))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[at // 8] ^= 1 << at % 8
    with pytest.raises(EntryCorruptError):
        unpack(bytes(whole))


@given(first=entries, second=entries, data=st.data())
def test_a_mix_of_two_entries_is_corrupt(first, second, data):
    """The front of one entry with the rest of another is refused unless it is one of the two."""
    a, b = pack(first), pack(second)
    cut = data.draw(st.integers(0, min(len(a), len(b))))
    mixed = a[:cut] + b[cut:]
    if mixed in (a, b):
        assert unpack(mixed).key in (first.key, second.key)
    else:
        with pytest.raises(EntryCorruptError):
            unpack(mixed)


@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_are_corrupt_and_nothing_else(data):
    """Any bytes, with or without the right magic, end in EntryCorruptError only."""
    for candidate in (data, MAGIC + data, MAGIC + b"\2\0\0\0" + data):
        with pytest.raises(EntryCorruptError):
            unpack(candidate)


@given(header=st.binary(max_size=200) | st.from_regex(rb"\A[nbiIfsxeoydSlt]\d{1,3}:.{0,40}\Z"))
def test_arbitrary_headers_with_right_digests_are_corrupt_and_nothing_else(header):
    """A header that someone signed off with digests and that no encoder made cannot crash the reader."""
    with pytest.raises(EntryCorruptError):
        unpack(with_header(header))


@given(
    sizes=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    rest=st.binary(max_size=40),
)
def test_arbitrary_promised_sizes_are_corrupt_and_nothing_else(sizes, rest):
    """Whatever sizes the fixed part promises, the reader compares them with what is there."""
    header, payload = sizes
    data = fixed_part(header=header, payload=payload, digests=(b"h" * 32, b"p" * 32)) + rest
    for with_payload in (True, False):
        with pytest.raises(EntryCorruptError):
            unpack(data, with_payload=with_payload)
