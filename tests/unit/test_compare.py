"""compare: what differs between two keys, named by path, for live factor trees and for decoded key texts."""

import enum

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.config.engine import EngineConfig
from graphspec.config.extras import WatermarkAlgorithm, WatermarkConfig
from graphspec.fields import Stage, config_class, is_config_class, keyed, policies, unkeyed
from graphspec.keys.compare import Difference, Hidden, Kind, compare, describe, same
from graphspec.keys.encoding import DtypeName, EnumName, decode, encode
from graphspec.keys.explain import differences, factors_of
from graphspec.keys.factors import classes_of, factor_tree, flatten, key_text
from graphspec.testing.strategies import CONFIG_CLASSES, configs, hash_pairs
from support.speculative import CASES, resolved_case

some_class = pytest.mark.parametrize(
    "classes",
    [st.just(EngineConfig), st.sampled_from(CONFIG_CLASSES)],
    ids=["the whole", "each class"],
)


def read_back(section, stage):
    """The factor tree as a stored key has it."""
    return decode(key_text(section, stage))["factors"]


def within(path, field):
    """Whether a path is a field, or a value inside it."""
    return path == field or path.startswith((f"{field}.", f"{field}["))


@some_class
@given(data=st.data())
def test_nothing_differs_from_itself(classes, data):
    """A tree compared with itself, and with what a stored key says of it, gives nothing."""
    config = data.draw(configs(data.draw(classes)))
    for stage in Stage:
        tree = factor_tree(config, stage)
        assert compare(tree, tree) == ()
        assert compare(tree, read_back(config, stage)) == ()
    assert differences(config, config) == ()


@some_class
@given(data=st.data())
def test_one_changed_field_is_the_one_difference(classes, data):
    """A field that alone was changed is named in exactly the keys that it is declared for, and nothing else is."""
    pair = data.draw(hash_pairs(data.draw(classes)))
    for stage in Stage:
        for one, other in (
            (factor_tree(pair.one, stage), factor_tree(pair.other, stage)),
            (read_back(pair.one, stage), read_back(pair.other, stage)),
        ):
            found = {d.path for d in compare(one, other)}
            assert bool(found) is stage.covers(pair.stage)
            assert all(within(path, pair.path) for path in found)
    (*found,) = differences(pair.one, pair.other)
    assert found
    assert all(within(d.difference.path, pair.path) for d in found)
    assert {d.moves for d in found} == {tuple(s for s in Stage if s.covers(pair.stage))}
    if pair.stage is None and not is_config_class(type(leaf(pair.other, pair.path))):
        assert {d.why for d in found} == {reason(pair.other, pair.path)}


def reason(section, path):
    """Why a field is in no key: the reason of the outermost section or field on the way that is in none."""
    for name in path.split("."):
        policy = policies(type(section))[name]
        if policy.stage is None:
            return policy.reason
        section = getattr(section, name)
    raise AssertionError(f"{path} is keyed")


def leaf(section, path):
    for name in path.split("."):
        section = getattr(section, name)
    return section


@some_class
@given(data=st.data())
def test_the_other_way_round_is_the_mirror_image(classes, data):
    """compare(b, a) has the same paths, with before and after exchanged."""
    pair = data.draw(hash_pairs(data.draw(classes)))
    one, other = (factor_tree(c, Stage.CAPTURE) for c in (pair.one, pair.other))
    mirrored = {Kind.ADDED: Kind.REMOVED, Kind.REMOVED: Kind.ADDED}
    forth = {(d.path, mirrored.get(d.kind, d.kind)) for d in compare(one, other)}
    assert forth == {(d.path, d.kind) for d in compare(other, one)}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_values_differ_exactly_when_their_bytes_do(one, other):
    """Some difference is found if and only if the encodings differ; each has two texts that are not alike."""
    found = compare({"a": one}, {"a": other})
    assert bool(found) is (encode(one) != encode(other))
    assert all(d.texts[0] != d.texts[1] for d in found)


class Colour(enum.Enum):
    RED = 1


class Paint(enum.Enum):
    RED = 1


@config_class
class Inner:
    width: int = keyed(Stage.COMPILE, doc="Width.")


@config_class
class Wide(Inner):
    reach: int = keyed(Stage.CAPTURE, default=2, doc="Reach.")


@config_class
class Outer:
    inner: Inner | None = keyed(Stage.COMPILE, doc="What is inside.")
    facts: tuple[Inner, ...] = keyed(Stage.COMPILE, default=(), doc="Facts.")
    level: str = unkeyed(default="a", doc="Level.", reason="never in a graph")

    def key_factors(self, stage):
        """At COMPILE, a width of two more becomes a factor of its own."""
        wide = self.inner is not None and self.inner.width > 2
        return {"beyond": self.inner.width - 2} if wide and stage is Stage.COMPILE else {}


