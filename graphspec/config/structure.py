"""Plain data to config classes: strict types, unknown keys refused with a suggestion, every problem at once."""

import enum
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import attrs
import cattrs

from graphspec.annotations import alternatives, is_mapping, mismatch
from graphspec.config.partial import Partial, broken_rules
from graphspec.errors import Problem, SpecError
from graphspec.fields import HIDDEN, field_types, is_config_class, out_of_bounds, policies
from graphspec.frozen import thaw
from graphspec.text import did_you_mean, nearest_hint, one_of, show

_MANY = 12
_LEAVE_OUT = "leave it out for the default"

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


class _SectionError(SpecError):
    """Problems of one section, with what could be read of it."""

    def __init__(self, problems: list[Problem], partial: Partial) -> None:
        super().__init__(problems)
        self.partial = partial


def structure(data: Any, cls: type[T]) -> T:
    """The instance of `cls` that `data` describes. Paths in the raised `SpecError` are dotted, from the root."""
    made, problems = structure_partial(data, cls)
    if problems or isinstance(made, Partial):
        raise SpecError(problems)
    return made


def structure_partial(data: Any, cls: type[T]) -> tuple[T | Partial, list[Problem]]:
    """The same, with the problems beside what could be read, so that later checks can run on the rest."""
    try:
        made: T = _converter().structure(data, cls)
        return made, []
    except _SectionError as error:
        return error.partial, list(error.problems)
    except SpecError as error:
        return Partial({}), list(error.problems)


def unstructure(section: Any) -> Any:
    """The plain data that `structure` reads as an equal object: fields at their defaults left out.

    >>> from graphspec.config.scheduler import SchedulerConfig
    >>> unstructure(SchedulerConfig(max_num_seqs=8))
    {'max_num_seqs': 8}
    """
    if isinstance(section, enum.Enum):
        return section.value
    if not is_config_class(type(section)):
        return [unstructure(v) for v in section] if isinstance(section, tuple) else thaw(section)
    key: Any = type(section)
    defaults = _defaults(key)
    values = {name: getattr(section, name) for name in policies(type(section))}
    return {n: unstructure(v) for n, v in values.items() if v != defaults[n]}


@cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_structure_hook_func(lambda t: True, _leaf)
    for scalar in (bool, int, float, str):
        # cattrs would coerce: int("7") is 7. Only a hook for the type itself comes before its own.
        converter.register_structure_hook(scalar, _leaf)
    converter.register_structure_hook_func(_is_enum, _enum)
    converter.register_structure_hook_factory(_is_tuple, lambda t: _tuple_hook(converter))
    converter.register_structure_hook_factory(_is_union, lambda t: _union_hook(converter))
    converter.register_structure_hook_factory(is_config_class, lambda t: _section_hook(converter))
    return converter


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, enum.Enum)


def _is_tuple(cls: Any) -> bool:
    return typing.get_origin(cls) is tuple


def _is_union(cls: Any) -> bool:
    return typing.get_origin(cls) in (typing.Union, types.UnionType)


def _wrong(value: Any, wanted: str, hint: str = "") -> SpecError:
    return SpecError(Problem(where="", found=show(value), wanted=wanted, hint=hint))


def _leaf(value: Any, annotation: Any) -> Any:
    items = typing.get_args(annotation)
    if isinstance(value, Mapping) and len(items) == 2:
        _check_mapping(value, items)
    wanted = mismatch(value, annotation)
    if wanted:
        raise _wrong(value, wanted)
    return value


