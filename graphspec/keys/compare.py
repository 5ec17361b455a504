"""What differs between two keys: factor trees as they are made, or as `decode` reads them from a stored entry."""

import enum
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.errors import KeyFactorError
from graphspec.fields import HIDDEN, FieldPolicy, is_config_class, policies
from graphspec.keys.encoding import DtypeName, EnumName, Record, encode_decoded
from graphspec.keys.factors import CLASS
from graphspec.keys.writers import class_name

_SHOWN = 80
_BEFORE = 20
"""Characters of a long text that are shown of a value, and of those the ones before the first that differs."""
_SCHEDULE = "dense"
"""Name of the field that holds a depth for each batch size."""


class Kind(enum.Enum):
    """How a factor differs. A class is a factor too: it decides properties and class variables."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    CLASS = "class changed"


class Hidden:
    """Stands for a secret: it can be compared and not be read."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and self._value == other._value

    def __hash__(self) -> int:
        return hash(Hidden)

    def __repr__(self) -> str:
        return HIDDEN


@attrs.frozen(kw_only=True)
class Difference:
    """One factor that differs. A side that does not have it holds ``attrs.NOTHING``."""

    path: str
    before: Any
    after: Any
    kind: Kind

    @property
    def texts(self) -> tuple[str, str]:
        """Both values in few words. Of two long ones, the part where they begin to differ."""
        if self.kind is Kind.CLASS:
            one, other = _short(self.before), _short(self.after)
            return (one, other) if one != other else (self.before, self.after)
        return _texts(self.before, self.after, _name_of(self.path))

    def __str__(self) -> str:
        before, after = self.texts
        text = f"{self.path or 'the whole'}: {before} -> {after}"
        return f"{text} (class)" if self.kind is Kind.CLASS else text


def compare(one: Any, other: Any) -> tuple[Difference, ...]:
    """The factors that differ, in the order of `one`: ADDED is what `other` alone has, REMOVED what `one` alone has.

    Both are factor trees, whole keys, or parts of them; live and decoded values can be mixed. Values are equal when
    their canonical bytes are, so 1, 1.0 and true differ.

    >>> from graphspec.keys.encoding import decode, encode
    >>> stored = decode(encode({"": "Spec", "model": {"": "Model", "width": 64}, "mode": "full"}))
    >>> for difference in compare(stored, {"": "Spec", "model": {"": "Model", "width": 32}}):
    ...     print(difference)
    mode: 'full' -> absent
    model.width: 64 -> 32
    """
    return tuple(_differences(one, other, ""))


def _differences(one: Any, other: Any, path: str) -> Iterator[Difference]:
    here, there = parts(one), parts(other)
    if here is not None and there is not None:
        if here[0] != there[0]:
            yield Difference(path=path, before=here[0], after=there[0], kind=Kind.CLASS)
        names = dict.fromkeys((*here[1], *there[1]))
        for name in names:
            a, b = here[1].get(name, attrs.NOTHING), there[1].get(name, attrs.NOTHING)
            below = _below(path, name)
            if a is attrs.NOTHING or b is attrs.NOTHING:
                kind = Kind.ADDED if a is attrs.NOTHING else Kind.REMOVED
                yield Difference(path=below, before=a, after=b, kind=kind)
            else:
                yield from _differences(a, b, below)
    elif _nested(one) and _nested(other) and len(one) == len(other):
        for i, item in enumerate(one):
            yield from _differences(item, other[i], f"{path}[{i}]")
    elif not same(one, other):
        yield Difference(path=path, before=one, after=other, kind=Kind.CHANGED)


def same(one: Any, other: Any) -> bool:
    """True when both values are one value to a key."""
    try:
        return one is other or encode_decoded(one) == encode_decoded(other)
    except KeyFactorError:
        # Unkeyed fields may hold what no key could.
        return bool(type(one) is type(other) and one == other)


