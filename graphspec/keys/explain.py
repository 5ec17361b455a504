"""A spec's keys explained: every field with its value, the keys that contain it, and why; and what two specs differ in."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from graphspec.fields import FieldPolicy, Stage, is_config_class, policies
from graphspec.keys.compare import Difference, Kind, compare, hide
from graphspec.keys.factors import CLASS, factor_tree
from graphspec.keys.writers import class_name

_CLASS_SUFFIX = ":class"
_ADDED = "added by hash_factors of the method's class"
_OF_CLASS = "the class of a section decides its properties and class variables"

Trees = Mapping[Stage, Any]


@attrs.frozen(kw_only=True)
class Factor:
    """One field of a spec, or something else that its keys contain.

    `why` says what it is for where a key contains it, else why none does. Secrets are `Hidden` values.
    """

    path: str
    value: Any
    stages: tuple[Stage, ...]
    why: str


@attrs.frozen(kw_only=True)
class SpecDifference:
    """One field in which two specs differ, and the keys that it moves."""

    difference: Difference
    moves: tuple[Stage, ...]
    why: str


def factors_of(section: Any) -> tuple[Factor, ...]:
    """Every field of a spec and of its sections, the class of each section, and what methods add.

    >>> from graphspec.config.device import DeviceConfig
    >>> [(f.path, f.value.name) for f in factors_of(DeviceConfig()) if f.path == "isa"]
    [('isa', 'NATIVE')]
    """
    trees = {stage: factor_tree(section, stage) for stage in Stage}
    return (
        Factor(path="class", value=class_name(type(section)), stages=tuple(Stage), why=_OF_CLASS),
        *_factors(section, trees),
    )


def _factors(section: Any, trees: Trees, path: str = "", unkeyed: str = "") -> Iterator[Factor]:
    cls = type(section)
    for name, policy in policies(cls).items():
        value = getattr(section, name)
        below = f"{path}.{name}" if path else name
        reason = unkeyed or policy.reason
        stages = tuple(stage for stage in Stage if name in trees[stage])
        if is_config_class(type(value)):
            if stages:
                named = class_name(type(value))
                yield Factor(path=below + _CLASS_SUFFIX, value=named, stages=stages, why=_OF_CLASS)
            inner = {stage: trees[stage].get(name, {}) for stage in Stage}
            yield from _factors(value, inner, below, reason)
            continue
        shown = hide(value, policy)
        yield Factor(path=below, value=shown, stages=stages, why=_why(policy, stages, reason))
    for name, (value, stages) in _additions(section, trees).items():
        below = f"{path}.{name}" if path else name
        yield Factor(path=below, value=value, stages=stages, why=_ADDED)


def _why(policy: FieldPolicy, stages: tuple[Stage, ...], reason: str) -> str:
    if not stages:
        return reason
    declared = [stage for stage in Stage if stage.covers(policy.stage)]
    more = [stage.name for stage in stages if stage not in declared]
    return f"{policy.doc} At {', '.join(more)} {_ADDED}." if more else policy.doc


def _additions(section: Any, trees: Trees) -> Mapping[str, tuple[Any, tuple[Stage, ...]]]:
    names = dict.fromkeys(name for stage in Stage for name in trees[stage])
    found = {}
    for name in names:
        if name != CLASS and name not in policies(type(section)):
            stages = tuple(stage for stage in Stage if name in trees[stage])
            found[name] = (trees[stages[0]][name], stages)
    return found


def differences(one: Any, other: Any) -> tuple[SpecDifference, ...]:
    """Every field in which two specs differ, unkeyed ones too, and which keys each moves."""
    moving = {stage: compare(factor_tree(one, stage), factor_tree(other, stage)) for stage in Stage}
    found = list(compare(one, other))
    paths = {d.path for d in found}
    why = {**_whys(other), **_whys(one)}
    for by_stage in moving.values():
        # What a method's class adds to one key stands in no field.
        more = [d for d in by_stage if d.path not in paths]
        found += more
        paths |= {d.path for d in more}
        why |= {d.path: _ADDED for d in more}
    return tuple(
        SpecDifference(
            difference=d,
            moves=tuple(s for s in Stage if any(m.path == d.path for m in moving[s])),
            why=_OF_CLASS if d.kind is Kind.CLASS else _nearest(why, d.path),
        )
        for d in found
    )


def _whys(section: Any) -> Mapping[str, str]:
    return {**dict(_section_whys(section)), **{f.path: f.why for f in factors_of(section)}}


def _section_whys(section: Any, path: str = "", unkeyed: str = "") -> Iterator[tuple[str, str]]:
    for name, policy in policies(type(section)).items():
        value = getattr(section, name)
        below = f"{path}.{name}" if path else name
        reason = unkeyed or policy.reason
        if is_config_class(type(value)):
            yield below, reason or policy.doc
            yield from _section_whys(value, below, reason)


def _nearest(why: Mapping[str, str], path: str) -> str:
    """Of the fields at and above a path, what is said of the lowest: values inside a field have no word of their own."""
    while path and path not in why:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return why.get(path, "")
