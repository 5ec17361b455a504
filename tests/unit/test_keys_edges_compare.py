"""How differences are found and written: every kind of value, and lengths just below and above where texts are cut."""

import enum

import attrs
import pytest

from graphspec.fields import HIDDEN, Stage, config_class, keyed, unkeyed
from graphspec.keys.compare import Difference, Hidden, Kind, compare, describe, hide, parts, same
from graphspec.keys.encoding import DtypeName, EnumName, Record
from graphspec.keys.factors import CLASS

NAME = __name__


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Paint(enum.Enum):
    RED = 1


class Bits(enum.Flag):
    A = 1


@attrs.frozen
class Profile:
    name: str
    dense: tuple[int, ...] = ()


@config_class
class Section:
    width: int = keyed(Stage.COMPILE, default=1, doc="Width.")
    dense: tuple[int, ...] = keyed(Stage.CAPTURE, default=(0, 4), doc="Depths.")
    token: str = unkeyed(default="t0k3n", doc="Secret.", reason="a credential", secret=True)


def found(one, other):
    return [(d.path, d.before, d.after, d.kind) for d in compare(one, other)]


def texts(one, other, field="v"):
    """The two texts of the one difference between two values of a field."""
    (difference,) = compare({field: one}, {field: other})
    return difference.texts


def test_members_are_compared_by_name_in_the_order_of_the_first():
    """Changed, removed and then added; what is the same is left out; a section in a section by its dotted path."""
    one = {CLASS: "A", "a": 1, "gone": 2, "b": {CLASS: "B", "c": {CLASS: "C", "d": 3, "same": 0}}}
    other = {CLASS: "A", "new": 5, "b": {CLASS: "B", "c": {CLASS: "C", "d": 4, "same": 0}}, "a": 9}
    assert found(one, other) == [
        ("a", 1, 9, Kind.CHANGED),
        ("gone", 2, attrs.NOTHING, Kind.REMOVED),
        ("b.c.d", 3, 4, Kind.CHANGED),
        ("new", attrs.NOTHING, 5, Kind.ADDED),
    ]


def test_a_class_is_one_difference_and_its_members_are_others():
    """Also at the top, where the path is empty; a mapping without a class has an empty one."""
    assert found({CLASS: "A", "a": 1}, {CLASS: "B", "a": 2}) == [
        ("", "A", "B", Kind.CLASS),
        ("a", 1, 2, Kind.CHANGED),
    ]
    assert found({"s": {CLASS: "A"}}, {"s": {}}) == [("s", "A", "", Kind.CLASS)]
    assert found({CLASS: 1, "a": 0}, {CLASS: 2, "a": 0}) == [("", 1, 2, Kind.CHANGED)]


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        (({CLASS: "A", "a": 1}, 2), ({CLASS: "A", "a": 3}, 4), ["v[0].a", "v[1]"]),
        ([{"a": 1}], [{"a": 2}], ["v[0].a"]),
        (({"a": 1},), [{"a": 2}], ["v[0].a"]),
        ((1, {"a": 1}), ({"a": 1}, 1), ["v[0]", "v[1]"]),
        (({"a": 1}, 1), ({"a": 1}, 1, 2), ["v"]),
        ((1, 2), ({"a": 1}, 2), ["v"]),
        (({"a": 1}, 2), (1, 2), ["v"]),
        ((1, 2), (1, 3), ["v"]),
        ([[{"a": 1}]], [[{"a": 2}]], ["v"]),
        (frozenset({1}), frozenset({2}), ["v"]),
        ({"a": 1}, 1, ["v"]),
        (1, {"a": 1}, ["v"]),
        ({1: 1}, {1: 2}, ["v[1]"]),
        ({"": 1}, {"": 2}, ["v['']"]),
        ({"a b": {"c": 1}}, {"a b": {"c": 2}}, ["v['a b'].c"]),
        ({None: 1}, {None: 2}, ["v[null]"]),
    ],
)
def test_paths_lead_into_lists_of_sections_and_any_mapping(one, other, paths):
    """Lists are entered if both hold sections and are as long; names that are no fields stand in brackets."""
    assert [path for path, *_ in found({"v": one}, {"v": other})] == paths


def test_names_at_the_top_stand_alone():
    """Without anything above, a name is the path, whatever it is."""
    assert [path for path, *_ in found({"a.b": 1, 2: 1}, {"a.b": 2, 2: 3})] == ["a.b", "2"]


def test_parts_are_a_class_and_members():
    """Of decoded records, mappings, configs and attrs objects; secrets are hidden; names of classes have no members."""
    assert parts(Record("a.B", {"x": 1})) == ("a.B", {"x": 1})
    assert parts({CLASS: "A", "x": 1}) == ("A", {"x": 1})
    assert parts({"x": 1}) == ("", {"x": 1})
    assert parts({CLASS: 3, "x": 1}) == ("", {CLASS: 3, "x": 1})
    members = {"width": 1, "dense": (0, 4), "token": Hidden("t0k3n")}
    assert parts(Section()) == (f"{NAME}.Section", members)
    assert parts(Profile("a")) == (f"{NAME}.Profile", {"name": "a", "dense": ()})
    for value in (1, "a", (1,), None, Colour.RED, EnumName("a", "b"), DtypeName("a"), Profile):
        assert parts(value) is None