def parts(value: Any) -> tuple[str, Mapping[Any, Any]] | None:
    """The class and the members by name of a section, an attrs object or a mapping. None: a value without members.

    Secrets are `Hidden`.
    """
    if isinstance(value, Record):
        return value.cls, value.fields
    if isinstance(value, Mapping):
        cls = value.get(CLASS)
        if isinstance(cls, str):
            return cls, {k: v for k, v in value.items() if k != CLASS}
        return "", value
    kind = type(value)
    if is_config_class(kind):
        return class_name(kind), {
            name: hide(getattr(value, name), policy) for name, policy in policies(kind).items()
        }
    if attrs.has(kind) and kind not in (EnumName, DtypeName):
        return class_name(kind), {a.name: getattr(value, a.name) for a in attrs.fields(kind)}
    return None


def hide(value: Any, policy: FieldPolicy) -> Any:
    """The value, or `Hidden` in place of a secret."""
    return Hidden(value) if policy.secret else value


def _nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(parts(v) is not None for v in value)


def _below(path: str, name: Any) -> str:
    if not path:
        return str(name)
    plain = isinstance(name, str) and name.isidentifier()
    return f"{path}.{name}" if plain else f"{path}[{describe(name)}]"


def _name_of(path: str) -> str:
    return path.rpartition(".")[2]


def describe(value: Any, field: str = "", *, limit: int = _SHOWN) -> str:
    """A value as people read it: enums by name, classes without their module, a schedule as ranges, long ones cut.

    >>> describe((0, 4, 4, 4, 2, 2), "dense"), describe(("a", True, None))
    ('1 to 3: 4, 4 to 5: 2', "['a', true, null]")
    """
    text = _text(value, field)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _text(value: Any, field: str = "") -> str:
    if value is attrs.NOTHING:
        return "absent"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, enum.Enum | EnumName):
        member = value.name if isinstance(value, enum.Enum) else value.member
        return member or "no flag"
    if isinstance(value, DtypeName):
        return value.name
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return hex(value)
    if field == _SCHEDULE and isinstance(value, tuple) and len(value) > 1:
        return ", ".join(_ranges(value))
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    inside = parts(value)
    if inside is None:
        return repr(value)
    cls, members = inside
    if not cls:
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in members.items())}}}"
    return f"{_short(cls)}({', '.join(f'{k}={_text(v, str(k))}' for k, v in members.items())})"


def _ranges(depths: Sequence[int]) -> Iterator[str]:
    at = 1
    for k, run in itertools.groupby(depths[1:]):
        last = at + len(list(run)) - 1
        yield f"{at} to {last}: {_text(k)}" if last > at else f"{at}: {_text(k)}"
        at = last + 1


def _short(cls: str) -> str:
    return cls.rpartition(".")[2]


def _texts(before: Any, after: Any, field: str) -> tuple[str, str]:
    one, other = _text(before, field), _text(after, field)
    if max(len(one), len(other)) > _SHOWN and _words(before) and _words(after):
        alone = _only(before, after), _only(after, before)
        # Of the same names in another order, each side would only be counted.
        one, other = alone if alone[0] != alone[1] else (one, other)
    if isinstance(before, Hidden) and isinstance(after, Hidden):
        return one, f"{other}, and another"
    if one == other:
        return f"{_window(one, 0)} ({_kind(before)})", f"{_window(other, 0)} ({_kind(after)})"
    start = first_difference(one, other)
    far = max(len(one), len(other)) > _SHOWN and start >= 2 * _BEFORE
    begin = start - _BEFORE if far else 0
    return _window(one, begin), _window(other, begin)


def first_difference(one: str, other: str) -> int:
    """The place of the first character that differs. Of a text and its begin, where the shorter one ends."""
    return [*map(operator.eq, one, other), False].index(False)


def _kind(value: Any) -> str:
    return value.cls if isinstance(value, EnumName) else class_name(type(value))


def _words(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(v, str) for v in value)


def _only(value: Sequence[str], other: Sequence[str]) -> str:
    alone = [v for v in value if v not in other]
    return f"{len(value)}, of them here alone {_text(alone)}" if alone else f"{len(value)} names"


def _window(text: str, begin: int) -> str:
    cut = text[begin : begin + _SHOWN]
    return f"{'...' if begin else ''}{cut}{'...' if len(text) > begin + _SHOWN else ''}"
