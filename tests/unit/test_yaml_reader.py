"""YAML to plain data: lines, duplicate keys, tags, traps of YAML 1.1, and documents made to hurt."""

import time

import pytest

from graphspec.errors import SpecError
from graphspec.formats.yaml_reader import read_yaml, trap


def refused(text):
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "f.yaml")
    return caught.value.problems


def test_data_and_the_line_of_every_part():
    """The document holds plain data, and lines from 1 for each key and list item."""
    document = read_yaml("# top\na: 1\nb:\n  c: [x,\n    z]\n  d: {e: null}\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", "z"], "d": {"e": None}}}
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
    document = read_yaml('[1, 1.5, true, null, x, "1", "true", 1.0e+3, .5, FALSE, ~, -0]', "f.yaml")
    assert document.data == [1, 1.5, True, None, "x", "1", "true", 1000.0, 0.5, False, None, 0]
    kinds = [int, float, bool, type(None), str, str, str, float, float, bool, type(None), int]
    assert [type(v) for v in document.data] == kinds


TRAPS = [
    ("on", "true"),
    ("Off", "false"),
    ("YES", "true"),
    ("no", "false"),
    ("y", "true"),
    ("N", "false"),
    ("1e3", "1000"),
    ("1E-5", "1.0e-05"),
    ("-2.5e3", "-2500.0"),
    ("1e300", "1.0e+300"),
    ("017", "15"),
    ("0o17", "15"),
    ("-0x1F", "-31"),
    ("0b101", "5"),
    ("08", "8"),
    ("1:30", "90"),
    ("1:30:00", "5400"),
    ("190:20:30.5", "685230.5"),
    ("1_000", "1000"),
    ("1_0.5", "10.5"),
    ("-.5", "-0.5"),
]
ENDLESS = [".inf", "-.Inf", ".nan", "1e400", "0x_", "2026-01-01", "2001-01-01 00:00:00 +99:99"]


@pytest.mark.parametrize(("text", "instead"), TRAPS)
def test_a_trap_of_yaml_names_what_to_write_instead(text, instead):
    """A plain scalar that YAML 1.1 and people read differently is refused with its line, and with what to write."""
    (problem,) = refused(f"z: 1\nb:\n- {text}\n")
    assert problem.where == "f.yaml:3: b[0]"
    assert problem.found.startswith(f"{text} ")
    assert f"write {instead};" in problem.hint
    assert f'"{text}"' in problem.hint
    assert read_yaml(f"a: {instead}", "f.yaml").data["a"] is not None


@pytest.mark.parametrize("text", ENDLESS)
def test_what_no_plain_number_can_say_is_refused(text):
    """Infinity, NaN and dates have no number or boolean to write instead; as text they are quoted."""
    (problem,) = refused(f"z: 1\na: {text}\n")
    assert problem.where == "f.yaml:2: a"
    assert problem.found.startswith(f"{text} ")
    assert f'"{text}"' in problem.hint
    assert "write" not in problem.hint


@pytest.mark.parametrize("text", [text for text, _ in TRAPS] + ENDLESS)
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_trap_in_quotes_is_text(text, quote):
    """Quotes say that text was meant."""
    assert read_yaml(f"a: {quote}{text}{quote}", "f.yaml").data == {"a": text}


@pytest.mark.parametrize(
    "text", ["1e", "e3", "oN", "0x", "1.2.3", "-", "_1", "1-2", "12:", "v2", "inf", "::1"]
)
def test_text_that_only_resembles_a_number_is_text(text):
    """What no reader of YAML takes for a number or a boolean needs no quotes."""
    assert trap(text) is None
    assert read_yaml(f"- {text}\n" if text[-1] != ":" else f"- a{text}x", "f.yaml").data


@pytest.mark.parametrize("key", ["on", "No", "y", "N", "true"])
def test_a_key_that_is_a_boolean_is_refused_with_the_way_out(key):
    """YAML 1.1 would make on: a key True; the hint says to quote it."""
    (problem,) = refused(f"a: 1\n{key}: 2\n")
    assert problem.where == "f.yaml:2"
    assert "bool" in problem.found
    assert f'"{key}"' in problem.hint
    assert read_yaml(f"'{key}': 2", "f.yaml").data == {key: 2}


def test_every_trap_is_reported_at_once():
    """One reading names all of them, in the order of the file."""
    found = refused("a: on\nb: {c: 1e3}\nd: [0, 017]\nno: 1\n")
    assert [p.where for p in found] == [
        "f.yaml:1: a",
        "f.yaml:2: b.c",
        "f.yaml:3: d[1]",
        "f.yaml:4",
    ]


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\ud800": 1}'])
def test_half_a_character_is_refused_with_its_line(text):
    """libyaml refuses half of a surrogate pair itself, and names line and column; PyYAML leaves it to us."""
    (problem,) = refused(f"z: 1\na: {text}\n")
    assert problem.where.startswith("f.yaml:2:")


@pytest.mark.parametrize("text", ["9" * 601, "1.0e+400", "9" * 400 + ".0", "!!null x"])
def test_what_no_config_can_hold_is_refused(text):
    """Numbers beyond all use, infinity in disguise, and half characters end in a problem with a line."""
    (problem,) = refused(f"z: 1\na: {text}\n")
    assert problem.where == "f.yaml:2: a"


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
    assert "write the merged keys out" in problem.hint


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
