"""Declaring fields of config classes, and what instances check of themselves."""

import enum
from collections.abc import Mapping
from typing import ClassVar

import attrs
import pytest

from graphspec.annotations import mismatch
from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, is_config_class, keyed, policies, unkeyed


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@config_class
class Section:
    depth: int = keyed(Stage.COMPILE, doc="Layers.", minimum=1, maximum=9)
    ratio: float = keyed(Stage.CAPTURE, doc="A ratio.", default=0.5, minimum=0)
    label: str = unkeyed(doc="A name.", reason="only shown", default="x")


def test_a_field_without_policy_is_refused_when_the_class_is_made():
    """Forgetting to declare a field is a TypeError that names class, field and the three ways out."""
    with pytest.raises(TypeError) as caught:

        @config_class
        class Forgetful:
            width: int = 3

    for fact in ("Forgetful.width", "keyed(", "unkeyed("):
        assert fact in str(caught.value)


def test_an_inherited_field_keeps_its_policy():
    """A subclass has the policies of its base and its own."""

    @config_class
    class Wider(Section):
        extra: int = keyed(Stage.CAPTURE, doc="More.", default=0)

    assert policies(Wider).keys() >= {"depth", "ratio", "label", "extra"}
    assert policies(Wider)["depth"].stage is Stage.COMPILE


@pytest.mark.parametrize("reason", ["", "   "])
def test_an_unkeyed_field_needs_a_reason(reason):
    """An exclusion from every key without a reason is refused."""
    with pytest.raises(TypeError, match="reason"):
        unkeyed(reason=reason, doc="Something.")


@pytest.mark.parametrize(
    "declare", [lambda: keyed(Stage.COMPILE, doc=" "), lambda: unkeyed(reason="r", doc="")]
)
def test_every_field_says_what_it_is_for(declare):
    """A declaration without doc is refused."""
    with pytest.raises(TypeError, match="doc"):
        declare()


def test_instances_are_frozen_keyword_only_and_slotted():
    """A config object cannot be changed, given new attributes, or built by position."""
    section = Section(depth=3)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        section.depth = 4
    with pytest.raises((AttributeError, attrs.exceptions.FrozenInstanceError)):
        section.other = 4
    assert not hasattr(section, "__dict__")
    with pytest.raises(TypeError):
        Section(3)


def test_all_problems_of_an_instance_come_at_once():
    """One SpecError carries the wrong type of one field and the bounds of the others."""
    with pytest.raises(SpecError) as caught:
        Section(depth=10, ratio=-1, label=7)
    assert {p.where: p.wanted for p in caught.value.problems} == {
        "depth": "at most 9",
        "ratio": "at least 0",
        "label": "a string",
    }


@pytest.mark.parametrize(("depth", "fine"), [(0, False), (1, True), (9, True), (10, False)])
def test_both_bounds_are_included(depth, fine):
    """minimum and maximum themselves are allowed, one beyond is not."""
    if fine:
        assert Section(depth=depth).depth == depth
    else:
        with pytest.raises(SpecError):
            Section(depth=depth)


def test_nan_does_not_slip_through_a_bound():
    """A NaN is neither at least the minimum nor accepted for not being below it."""
    with pytest.raises(SpecError):
        Section(depth=1, ratio=float("nan"))


def test_own_rules_run_only_on_values_of_the_right_type():
    """What a rule yields is raised; it never sees a value of the wrong type."""

    def ordered(section):
        if section.low > section.high:
            yield Problem(where="low", found="x", wanted="y")

    @config_class
    class Ruled:
        rules: ClassVar = (ordered,)

        low: int = keyed(Stage.COMPILE, doc="Low.")
        high: int = keyed(Stage.COMPILE, doc="High.")

    Ruled(low=1, high=2)
    with pytest.raises(SpecError) as caught:
        Ruled(low=3, high=2)
    assert [p.where for p in caught.value.problems] == ["low"]
    with pytest.raises(SpecError) as caught:
        Ruled(low="3", high=2)
    assert [p.wanted for p in caught.value.problems] == ["an integer"]


@pytest.mark.parametrize(
    ("key_of", "declared", "covers"),
    [
        (Stage.COMPILE, Stage.COMPILE, True),
        (Stage.COMPILE, Stage.CAPTURE, False),
        (Stage.COMPILE, None, False),
        (Stage.CAPTURE, Stage.COMPILE, True),
        (Stage.CAPTURE, Stage.CAPTURE, True),
        (Stage.CAPTURE, None, False),
    ],
)
def test_a_compile_field_is_in_both_keys_and_a_capture_field_in_one(key_of, declared, covers):
    """The six combinations of key stage and declared stage."""
    assert key_of.covers(declared) is covers


FITS = [
    (4, int),
    (True, bool),
    (4, float),
    (4.5, float),
    ("x", str),
    (None, int | None),
    (4, int | None),
    ((), tuple[int, ...]),
    ((1, 2), tuple[int, ...]),
    ((1, "a"), tuple[int, str]),
    ({"a": 1, "b": "x"}, Mapping[str, int | str]),
    (Colour.RED, Colour),
    (Section(depth=1), Section),
]
MISFITS = [
    (True, int, "an integer"),
    (4.0, int, "an integer"),
    ("4", int, "an integer"),
    (1, bool, "true or false"),
    ("true", bool, "true or false"),
    (True, float, "a number"),
    ("4.5", float, "a number"),
    (4, str, "a string"),
    (b"x", str, "a string"),
    (None, int, "an integer"),
    ("x", int | None, "an integer or nothing"),
    ([1], tuple[int, ...], "a list"),
    ((1, "a"), tuple[int, ...], "a list of an integer"),
    ((1,), tuple[int, int], "a list of 2 values"),
    ([], Mapping[str, int], "a mapping"),
    ({1: 1}, Mapping[str, int], "a mapping of a string"),
    ({"a": "x"}, Mapping[str, int], "a mapping of an integer"),
    ("red", Colour, "one of red or blue"),
    (3, Section, "a Section"),
]


@pytest.mark.parametrize(("value", "annotation"), FITS)
def test_a_value_of_its_annotation_fits(value, annotation):
    """What an annotation says is accepted; an integer is also a number."""
    assert mismatch(value, annotation) == ""


@pytest.mark.parametrize(("value", "annotation", "wanted"), MISFITS)
def test_a_value_of_another_type_is_named_not_coerced(value, annotation, wanted):
    """Near misses ("4", 4.0, True, 1 for true) are refused with what was wanted."""
    assert mismatch(value, annotation) == wanted


def test_only_classes_with_policies_are_config_classes():
    """Plain attrs classes, instances and other objects are not config classes."""

    @attrs.frozen
    class Plain:
        width: int = 3

    assert is_config_class(Section)
    assert not any(map(is_config_class, (Plain, Section(depth=1), int, None)))
