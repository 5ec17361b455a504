"""JSON to plain data: RFC 8259 and nothing beside it, lines, duplicate keys, and documents made to hurt."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.errors import SpecError
from graphspec.formats.json_reader import read_json

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
)


def refused(text):
    with pytest.raises(SpecError) as caught:
        read_json(text, "f.json")
    return caught.value.problems


def test_data_and_the_line_of_every_part():
    """The document holds plain data, and lines from 1 for each key and list item; a value may begin lines later."""
    document = read_json(
        '\n{"a": 1,\n"b":\n\n{"c": ["x",\r\n "y"]},\n "d": {"e": null}}\n', "f.json"
    )
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}, "d": {"e": None}}
    assert document.lines == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 5,
        ("b", "c", 0): 5,
        ("b", "c", 1): 6,
        ("d",): 7,
        ("d", "e"): 7,
    }


@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_what_json_writes_is_read_as_the_same_data(value, indent, escaped):
    """Python's own writer, in all its layouts, and this reader agree, types included."""
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert repr(read_json(text, "f.json").data) == repr(json.loads(text))


@given(st.text('{}[]",:0123456789-+.eE truefalsn\\u\n', max_size=12))
def test_it_accepts_nothing_that_python_refuses(text):
    """Whatever short text this reader takes, the strict reader of the standard library takes for the same data."""
    try:
        data = read_json(text, "f.json").data
    except SpecError:
        return
    assert repr(json.loads(text)) == repr(data)


def test_every_duplicate_key_is_refused_with_both_lines():
    """Most readers keep the last one silently; both places are named, at every depth."""
    found = refused('{"a": 1,\n"b": [{"c": 1,\n"c": 2,\n"c": 3}],\n"a": {"c": 1}}')
    assert [p.where for p in found] == ["f.json:3: b[0].c", "f.json:4: b[0].c", "f.json:5: a"]
    assert ["line 2" in p.found for p in found] == [True, True, False]
    assert "line 1" in found[2].found


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "empty config is {}"),
        (" \n", "2:1", "empty config is {}"),
        ("[1, 2", "1:6", "comma"),
        ('{"a": 1,\n "b" 2}', "2:6", "colon"),
        ('{"a": 1\n "b": 2}', "2:2", "comma"),
        ('{"a": 1}\n x', "2:2", "one value"),
        ('{"a": 1}}', "1:9", "one value"),
        ('{"a": [1,\n]}', "1:9", "remove the comma"),
        ('{"a": 1,}', "1:8", "remove the comma"),
        ("{,}", "1:2", "key"),
        ("{a: 1}", "1:2", '"a"'),
        ("{'a': 1}", "1:2", "double quotes"),
        ("{\"a\": 'x'}", "1:7", "double quotes"),
        ('{"a": x}', "1:7", "double quotes"),
        ("// c\n{}", "1:1", "no comments"),
        ('{"a": 1, # c\n"b": 2}', "1:10", "no comments"),
        ('{"a": 1 /* c */}', "1:9", "no comments"),
        ('{"a": True}', "1:7", "write true"),
        ('{"a": None}', "1:7", "write null"),
        ('{"a": 01}', "1:7", "numbers are written"),
        ('{"a": .5}', "1:7", "numbers are written"),
        ('{"a": 1.}', "1:7", "numbers are written"),
        ('{"a": +1}', "1:7", "numbers are written"),
        ('{"a": \u0661}', "1:7", "numbers are written"),
        ('{"a": "x\n"}', "1:9", r"write \n"),
        (r'{"a": "\q"}', "1:8", "backslash"),
        (r'{"a": "\u12"}', "1:9", "backslash"),
        ('{"a": "x}', "1:7", "closing quote"),
        ("\x00", "1:1", "JSON value"),
    ],
)
def test_invalid_json_names_line_column_and_the_way_out(text, place, words):
    """A syntax error carries file, line and column, and habits of other languages get a hint."""
    (problem,) = refused(text)
    assert problem.where == f"f.json:{place}"
    assert "invalid JSON" in problem.found
    assert words in f"{problem.wanted} {problem.hint}"


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400", "9" * 601, r'"\ud800"']
)
def test_what_no_config_can_hold_is_refused_with_its_path(text):
    """Numbers that JSON or floats lack, and half characters, are named with line and path."""
    (problem,) = refused(f'{{"z": 1,\n"a": [0, {text}]}}')
    assert problem.where == "f.json:2: a[1]"


def test_a_key_of_half_a_character_is_refused():
    """A key is text like any other."""
    (problem,) = refused('{"a":\n{"\\udfff": 1}}')
    assert problem.where == "f.json:2: a"


def test_a_pair_of_surrogate_escapes_is_one_character():
    """JSON writes characters beyond 16 bits as two escapes."""
    assert read_json(r'"\ud83d\ude00"', "f.json").data == "\U0001f600"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 34,
        "[" * 1_000_000,
        '{"a":' * 1_000_000,
        '[{"a":' * 500_000,
        "9" * 4_000_000,
        "-" * 4_000_000,
        '"' * 4_000_000,
        " " * 4_000_000,
        "[" + "1," * 200_000,
        '{"a":1' + " " * 1_000_000,
        "1." + "0" * 4_000_000 + "e999",
    ],
)
def test_a_document_made_to_hurt_is_refused_in_bounded_time(text):
    """Depth, size and digits end in a SpecError soon."""
    start = time.monotonic()
    assert refused(text)
    assert time.monotonic() - start < 20


def test_the_deepest_document_is_read():
    """32 levels are fine, as in YAML."""
    assert read_json("[" * 32 + "1" + "]" * 32, "f.json").data
