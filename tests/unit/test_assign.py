"""One value from the command line into a document: paths, values, places of problems, and no mutation."""

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.errors import SpecError
from graphspec.formats.assign import assign
from graphspec.formats.document import Document
from graphspec.formats.read import config_of
from graphspec.formats.yaml_reader import read_yaml

TEXT = """\
model: {source: m}
scheduler:
  max-num-seqs: 8
table:
- [1, 2]
- {a: x}
speculative:
"""


@pytest.fixture
def document():
    return read_yaml(TEXT, "f.yaml")


def refused(document, text):
    with pytest.raises(SpecError) as caught:
        assign(document, text)
    assert {p.where for p in caught.value.problems} == {f"--set {text}"}
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("model.source=o", ("model", "source"), "o"),
        (" model.source = o ", ("model", "source"), "o"),
        ("model.max_model_len=64", ("model", "max_model_len"), 64),
        ("model.source=package:x=y", ("model", "source"), "package:x=y"),
        ("scheduler.max_num_seqs=4", ("scheduler", "max-num-seqs"), 4),
        ("scheduler.max-num-seqs=4", ("scheduler", "max-num-seqs"), 4),
        ("speculative.method=ngram", ("speculative", "method"), "ngram"),
        ("speculative={method: ngram}", ("speculative", "method"), "ngram"),
        ("a.b.c=true", ("a", "b", "c"), True),
        ("model=null", ("model",), None),
        ("model.source='on'", ("model", "source"), "on"),
        ('model.source=""', ("model", "source"), ""),
        ("model.source=[1, [2.5]]", ("model", "source", 1, 0), 2.5),
        ("table[0][1]=3", ("table", 0, 1), 3),
        ("table.0.1=3", ("table", 0, 1), 3),
        ("table[1].a=z", ("table", 1, "a"), "z"),
        ("table.1.b=z", ("table", 1, "b"), "z"),
        ("a.0=1", ("a", "0"), 1),
    ],
)
def test_a_value_is_put_at_its_path(document, text, path, value):
    """Keys with dots between them, indexes of lists in both spellings, and values as YAML reads them."""
    found = assign(document, text).data
    for step in path:
        found = found[step]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["model.source=o", "table[1].a=z", "table.0[0]=5", "a.b.c=1", "speculative.x=1", "table=[]"],
)
def test_the_given_document_stays_as_it_is(document, text):
    """The input is not touched, and what the path does not name is carried over."""
    before = copy.deepcopy(document)
    made = assign(document, text)
    assert document == before
    assert made.data != before.data
    assert made.source == "f.yaml"
    assert made.data["scheduler"] == {"max-num-seqs": 8}
    assert made.lines[("scheduler", "max-num-seqs")] == 3


@pytest.mark.parametrize(
    ("text", "found", "wanted"),
    [
        ("model.source", "no =", "path=value"),
        ("", "no =", "path=value"),
        ("=1", "no path", "dotted path"),
        (" =1", "no path", "dotted path"),
        ("a..b=1", "'a..b'", "dotted path"),
        (".a=1", "'.a'", "dotted path"),
        ("a.=1", "'a.'", "dotted path"),
        ("a b=1", "'a b'", "dotted path"),
        ("[0]=1", "'[0]'", "dotted path"),
        ("table[x]=1", "table[x]", "dotted path"),
        ("table[-1]=1", "table[-1]", "dotted path"),
        ("table[=1", "'table['", "dotted path"),
        ("table[99999999999]=1", "table[9", "dotted path"),
        ("a.b" + ".c" * 40 + "=1", "42 parts", "32"),
        ("model.source.x=1", "'m' (a string) at model.source", "a mapping"),
        ("table[1].a.b.c=1", "'x' (a string) at table[1].a", "a mapping"),
        ("model[0]=1", "(a mapping) at model", "a list"),
        ("speculative[0]=1", "nothing (null) at speculative", "a list"),
        ("new[0]=1", "nothing (null) at new", "a list"),
        ("table.x=1", "'x' for a list of 2 values at table", "an index"),
        ("table.²=1", "'²' for a list", "an index"),
        ("table[2]=1", "index 2 for a list of 2 values at table", "index that is there"),
        ("table.0.7=1", "index 7 for a list of 2 values at table[0]", "index that is there"),
        ("model.source=", "no value", "a value"),
        ("model.source= # x", "no value", "a value"),
        ("model.source=[1", "invalid YAML", "YAML"),
        ("model.source=!!python/name:os.system", "the tag", "plain"),
        ("model.source=on", "on", "true or false"),
        ("model.source={a: [1e3]}", "1e3", "decimal"),
        ("model.source={a: 1, a: 2}", "second value", "one value"),
    ],
)
def test_what_cannot_be_set_says_so_at_the_option(document, text, found, wanted):
    """Wrong paths, wrong indexes and treacherous values: each names the whole option as its place."""
    (problem,) = refused(document, text) if len(text) < 80 else refused_long(document, text)
    assert found in problem.found
    assert wanted in problem.wanted


