"""The canonical encoding over generated values: it loses nothing, merges nothing, and survives any bytes."""

import collections
import enum
import struct
import types
import typing
from collections.abc import Mapping

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.errors import KeyFactorError
from graphspec.frozen import FrozenMap
from graphspec.keys.encoding import EnumName, Record, decode, encode, encode_decoded


class Colour(enum.Enum):
    RED = "red"
    BLUE = 1


class Level(enum.IntEnum):
    ONE = 1


class Rank(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    RED = "red"


class Bits(enum.Flag):
    A = 1
    B = 2


@attrs.frozen
class Point:
    x: object
    y: object = None


@attrs.frozen
class Twin:
    x: object
    y: object = None


# A small alphabet of values that Python, JSON or repr would confuse, so that generated pairs nearly collide.
LOOKALIKES = [
    *(0, False, 0.0, -0.0, "0", b"0", 1, True, 1.0, "1", b"1", -1, 1 << 63, float(1 << 63)),
    *(None, "None", "null", "", b"", "a", b"a", "ab", float("nan"), "nan", float("inf")),
    *(
        (),
        frozenset(),
        "red",
        "RED",
        Colour.RED,
        Colour.BLUE,
        Level.ONE,
        Bits.A,
        Bits(0),
        Bits.A | Bits.B,
    ),
    *("i1:1", b"i1:1", "1:1", "s1:a", ":", "é", "e\u0301", "\x00"),
    *(Rank.ONE, Word.RED, b"red", "31", "x31", "1.0", "True", "0x1", "1\x00", "\x001", "\x00\x00"),
    *(10**400, -(10**400), 10**400 + 1, (1 << 63) - 1, -(1 << 63), -(1 << 63) - 1, 2.0**-1074),
    *(float("-inf"), "inf", "-0.0", ((),), (((),),), frozenset({()}), frozenset({frozenset()})),
]
leaves = (
    st.sampled_from(LOOKALIKES)
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.binary(max_size=5)
)
hashable = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=6,
)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Twin, inner, inner)
    ),
    max_leaves=10,
)


def shape(value):
    """A typed value as something whose equality is exact: what the encoding must keep, written independently."""
    if isinstance(value, EnumName):
        return ("enum", value.cls, value.member)
    if isinstance(value, enum.Enum):
        return ("enum", f"{type(value).__module__}.{type(value).__qualname__}", value.name)
    if isinstance(value, Record):
        return ("object", value.cls, shape(value.fields))
    if isinstance(value, Point | Twin):
        named = {"x": value.x, "y": value.y}
        return ("object", f"{type(value).__module__}.{type(value).__qualname__}", shape(named))
    if isinstance(value, Mapping):
        return ("mapping", frozenset((shape(k), shape(v)) for k, v in value.items()))
    if isinstance(value, frozenset):
        return ("set", frozenset(map(shape, value)))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(shape, value)))
    if isinstance(value, float):
        return ("float", "nan" if value != value else struct.pack("<d", value))
    return (type(value).__name__, value)


def rewrapped(value):
    """Other values that a careless encoding would give the same bytes."""
    if isinstance(value, list | tuple):
        yield from (
            list(value),
            tuple(value),
            (value,),
            [value],
            dict(enumerate(value)),
        )
        if value:
            yield value[:-1]
            yield type(value)([type(value)(value[:1]), *value[1:]])
    if isinstance(value, dict):
        yield from (
            tuple(value.items()),
            list(value.items()),
            [x for pair in value.items() for x in pair],
        )
    if isinstance(value, enum.Enum):
        yield from (value.value, value.name)
    if isinstance(value, Point | Twin):
        yield from (Point(value.x, value.y), Twin(value.x, value.y), {"x": value.x, "y": value.y})
    if isinstance(value, int):
        yield from (int(value), bool(value), str(int(value)))
        if abs(value) < 1 << 60:
            yield float(value)
    if isinstance(value, str):
        yield from (value.encode(), (value,), tuple(value))
    if isinstance(value, float):
        yield from (-value, repr(value))
    yield encode(value)
    yield encode(value).decode("latin-1")


@given(values)
def test_decode_gives_back_what_was_encoded_with_its_types(value):
    """decode(encode(x)) is x, exactly: types, signs of zero, order of sequences, members of sets."""
    assert shape(decode(encode(value))) == shape(value)


@given(values, values)
def test_two_values_share_bytes_only_when_they_are_the_same(one, other):
    """Equal bytes if and only if equal as typed values."""
    assert (encode(one) == encode(other)) == (shape(one) == shape(other))


@given(values)
@example([])
@example({0: "a"})
@example({(): frozenset()})
@example([[1], 1])
@example(Point(Colour.RED))
def test_a_value_in_another_wrapping_has_other_bytes(value):
    """List or tuple, dict or pairs, enum or value, text or bytes, nested or flat: never the same bytes."""
    mine, exact = encode(value), shape(value)
    for other in rewrapped(value):
        assert (encode(other) == mine) == (shape(other) == exact), other


