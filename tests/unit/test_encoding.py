"""The canonical encoding: fixed bytes, stated rules, and what is refused with its path."""

import enum
import io
import math
import pathlib
import sys
import tracemalloc
from types import MappingProxyType

import attrs
import pytest

from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import DtypeName, EnumName, Record, decode, encode


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1


class Bits(enum.Flag):
    A = 1
    B = 2


@attrs.frozen
class Point:
    x: int
    y: object = None


@attrs.frozen
class OtherPoint:
    x: int
    y: object = None


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"n0:"),
        (True, b"b1:1"),
        (False, b"b1:0"),
        (-12, b"i3:-12"),
        (1 << 63, b"I18:0x8000000000000000"),
        (1.5, b"f20:0x1.8000000000000p+0"),
        (float("nan"), b"f3:nan"),
        (float("-inf"), b"f4:-inf"),
        ("né", "s3:né".encode()),
        (b"\x00\xff", b"x2:\x00\xff"),
        ((1, "a"), b"t8:i1:1s1:a"),
        ([1], b"l4:i1:1"),
        ({"b": 1, "a": 2}, b"d16:s1:ai1:2s1:bi1:1"),
        (frozenset({2, 1}), b"S8:i1:1i1:2"),
    ],
)
def test_the_bytes_of_each_kind_are_fixed(value, encoded):
    """These bytes are on disks: a change of one of them needs another EPOCH."""
    assert encode(value) == encoded


