"""What a value must be by the annotation of its field. Nothing is coerced."""

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from graphspec.frozen import JsonValue
from graphspec.text import one_of

Checker = Callable[[Any], str]
"""What a value should have been, or an empty text when it fits."""

_MAX_JSON_DEPTH = 32


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    origin = typing.get_origin(annotation)
    union = origin in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def is_mapping(annotation: Any) -> bool:
    """True for the annotation of a mapping."""
    origin = typing.get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def mismatch(value: Any, annotation: Any) -> str:
    """What a value should have been by its annotation, or an empty text when it fits. Nothing is coerced.

    >>> mismatch("4", int), mismatch(True, int), mismatch(4, int)
    ('an integer', 'an integer', '')
    """
    return checker(annotation)(value)


@cache
def checker(annotation: Any) -> Checker:
    """The check behind `mismatch` for one annotation, made once: a config of 128 batch sizes runs it 3,000 times."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return lambda value: ""
    if annotation is JsonValue:
        return _json_mismatch
    if origin in (typing.Union, types.UnionType):
        return _union_checker(parts)
    if annotation is None or annotation is type(None):
        return lambda value: "" if value is None else "nothing"
    if origin is tuple:
        return _tuple_checker(parts)
    if is_mapping(annotation):
        return _mapping_checker(parts)
    if annotation is float:
        return _float_mismatch
    if annotation in (bool, int, str):
        name = NAMES[annotation]
        return lambda value: "" if type(value) is annotation else name
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = one_of(m.value for m in annotation)
        return lambda value: "" if isinstance(value, annotation) else members
    cls = origin or annotation
    return lambda value: "" if isinstance(value, cls) else f"a {annotation.__name__}"


def _union_checker(parts: tuple[Any, ...]) -> Checker:
    checks = [checker(p) for p in parts]
    optional = type(None) in parts

    def check(value: Any) -> str:
        if value is None and optional:
            return ""
        wanted = []
        for one in checks:
            wrong = one(value)
            if not wrong:
                return ""
            wanted.append(wrong)
        return " or ".join(dict.fromkeys(wanted))

    return check


def _float_mismatch(value: Any) -> str:
    # No field means anything at NaN or infinity, and both would pass every bound that is written as a comparison.
    if type(value) is float:
        return "" if math.isfinite(value) else "a finite number"
    return "" if type(value) is int else "a number"


def _json_mismatch(value: Any, depth: int = 0) -> str:
    if depth > _MAX_JSON_DEPTH:
        return f"at most {_MAX_JSON_DEPTH} levels of nesting"
    if value is None or type(value) in (bool, int, str):
        return ""
    if type(value) is float:
        return "" if math.isfinite(value) else "a finite number"
    if isinstance(value, Mapping):
        if not all(type(k) is str for k in value):
            return "a mapping whose keys are strings"
        return next(filter(None, (_json_mismatch(v, depth + 1) for v in value.values())), "")
    if isinstance(value, list | tuple):
        return next(filter(None, (_json_mismatch(v, depth + 1) for v in value)), "")
    return "plain data: null, a boolean, a number, a string, a list or a mapping"


def _mapping_checker(items: tuple[Any, ...]) -> Checker:
    checks = tuple(checker(i) for i in items) if len(items) == 2 else None

    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "a mapping"
        if checks is None:
            return ""
        for k, v in value.items():
            wrong = checks[0](k) or checks[1](v)
            if wrong:
                return f"a mapping of {wrong}"
        return ""

    return check


def _tuple_checker(items: tuple[Any, ...]) -> Checker:
    if len(items) == 2 and items[1] is Ellipsis:
        each, kind = checker(items[0]), items[0]

        def check_all(value: Any) -> str:
            if not isinstance(value, tuple):
                return "a list"
            if kind is int and all(type(v) is int for v in value):
                return ""
            return next((f"a list of {w}" for w in map(each, value) if w), "")

        return check_all
    checks = [checker(i) for i in items]

    def check(value: Any) -> str:
        if not isinstance(value, tuple):
            return "a list"
        if len(value) != len(checks):
            return f"a list of {len(checks)} values"
        wrong = (one(v) for one, v in zip(checks, value, strict=True))
        return next((f"a list of {w}" for w in wrong if w), "")

    return check


NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
}