def refused_long(document, text):
    with pytest.raises(SpecError) as caught:
        assign(document, text)
    (problem,) = caught.value.problems
    assert problem.where == f"--set {text[:80]}..."
    return caught.value.problems


@pytest.mark.parametrize("data", [[1], "text", 3])
def test_a_document_that_is_no_mapping_takes_no_key(data):
    """The root is named as the top."""
    (problem,) = refused(Document(source="f", data=data, lines={(): 1}), "a=1")
    assert "the top" in problem.found


def test_a_problem_of_a_set_value_is_at_its_option():
    """Values of the file keep their lines and come first; values that were set name their option."""
    document = read_yaml(
        "model:\n  source: m\n  dtype: f\nscheduler: {max_num_seqs: 1}\n", "f.yaml"
    )
    for text in (
        "scheduler.max_num_seqs=x",
        "speculative={method: ngram, num_speculative_tokens: [1]}",
        "kv-cache.block-size=0",
    ):
        document = assign(document, text)
    with pytest.raises(SpecError) as caught:
        config_of(document)
    assert [p.where for p in caught.value.problems] == [
        "f.yaml:3: model.dtype",
        "--set scheduler.max_num_seqs=x: scheduler.max_num_seqs",
        "--set kv-cache.block-size=0: kv_cache.block_size",
        "--set speculative={method: ngram, num_speculative_tokens: [1]}: "
        "speculative.num_speculative_tokens",
    ]


def test_a_field_that_a_new_section_lacks_is_at_the_option_that_made_the_section():
    """No line of the file has it, so the option is the only place there is."""
    document = assign(Document(source="f.yaml", data={}, lines={}), "model.dtype=float32")
    with pytest.raises(SpecError) as caught:
        config_of(document)
    assert [p.where for p in caught.value.problems] == ["--set model.dtype=float32: model.source"]


def test_the_last_option_wins_and_is_the_one_that_is_named(document):
    """Setting a part of a set value, and the value again, forgets what is gone."""
    document = assign(document, "model={source: [1], dtype: x}")
    document = assign(document, "model.source=[2]")
    assert document.origins == {
        ("model",): "--set model={source: [1], dtype: x}",
        ("model", "source"): "--set model.source=[2]",
    }
    document = assign(document, "model={source: o}")
    assert document.data["model"] == {"source": "o"}
    assert document.origins == {("model",): "--set model={source: o}"}
    assert ("model", "source") not in document.lines


@given(
    st.text(max_size=20)
    | st.text("model.sourcetab[]01= {}:,-\"'#\n", max_size=30)
    | st.text(max_size=10).map("table.0.1=".__add__)
)
def test_any_option_is_taken_or_refused(text):
    """Whatever text is given, the result is a document or a SpecError, and the input stays."""
    document = read_yaml(TEXT, "f.yaml")
    with contextlib.suppress(SpecError):
        made = assign(document, text)
        assert set(made.origins.values()) == {f"--set {text}"}
    assert document == read_yaml(TEXT, "f.yaml")
