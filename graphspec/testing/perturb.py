"""Specs that differ from a given one in a single field: every leaf by reflection, and other values it can take.

Derived values stay as they are: the spec itself is changed, not the config that it came from.
"""

import enum
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.annotations import alternatives, is_mapping
from graphspec.config.kernels import ATTENTION_BACKENDS, KernelConfig
from graphspec.config.schedule import KSchedule
from graphspec.errors import SpecError
from graphspec.fields import FieldPolicy, Stage, evolve, field_types, is_config_class, policies
from graphspec.frozen import FrozenMap, JsonValue
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.base import SpeculatorConfig

_NONE = type(None)

_NAMED: Mapping[tuple[type, str], Sequence[Any]] = {
    (KernelConfig, "attention_backend"): ATTENTION_BACKENDS,
}
"""Values of fields that rules restrict to known names."""


@attrs.frozen(kw_only=True)
class Leaf:
    """One field of a spec.

    `base` is the spec, or where the field lies in a section that the spec lacks, the spec with an example of that
    section at `inside`. `value` is the field's value there, `policies` those of the fields on the way to it.
    """

    path: str
    policies: tuple[FieldPolicy, ...]
    base: EngineSpec = attrs.field(repr=False)
    inside: str
    value: Any
    others: Sequence[Any] = attrs.field(repr=False)

    @property
    def stage(self) -> Stage | None:
        """The stage in the whole: as weak as the weakest section on the way. None: no key contains the field."""
        stages = [policy.stage for policy in self.policies]
        if None in stages:
            return None
        return Stage.CAPTURE if Stage.CAPTURE in stages else Stage.COMPILE

    @property
    def is_secret(self) -> bool:
        """True where no report may show the value."""
        return any(policy.secret for policy in self.policies)

    def changed(self, value: Any) -> EngineSpec:
        """`base` with another value of the field, and nothing else. Raises `SpecError` where a rule refuses it."""
        made: EngineSpec = put(self.base, self.path, value)
        return made


def put(section: Any, path: str, value: Any) -> Any:
    """A copy of `section` with `value` at a dotted path, checked as any new one."""
    name, _, rest = path.partition(".")
    return evolve(section, **{name: put(getattr(section, name), rest, value) if rest else value})


def leaves(spec: EngineSpec) -> Iterator[Leaf]:
    """Every field below `spec`, in the order of declaration.

    A section that can be absent, or of another class, is a field too; it stands before the fields inside.
    """
    return _leaves(_Examples(spec), spec, spec, "", (), "")


def _leaves(
    examples: "_Examples",
    base: EngineSpec,
    section: Any,
    prefix: str,
    outer: tuple[FieldPolicy, ...],
    inside: str,
) -> Iterator[Leaf]:
    for name, policy in policies(type(section)).items():
        path, now, way = f"{prefix}{name}", getattr(section, name), (*outer, policy)
        annotation = field_types(type(section))[name]
        parts = [p for p in alternatives(annotation) if is_config_class(p)]
        within = is_config_class(type(now))
        if not within or annotation is not type(now):
            others = tuple(_others(examples, section, name, now, policy))
            yield Leaf(path=path, policies=way, base=base, inside=inside, value=now, others=others)
        if within:
            yield from _leaves(examples, base, now, path + ".", way, inside)
        elif parts and now is None and prefix.count(".") < _DEEPEST:
            made = examples.of(parts[0])
            if made is not None:
                with_it = put(base, path, made)
                yield from _leaves(examples, with_it, made, path + ".", way, inside or path)


_DEEPEST = 6  # sections that contain themselves would never end


def _others(
    examples: "_Examples", section: Any, name: str, now: Any, policy: FieldPolicy
) -> Iterator[Any]:
    """Values that differ from `now`, most useful first. Rules of the class may refuse some."""
    annotation, seen = field_types(type(section))[name], [now]
    named = _NAMED.get((type(section), name), ())
    found = itertools.chain(named, _values(examples, annotation, now, policy))
    for value in itertools.islice(found, _MOST_VALUES):
        if not any(_same(value, old) for old in seen):
            seen.append(value)
            yield value


_MOST_VALUES = 24


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _values(examples: "_Examples", annotation: Any, now: Any, policy: FieldPolicy) -> Iterator[Any]:
    parts = alternatives(annotation)
    for part in parts:
        if part is not _NONE and _holds(part, now):
            yield from _near(examples, part, now, policy)
    for part in parts:
        if part is _NONE or not _holds(part, now):
            yield from _fresh(examples, part, policy)


def _holds(part: Any, value: Any) -> bool:
    origin = typing.get_origin(part) or part
    if part is JsonValue:
        return value is not None
    return isinstance(origin, type) and isinstance(value, origin)


