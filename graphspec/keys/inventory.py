"""The inventory of fields: every field that a config class declares, with its stage or the reason why no key has it."""

import enum
import typing
from collections.abc import Iterable, Iterator

import attrs

from graphspec.annotations import alternatives
from graphspec.fields import FieldPolicy, Stage, field_types, is_config_class, policies


@attrs.frozen(kw_only=True)
class FieldRow:
    """One field of one config class, as it is declared."""

    cls: type
    field: str
    type: str
    policy: FieldPolicy

    @property
    def class_name(self) -> str:
        """The class's dotted name, which keys contain."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def stage(self) -> Stage | None:
        """What the field can change; None: no key contains it."""
        return self.policy.stage

    @property
    def doc(self) -> str:
        """What the field is for."""
        return self.policy.doc

    @property
    def reason(self) -> str:
        """Why no key contains it; empty for keyed fields."""
        return self.policy.reason


def inventory(roots: Iterable[type]) -> tuple[FieldRow, ...]:
    """Every field of `roots`, of all sections that can stand in them, and of all loaded subclasses of those.

    >>> from graphspec.config.scheduler import SchedulerConfig
    >>> [(row.field, row.stage) for row in inventory([SchedulerConfig])][0]
    ('max_num_seqs', <Stage.CAPTURE: 'capture'>)
    """
    return tuple(
        FieldRow(cls=cls, field=name, type=type_text(field_types(cls)[name]), policy=policy)
        for cls in config_classes(roots)
        for name, policy in policies(cls).items()
    )


def config_classes(roots: Iterable[type]) -> tuple[type, ...]:
    """`roots`, the config classes that their fields can hold, and all loaded subclasses, each once, roots first.

    A field of a base class can hold any subclass, so a method that is registered is found as soon as it is loaded.
    """
    found: list[type] = []
    for root in roots:
        _collect(root, found)
    return tuple(found)


def _collect(cls: type, found: list[type]) -> None:
    if cls in found:
        return
    found.append(cls)
    for name in policies(cls):
        for part in _classes_in(field_types(cls)[name]):
            _collect(part, found)
    subclasses: list[type] = cls.__subclasses__()
    for sub in subclasses:
        # attrs makes a slotted class anew and leaves the first one behind, without attributes of its own.
        if "__attrs_attrs__" in vars(sub) and is_config_class(sub):
            _collect(sub, found)


def _classes_in(annotation: typing.Any) -> Iterator[type]:
    for part in alternatives(annotation):
        if is_config_class(part):
            yield part
        elif typing.get_origin(part) is not None:
            for inner in typing.get_args(part):
                yield from _classes_in(inner)


def type_text(annotation: typing.Any) -> str:
    """A field's type as a config file knows it: choices of an enum by value, sections by class.

    >>> type_text(tuple[int, ...]), type_text(str | None), type_text(Stage)
    ('list of int', 'str or nothing', 'compile, capture')
    """
    parts = [_part_text(p) for p in alternatives(annotation) if p is not type(None)]
    nothing = ["nothing"] if type(None) in alternatives(annotation) else []
    return " or ".join([*parts, *nothing])


def _part_text(part: typing.Any) -> str:
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return ", ".join(str(member.value) for member in part)
    items = typing.get_args(part)
    if typing.get_origin(part) is tuple:
        if items[-1] is Ellipsis:
            return f"list of {type_text(items[0])}"
        return f"list of {len(items)}: {', '.join(map(type_text, items))}"
    if items:
        return "mapping"
    return str(getattr(part, "__name__", part))