def lines(one, other):
    return [str(d) for d in compare(one, other)]


def test_each_kind_of_difference_is_named():
    """Added, removed, changed, and another class with its fields."""
    one = factor_tree(Outer(inner=Inner(width=1)), Stage.CAPTURE)
    other = factor_tree(Outer(inner=Wide(width=2)), Stage.CAPTURE)
    assert [d.kind for d in compare(one, other)] == [Kind.CLASS, Kind.CHANGED, Kind.ADDED]
    assert [d.kind for d in compare(other, one)] == [Kind.CLASS, Kind.CHANGED, Kind.REMOVED]
    assert lines(one, other) == [
        "inner: Inner -> Wide (class)",
        "inner.width: 1 -> 2",
        "inner.reach: absent -> 2",
    ]


def test_a_section_that_is_absent_is_one_difference():
    """null against a section: the section in short, not a list of all its fields."""
    one = factor_tree(Outer(inner=None), Stage.COMPILE)
    other = factor_tree(Outer(inner=Inner(width=2)), Stage.COMPILE)
    assert lines(one, other) == ["inner: null -> Inner(width=2)"]


def test_sections_in_a_list_are_compared_one_by_one():
    """Lists of equal length are entered, others are one value."""
    one, other, longer = (
        factor_tree(Outer(inner=None, facts=tuple(Inner(width=w) for w in ws)), Stage.COMPILE)
        for ws in ((1, 2), (1, 3), (1, 2, 3))
    )
    assert lines(one, other) == ["facts[1].width: 2 -> 3"]
    assert [d.path for d in compare(one, longer)] == ["facts"]


def test_names_that_are_no_fields_are_quoted():
    """Keys of plain mappings may hold dots and anything else; a path stays readable."""
    one, other = {"m": {"a.b": {"c\n": 1}}}, {"m": {"a.b": {"c\n": 2}}}
    assert lines(one, other) == [r"m['a.b']['c\n']: 1 -> 2"]


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (1, True, ("1", "true")),
        (1, 1.0, ("1", "1.0")),
        (1, "1", ("1", "'1'")),
        (0.0, -0.0, ("0.0", "-0.0")),
        ((1,), [1], ("[1] (builtins.tuple)", "[1] (builtins.list)")),
        (Colour.RED, 1, ("RED", "1")),
        (
            EnumName("a.Colour", "RED"),
            EnumName("a.Paint", "RED"),
            ("RED (a.Colour)", "RED (a.Paint)"),
        ),
        (
            DtypeName("torch.float16"),
            DtypeName("torch.float32"),
            ("torch.float16", "torch.float32"),
        ),
        (EnumName("a.Flag", None), None, ("no flag", "null")),
        (frozenset({2, 1}), frozenset({1}), ("{1, 2}", "{1}")),
        (1 << 64, 0, ("0x10000000000000000", "0")),
        ({"a": (1, None)}, 3, ("{'a': [1, null]}", "3")),
    ],
)
def test_values_are_shown_so_that_their_types_can_be_told(one, other, texts):
    """Both sides in the words of a config file, never the same words for two values."""
    (found,) = compare({"v": one}, {"v": other})
    assert found.texts == texts


def test_enums_of_two_classes_differ_and_a_live_one_equals_a_stored_one():
    """The class of an enum is part of its value; decoded enums compare equal to their live counterparts."""
    assert not same(Colour.RED, Paint.RED)
    assert same(Colour.RED, decode(encode(Colour.RED)))


def test_a_schedule_is_shown_as_ranges():
    """128 depths are three ranges."""
    dense = (0, *[4] * 8, *[3] * 24, *[2] * 96)
    (found,) = compare({"dense": dense}, {"dense": (0, *[4] * 128)})
    assert found.texts == ("1 to 8: 4, 9 to 32: 3, 33 to 128: 2", "1 to 128: 4")


def test_long_values_are_cut_where_they_begin_to_differ():
    """Of two long texts the place of the difference is shown; long lists of names by what each has alone."""
    one, other = "x" * 300 + "a" + "y" * 300, "x" * 300 + "b" + "y" * 300
    (found,) = compare({"v": one}, {"v": other})
    assert all(len(text) < 100 for text in found.texts)
    assert ("xa" in found.texts[0], "xb" in found.texts[1]) == (True, True)
    names = tuple(f"instruction_set_{i}" for i in range(40))
    (found,) = compare({"v": names}, {"v": (*names[1:], "more")})
    assert found.texts == (
        "40, of them here alone ['instruction_set_0']",
        "40, of them here alone ['more']",
    )
    assert len(describe(one)) < 100


