"""The writers behind the canonical encoding: for each class of values, what makes its bytes."""

import enum
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

Writer = Callable[[Any], bytes]
"""Gives the canonical bytes of values of one class."""


class NotEncodableError(Exception):
    """A value inside has no encoding. Who catches it looks for the place: knowing it all along would cost each encoding."""


def frame(tag: bytes, body: bytes) -> bytes:
    """One value: its tag, the length of its body, and the body."""
    return tag + b"%d:" % len(body) + body


def interleaved(heads: Sequence[bytes]) -> Callable[[list[bytes]], bytes]:
    """Joins each head with its value. The heads are laid out once; adding pair by pair costs twice as much."""
    layout = [part for head in heads for part in (head, b"")]

    def join(values: list[bytes]) -> bytes:
        parts = layout.copy()
        parts[1::2] = values
        return b"".join(parts)

    return join


class Writers(dict[type, Writer]):
    """How values are written, by class. A class is looked at when its first value comes, and not again."""

    def __missing__(self, cls: type) -> Writer:
        writer = self[cls] = self.writer_for(cls)
        return writer

    def writer_for(self, cls: type) -> Writer:
        """The writer for a class that has none yet."""
        if issubclass(cls, enum.Enum):
            return _enum_writer(cls)
        if attrs.has(cls):
            return _object_writer(cls, self)
        if issubclass(cls, Mapping):
            return _mapping_writer(self)
        if issubclass(cls, frozenset | set):
            return lambda value: frame(b"S", b"".join(sorted(self[type(v)](v) for v in value)))
        if issubclass(cls, tuple):
            return sequence_writer(b"t", self)
        if issubclass(cls, list):
            return sequence_writer(b"l", self)
        if class_name(cls) == "torch.dtype":
            return lambda value: frame(b"y", str(value).encode())
        return _refuse


def sequence_writer(tag: bytes, writers: Writers) -> Writer:
    """Writes members in order. Long runs of plain integers, such as a depth for each batch size, take a short cut."""

    def write(value: Sequence[Any]) -> bytes:
        if len(value) > 16 and list(map(type, value)).count(int) == len(value):
            return frame(tag, b"".join(map(_INTEGERS.__getitem__, value)))
        return frame(tag, b"".join([writers[type(v)](v) for v in value]))

    return write


def attributes(names: Sequence[str]) -> Callable[[Any], Iterable[Any]]:
    """Gives the attributes of those names, in order, of any object."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _mapping_writer(writers: Writers) -> Writer:
    def write(value: Mapping[Any, Any]) -> bytes:
        pairs = [(writers[type(k)](k), writers[type(v)](v)) for k, v in value.items()]
        pairs.sort()
        return frame(b"d", b"".join([k + v for k, v in pairs]))

    return write


def _object_writer(cls: type, writers: Writers) -> Writer:
    heads = {_string(a.name): a.name for a in attrs.fields(cls)}
    ordered, first = sorted(heads), _string(class_name(cls))
    values_of, join = attributes([heads[h] for h in ordered]), interleaved(ordered)

    def write(value: Any) -> bytes:
        fields = join([writers[type(v)](v) for v in values_of(value)])
        return frame(b"o", first + frame(b"d", fields))

    return write


def _enum_writer(cls: type[enum.Enum]) -> Writer:
    first = _string(class_name(cls))

    def make(member: enum.Enum) -> bytes:
        return frame(b"e", first + WRITERS[type(member.name)](member.name))

    made = {member._name_: make(member) for member in cls}
    # A flag can be a combination that is no member; such values are many.
    return lambda value: made.get(value._name_) or make(value)


def _refuse(value: Any) -> bytes:
    raise NotEncodableError


def class_name(cls: type) -> str:
    """Module and qualified name of a class, as keys have it."""
    return f"{cls.__module__}.{cls.__qualname__}"


_KEPT = 4096
"""Integers and strings whose bytes are kept once made: sizes, names and depths come again in every contract of a process."""


class _Integers(dict[int, bytes]):
    def __missing__(self, value: int) -> bytes:
        # Text of more than 4300 digits is refused by int's own conversion, so large ones go by hexadecimal.
        if abs(value) >= 1 << 63:
            return frame(b"I", hex(value).encode())
        digits = b"%d" % value
        text = b"i%d:%b" % (len(digits), digits)
        if len(self) < _KEPT:
            self[value] = text
        return text


class _Strings(dict[str, bytes]):
    def __missing__(self, value: str) -> bytes:
        text = _string(value)
        if len(self) < _KEPT and len(value) <= 64:
            self[value] = text
        return text


def _float(value: float) -> bytes:
    # Of a NaN, hex gives neither sign nor payload.
    digits = value.hex().encode()
    return b"f%d:%b" % (len(digits), digits)


def _string(value: str) -> bytes:
    try:
        body = value.encode()
    except UnicodeEncodeError:
        raise NotEncodableError from None
    return b"s%d:%b" % (len(body), body)


_INTEGERS, _STRINGS = _Integers(), _Strings()
PLAIN: Mapping[type, Writer] = {
    type(None): {None: b"n0:"}.__getitem__,
    bool: {True: b"b1:1", False: b"b1:0"}.__getitem__,
    int: _INTEGERS.__getitem__,
    float: _float,
    str: _STRINGS.__getitem__,
    bytes: lambda value: frame(b"x", value),
}
"""The writers of values that hold no others."""
WRITERS = Writers(PLAIN)
"""The writers of the rules above."""