DIFFERENT = [
    (1, True),
    (1, 1.0),
    (1, "1"),
    (0, False),
    (0.0, -0.0),
    (None, "None"),
    ("", b""),
    ("a", b"a"),
    ((), []),
    ((1, 2), [1, 2]),
    ((), frozenset()),
    ({}, ()),
    ({1: 2}, ((1, 2),)),
    ({"a": 1}, [("a", 1)]),
    (("ab", "c"), ("a", "bc")),
    ((("a",), "b"), (("a", "b"),)),
    (((),), ((), ())),
    (Colour.RED, "red"),
    (Colour.RED, Colour.BLUE),
    (Number.ONE, 1),
    (Point(1), OtherPoint(1)),
    (Point(1), {"x": 1, "y": None}),
    (frozenset({1}), (1,)),
    ("é", "e\u0301"),
    ("a\x00", "a"),
    (EnumName("c", "m"), Colour.RED),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_values_that_look_alike_encode_differently(one, other):
    """Values that compare equal, print alike or concatenate alike in Python have bytes of their own."""
    assert encode(one) != encode(other)


def test_order_of_insertion_does_not_matter():
    """Mappings and sets with the same content are the same, whatever order they were filled in."""
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    assert encode({*"abc"}) == encode(frozenset("cba"))
    assert encode(MappingProxyType({"a": 1})) == encode({"a": 1})


def test_every_nan_is_the_same_value():
    """NaNs with other signs and payloads encode alike."""
    assert encode(-math.nan) == encode(float("nan")) == encode(math.inf - math.inf)


def test_integers_beyond_pythons_print_limit_encode():
    """An integer of 5000 digits comes back as it was, as a value and as a key."""
    assert decode(encode(10**5000)) == 10**5000
    assert decode(encode({-(10**5000): 1})) == {-(10**5000): 1}


def test_classes_come_back_as_names():
    """decode imports nothing: enums and attrs objects come back as their names and fields."""
    assert decode(encode(Colour.RED)) == EnumName(f"{__name__}.Colour", "RED")
    assert decode(encode(Point(1, "a"))) == Record(f"{__name__}.Point", {"x": 1, "y": "a"})


@pytest.mark.parametrize(
    "value", [frozenset({Point(1), Point(2)}), {Point(1): 2}, {Bits(0): 1}, Bits.A | Bits.B]
)
def test_hashable_objects_come_back_as_members_and_keys(value):
    """Whatever encodes also decodes, attrs objects in sets and flags without name among them."""
    decode(encode(value))


def test_a_torch_dtype_is_its_name():
    """A dtype encodes by name and comes back as one, so decoding needs no torch."""
    torch = pytest.importorskip("torch")
    assert decode(encode({"dtype": torch.bfloat16})) == {"dtype": DtypeName("torch.bfloat16")}
    assert encode(torch.float32) != encode("torch.float32")
    assert encode(torch.float32) != encode(torch.float64)


def test_tensors_are_refused():
    """A tensor in a key would be data, address or shape: it is refused by path."""
    torch = pytest.importorskip("torch")
    with pytest.raises(KeyFactorError) as caught:
        encode({"weights": [torch.zeros(1)]})
    assert caught.value.problems[0].where == "value.weights[0]"


@pytest.mark.parametrize(
    "value",
    [
        len,
        lambda: 1,
        pathlib.Path("a"),
        io.BytesIO(),
        object(),
        1j,
        bytearray(b"a"),
        range(3),
        Text("a"),
        Point,
        iter([]),
    ],
)
def test_what_has_no_stated_rule_is_refused_with_its_path(value):
    """No repr, no pickle, no guess: the error names where in the value it lies and of what class it is."""
    with pytest.raises(KeyFactorError) as caught:
        encode({"outer": (1, {"inner": value})})
    (problem,) = caught.value.problems
    assert problem.where == "value.outer[1].inner"
    assert type(value).__qualname__ in problem.found


def test_a_lone_surrogate_is_refused():
    """A string that UTF-8 cannot hold is named, not replaced."""
    with pytest.raises(KeyFactorError) as caught:
        encode({"name": "\udc80"})
    assert caught.value.problems[0].where == "value.name"


def test_a_value_that_contains_itself_is_refused():
    """A cycle ends in KeyFactorError and not in a RecursionError."""
    cycle = []
    cycle.append(cycle)
    with pytest.raises(KeyFactorError):
        encode(cycle)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"i1:",
        b"i:1",
        b"i1:1x",
        b"i01:1",
        b"i2:+1",
        b"i2:01",
        b"i3:1_0",
        b"I3:0x1",
        b"b1:2",
        b"n1:x",
        b"q0:",
        b"f3:1.5",
        b"f10:0x1p+99999",
        b"f4:-nan",
        b"s1:\xff",
        b"i9999999999999:1",
        b"t3:i1:",
        b"d4:i1:1",
        b"d16:s1:bi1:1s1:ai1:2",
        b"d16:s1:ai1:2s1:ai1:2",
        b"S8:i1:2i1:1",
        b"S8:i1:1i1:1",
        b"S4:l0:",
        b"e8:i1:1i1:2",
        b"o8:s1:ai1:2",
        b"e4:s1:a",
        b"t4:" * 5000,
    ],
)
def test_bytes_that_encode_never_makes_are_refused(data):
    """Damage of every kind, and a second spelling of a value, is a KeyFactorError."""
    with pytest.raises(KeyFactorError):
        decode(data)


def test_keys_that_were_made_to_collide_are_refused_in_time():
    """A table of integers with one hash takes the square of its size; a header may hold half a million of them."""
    step = sys.hash_info.modulus
    crowd = [1 + i * step for i in range(1, 301)]
    for value in (dict.fromkeys(crowd), frozenset(crowd)):
        with pytest.raises(KeyFactorError, match="300 members that are neither text nor small"):
            decode(encode(value))
    assert decode(encode(dict.fromkeys(range(5000)))) == dict.fromkeys(range(5000))
    assert len(decode(encode({f"name {i}": i for i in range(5000)}))) == 5000


def test_nesting_is_not_copied_once_a_level():
    """8 MiB below 200 lists are decoded within a few times their size."""
    data = encode(b"x" * (8 << 20))
    for _ in range(200):
        data = b"l%d:" % len(data) + data
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[1] < 8 * (8 << 20)
    finally:
        tracemalloc.stop()