def _check_mapping(value: Mapping[Any, Any], items: tuple[Any, ...]) -> None:
    found = [
        Problem(where=_key(k), found="this key", wanted="keys that are each a string")
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
    hint = nearest_hint(value, names) if type(value) is str else ""
    raise _wrong(value, one_of(names), hint)


def _union_hook(converter: cattrs.Converter) -> Hook:
    def hook(value: Any, annotation: Any) -> Any:
        parts = alternatives(annotation)
        if value is None and type(None) in parts:
            return None
        parts = tuple(p for p in parts if p is not type(None))
        if len(parts) > 1:
            # Plain data decides which alternative was meant: a mapping is a section or a mapping, a text is not.
            mappings = tuple(p for p in parts if is_config_class(p) or is_mapping(p))
            others = tuple(p for p in parts if p not in mappings)
            if isinstance(value, Mapping | str):
                parts = (mappings if isinstance(value, Mapping) else others) or parts
        if len(parts) > 1:
            if mismatch(value, annotation):
                raise _wrong(value, _wanted(annotation))
            return value
        return converter.structure(value, parts[0])

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
    except _SectionError as error:
        problems.extend(p.under(where) for p in error.problems)
        return error.partial
    except SpecError as error:
        problems.extend(p.under(where) for p in error.problems)
        return None


def _section_hook(converter: cattrs.Converter) -> Hook:
    def hook(value: Any, cls: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _wrong(value, _wanted(cls), _needed_hint(cls))
        problems: list[Problem] = []
        written = _by_field(value, cls, problems)
        hints, defaults, readable = field_types(cls), _defaults(cls), {}
        for name, policy in policies(cls).items():
            default = defaults[name]
            if name in written:
                before = len(problems)
                made = _collect(problems, name, converter, written[name], hints[name])
                wrong = out_of_bounds(made, policy) if len(problems) == before else ""
                if wrong:
                    problems.append(Problem(where=name, found=show(made), wanted=wrong))
                if written[name] is None and default is not attrs.NOTHING:
                    problems[before:] = [
                        attrs.evolve(p, hint=_LEAVE_OUT) for p in problems[before:]
                    ]
                if policy.secret:
                    problems[before:] = [attrs.evolve(p, found=HIDDEN) for p in problems[before:]]
                if len(problems) == before or isinstance(made, Partial):
                    readable[name] = made
            elif default is attrs.NOTHING:
                hint = _needed_hint(hints[name]) or policy.doc
                wanted = _wanted(hints[name])
                problems.append(Problem(where=name, found="nothing", wanted=wanted, hint=hint))
            else:
                readable[name] = default
        partial = Partial(readable)
        broken = broken_rules(cls, partial)
        if problems or broken:
            raise _SectionError([*problems, *broken], partial.without(broken))
        return cls(**readable)

    return hook


def _wanted(annotation: Any) -> str:
    """What the alternatives of an annotation are. Of a section its required fields, or some of them all."""
    parts = [p for p in alternatives(annotation) if p is not type(None)]
    return " or ".join(
        f"a mapping with {_fields(p)}" if is_config_class(p) else mismatch(object(), p)
        for p in parts
    )


def _fields(cls: type) -> str:
    needed, names = _needed(cls), list(policies(cls))
    if needed:
        return " and ".join(needed)
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"keys among {', '.join(names[:_MANY])}{more}"


def _needed(cls: type) -> list[str]:
    return [name for name, default in _defaults(cls).items() if default is attrs.NOTHING]


def _needed_hint(annotation: Any) -> str:
    """What the required fields of a section are for; nothing for anything else."""
    parts = [p for p in alternatives(annotation) if is_config_class(p)]
    return "; ".join(f"{name}: {_purpose(p, name)}" for p in parts for name in _needed(p))


def _purpose(cls: type, name: str) -> str:
    annotation = field_types(cls)[name]
    return _wanted(annotation) if is_config_class(annotation) else policies(cls)[name].doc


@cache
def _defaults(cls: Any) -> Mapping[str, Any]:
    return {name: field.default for name, field in attrs.fields_dict(cls).items()}


def _by_field(value: Mapping[Any, Any], cls: type, problems: list[Problem]) -> Mapping[str, Any]:
    """The written values by field name. A hyphen in a key stands for an underscore, as on a command line."""
    written: dict[str, Any] = {}
    spelled: dict[str, Any] = {}
    for key, given in value.items():
        name = key.replace("-", "_") if isinstance(key, str) else key
        if name not in policies(cls):
            problems.append(_unknown(key, cls))
        elif name in written:
            problems.append(
                Problem(
                    where=key,
                    found="this field twice",
                    wanted="one spelling of each field",
                    hint=f"it is {spelled[name]} before: a hyphen stands for an underscore",
                )
            )
        else:
            written[name], spelled[name] = given, key
    return written


def _unknown(name: Any, cls: type) -> Problem:
    return Problem(
        where=_key(name),
        found="a key without a name" if name == "" else "an unknown key",
        wanted="a field that is known here",
        hint=did_you_mean(_key(name), policies(cls)),
    )