def test_objects_of_attrs_are_entered_live_and_stored():
    """A live attrs object, its decoded record, and either against the other."""

    @attrs.frozen
    class Profile:
        name: str
        flags: tuple[str, ...] = ()

    one, other = Profile("a"), Profile("a", ("f",))
    stored = decode(encode(other))
    assert lines(one, other) == lines(one, stored) == ["flags: [] -> ['f']"]
    assert compare(other, stored) == ()


def test_what_no_key_can_hold_is_compared_all_the_same():
    """Unkeyed values such as functions compare by equality."""
    assert compare({"f": len}, {"f": len}) == ()
    assert [d.path for d in compare({"f": len}, {"f": max})] == ["f"]


def test_a_secret_is_compared_and_never_shown():
    """Neither a text, a representation nor JSON data has the key of the mark; that it differs is told."""
    specs = [
        resolved_case("eagle3", watermark={"key": key, "algorithm": "dual_key_gumbel"})
        for key in (7123, 8456)
    ]
    (found,) = differences(*specs)
    assert found.difference.path == "watermark.key"
    assert found.moves == ()
    assert found.difference.texts == ("(hidden)", "(hidden), and another")
    shown = f"{found}{factors_of(specs[0])}{differences(resolved_case('eagle3'), specs[0])}"
    assert "7123" not in shown
    assert "8456" not in shown
    bare = WatermarkConfig(key=7123, algorithm=WatermarkAlgorithm.GUMBEL)
    assert "7123" not in describe(bare)
    assert Hidden(1) == Hidden(1) != Hidden(2)


@pytest.mark.parametrize("name", CASES)
def test_every_factor_of_a_key_is_listed_with_what_it_is_for(name):
    """The list has each leaf and class of both trees, at the right stages, and each unkeyed field with its reason."""
    spec = resolved_case(name)
    listed = {f.path: f for f in factors_of(spec)}
    assert all(f.why for f in listed.values())
    for stage in Stage:
        tree = factor_tree(spec, stage)
        wanted = {path for path, _ in flatten(tree)} | {f"{p}:class" for p, _ in classes_of(tree)}
        assert {p for p, f in listed.items() if stage in f.stages} == wanted | {"class"}
        for path, value in flatten(tree):
            assert same(listed[path].value, value)
    assert listed["model.source"].stages == ()
    assert listed["model.source"].why.startswith("a location")
    assert listed["model.hidden_size"].why == "Width of the residual stream."


def test_what_a_method_adds_to_a_key_is_told():
    """k of a method that bakes it in is a COMPILE factor, and the list says by whom."""
    baked, free = (
        {f.path: f for f in factors_of(resolved_case(name))}["speculative.num_speculative_tokens"]
        for name in ("dflash", "ngram")
    )
    assert baked.stages == (Stage.COMPILE, Stage.CAPTURE)
    assert (
        baked.why
        == "Largest depth k of all. At COMPILE added by hash_factors of the method's class."
    )
    assert free.stages == (Stage.CAPTURE,)
    assert free.why == "Largest depth k of all."


def test_an_addition_that_is_no_field_is_listed_and_compared():
    """A factor of the class's own has a row in both reports."""
    one, other = Outer(inner=Inner(width=2)), Outer(inner=Inner(width=3))
    (row,) = [f for f in factors_of(other) if f.path == "beyond"]
    assert (row.value, row.stages) == (1, (Stage.COMPILE,))
    found = {d.difference.path: d for d in differences(one, other)}
    assert found.keys() == {"inner.width", "beyond"}
    assert found["beyond"].moves == (Stage.COMPILE,)
    assert "hash_factors" in found["beyond"].why


def test_a_section_says_why_also_for_what_is_inside():
    """Of a value inside a field, and of a whole section, the field's own words are given."""
    one, other = Outer(inner=None), Outer(inner=Inner(width=1), level="b")
    found = {d.difference.path: d for d in differences(one, other)}
    assert found["inner"].why == "What is inside."
    assert found["level"].why == "never in a graph"
    assert (found["inner"].moves, found["level"].moves) == (tuple(Stage), ())


def test_a_difference_reads_as_a_line():
    """Path, before, after; the whole has no path."""
    one = Difference(path="", before="a.One", after="a.Other", kind=Kind.CLASS)
    assert str(one) == "the whole: One -> Other (class)"