def looks_like(value):
    """What a careless writer would take for this one value: same text, same number, same members, same fields."""
    yield from rewrapped(value)
    if isinstance(value, bytes):
        yield from (value.hex(), value.decode("latin-1"), list(value), tuple(value))
    if isinstance(value, frozenset):
        yield from (tuple(value), list(value), dict.fromkeys(value), frozenset({value}))
    if isinstance(value, str):
        yield from (f"{value}\x00", value.encode().hex(), [value], {value: None})
        yield from (v for v in LOOKALIKES if str(v) == value)
    if isinstance(value, int | float) and value == value:
        yield from (v for v in LOOKALIKES if v == value)
    if value in (None, (), [], {}, "", b"", 0, frozenset()):
        yield from (None, (), [], {}, "", b"", 0, False, frozenset(), [None], [[]], ((),), {"": ""})


def altered(draw, value):
    """The value with one part of it, at any depth, replaced by what it could be taken for."""
    inside = parts(value)
    if inside and draw(st.booleans()):
        at = draw(st.integers(0, len(inside) - 1))
        return put(value, at, altered(draw, inside[at]))
    return draw(st.sampled_from(list(looks_like(value))))


def parts(value):
    """What a value is made of, in a fixed order."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return [value.x, value.y] if isinstance(value, Point | Twin) else []


def put(value, at, part):
    """The value with another part in one place."""
    inside = parts(value)
    inside[at] = part
    if isinstance(value, dict):
        return dict(zip(value, inside, strict=True))
    return type(value)(*inside) if isinstance(value, Point | Twin) else type(value)(inside)


@given(values, st.data())
def test_one_part_taken_for_another_changes_the_bytes(value, data):
    """A look-alike anywhere inside, however deep: equal bytes if and only if equal as typed values."""
    other = altered(data.draw, value)
    assert (encode(other) == encode(value)) == (shape(other) == shape(value))


def test_no_two_lookalikes_share_bytes():
    """All pairs of the values that Python, JSON or repr confuse, alone and inside every kind of container."""
    wrappers = (
        lambda v: v,
        lambda v: (v,),
        lambda v: [v],
        lambda v: {"a": v},
        lambda v: {v: "a"},
        lambda v: frozenset({v}),
        Point,
        Twin,
        lambda v: (v, v),
        lambda v: ((v,), v),
    )
    found = {}
    for value in (wrap(v) for v in LOOKALIKES for wrap in wrappers):
        exact = shape(value)
        assert found.setdefault(encode(value), exact) == exact
    assert len(found) > 9 * len({encode(v) for v in LOOKALIKES})


class Pair(typing.NamedTuple):
    x: object
    y: object


@given(st.lists(hashable, max_size=4))
def test_containers_count_by_their_kind(items):
    """By rule, a set is a frozenset, any mapping a mapping, and a named tuple a tuple: Python calls them equal too."""
    mapping = dict.fromkeys(items, 1)
    assert encode(set(items)) == encode(frozenset(items))
    assert encode(FrozenMap(mapping)) == encode(mapping) == encode(collections.OrderedDict(mapping))
    assert encode(types.MappingProxyType(mapping)) == encode(mapping)
    assert encode(Pair(items, None)) == encode((items, None))
    assert encode(set(items)) != encode(tuple(items))


@given(st.integers(-(1 << 70), 1 << 70) | st.integers(-(10**500), 10**500))
def test_integers_of_any_size_have_one_form(number):
    """Small ones, those around 64 bits, and those that Python would not print: read back exactly, typed."""
    assert type(decode(encode(number))) is int
    assert decode(encode(number)) == number
    assert encode(number) != encode(number + 1)
    assert len({encode(v) for v in (number, str(number), (number,), [number])}) == 4


@given(values, values)
def test_no_encoding_is_the_beginning_of_another(one, other):
    """Encodings can be joined without separators."""
    a, b = encode(one), encode(other)
    assert a == b or not (a.startswith(b) or b.startswith(a))


@given(
    st.dictionaries(hashable, leaves, max_size=5).flatmap(
        lambda d: st.tuples(st.just(d), st.permutations(list(d)))
    )
)
def test_the_order_of_a_mapping_does_not_matter(pair):
    """A mapping filled in any order has the same bytes."""
    mapping, order = pair
    assert encode({key: mapping[key] for key in order}) == encode(mapping)


def read_or_refused(data):
    """decode either refuses, or gives a value whose only encoding is `data`."""
    try:
        value = decode(data)
    except KeyFactorError:
        return
    assert encode_decoded(value) == data


pieces = st.lists(
    st.sampled_from([bytes([c]) for c in b"nbiIfsxeoydStl0123456789:-+_x. \xff"])
    | values.map(encode),
    max_size=12,
).map(b"".join)


@given(st.binary(max_size=60) | pieces)
@example(b"f10:0x1p+99999")
@example(b"e8:i1:1i1:2")
@example(b"d0:d0:")
@example(b"i1:\xb2")
def test_any_bytes_decode_or_are_refused(data):
    """Arbitrary bytes raise nothing but KeyFactorError."""
    read_or_refused(data)


@given(values.map(encode), st.data())
def test_damaged_encodings_decode_or_are_refused(data, draw):
    """One changed, removed or added byte raises nothing but KeyFactorError."""
    at = draw.draw(st.integers(0, len(data) - 1))
    byte = bytes([draw.draw(st.integers(0, 255))])
    read_or_refused(data[:at] + byte + data[at + 1 :])
    read_or_refused(data[:at] + data[at + 1 :])
    read_or_refused(data[:at] + byte + data[at:])
    read_or_refused(data[:at])
