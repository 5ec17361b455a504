"""TOML to plain data: the line of every key, values that are not plain, and documents made to hurt."""

import time
import tomllib

import pytest

from graphspec.errors import SpecError
from graphspec.formats.toml_reader import read_toml

EVERYTHING = '''# top
title = "a # no comment"  # a comment
[owner]   # with a comment
name = 'C:\\no\\escape'
dotted.key = 1
dotted . other = 2.5
"quoted.key" = true
'single "quoted"'.x = 1

[servers.alpha]
text = """
[not.a.table]
key = "no key" \\
  """
other = \'\'\'
x = 1''\'\'\'
after = 1
[servers]
beta = {ip = "10.0.0.1", "role x" = {a = [1, {b = 2}]}}
[[products]]
name = "first"
sizes = [ # a comment ]
  1, 2,
  [3,
   4], # ,
  {x = "]", y = 6},
]
[[products]]
[products.physical]
color = "red"
[[products.variants]]
name = "one"
[[products.variants]]
name = "two"
[products.variants.deep."key"]
x = 1_000
'''


def refused(text):
    with pytest.raises(SpecError) as caught:
        read_toml(text, "f.toml")
    return caught.value.problems


def paths(data, path=()):
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from paths(value, (*path, key))


def test_data_is_what_the_standard_library_reads():
    """Every kind of table, key, string and array is read as tomllib reads it."""
    assert read_toml(EVERYTHING, "f.toml").data == tomllib.loads(EVERYTHING)


def test_every_part_has_the_line_it_stands_on():
    """Headers, dotted and quoted keys, inline tables, arrays over lines, arrays of tables, and strings over lines."""
    document = read_toml(EVERYTHING, "f.toml")
    assert set(document.lines) == set(paths(document.data))
    alpha, first, second = ("servers", "alpha"), ("products", 0), ("products", 1)
    assert document.lines == {
        (): 2,
        ("title",): 2,
        ("owner",): 3,
        ("owner", "name"): 4,
        ("owner", "dotted"): 5,
        ("owner", "dotted", "key"): 5,
        ("owner", "dotted", "other"): 6,
        ("owner", "quoted.key"): 7,
        ("owner", 'single "quoted"'): 8,
        ("owner", 'single "quoted"', "x"): 8,
        ("servers",): 18,
        alpha: 10,
        (*alpha, "text"): 11,
        (*alpha, "other"): 15,
        (*alpha, "after"): 17,
        ("servers", "beta"): 19,
        ("servers", "beta", "ip"): 19,
        ("servers", "beta", "role x"): 19,
        ("servers", "beta", "role x", "a"): 19,
        ("servers", "beta", "role x", "a", 0): 19,
        ("servers", "beta", "role x", "a", 1): 19,
        ("servers", "beta", "role x", "a", 1, "b"): 19,
        ("products",): 20,
        first: 20,
        (*first, "name"): 21,
        (*first, "sizes"): 22,
        (*first, "sizes", 0): 23,
        (*first, "sizes", 1): 23,
        (*first, "sizes", 2): 24,
        (*first, "sizes", 2, 0): 24,
        (*first, "sizes", 2, 1): 25,
        (*first, "sizes", 3): 26,
        (*first, "sizes", 3, "x"): 26,
        (*first, "sizes", 3, "y"): 26,
        second: 28,
        (*second, "physical"): 29,
        (*second, "physical", "color"): 30,
        (*second, "variants"): 31,
        (*second, "variants", 0): 31,
        (*second, "variants", 0, "name"): 32,
        (*second, "variants", 1): 33,
        (*second, "variants", 1, "name"): 34,
        (*second, "variants", 1, "deep"): 35,
        (*second, "variants", 1, "deep", "key"): 35,
        (*second, "variants", 1, "deep", "key", "x"): 36,
    }


def test_line_ends_of_windows_count_once():
    """CRLF is one line end, inside strings too."""
    document = read_toml('a = """x\r\ny"""\r\n\r\nb = 1\r\n', "f.toml")
    assert document.lines == {(): 1, ("a",): 1, ("b",): 4}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "[model]"])
def test_an_empty_document_is_an_empty_mapping(text):
    """Nothing written is no section written."""
    assert read_toml(text, "f.toml").data in ({}, {"model": {}})


