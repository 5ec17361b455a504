"""YAML to plain data: lines, duplicate keys, tags, and documents made to hurt."""

import time

import pytest

from graphspec.errors import SpecError
from graphspec.formats.yaml_reader import read_yaml


def refused(text):
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "f.yaml")
    return caught.value.problems


def test_data_and_the_line_of_every_part():
    """The document holds plain data, and lines from 1 for each key and list item."""
    document = read_yaml("# top\na: 1\nb:\n  c: [x,\n    y]\n  d: {e: null}\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"], "d": {"e": None}}}
    assert document.lines == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "d"): 6,
        ("b", "d", "e"): 6,
    }


def test_scalars_keep_their_yaml_types():
    """Only what YAML itself says: numbers, booleans, null and text; quotes make text."""
    document = read_yaml('[1, 1.5, true, null, x, "1", "true", 0x10, -.inf]', "f.yaml")
    assert document.data == [1, 1.5, True, None, "x", "1", "true", 16, float("-inf")]
    assert [type(v) for v in document.data[:3]] == [int, float, bool]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_document_is_an_empty_mapping(text):
    """Nothing written is no section written."""
    assert read_yaml(text, "f.yaml").data in ({}, None)


def test_every_duplicate_key_is_refused_with_both_lines():
    """YAML would keep the last one silently; both places are named, at every depth."""
    found = refused("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n")
    assert [p.where for p in found] == ["f.yaml:4: b.c", "f.yaml:5: a"]
    assert "line 3" in found[0].found
    assert "line 1" in found[1].found


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("1", "int"),
        ("true", "bool"),
        ("null", "null"),
        ("1.5", "float"),
        ("? [a]", "seq"),
        ("? {a: 1}", "map"),
        ("? !!str [a]", "str"),
    ],
)
def test_keys_that_are_no_strings_are_refused(key, kind):
    """An unquoted on, 1 or null as a key is a mistake, named with its line and kind."""
    (problem,) = refused(f"a: 1\n{key}\n: 2\n" if key.startswith("?") else f"a: 1\n{key}: 2\n")
    assert problem.where == "f.yaml:2"
    assert kind in problem.found


def test_a_key_does_not_move_the_lines_of_others():
    """The root's line stays that of its first key, and quoted keys are plain text."""
    document = read_yaml("a: 1\n'2': 3\n", "f.yaml")
    assert document.data == {"a": 1, "2": 3}
    assert document.lines[()] == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1, 2", 1),
        ("a: 1\nb: : 2", 2),
        ("a: 'x", 1),
        ("a: 1\n\tb: 2", 2),
        ("a: 1\n b: 2", 2),
        ("a: *nowhere", 1),
        ("a: 1\n---\nb: 2", 2),
        ("%YAML 9.9\na: 1", 1),
        ("a: @x", 1),
    ],
)
def test_invalid_yaml_names_the_line(text, line):
    """A syntax error carries file, line and column."""
    (problem,) = refused(text)
    where = problem.where.split(":")
    assert where[0] == "f.yaml"
    assert int(where[1]) == line
    assert "invalid YAML" in problem.found


@pytest.mark.parametrize("text", ["a: \x00", "a: \x07", "a: \ud800"])
def test_characters_that_yaml_forbids_are_a_spec_error(text):
    """Control characters and surrogates end in a SpecError with the file's name."""
    (problem,) = refused(text)
    assert problem.where == "f.yaml"
    assert "character" in problem.found


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("a: !!python/object/apply:os.system [exit 1]", "python/object"),
        ("a: !!python/name:os.system", "python/name"),
        ("a: !include other.yaml", "!include"),
        ("a: !!set {b, c}", "!!set"),
        ("a: !!seq text", "!!seq"),
        ("a: !!map text", "!!map"),
        ("a: !!binary aGk=", "!!binary"),
        ("a: !!str [b]", "!!str"),
        ("a: !x {b: 1}", "!x"),
    ],
)
def test_tags_are_refused_and_never_acted_upon(text, tag):
    """A tag asks for something other than plain data: it is neither constructed nor ignored."""
    (problem,) = refused("z: 1\n" + text)
    assert problem.where == "f.yaml:2: a"
    assert tag in problem.found


def test_a_merge_key_is_refused():
    """<<: would be a key that looks like data; it is named with its line."""
    (problem,) = refused("a: &x {b: 1}\nc:\n  <<: *x\n")
    assert problem.where == "f.yaml:3: c"
    assert "<<" in problem.found


@pytest.mark.parametrize(
    "value",
    [
        "2001-13-40",
        "!!bool maybe",
        "!!int ''",
        "!!int x",
        "!!float x",
        "!!timestamp x",
        "9" * 5000,
        "2001-01-01 00:00:00 +99:99",
    ],
)
def test_a_value_that_does_not_fit_its_kind_names_its_line(value):
    """PyYAML's own slips (KeyError, IndexError, AttributeError, ValueError) become problems with a line."""
    (problem,) = refused(f"z: 1\nb:\n  a: {value}\n")
    assert problem.where == "f.yaml:3: b.a"


def test_aliases_are_expanded():
    """An anchor used twice is the same data twice."""
    assert read_yaml("a: &x [1, 2]\nb: *x\n", "f.yaml").data == {"a": [1, 2], "b": [1, 2]}


def test_an_alias_bomb_is_refused_in_bounded_time():
    """Ten aliases to the tenth power are refused after a fixed number of values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    start = time.monotonic()
    (problem,) = refused("\n".join(lines))
    assert time.monotonic() - start < 20
    assert "values" in problem.found


@pytest.mark.parametrize(
    "text", ["a: &x [*x]", "a: &x {b: *x}", "&x a: 1\n*x : 2", "&x [[*x], *x]"]
)
def test_an_alias_of_itself_is_refused(text):
    """A document that contains itself has no plain data."""
    assert refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 40 + "]" * 40,
        "[" * 20_000,
        "{a: " * 5000,
        "- " * 3000,
        "a:\n" + "".join(" " * i + "b:\n" for i in range(1, 60)),
    ],
)
def test_deep_nesting_is_refused(text):
    """Depth ends in a SpecError, whichever part of the parser meets it first."""
    assert refused(text)
