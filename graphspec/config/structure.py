"""Plain data to config classes: strict types, unknown keys refused with a suggestion, every problem at once."""

import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import cattrs

from graphspec.errors import Problem, SpecError
from graphspec.fields import (
    field_types,
    is_config_class,
    mismatch,
    out_of_bounds,
    policies,
)
from graphspec.text import did_you_mean, one_of, show

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


def structure(data: Any, cls: type[T]) -> T:
    """The instance of `cls` that `data` describes. Paths in the raised `SpecError` are dotted, from the root."""
    return _converter().structure(data, cls)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_structure_hook_func(lambda t: True, _leaf)
    for scalar in (bool, int, float, str):
        # cattrs would coerce: int("7") is 7. Only a hook for the type itself comes before its own.
        converter.register_structure_hook(scalar, _leaf)
    converter.register_structure_hook_func(_is_enum, _enum)
    converter.register_structure_hook_factory(_is_tuple, lambda t: _tuple_hook(converter))
    converter.register_structure_hook_factory(_is_optional, lambda t: _optional_hook(converter))
    converter.register_structure_hook_factory(is_config_class, lambda t: _section_hook(converter))
    return converter


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, enum.Enum)


def _is_tuple(cls: Any) -> bool:
    return typing.get_origin(cls) is tuple


def _is_optional(cls: Any) -> bool:
    return typing.get_origin(cls) in (typing.Union, types.UnionType) and type(
        None
    ) in typing.get_args(cls)


def _wrong(value: Any, wanted: str, hint: str = "") -> SpecError:
    return SpecError(Problem(where="", found=show(value), wanted=wanted, hint=hint))


def _leaf(value: Any, annotation: Any) -> Any:
    items = typing.get_args(annotation)
    if isinstance(value, Mapping) and len(items) == 2:
        # A copy, so that what the caller does to the data later does not reach a frozen config.
        value = dict(value)
        _check_mapping(value, items)
    wanted = mismatch(value, annotation)
    if wanted:
        raise _wrong(value, wanted)
    return value


def _check_mapping(value: Mapping[Any, Any], items: tuple[Any, ...]) -> None:
    found = [
        Problem(
            where=_key(k), found="this key", wanted=f"keys that are each {mismatch(k, items[0])}"
        )
        for k in value
        if mismatch(k, items[0])
    ]
    found += [
        Problem(where=_key(k), found=show(v), wanted=mismatch(v, items[1]))
        for k, v in value.items()
        if mismatch(v, items[1])
    ]
    if found:
        raise SpecError(found)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else show(name)


def _enum(value: Any, cls: type[enum.Enum]) -> enum.Enum:
    names = [member.value for member in cls]
    if type(value) is str and value in names:
        return cls(value)
    if isinstance(value, cls):
        return value
    hint = did_you_mean(value, names) if type(value) is str else ""
    raise _wrong(value, one_of(names), hint)


def _optional_hook(converter: cattrs.Converter) -> Hook:
    def hook(value: Any, annotation: Any) -> Any:
        if value is None:
            return None
        (inner,) = (a for a in typing.get_args(annotation) if a is not type(None))
        return converter.structure(value, inner)

    return hook


def _tuple_hook(converter: cattrs.Converter) -> Hook:
    def hook(value: Any, annotation: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list")
        items = typing.get_args(annotation)
        if len(items) == 2 and items[1] is Ellipsis:
            wanted = [items[0]] * len(value)
        elif len(items) != len(value):
            raise _wrong(value, f"a list of {len(items)} values")
        else:
            wanted = list(items)
        problems: list[Problem] = []
        out = [
            _collect(problems, f"[{i}]", converter, v, t)
            for i, (v, t) in enumerate(zip(value, wanted, strict=True))
        ]
        if problems:
            raise SpecError(problems)
        return tuple(out)

    return hook


def _collect(
    problems: list[Problem], where: str, converter: cattrs.Converter, value: Any, annotation: Any
) -> Any:
    try:
        return converter.structure(value, annotation)
    except SpecError as error:
        problems.extend(p.under(where) for p in error.problems)
        return None


def _section_hook(converter: cattrs.Converter) -> Hook:
    def hook(value: Any, cls: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _wrong(value, f"a mapping with keys among {', '.join(policies(cls))}")
        problems = [_unknown(name, cls) for name in value if name not in policies(cls)]
        hints = field_types(cls)
        given: dict[str, Any] = {}
        for name, policy in policies(cls).items():
            if name in value:
                before = len(problems)
                given[name] = _collect(problems, name, converter, value[name], hints[name])
                wrong = out_of_bounds(value[name], policy) if len(problems) == before else ""
                if wrong:
                    problems.append(Problem(where=name, found=show(value[name]), wanted=wrong))
            elif attrs.fields_dict(cls)[name].default is attrs.NOTHING:
                problems.append(
                    Problem(where=name, found="nothing", wanted="a value", hint=policy.doc)
                )
        if problems:
            raise SpecError(problems)
        return cls(**given)

    return hook


def _unknown(name: Any, cls: type) -> Problem:
    return Problem(
        where=_key(name),
        found="an unknown key",
        wanted=f"one of the fields of {cls.__name__}",
        hint=did_you_mean(_key(name), policies(cls)),
    )
