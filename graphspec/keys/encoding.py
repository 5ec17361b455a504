"""The canonical encoding: typed, length-framed, injective bytes for every value that a key may contain.

Every value is a tag, the length of its body in bytes, a colon, and the body, so no two values share an encoding and
none is the prefix of another. Stated rules:

- integers of any size as decimal text; a bool is never an integer;
- floats as ``float.hex``; 0.0 and -0.0 differ (1/x tells them apart in a graph), every NaN is the same value;
- strings as UTF-8 without normalisation; bytes as they are; a list is not a tuple;
- sets sorted by the encoding of their members; mappings sorted by the encoding of their keys;
- enums as class and member name; attrs objects as class and fields by name;
- a torch dtype as its name. Paths are refused: where a file lies must not enter a key; declare its content instead.
- callables, tensors, open files and everything else are refused with the path of the value.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from graphspec.errors import KeyFactorError, Problem
from graphspec.keys.writers import PLAIN, WRITERS, NotEncodableError, Writers, frame
from graphspec.text import show

EPOCH = 2
"""Number of this encoding. It is part of every key; a change of the rules above raises it."""


def encode(value: Any) -> bytes:
    """The canonical bytes of `value`. Raises `KeyFactorError` with the path of what cannot be encoded.

    >>> encode({"k": 4, "modes": ("full", True)})
    b'd31:s1:ki1:4s5:modest11:s4:fullb1:1'
    """
    try:
        try:
            return WRITERS[type(value)](value)
        except NotEncodableError:
            raise KeyFactorError(_first_refusal(value, "value")) from None
    except RecursionError:
        raise KeyFactorError(
            Problem(
                where="value",
                found="a value that contains itself, or is nested too deep",
                wanted="a value of finite and moderate depth",
            )
        ) from None


def _first_refusal(value: Any, path: str) -> Problem:
    for below, inner in _inside(value, path):
        try:
            WRITERS[type(inner)](inner)
        except NotEncodableError:
            return _first_refusal(inner, below)
    return _refusal(value, path)


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if attrs.has(type(value)):
        yield from ((f"{path}.{a.name}", getattr(value, a.name)) for a in attrs.fields(type(value)))
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield f"{path} key", k
            yield f"{path}.{k}" if isinstance(k, str) else f"{path}[{show(k)}]", v
    elif isinstance(value, frozenset | set):
        yield from ((f"{path} member", v) for v in value)
    elif isinstance(value, tuple | list):
        yield from ((f"{path}[{i}]", v) for i, v in enumerate(value))


def _refusal(value: Any, path: str) -> Problem:
    kind = type(value)
    if kind is str:
        return Problem(
            where=path,
            found="a string with a lone surrogate",
            wanted="text that UTF-8 can hold",
            hint="such strings come from undecodable file names; use the name's bytes",
        )
    if isinstance(value, os.PathLike):
        hint = "a location must not enter a key: declare the field unkeyed, or key the content's digest"
    elif callable(value):
        hint = (
            "name the code instead (a dotted import name) and list its module for the source digest"
        )
    else:
        hint = "give its shape, dtype or other plain facts instead"
    return Problem(
        where=path,
        found=f"a {kind.__module__}.{kind.__qualname__}",
        wanted="None, bool, int, float, str, bytes, enum, list, tuple, set, mapping, attrs object or torch dtype",
        hint=hint,
    )


@attrs.frozen
class EnumName:
    """What `decode` gives for an enum: its class and member by name. A flag without bits has no name."""

    cls: str
    member: str | None


@attrs.frozen
class Record:
    """What `decode` gives for an attrs object: its class name and its fields."""

    cls: str
    # A mapping has no hash; without it records can still be members of a set.
    fields: Mapping[str, Any] = attrs.field(hash=False)


@attrs.frozen
class DtypeName:
    """What `decode` gives for a torch dtype."""

    name: str


def decode(data: bytes) -> Any:
    """The value that `data` encodes. Classes come back as names: nothing is imported or executed.

    Raises `KeyFactorError` when the bytes are not one canonical value.
    """
    try:
        value, end = _read(data, 0, len(data))
        if end != len(data):
            raise ValueError(f"{len(data) - end} bytes follow the value")
        if encode_decoded(value) != data:
            raise ValueError("the bytes are not in canonical form")
    except (ValueError, IndexError, RecursionError, TypeError, OverflowError) as error:
        raise KeyFactorError(
            Problem(where="encoded key text", found=str(error), wanted="one canonical value")
        ) from None
    return value


def encode_decoded(value: Any) -> bytes:
    """The bytes that `decode` read `value` from. Other values are written, or refused, as `encode` does."""
    try:
        return _AGAIN[type(value)](value)
    except NotEncodableError:
        raise KeyFactorError(_first_refusal(value, "value")) from None


def _again(*values: Any) -> bytes:
    return b"".join([_AGAIN[type(v)](v) for v in values])


_AGAIN = Writers(PLAIN)
"""What writes decoded values: each stand-in as what it stands for."""
_AGAIN[EnumName] = lambda value: frame(b"e", _again(value.cls, value.member))
_AGAIN[Record] = lambda value: frame(b"o", _again(value.cls, value.fields))
_AGAIN[DtypeName] = lambda value: frame(b"y", value.name.encode())


def _read(data: bytes, at: int, limit: int) -> tuple[Any, int]:
    head = _HEAD(data, at, limit)
    if head is None:
        raise ValueError(f"no length at byte {at + 1}")
    tag, digits = head.groups()
    start = head.end()
    end = start + int(digits)
    if end > limit:
        raise ValueError(f"the value at byte {at} runs past the end")
    if tag in _BODIES:
        return _BODIES[tag](data[start:end]), end
    # Bounds, no slice: a slice is a copy, and nested values would be copied once a level.
    return _NESTED[tag](data, start, end) if tag in _NESTED else _unknown(tag, at), end


def _unknown(tag: bytes, at: int) -> Any:
    raise ValueError(f"unknown tag {tag!r} at byte {at}")


def _sequence(data: bytes, at: int, end: int) -> list[Any]:
    items = []
    while at < end:
        item, at = _read(data, at, end)
        items.append(item)
    return items


def _mapping(data: bytes, at: int, end: int) -> Mapping[Any, Any]:
    items = _sequence(data, at, end)
    return dict(zip(_hashable(items[::2]), items[1::2], strict=True))


_FREE = 1 << 60
_CROWD = 256


def _hashable(items: list[Any]) -> list[Any]:
    """The items, if a table of them is sure to be made in time: numbers and what holds them can be chosen so that their
    hashes are equal, and a table of n such keys takes n squared steps. Hashes of text are secret."""
    crowd = sum(
        not (isinstance(i, str | bytes) or (isinstance(i, int) and abs(i) < _FREE)) for i in items
    )
    if crowd > _CROWD:
        raise ValueError(f"a mapping or set of {crowd} members that are neither text nor small")
    return items


def _named(data: bytes, at: int, end: int) -> tuple[str, Any]:
    items = _sequence(data, at, end)
    if len(items) != 2 or not isinstance(items[0], str):
        raise ValueError("a class name and one value were expected")
    return items[0], items[1]


def _enum_name(data: bytes, at: int, end: int) -> EnumName:
    cls, member = _named(data, at, end)
    if not isinstance(member, str | None):
        raise ValueError("the name of an enum's member was expected")
    return EnumName(cls, member)


def _record(data: bytes, at: int, end: int) -> Record:
    cls, fields = _named(data, at, end)
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise ValueError("fields by name were expected")
    return Record(cls, fields)


_HEAD = re.compile(rb"(?s:(.))([0-9]{1,12}):").match
_BODIES: Mapping[bytes, Callable[[bytes], Any]] = {
    b"n": lambda body: None,
    b"b": lambda body: body == b"1",
    b"i": int,
    b"I": lambda body: int(body, 16),
    b"f": lambda body: float("nan") if body == b"nan" else float.fromhex(body.decode()),
    b"s": lambda body: body.decode("utf-8"),
    b"x": lambda body: body,
    b"y": lambda body: DtypeName(body.decode()),
}
_NESTED: Mapping[bytes, Callable[[bytes, int, int], Any]] = {
    b"e": _enum_name,
    b"o": _record,
    b"d": _mapping,
    b"S": lambda data, at, end: frozenset(_hashable(_sequence(data, at, end))),
    b"t": lambda data, at, end: tuple(_sequence(data, at, end)),
    b"l": _sequence,
}
