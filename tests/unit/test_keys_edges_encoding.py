"""The encoding at its edges: sizes at which another way is taken, and values of which a whole has only one."""

import enum
import types

import attrs
import pytest

from graphspec.errors import KeyFactorError
from graphspec.keys import writers
from graphspec.keys.encoding import (
    DtypeName,
    EnumName,
    Record,
    decode,
    encode,
    encode_decoded,
)
from graphspec.keys.writers import WRITERS, Writers, attributes, interleaved, sequence_writer


class Mode(enum.Enum):
    ON = 1


class Bits(enum.Flag):
    A = 1
    B = 2


@attrs.frozen
class Nothing:
    pass


@attrs.frozen
class Single:
    only: object


@attrs.frozen
class Unsorted:
    zeta: object
    alpha: object
    mid: object


NAME = __name__


def text(value):
    return b"s%d:%b" % (len(value), value.encode())


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"i1:0"),
        ((1 << 63) - 1, b"i19:9223372036854775807"),
        (1 - (1 << 63), b"i20:-9223372036854775807"),
        (1 << 63, b"I18:0x8000000000000000"),
        (-(1 << 63), b"I19:-0x8000000000000000"),
        (0.0, b"f8:0x0.0p+0"),
        (-0.0, b"f9:-0x0.0p+0"),
        (float("inf"), b"f3:inf"),
        ("", b"s0:"),
        (b"", b"x0:"),
        ((), b"t0:"),
        ([], b"l0:"),
        ({}, b"d0:"),
        (set(), b"S0:"),
        ({2, 1}, b"S8:i1:1i1:2"),
        (((1,), [2]), b"t14:t4:i1:1l4:i1:2"),
        ({2: "b", 1: "a"}, b"d16:i1:1s1:ai1:2s1:b"),
        (types.MappingProxyType({"a": 1}), b"d8:s1:ai1:1"),
    ],
)
def test_the_bytes_at_the_edges_are_fixed(value, encoded):
    """Empty values, integers around 64 bits, and values inside values."""
    assert encode(value) == encoded
    assert encode_decoded(decode(encoded)) == encoded


def test_the_bytes_of_classes_are_fixed():
    """Enums by class and member, objects by class and their fields in order of the encoded names."""
    name = text(f"{NAME}.Mode") + text("ON")
    assert encode(Mode.ON) == b"e%d:%b" % (len(name), name)
    no_member = text(f"{NAME}.Bits") + b"n0:"
    assert encode(Bits(0)) == b"e%d:%b" % (len(no_member), no_member)
    empty = text(f"{NAME}.Nothing") + b"d0:"
    assert encode(Nothing()) == b"o%d:%b" % (len(empty), empty)
    single = text(f"{NAME}.Single") + b"d11:s4:onlyi1:1"
    assert encode(Single(1)) == b"o%d:%b" % (len(single), single)
    fields = b"s3:midi1:3s4:zetai1:1s5:alphai1:2"
    several = text(f"{NAME}.Unsorted") + b"d%d:%b" % (len(fields), fields)
    assert encode(Unsorted(1, 2, 3)) == b"o%d:%b" % (len(several), several)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 18, 40])
def test_long_runs_are_written_like_short_ones(count):
    """The short cut for plain integers changes no byte, and takes nothing that only looks like one."""
    body = b"i1:7" * count
    write = sequence_writer(b"t", Writers(WRITERS))
    assert encode((7,) * count) == write((7,) * count) == b"t%d:%b" % (len(body), body)
    assert encode([7] * count) == b"l%d:%b" % (len(body), body)
    for other in (True, "7", 7.0, None):
        mixed = b"i1:7" * count + encode(other)
        assert write((*[7] * count, other)) == b"t%d:%b" % (len(mixed), mixed)


def test_an_enum_made_of_flags_keeps_its_members_apart():
    """Members, combinations of members and no member at all are told apart, and each is itself again when decoded."""
    values = [Bits.A, Bits.B, Bits.A | Bits.B, Bits(0)]
    assert len({encode(v) for v in values}) == 4
    assert [decode(encode(v)) for v in values] == [
        EnumName(f"{NAME}.Bits", m) for m in ("A", "B", "A|B", None)
    ]


@pytest.mark.parametrize(
    "value",
    [
        EnumName("a.B", "c"),
        EnumName("a.B", None),
        Record("a.B", {}),
        Record("a.B", {"x": (1, [2]), "y": {"z": frozenset({3})}}),
        DtypeName("torch.float32"),
        {"b": DtypeName("torch.int8"), "a": [EnumName("a.B", "c"), (Record("a.B", {}),)]},
        frozenset({EnumName("a.B", "c"), EnumName("a.B", "d"), 1}),
        frozenset(),
        [frozenset({(1, 2)}), ()],
    ],
)
def test_decoded_values_are_written_and_read_as_they_are(value):
    """The names that stand for classes go both ways, at any depth."""
    again = decode(encode_decoded(value))
    assert again == value
    assert type(again) is type(value)


