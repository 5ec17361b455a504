"""What the keys package says when it refuses something: each message whole, since people act on its words."""

import io
import pathlib

import attrs
import pytest

from graphspec.errors import GraphspecError, KeyFactorError, Problem
from graphspec.keys.encoding import decode, encode


@attrs.frozen
class Holder:
    one: object
    other: object = None


def refusal_of(error, call, *arguments):
    """The one problem with which a call is refused."""
    with pytest.raises(GraphspecError) as caught:
        call(*arguments)
    assert type(caught.value) is error
    (problem,) = caught.value.problems
    return problem


KINDS = "None, bool, int, float, str, bytes, enum, list, tuple, set, mapping, attrs object or torch dtype"
LOCATION = "a location must not enter a key: declare the field unkeyed, or key the content's digest"
CODE = "name the code instead (a dotted import name) and list its module for the source digest"
FACTS = "give its shape, dtype or other plain facts instead"


@pytest.mark.parametrize(
    ("value", "where", "found", "hint"),
    [
        (pathlib.PurePosixPath("a"), "value", "pathlib.PurePosixPath", LOCATION),
        (len, "value", "builtins.builtin_function_or_method", CODE),
        (io.BytesIO, "value", "builtins.type", CODE),
        (1j, "value", "builtins.complex", FACTS),
        ([0, 1j], "value[1]", "builtins.complex", FACTS),
        ((0, 0, [1j]), "value[2][0]", "builtins.complex", FACTS),
        ({1j}, "value member", "builtins.complex", FACTS),
        (frozenset({1j}), "value member", "builtins.complex", FACTS),
        ({"a": 0, "b": 1j}, "value.b", "builtins.complex", FACTS),
        ({3: 1j}, "value[3 (an integer)]", "builtins.complex", FACTS),
        ({1j: 0}, "value key", "builtins.complex", FACTS),
        ({(1j,): 0}, "value key[0]", "builtins.complex", FACTS),
        (Holder(1j), "value.one", "builtins.complex", FACTS),
        (Holder(0, {"a": [1j]}), "value.other.a[0]", "builtins.complex", FACTS),
        (Holder(1j, len), "value.one", "builtins.complex", FACTS),
    ],
)
def test_what_has_no_encoding_is_refused_by_place_kind_and_what_to_do(value, where, found, hint):
    """The first of what cannot be encoded, by its path; what to do depends on what it is."""
    wanted = Problem(where=where, found=f"a {found}", wanted=KINDS, hint=hint)
    assert refusal_of(KeyFactorError, encode, value) == wanted


@pytest.mark.parametrize(
    ("value", "where"), [("\udc80", "value"), (Holder(0, ["\udc80"]), "value.other[0]")], ids=ascii
)
def test_text_that_is_no_text_is_refused(value, where):
    """A lone surrogate comes from the name of a file."""
    assert refusal_of(KeyFactorError, encode, value) == Problem(
        where=where,
        found="a string with a lone surrogate",
        wanted="text that UTF-8 can hold",
        hint="such strings come from undecodable file names; use the name's bytes",
    )


def test_a_value_without_end_is_refused():
    """There is no path to name: the place is the whole."""
    cycle = {}
    cycle["a"] = cycle
    assert refusal_of(KeyFactorError, encode, cycle) == Problem(
        where="value",
        found="a value that contains itself, or is nested too deep",
        wanted="a value of finite and moderate depth",
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"i1:1x", "1 bytes follow the value"),
        (b"i1:1i1:1", "4 bytes follow the value"),
        (b"i2:01", "the bytes are not in canonical form"),
        (b"", "no length at byte 1"),
        (b":", "no length at byte 1"),
        (b"i", "no length at byte 1"),
        (b"i1", "no length at byte 1"),
        (b"i:1", "no length at byte 1"),
        (b"ix:1", "no length at byte 1"),
        (b"i1234567890123:1", "no length at byte 1"),
        (b"i123456789012:1", "the value at byte 0 runs past the end"),
        (b"t8:i1:1ix:1", "no length at byte 8"),
        (b"i2:1", "the value at byte 0 runs past the end"),
        (b"t7:i1:1i9:", "the value at byte 7 runs past the end"),
        (b"q0:", "unknown tag b'q' at byte 0"),
        (b"l7:i1:1q0:", "unknown tag b'q' at byte 7"),
        (b"l0:q0:", "3 bytes follow the value"),
        (b"d4:i1:1", "zip() argument 2 is shorter than argument 1"),
        (b"e0:", "a class name and one value were expected"),
        (b"e4:s1:a", "a class name and one value were expected"),
        (b"e12:s1:as1:bs1:c", "a class name and one value were expected"),
        (b"e8:i1:1s1:b", "a class name and one value were expected"),
        (b"e8:s1:ai1:1", "the name of an enum's member was expected"),
        (b"o4:s1:a", "a class name and one value were expected"),
        (b"o8:s1:ai1:1", "fields by name were expected"),
        (b"o15:s1:ad8:i1:1i1:1", "fields by name were expected"),
        (b"o24:s1:ad16:s1:ai1:1i1:1i1:1", "fields by name were expected"),
    ],
)
def test_bytes_that_are_no_value_are_refused_with_the_byte(data, found):
    """What is wrong, and where in the bytes."""
    wanted = Problem(where="encoded key text", found=found, wanted="one canonical value")
    assert refusal_of(KeyFactorError, decode, data) == wanted
