"""Configs to text: what is written reads back as equal data, in each format."""

import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.formats.json_reader import read_json
from graphspec.formats.toml_reader import read_toml
from graphspec.formats.write import write_config
from graphspec.formats.yaml_reader import read_yaml

READERS = {"yaml": read_yaml, "toml": read_toml, "json": read_json}
TRAPS = "on No y N true null ~ 1e3 1_000 017 0o17 08 0x1F 1:30 1:75 -.5 .inf 2026-01-01 1.5 7 << = - # [] {}"

texts = st.text(max_size=8) | st.sampled_from(
    [*TRAPS.split(), "", " a ", "a: b", "x #y", "a\n\n b\n"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
configs = st.dictionaries(texts, values, max_size=4)


def refused(config, kind):
    with pytest.raises(SpecError) as caught:
        write_config(config, kind)
    return caught.value.problems


def without_null(value):
    """What TOML can hold of plain data: no None anywhere."""
    if isinstance(value, dict):
        return {k: without_null(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_null(v) for v in value if v is not None]
    return value


@pytest.mark.parametrize("kind", READERS)
@given(config=configs)
@example(config={"a": "\x7f\x00\x85\u2028\ufeff\U0001f600\\\"'"})
@example(config={"a": {"b": {}}, "c": [], "d": [[], {}, {"e": {}}], "f": {"g": []}})
@example(
    config={
        "a.b": {"c d": {"": 1}},
        "é": 1,
        "a": [10**600 - 1, 1 - 10**600],
        "x": [1e-5, 1e16, -0.0, 5e-324],
    }
)
@example(config={"a" * 200: {"b" * 2000: "c " * 2000}})
def test_what_is_written_reads_back_as_equal_data(kind, config):
    """Strings that look like traps, any Unicode, empty containers, the types of numbers: all of it survives."""
    data = without_null(config) if kind == "toml" else config
    text = write_config(data, kind)
    assert exact(READERS[kind](text, f"f.{kind}").data) == exact(data)


def exact(value):
    """A rendering in which 1, 1.0 and True differ, and the order of keys does not matter."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    return list(map(exact, value)) if isinstance(value, list) else repr(value)


def test_toml_leaves_out_what_is_null():
    """An entry of a mapping that is None is not written, at any depth."""
    config = {
        "a": None,
        "b": {"c": None},
        "d": [{"e": None, "f": 1}],
        "g": {"h": {"i": None, "j": 2}},
    }
    text = write_config(config, "toml")
    assert read_toml(text, "f.toml").data == {"b": {}, "d": [{"f": 1}], "g": {"h": {"j": 2}}}


def test_null_in_a_list_has_no_place_in_toml():
    """Leaving an item out would move the others, so each is refused with its path."""
    found = refused({"a": [1, None, [None]], "b": {"c": [{"d": [None]}]}}, "toml")
    assert [p.where for p in found] == ["a[1]", "a[2][0]", "b.c[0].d[0]"]
    assert "no null" in found[0].hint


names = st.sampled_from(["aa", "bb", "c-c", "dd.d", "e e"])
sections = st.recursive(
    st.dictionaries(names, st.integers() | st.lists(st.text(max_size=3)), max_size=3),
    lambda inner: st.dictionaries(names, inner | st.lists(inner, max_size=3), max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", READERS)
@given(config=sections)
def test_the_line_of_a_key_is_a_line_that_holds_it(kind, config):
    """For any document as written here, the reader says of each key a line on which the key is."""
    text = write_config(config, kind)
    document = READERS[kind](text, f"f.{kind}")
    lines = text.split("\n")
    for path, line in document.lines.items():
        assert not path or isinstance(path[-1], int) or path[-1] in lines[line - 1]


def test_a_config_object_is_written_as_what_its_file_says():
    """Fields at their defaults are left out, and the text reads back as an equal config."""
    config = EngineConfig.from_dict(
        {
            "model": {"source": "m", "hf_overrides": {"rope_theta": 5e5, "tags": ["on", None]}},
            "scheduler": {"max_num_seqs": 8},
            "speculative": {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 8, 2]],
            },
        }
    )
    for kind in ("yaml", "json"):
        data = READERS[kind](write_config(config, kind), "f").data
        assert EngineConfig.from_dict(data) == config
    (problem,) = refused(config, "toml")
    assert problem.where == "model.hf_overrides.tags[1]"


def test_yaml_looks_as_a_person_would_write_it():
    """Keys in their order, quotes only where they matter, rows of integers on one line."""
    config = {"b": {"table": [[1, 8, 4], [9, 16, 2]], "method": "ngram"}, "a": ["1e3", "x"]}
    assert write_config(config, "yaml") == (
        'b:\n  table:\n  - [1, 8, 4]\n  - [9, 16, 2]\n  method: ngram\na:\n- "1e3"\n- x\n'
    )


def test_toml_looks_as_a_person_would_write_it():
    """Plain values before tables, a header for each table that says something, mappings in lists inline."""
    config = {"a": {"b": {"c": 1.5}, "d": True}, "e": {"f": {"g h": "i"}}, "j": [{"k": 1, "l": {}}]}
    assert write_config(config, "toml") == (
        'j = [{k = 1, l = {}}]\n\n[a]\nd = true\n\n[a.b]\nc = 1.5\n\n[e.f]\n"g h" = "i"\n'
    )


def test_yaml_has_no_aliases():
    """One object in two places is written twice."""
    row = [1, 2]
    assert "*" not in write_config({"a": row, "b": row, "c": {"d": row}}, "yaml")


def test_the_text_is_one_that_other_readers_of_yaml_agree_on():
    """PyYAML itself reads the same data from it."""
    config = {"a": TRAPS.split(), "b": {t: t for t in TRAPS.split()}}
    assert yaml.safe_load(write_config(config, "yaml")) == config


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 10**600, "\ud800", b"x", {1}, object(), {1: 2}, {"\ud800": 1}],
    ids=range(9),  # an object's text has its address, and every worker must see the same names
)
def test_what_no_file_can_hold_is_refused_with_its_path(kind, value):
    """Everything that is not plain data is named with its path, and all of it at once."""
    found = refused({"a": [{"b": value}], "c": value}, kind)
    assert [p.where for p in found] == ["a[0].b", "c"]


@pytest.mark.parametrize("kind", READERS)
def test_data_without_end_is_refused(kind):
    """A list that contains itself, and data too deep for any reader, end in a SpecError."""
    endless = []
    endless.append(endless)
    assert refused({"a": endless}, kind)
    deep = 1
    for _ in range(5000):
        deep = {"a": deep}
    assert refused(deep, kind)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("config", [None, 1, "text", [1], [{"a": 1}]])
def test_a_root_that_is_no_mapping_is_refused(kind, config):
    """A config is a mapping of sections."""
    assert "mapping" in refused(config, kind)[0].wanted


def test_an_unknown_format_is_refused():
    """The names of the formats are in the message."""
    (problem,) = refused({}, "ini")
    assert "yaml" in problem.wanted