def _near(examples: "_Examples", part: Any, now: Any, policy: FieldPolicy) -> Iterator[Any]:
    """Other values of the kind that the field has now."""
    if isinstance(now, bool):
        yield not now
    elif isinstance(now, enum.Enum):
        yield from type(now)
    elif isinstance(now, int):
        # Doubling keeps what divides the number, halving finds a divisor of it, neighbours find limits.
        yield from (2 * now, now // 2, 3 * now, now // 3, now + 1, now - 1, 1, 2, 0)
    elif isinstance(now, float):
        yield from (2 * now, now / 2, now + 1.0, now - 1.0, 0.5, 0.0)
    elif isinstance(now, str):
        yield from (f"{now}_other", f"{now}_more")
    elif is_config_class(type(now)):
        yield from examples.other_classes(part, type(now))
    elif isinstance(now, tuple):
        yield from _near_tuples(examples, part, now, policy)
    elif isinstance(now, Mapping):
        yield FrozenMap({**now, "other": 1})
        for key in now:
            yield FrozenMap({k: v for k, v in now.items() if k != key})
    elif attrs.has(type(now)):
        yield from _near_objects(examples, now, policy)


def _near_tuples(
    examples: "_Examples", part: Any, now: tuple[Any, ...], policy: FieldPolicy
) -> Iterator[Any]:
    items = typing.get_args(part)
    if not items:
        return
    for at in reversed(range(len(now))):
        item = items[0] if items[-1] is Ellipsis else items[at]
        for value in itertools.islice(_values(examples, item, now[at], policy), 2):
            yield (*now[:at], value, *now[at + 1 :])
    if items[-1] is Ellipsis:
        yield now[:-1]
        for value in itertools.islice(_fresh(examples, items[0], policy), 1):
            yield (*now, value)


def _near_objects(examples: "_Examples", now: Any, policy: FieldPolicy) -> Iterator[Any]:
    for name, annotation in field_types(type(now)).items():
        for value in itertools.islice(_values(examples, annotation, getattr(now, name), policy), 2):
            yield attrs.evolve(now, **{name: value})


def _fresh(examples: "_Examples", part: Any, policy: FieldPolicy) -> Iterator[Any]:
    """Values of a kind that the field does not have now."""
    origin = typing.get_origin(part)
    if part is _NONE:
        yield None
    elif part is bool:
        yield from (True, False)
    elif isinstance(part, type) and issubclass(part, enum.Enum):
        yield from part
    elif part is int:
        yield from (max(1, int(policy.minimum or 0)), 2, 0)
    elif part is float:
        yield from (0.5, 1.0, 0.0, 2.0)
    elif part is str:
        yield from ("other", "more")
    elif part is JsonValue:
        yield from (1, "other")
    elif is_mapping(part) or part is FrozenMap:
        yield FrozenMap({"other": 1})
    elif origin is tuple:
        items = typing.get_args(part)
        each = [items[0]] if items[-1] is Ellipsis else items
        yield from itertools.islice(
            zip(*(list(_fresh(examples, i, policy))[:2] for i in each), strict=False), 2
        )
    elif isinstance(part, type) and attrs.has(part):
        made = examples.of(part)
        yield from [] if made is None else [made]


class _Examples:
    """Objects of the classes that a spec's fields can hold: where the spec has one, that one."""

    def __init__(self, spec: EngineSpec) -> None:
        self._known: dict[type, Any] = {}
        self._requests = spec.scheduler.max_num_seqs
        self._learn(spec)

    def _learn(self, section: Any) -> None:
        for name in policies(type(section)):
            value = getattr(section, name)
            if is_config_class(type(value)):
                self._known.setdefault(type(value), value)
                self._learn(value)

    def of(self, cls: type) -> Any:
        """An object of `cls`, or None where none can be made from the declarations alone."""
        if cls not in self._known:
            self._known[cls] = None  # a class whose objects need one of themselves has no example
            self._known[cls] = self._make(cls)
        return self._known[cls]

    def _make(self, cls: Any) -> Any:
        if cls is KSchedule:
            return KSchedule(dense=(0, *[1] * self._requests))
        if issubclass(cls, SpeculatorConfig):
            return next((made for _, made in cls.examples()), None)
        policy = dict(policies(cls)) if is_config_class(cls) else {}
        given = {}
        for name, field in attrs.fields_dict(cls).items():
            if field.default is attrs.NOTHING:
                values = _fresh_any(self, field_types(cls)[name], policy.get(name, _ANY))
                given[name] = next(values, None)
        try:
            return cls(**given)
        except (SpecError, TypeError):
            return None

    def other_classes(self, base: Any, own: type) -> Iterator[Any]:
        """Objects of `base` and the classes below it that have an example, other than `own`."""
        if not isinstance(base, type):
            return
        for cls in (base, *sorted(_below(base), key=lambda c: (c.__module__, c.__qualname__))):
            if cls is not own:
                made = self.of(cls)
                if made is not None:
                    yield made


def _fresh_any(examples: _Examples, annotation: Any, policy: FieldPolicy) -> Iterator[Any]:
    for part in alternatives(annotation):
        yield from _fresh(examples, part, policy)


def _below(cls: Any) -> Iterator[type]:
    for sub in cls.__subclasses__():
        # attrs makes a second class for one with slots; the first has no fields of its own.
        if "__attrs_attrs__" in vars(sub):
            yield sub
        yield from _below(sub)


_ANY = FieldPolicy(stage=None, reason="", doc="", minimum=None, maximum=None, group="")