def test_a_hidden_value_is_equal_to_itself_alone():
    """By value and among hidden ones only; its hash tells nothing of it."""
    assert Hidden(1) == Hidden(1)
    assert Hidden(1) != Hidden(2)
    assert Hidden(1) != 1
    assert hash(Hidden(1)) == hash(Hidden(2)) == hash(Hidden)
    assert {Hidden(1), Hidden(1), Hidden(2)} == {Hidden(1), Hidden(2)}
    assert repr(Hidden(1)) == HIDDEN == "(hidden)"
    assert texts(Hidden(1), Hidden(2)) == ("(hidden)", "(hidden), and another")
    assert texts(Hidden(1), 1) == ("(hidden)", "1")
    assert texts(1, Hidden(1)) == ("1", "(hidden)")


def test_secrets_are_hidden_by_their_policy():
    """hide covers what is declared secret and nothing else."""
    policy = attrs.fields(Section).token.metadata["graphspec.policy"]
    open_ = attrs.fields(Section).width.metadata["graphspec.policy"]
    assert hide("a", policy) == Hidden("a")
    assert hide("a", open_) == "a"


class Odd:
    """A value of which each equals each."""

    def __eq__(self, other):
        return True

    __hash__ = None


def test_values_are_the_same_when_their_bytes_are():
    """What no key could hold is the same by class and equality."""
    nan, odd = float("nan"), Odd()
    assert same(nan, nan)
    assert same(nan, float("nan"))
    assert not same(1, True)
    assert not same(0.0, -0.0)
    assert same(len, len)
    assert not same(len, max)
    assert same(odd, Odd())
    assert same(odd, odd)
    assert not same(odd, 1)
    assert not same(1j, 1 + 0j)
    assert same(1j, 0 + 1j)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (attrs.NOTHING, "absent"),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1.5, "1.5"),
        ("a", "'a'"),
        (b"a", "b'a'"),
        (Colour.RED, "RED"),
        (EnumName("a.B", "RED"), "RED"),
        (Bits(0), "no flag"),
        (EnumName("a.B", None), "no flag"),
        (DtypeName("torch.int8"), "torch.int8"),
        ((1 << 63) - 1, "9223372036854775807"),
        (1 << 63, "0x8000000000000000"),
        (1 - (1 << 63), "-9223372036854775807"),
        (-(1 << 63), "-0x8000000000000000"),
        ((), "[]"),
        ((1, "a"), "[1, 'a']"),
        ([None, [True]], "[null, [true]]"),
        ({"b", "a"}, "{'a', 'b'}"),
        (frozenset({2, 1}), "{1, 2}"),
        ({}, "{}"),
        ({"a": None, 2: True}, "{'a': null, 2: true}"),
        ({CLASS: "a.B", "x": 1, "y": None}, "B(x=1, y=null)"),
        (Record("B", {}), "B()"),
        (Profile("a", (0, 4)), "Profile(name='a', dense=1: 4)"),
        (Section(), "Section(width=1, dense=1: 4, token=(hidden))"),
        ({"dense": (0, 4)}, "{'dense': [0, 4]}"),
        (len, "<built-in function len>"),
    ],
)
def test_every_kind_of_value_has_its_words(value, text):
    """In the words of a config file."""
    assert describe(value) == text


@pytest.mark.parametrize(
    ("depths", "text"),
    [
        ((0, 4), "1: 4"),
        ((0, 4, 4), "1 to 2: 4"),
        ((0, 4, 2), "1: 4, 2: 2"),
        ((9, 4, 4, 2, 2, 2, 1), "1 to 2: 4, 3 to 5: 2, 6: 1"),
        ((0, None, None), "1 to 2: null"),
        ((0,), "[0]"),
        ((), "[]"),
        ([0, 4], "[0, 4]"),
    ],
)
def test_a_schedule_is_told_in_ranges_of_batch_sizes(depths, text):
    """From one request on: the depth for none is left out. Only the field named dense is a schedule."""
    assert describe(depths, "dense") == text
    assert describe(depths, "other") == describe(depths) == f"[{', '.join(map(describe, depths))}]"
    (difference,) = compare({"a": {"b": {"dense": depths}}}, {"a": {"b": {"dense": 7}}})
    assert difference.texts == (text, "7")


def test_a_text_is_cut_above_its_limit():
    """Eighty characters, or as many as asked for."""
    assert describe(DtypeName("x" * 80)) == "x" * 80
    assert describe(DtypeName("x" * 81)) == "x" * 80 + "..."
    assert describe(DtypeName("abc"), limit=3) == "abc"
    assert describe(DtypeName("abc"), limit=2) == "ab..."