def test_members_of_decoded_sets_and_mappings_are_sorted():
    """In whatever order a decoded value was put together, its bytes are those of the canonical order."""
    one = {"b": EnumName("a", "b"), "a": 1, "aa": 2}
    assert encode_decoded(one) == encode_decoded(dict(sorted(one.items())))
    assert encode_decoded(one).index(b"s1:a") < encode_decoded(one).index(b"s1:b")
    assert encode_decoded(frozenset({2, 1})) == b"S8:i1:1i1:2"


def crowd_of(count):
    """Members that are neither text nor small numbers."""
    return [(i,) for i in range(count)]


@pytest.mark.parametrize("more", [[], [1 << 60], [-(1 << 60)], [None]])
def test_256_members_that_can_be_made_to_collide_are_the_most(more):
    """Text, bytes and numbers below 2**60 are free; of everything else 256 pass and 257 do not."""
    free = ["a", b"a", 0, (1 << 60) - 1, 1 - (1 << 60)]
    full = [*free, *crowd_of(256 - len(more)), *more]
    one_more = [*full, ("one", "more")]
    assert decode(encode(frozenset(full))) == frozenset(full)
    assert decode(encode(dict.fromkeys(full, 1))) == dict.fromkeys(full, 1)
    for value in (frozenset(one_more), dict.fromkeys(one_more, 1)):
        with pytest.raises(KeyFactorError) as caught:
            decode(encode(value))
        (problem,) = caught.value.problems
        assert problem.found == "a mapping or set of 257 members that are neither text nor small"


def test_lengths_have_up_to_twelve_digits():
    """A length of as many digits as any real value has is read; the colon may stand at the last byte looked at."""
    assert decode(b"x10:" + b"x" * 10) == b"x" * 10
    with pytest.raises(KeyFactorError, match="runs past the end"):
        decode(b"x999999999999:")
    with pytest.raises(KeyFactorError, match="no length at byte 1"):
        decode(b"x9999999999999:")


def test_a_class_is_looked_at_once():
    """The writer of a class is made when its first value comes, and kept."""
    made = []

    class Counting(Writers):
        def writer_for(self, cls):
            made.append(cls)
            return super().writer_for(cls)

    writer = Counting({int: encode})
    assert [writer[tuple]((1,)), writer[tuple]((2,))] == [b"t4:i1:1", b"t4:i1:2"]
    assert made == [tuple]
    assert set(writer) == {int, tuple}


def test_writers_inside_are_those_of_the_same_table():
    """What a table says of a class also counts inside the containers that it writes."""
    own = Writers({int: lambda value: b"!", str: lambda value: b"?"})
    assert own[list]([1, "a"]) == b"l2:!?"
    assert own[tuple]((1,)) == b"t1:!"
    assert own[dict]({"a": 1}) == b"d2:?!"
    assert own[frozenset](frozenset({1})) == b"S1:!"
    assert own[Single](Single(1)).endswith(b"d8:s4:only!")
    assert sequence_writer(b"z", own)([1, 1]) == b"z2:!!"


def test_heads_are_joined_with_their_values():
    """One after the other, as often as asked, from one layout."""
    join = interleaved([b"a", b"b"])
    assert [join([b"1", b"2"]), join([b"3", b"4"])] == [b"a1b2", b"a3b4"]
    assert interleaved([])([]) == b""


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_attributes_come_in_the_order_of_their_names(count):
    """None, one and several: always a row of values."""
    names = ["zeta", "alpha", "mid"][:count]
    assert list(attributes(names)(Unsorted(1, 2, 3))) == [1, 2, 3][:count]


def test_only_so_many_integers_and_strings_are_kept(monkeypatch):
    """A process that meets many values does not remember all of them; long texts and large numbers never stay."""
    monkeypatch.setattr(writers, "_KEPT", 2)
    integers, strings = writers._Integers(), writers._Strings()
    assert [integers[n] for n in (1, 2, 3, 1)] == [b"i1:1", b"i1:2", b"i1:3", b"i1:1"]
    assert integers == {1: b"i1:1", 2: b"i1:2"}
    assert [strings[n] for n in "abca"] == [b"s1:a", b"s1:b", b"s1:c", b"s1:a"]
    assert strings == {"a": b"s1:a", "b": b"s1:b"}
    monkeypatch.setattr(writers, "_KEPT", 10)
    assert strings["x" * 65] == b"s65:" + b"x" * 65
    assert strings["y" * 64] == b"s64:" + b"y" * 64
    assert integers[1 << 63] == b"I18:0x8000000000000000"
    assert set(strings) == {"a", "b", "y" * 64}
    assert set(integers) == {1, 2}
