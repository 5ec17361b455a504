"""The inventory of fields: every place in which a section can stand, each class once, and types in words."""

import enum
from collections.abc import Mapping

import attrs
import pytest

from graphspec.fields import Stage, config_class, keyed, policies, unkeyed
from graphspec.keys.inventory import FieldRow, config_classes, inventory, type_text

NAME = __name__


class Mode(enum.Enum):
    FULL = "full"
    LEVEL = 2


@config_class
class Alone:
    width: int = keyed(Stage.COMPILE, doc="Width.")


@config_class
class Listed:
    seats: tuple[int, int] = keyed(Stage.CAPTURE, doc="Seats.")


@config_class
class Chosen:
    mode: Mode | None = unkeyed(doc="Mode.", reason="only shown")


@config_class
class Child(Chosen):
    more: Mapping[str, int] = keyed(Stage.COMPILE, doc="More.")


@config_class
class GrandChild(Child):
    again: "Top | None" = unkeyed(default=None, doc="Again.", reason="only shown")


@config_class
class Top:
    alone: Alone = keyed(Stage.COMPILE, doc="Alone.")
    listed: tuple[Listed, ...] | None = keyed(Stage.COMPILE, doc="Listed.")
    nested: tuple[tuple[str, Chosen | None], ...] = keyed(Stage.COMPILE, doc="Nested.")


def test_classes_are_found_wherever_they_can_stand():
    """In unions, lists and lists of lists; then subclasses of what was found; each once, though they hold each other."""
    found = (Top, Alone, Listed, Chosen, Child, GrandChild)
    assert config_classes([Top]) == found
    assert config_classes([Alone, Top, Top]) == (Alone, Top, *found[2:])
    assert config_classes([Child]) == (Child, GrandChild, Top, Alone, Listed, Chosen)
    assert config_classes([]) == ()


class Undecorated(Alone):
    """Without policies of its own, as what attrs leaves behind when it makes a slotted class anew."""


@attrs.frozen
class Foreign(Alone):
    extra: int = 0


def test_only_config_classes_are_listed():
    """Subclasses that are not made as such stand for nothing in a config."""
    assert set(Alone.__subclasses__()) >= {Undecorated, Foreign}
    assert config_classes([Alone]) == (Alone,)


def test_each_field_has_a_row_with_its_words():
    """Class, name, type and policy, in order of declaration."""
    assert inventory([Alone, Listed]) == (
        FieldRow(cls=Alone, field="width", type="int", policy=policies(Alone)["width"]),
        FieldRow(
            cls=Listed, field="seats", type="list of 2: int, int", policy=policies(Listed)["seats"]
        ),
    )
    rows = [
        (r.class_name, r.field, r.type, r.stage, r.doc, r.reason) for r in inventory([Child])[:2]
    ]
    assert rows == [
        (f"{NAME}.Child", "mode", "full, 2 or nothing", None, "Mode.", "only shown"),
        (f"{NAME}.Child", "more", "mapping", Stage.COMPILE, "More.", ""),
    ]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int or nothing"),
        (None | int, "int or nothing"),
        (int | str | None, "int or str or nothing"),
        (type(None), "nothing"),
        (Mode, "full, 2"),
        (Alone | str, "Alone or str"),
        (tuple[int, ...], "list of int"),
        (tuple[int | None, ...], "list of int or nothing"),
        (tuple[int, str], "list of 2: int, str"),
        (tuple[int], "list of 1: int"),
        (tuple[tuple[int, ...], Mode] | None, "list of 2: list of int, full, 2 or nothing"),
        (dict[str, int], "mapping"),
        (Mapping[str, int], "mapping"),
        ("a.B", "a.B"),
    ],
    ids=str,
)
def test_types_are_words(annotation, text):
    """Choices by value, sections by class, lists by their items."""
    assert type_text(annotation) == text