def long(before, mark, after):
    return DtypeName("x" * before + mark + "y" * after)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (79, 0, "x" * 79 + "{}"),
        (0, 79, "{}" + "y" * 79),
        (39, 60, "x" * 39 + "{}" + "y" * 40 + "..."),
        (40, 60, "..." + "x" * 20 + "{}" + "y" * 59 + "..."),
        (40, 59, "..." + "x" * 20 + "{}" + "y" * 59),
        (80, 0, "..." + "x" * 20 + "{}"),
        (300, 300, "..." + "x" * 20 + "{}" + "y" * 59 + "..."),
        (0, 80, "{}" + "y" * 79 + "..."),
    ],
)
def test_long_texts_are_shown_from_shortly_before_they_differ(before, after, shown):
    """Whole up to eighty characters; else from the begin, or from twenty characters before the first that differs."""
    one, other = long(before, "a", after), long(before, "b", after)
    assert texts(one, other) == (shown.format("a"), shown.format("b"))


def test_a_text_that_is_the_begin_of_the_other_differs_at_its_end():
    """There the longer one goes on."""
    one, other = DtypeName("x" * 90), DtypeName("x" * 95)
    assert texts(one, other) == ("..." + "x" * 20, "..." + "x" * 25)
    assert texts(other, one) == ("..." + "x" * 25, "..." + "x" * 20)
    assert texts(DtypeName("x"), DtypeName("x" * 81)) == ("x", "x" * 80 + "...")
    assert texts(DtypeName("x" * 81), DtypeName("x")) == ("x" * 80 + "...", "x")


NAMES = tuple(f"set_{i:02}" for i in range(10))


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (NAMES, NAMES[1:], ("10, of them here alone ['set_00']", "9 names")),
        (list(NAMES[:-1]), NAMES, ("9 names", "10, of them here alone ['set_09']")),
        (NAMES, (), ("10, of them here alone " + str(list(NAMES))[:57] + "...", "0 names")),
        (NAMES[:4], NAMES[1:5], (str(list(NAMES[:4])), str(list(NAMES[1:5])))),
        (("x" * 76,), ("y",), (str(["x" * 76]), "['y']")),
        (
            NAMES,
            (*NAMES[1:], 1),
            (str(list(NAMES))[:80] + "...", str([*NAMES[1:], 1])[:80] + "..."),
        ),
        (
            (*NAMES[1:], 1),
            NAMES,
            (str([*NAMES[1:], 1])[:80] + "...", str(list(NAMES))[:80] + "..."),
        ),
        (
            NAMES,
            (*NAMES[:-2], NAMES[-1], NAMES[-2]),
            (
                "..." + str(list(NAMES))[-33:],
                "..." + str([*NAMES[:-2], NAMES[-1], NAMES[-2]])[-33:],
            ),
        ),
        (NAMES, "x" * 90, (str(list(NAMES))[:80] + "...", "'" + "x" * 79 + "...")),
    ],
    ids=["gone", "come", "all", "short", "80", "no words", "no words first", "order", "text"],
)
def test_long_lists_of_names_are_told_by_what_each_has_alone(one, other, shown):
    """Short lists, lists of other things and the same names in another order are shown as they are."""
    assert texts(one, other) == shown


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (Colour.RED, Paint.RED, (f"RED ({NAME}.Colour)", f"RED ({NAME}.Paint)")),
        (EnumName("a.B", "RED"), EnumName("c.D", "RED"), ("RED (a.B)", "RED (c.D)")),
        ((1,), [1], ("[1] (builtins.tuple)", "[1] (builtins.list)")),
        (
            (DtypeName("x" * 100),),
            [DtypeName("x" * 100)],
            ("[" + "x" * 79 + "... (builtins.tuple)", "[" + "x" * 79 + "... (builtins.list)"),
        ),
    ],
)
def test_values_that_read_alike_are_told_by_their_class(one, other, shown):
    """Never the same two texts."""
    assert texts(one, other) == shown


@pytest.mark.parametrize(
    ("path", "before", "after", "kind", "line"),
    [
        ("a.b", 1, 2, Kind.CHANGED, "a.b: 1 -> 2"),
        ("a", attrs.NOTHING, 2, Kind.ADDED, "a: absent -> 2"),
        ("a", 1, attrs.NOTHING, Kind.REMOVED, "a: 1 -> absent"),
        ("", 1, 2, Kind.CHANGED, "the whole: 1 -> 2"),
        ("a", "m.One", "m.Other", Kind.CLASS, "a: One -> Other (class)"),
        ("a", "m.One", "n.One", Kind.CLASS, "a: m.One -> n.One (class)"),
        ("x.dense", (0, 4), (0, 2), Kind.CHANGED, "x.dense: 1: 4 -> 1: 2"),
    ],
)
def test_a_difference_is_one_line(path, before, after, kind, line):
    """Where, from what to what; classes by their own name unless only their modules differ."""
    assert str(Difference(path=path, before=before, after=after, kind=kind)) == line
