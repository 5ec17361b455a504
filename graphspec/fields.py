"""How a field of a config class is declared: keyed at a stage, or unkeyed for a reason."""

import enum
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, dataclass_transform

import attrs

from graphspec.annotations import Checker, alternatives, checker, is_mapping, mismatch
from graphspec.errors import Problem, SpecError
from graphspec.frozen import JsonValue, freeze
from graphspec.text import show

_POLICY = "graphspec.policy"
T = TypeVar("T")
Rule = Callable[[Any], Iterable[Problem]]
"""A check that takes a section, or what could be read of one, and yields what is wrong."""


class Stage(enum.Enum):
    """What a field can change. A COMPILE field changes compiled code, and so both keys."""

    COMPILE = "compile"
    CAPTURE = "capture"

    def covers(self, other: "Stage | None") -> bool:
        """True when the key of this stage includes a field that is declared at `other`."""
        return other is Stage.COMPILE or (other is Stage.CAPTURE and self is Stage.CAPTURE)


@attrs.frozen(kw_only=True)
class FieldPolicy:
    """What is declared of one field: what it is for, which key it enters, or why it enters none.

    `group` is the heading under which a long section shows the field. A `secret` value is in no message, dump or repr.
    """

    stage: Stage | None
    reason: str
    doc: str
    minimum: int | float | None
    maximum: int | float | None
    group: str
    secret: bool = False


HIDDEN = "(hidden)"
"""What stands for a secret value wherever it would be shown."""


def keyed(
    stage: Stage,
    *,
    doc: str,
    default: Any = attrs.NOTHING,
    minimum: int | float | None = None,
    maximum: int | float | None = None,
    group: str = "",
) -> Any:
    """Declares a field that is part of the key of `stage`; `doc` says what it is for, with its unit."""
    return _field(
        FieldPolicy(stage=stage, reason="", doc=doc, minimum=minimum, maximum=maximum, group=group),
        default,
    )


def unkeyed(
    *,
    reason: str,
    doc: str,
    default: Any = attrs.NOTHING,
    minimum: int | float | None = None,
    maximum: int | float | None = None,
    group: str = "",
    secret: bool = False,
) -> Any:
    """Declares a field that no key contains, with the reason why compiled code cannot depend on it."""
    if not reason.strip():
        raise TypeError("unkeyed() needs a reason: why can no compiled graph depend on this field?")
    return _field(
        FieldPolicy(
            stage=None,
            reason=reason,
            doc=doc,
            minimum=minimum,
            maximum=maximum,
            group=group,
            secret=secret,
        ),
        default,
    )


def _field(policy: FieldPolicy, default: Any) -> Any:
    if not policy.doc.strip():
        raise TypeError("every field says what it is for: doc is empty")
    return attrs.field(default=default, metadata={_POLICY: policy}, repr=not policy.secret)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(keyed, unkeyed))
def config_class(cls: type[T]) -> type[T]:
    """Makes a frozen, slotted, keyword-only attrs class whose every field has a policy.

    A field without one is a TypeError when the class is created. Instances check their own types and bounds, and
    then the class's ``rules``: functions that take the instance and yield problems. One `SpecError` has everything
    that is wrong.

    >>> @config_class
    ... class Section:
    ...     depth: int = keyed(Stage.COMPILE, doc="Number of layers.", minimum=1)
    >>> Section(depth=0)
    Traceback (most recent call last):
    ...
    graphspec.errors.SpecError: the config is not usable:
      depth: found 0 (an integer); wanted at least 1
    """
    cls.__attrs_post_init__ = _validate  # type: ignore[attr-defined]
    return attrs.define(frozen=True, slots=True, kw_only=True, field_transformer=_declared)(cls)


def _declared(cls: type, fields: list["attrs.Attribute[Any]"]) -> list["attrs.Attribute[Any]"]:
    missing = [f.name for f in fields if _POLICY not in f.metadata]
    if missing:
        raise TypeError(
            f"{cls.__qualname__}.{missing[0]} declares no key policy: write keyed(Stage.COMPILE, ...), "
            "keyed(Stage.CAPTURE, ...) or unkeyed(reason=...), so that no key can forget it"
        )
    return [f.evolve(converter=_normal_form(f.type)) for f in fields]


def _normal_form(annotation: Any) -> Callable[[Any], Any] | None:
    """What makes equal values of a field one value, with one encoding. Values of another type stay as they are."""
    parts = alternatives(annotation)
    if float in parts and int not in parts:
        return _as_float
    if any(is_mapping(p) for p in parts):
        return _freeze_plain
    if any(typing.get_origin(p) is tuple and float in typing.get_args(p) for p in parts):
        return lambda value: tuple(map(_as_float, value)) if type(value) is tuple else value
    return None


def _freeze_plain(value: Any) -> Any:
    # What is not plain data stays as it is for the check to name; freezing it could also recurse without end.
    return freeze(value) if isinstance(value, Mapping) and not mismatch(value, JsonValue) else value


def _as_float(value: Any) -> Any:
    # 10000 and 10000.0 are one number to a field of type float, so they must have one encoding. An integer beyond
    # every float stays, and is refused by its bound or when it is encoded.
    if type(value) not in (int, float):
        return value
    try:
        return float(value) + 0.0  # -0.0 equals 0.0, so it must be 0.0
    except OverflowError:
        return value


def is_config_class(cls: Any) -> bool:
    """True for classes made by `config_class`."""
    return (
        isinstance(cls, type)
        and attrs.has(cls)
        and all(_POLICY in f.metadata for f in attrs.fields(cls))
    )


def evolve(section: T, **changes: Any) -> T:
    """A copy of a config object with some fields replaced, checked like any new one."""
    made: T = attrs.evolve(section, **changes)  # type: ignore[misc]
    return made


def policies(cls: type) -> Mapping[str, FieldPolicy]:
    """The policy of each field of a config class, in the order of declaration."""
    key: Any = cls  # mypy takes a class of attrs for one whose instances' hash it should look at
    return _policies(key)


@cache
def _policies(cls: Any) -> Mapping[str, FieldPolicy]:
    return {f.name: f.metadata[_POLICY] for f in attrs.fields(cls)}


def _validate(self: Any) -> None:
    problems: list[Problem] = []
    key: Any = type(self)
    for name, check, policy in _checks(key):
        value = getattr(self, name)
        wrong = check(value) or out_of_bounds(value, policy)
        if wrong:
            shown = HIDDEN if policy.secret else show(value)
            problems.append(Problem(where=name, found=shown, wanted=wrong))
    if not problems:
        problems = [problem for rule in rules_of(type(self)) for problem in rule(self)]
    if problems:
        raise SpecError(problems)


@cache
def _checks(cls: Any) -> tuple[tuple[str, Checker, FieldPolicy], ...]:
    hints = field_types(cls)
    return tuple((name, checker(hints[name]), policy) for name, policy in policies(cls).items())


def rules_of(cls: type) -> tuple[Rule, ...]:
    """The class's own checks beyond types and bounds."""
    rules: tuple[Rule, ...] = getattr(cls, "rules", ())
    return rules


def field_types(cls: type) -> Mapping[str, Any]:
    """The resolved annotation of each field."""
    key: Any = cls
    return _field_types(key)


@cache
def _field_types(cls: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def out_of_bounds(value: Any, policy: FieldPolicy) -> str:
    """What a number should have been, or an empty text when it lies within the field's bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if policy.minimum is not None and not value >= policy.minimum:
        return f"at least {policy.minimum}"
    if policy.maximum is not None and not value <= policy.maximum:
        return f"at most {policy.maximum}"
    return ""