@pytest.mark.parametrize(
    ("text", "place", "first"),
    [
        ("a = 1\nb = 2\na = 3", "f.toml:3: a", 1),
        ("a = 1\n\na = [\n1,\n]\nb = 1", "f.toml:3: a", 1),
        ("[x]\na = 1\n[x]\nb = 1", "f.toml:3: x", 1),
        ("x = {a = 1, a = 2}", "f.toml:1: x.a", 1),
        ("[x]\na.b = 1\na.b = 2", "f.toml:3: x.a.b", 2),
        ("a.b = 1\na = 2", "f.toml:2: a", 1),
        ("[[x]]\na = 1\n[[x]]\na = 1\na = 2", "f.toml:5: x[1].a", 4),
    ],
)
def test_a_duplicate_is_refused_with_both_lines(text, place, first):
    """Keys and tables that stand twice are named where they stand for the second time."""
    (problem,) = refused(text)
    assert problem.where == place
    assert f"line {first}" in problem.found


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = 1\n[[a]]", 2, "written once"),
        ("a = [1]\n[[a]]", 2, "written once"),
        ("a = 1\n[a.b]", 2, "written once"),
        ("\na =", 2, "quotes"),
        ("a = yes\nb = 1", 1, "quotes"),
        ("a = 1\nb = null", 2, "left out"),
        ("a: 1", 1, "key ="),
        ('{"a": 1}', 1, "key ="),
        ("a = 1\nb = 'x\n'", 2, ""),
        ("a = 1\n[b", 2, ""),
        ('a = """x', 1, ""),
        ("a = 017", 1, ""),
        ("a = 2026-13-01", 1, ""),
        ("a = 1\r b = 2", 1, ""),
        ("a = 1\x00", 1, ""),
        ("= 1", 1, ""),
        ("a = {====={{{{", 1, ""),
        ("a = [}]", 1, ""),
    ],
)
def test_invalid_toml_names_the_line(text, line, words):
    """A syntax error carries the file and the line, and a hint."""
    (problem,) = refused(text)
    assert problem.where.split(":")[:2] == ["f.toml", str(line)]
    assert "invalid TOML" in problem.found
    assert "(at " not in problem.found
    assert words in problem.hint


@pytest.mark.parametrize(
    "value", ["2026-01-01", "07:32:00", "1979-05-27T07:32:00Z", "inf", "-nan", "1e999", "9" * 601]
)
def test_values_that_are_not_plain_are_refused_with_their_path(value):
    """Dates, times, infinity, NaN and numbers beyond all use are named with line and path."""
    (problem,) = refused(f"z = 1\n[a]\nb = [0,\n{value}]\n")
    assert problem.where == "f.toml:4: a.b[1]"


def test_every_value_that_is_not_plain_is_reported_at_once():
    """One reading names all of them, in the order of the file."""
    found = refused("a = inf\n[b]\nc = 2026-01-01\nd = [nan]\n")
    assert [p.where for p in found] == ["f.toml:1: a", "f.toml:3: b.c", "f.toml:4: b.d[0]"]


def test_half_a_character_is_refused():
    """A surrogate, which no file holds but a caller's text might, ends in a SpecError."""
    (problem,) = refused("a = '\ud800'")
    assert "surrogate" in problem.found


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 40 + "]" * 40,
        "a = " + "[" * 1_000_000,
        "a = " + "{a = " * 500_000,
        "a = " + "[{a=" * 500_000,
        "a = " + "{=" * 500_000,
        "a." * 1_000_000 + "a = 1",
        "[" + "a." * 1_000_000 + "a]",
        "[" * 2_000_000,
        "a = " + "9" * 4_000_000,
        "a = [" + "1," * 200_000 + "]",
        '"""' + '\\"""' * 500_000,
        "'''" * 1_000_001,
        '"\n' * 1_000_000,
    ],
    ids=lambda text: text[:9],
)
def test_a_document_made_to_hurt_is_refused_in_bounded_time(text):
    """Depth, size and digits end in a SpecError soon."""
    start = time.monotonic()
    assert refused(text)
    assert time.monotonic() - start < 20


def test_the_deepest_document_is_read():
    """32 levels are fine, as in YAML."""
    text = ".".join(["a"] * 32) + " = 1"
    assert len(read_toml(text, "f.toml").lines) == 33
