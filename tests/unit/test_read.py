"""Config files on disk and standard input: every way to be unreadable, and the place of every problem."""

import contextlib
import io
import json
import os
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphspec
from graphspec.errors import Problem, SpecError
from graphspec.formats.document import Document
from graphspec.formats.json_reader import read_json
from graphspec.formats.read import config_of, read_document
from graphspec.formats.toml_reader import read_toml
from graphspec.formats.yaml_reader import read_yaml
from support.specs import config_folder


@pytest.fixture
def write(tmp_path):
    def make(content, name="engine.yaml"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def refused(path):
    with pytest.raises(SpecError) as caught:
        config_of(read_document(path))
    return caught.value.problems


def test_a_file_becomes_a_config(write):
    """The plain way."""
    config = config_of(read_document(write("model: {source: m}\nscheduler: {max_num_seqs: 3}\n")))
    assert (config.model.source, config.scheduler.max_num_seqs) == ("m", 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "{model: {source: m}}"),
        ("a.yml", "model: {source: m}"),
        ("a.toml", '[model]\nsource = "m"'),
        ("a.json", '{"model": {"source": "m"}}'),
        ("a.JSON", '\n{"model": {"source": "m"}}'),
        ("a", "model: {source: m}"),
        ("a.conf", ' \n{"model": {"source": "m"}}'),
    ],
)
def test_the_suffix_says_which_format_it_is(write, name, content):
    """YAML, TOML or JSON by suffix; without a known one, a brace at the start means JSON."""
    assert read_document(write(content, name)).data == {"model": {"source": "m"}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "model: {source: m}"),
        ("a.toml", "model: {source: m}"),
        ("a.yaml", '[model]\nsource = "m"'),
        ("a.conf", "{model: {source: m}}"),
    ],
)
def test_one_format_under_the_name_of_another_is_refused(write, name, content):
    """The suffix is taken at its word."""
    path = write(content, name)
    (problem,) = refused(path)
    assert problem.where.startswith(f"{path}:")
    assert "invalid" in problem.found


def test_a_byte_order_mark_is_ignored(write):
    """Files saved by Windows editors read like others, and their lines count the same."""
    document = read_document(write(b"\xef\xbb\xbfmodel: {source: m}\n"))
    assert document.data == {"model": {"source": "m"}}
    assert document.lines[("model",)] == 1


def test_line_ends_of_windows_count_once(write):
    """A problem on the third CRLF line is on line 3."""
    path = write(b"model: {source: m}\r\nscheduler:\r\n  max_num_seqs: x\r\n")
    (problem,) = refused(path)
    assert problem.where == f"{path}:3: scheduler.max_num_seqs"


def test_each_problem_has_its_line_in_the_order_of_the_file(write):
    """Types, unknown keys, list entries and keys with dots are found where they stand."""
    path = write(
        "scheduler:\n"
        "  max_num_seqs: x\n"
        "  unknown: 1\n"
        "model:\n"
        "  dtype: f\n"
        "  source: m\n"
        "speculative:\n"
        "  method: ngram\n"
        "  num_speculative_tokens: 1\n"
        "  num_speculative_tokens_per_batch_size:\n"
        "    - [1, 2, 3]\n"
        "    - [3, 4, z]\n"
        "kv_cache.block_size: 8\n"
    )
    table = "speculative.num_speculative_tokens_per_batch_size"
    assert [p.where for p in refused(path)] == [
        f"{path}:2: scheduler.max_num_seqs",
        f"{path}:3: scheduler.unknown",
        f"{path}:5: model.dtype",
        f"{path}:12: {table}[1][2]",
        f"{path}:13: kv_cache.block_size",
    ]


def test_a_missing_field_is_at_its_section_and_a_missing_section_at_the_top(write):
    """What is not there has the line of the part it should be in."""
    path = write("scheduler: {max_num_seqs: 3}\nkv_cache: {}\n")
    (problem,) = refused(path)
    assert problem.where == f"{path}:1: model"
    path = write("kv_cache: {}\nmodel:\n  dtype: float32\n")
    (problem,) = refused(path)
    assert problem.where.startswith(f"{path}:2")
    assert problem.where.endswith("model.source")


@pytest.mark.parametrize("content", ["[1, 2]", "text", "3"])
def test_a_document_that_is_no_mapping_is_refused(write, content):
    """The root of a config is a mapping of sections."""
    path = write("\n" + content)
    (problem,) = refused(path)
    assert problem.where == f"{path}:2"
    assert "mapping" in problem.wanted


@pytest.mark.parametrize("content", [b"", b"\n", b"# nothing\n", b"\xef\xbb\xbf"])
def test_an_empty_file_lacks_the_model(write, content):
    """An empty file is a config without its one required section."""
    path = write(content)
    (problem,) = refused(path)
    assert problem.where == f"{path}:1: model"


def test_a_file_that_is_not_utf_8_names_the_offset(write):
    """A Latin-1 byte is named by its place, and nothing is replaced."""
    path = write(b"model: {source: caf\xe9}\n")
    (problem,) = refused(path)
    assert problem.where == path
    assert "19" in problem.found
    assert "UTF-8" in problem.wanted


def test_a_folder_is_named_as_one(tmp_path):
    """Naming a folder says so."""
    (problem,) = refused(str(tmp_path))
    assert problem.where == str(tmp_path)
    assert "folder" in problem.found


def test_a_missing_file_lists_what_lies_beside_it(write, tmp_path):
    """The hint names the configs in the same folder, in every format."""
    write("a: 1", "prod.yaml")
    write("a: 1", "notes.txt")
    for name in ("a.yml", "b.toml", "c.json"):
        write("", name)
    (problem,) = refused(str(tmp_path / "prd.yaml"))
    assert problem.found == "no such file"
    assert "a.yml, b.toml, c.json, prod.yaml" in problem.hint
    assert "notes.txt" not in problem.hint


@pytest.mark.parametrize("path", ["", "no/such/folder/x.yaml"])
def test_a_missing_folder_is_a_missing_file(path):
    """Without a folder to look in, the error still says no such file, and which names would be one."""
    (problem,) = refused(path)
    assert problem.found == "no such file"
    if path:
        assert ".yaml, .yml, .toml, .json" in problem.hint


def test_a_path_through_a_file_is_unreadable(write):
    """Any other failure of the system carries its own words."""
    (problem,) = refused(os.path.join(write("a: 1"), "x.yaml"))
    assert "cannot be read" in problem.found


def test_a_path_that_no_file_can_have_is_unreadable():
    """A NUL in a path, which the system never sees, is no traceback either."""
    (problem,) = refused("a\0b.yaml")
    assert "cannot be read" in problem.found


def test_a_file_too_large_for_a_config_is_refused(write):
    """More than 4 MiB is a weights file named by mistake; it is refused before it is parsed."""
    path = write(b"\x00" * ((4 << 20) + 1))
    (problem,) = refused(path)
    assert problem.where == path
    assert "4194304 bytes" in problem.found


def test_a_dash_is_standard_input(monkeypatch):
    """`-` reads standard input, and problems say so."""

    def give(content):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))

    give(b"model: {source: m}\n")
    assert config_of(read_document("-")).model.source == "m"
    give(b"model: {source: m}\nextra: 1\n")
    (problem,) = refused("-")
    assert problem.where == "<standard input>:2: extra"
    give(b'\n{"model": {"source": "m"},\n"extra": 1}')
    (problem,) = refused("-")
    assert problem.where == "<standard input>:3: extra"


def test_standard_input_that_is_closed_is_an_empty_config(monkeypatch):
    """Python has no stream at all then; what is missing is the model."""
    monkeypatch.setattr(sys, "stdin", None)
    (problem,) = refused("-")
    assert problem.where == "<standard input>:1: model"


def test_the_name_of_a_method_is_left_to_resolution(write):
    """A config may name a method that is not there; reading it does not look for methods."""
    text = "model: {source: m}\nspeculative: {method: ngrm, num_speculative_tokens: 1}\n"
    assert config_of(read_document(write(text))).speculative.method == "ngrm"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "model: {source: m}\nkv-cache:\n  block-size: 0\n  no-such: 1\n"),
        ("a.toml", 'model.source = "m"\n[kv-cache]\nblock-size = 0\nno-such = 1\n'),
        ("a.json", '{"model": {"source": "m"}, "kv-cache":\n{\n"block-size": 0,\n"no-such": 1}}'),
    ],
)
def test_keys_with_hyphens_are_found_where_they_stand(write, name, text):
    """Problems speak of fields with underscores, and the lines are those of the keys as written."""
    path = write(text, name)
    assert [p.where for p in refused(path)] == [
        f"{path}:3: kv_cache.block_size",
        f"{path}:4: kv_cache.no-such",
    ]


LINES = {
    (): 1,
    ("a",): 2,
    ("a", "b-c"): 3,
    ("a", "b-c", 0): 4,
    ("a", "b-c", 0, 1): 5,
    ("a", "d.e"): 6,
    ("a", "d.e", "f"): 7,
    ("g_h",): 8,
    ("g-h",): 9,
    ("i j",): 10,
}


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("", 1),
        ("a", 2),
        ("a.b-c", 3),
        ("a.b_c", 3),
        ("a.b_c[0]", 4),
        ("a.b_c[0][1]", 5),
        ("a.b_c[0][1].x.y", 5),
        ("a.b_c[7]", 3),
        ("a.d.e", 6),
        ("a.d.e.f", 7),
        ("a.d.e.x", 6),
        ("a.x", 2),
        ("g_h", 8),
        ("g-h", 9),
        ("i j", 10),
        ("a.b_c: eps in the config of ./x.y[0]", 3),
        ("a.b_c /some/x.y: z", 3),
        ("x.y", 1),
        ("...[", 1),
    ],
)
def test_a_problem_is_at_the_nearest_part_that_is_written(where, line):
    """Keys with dots, hyphens or spaces, items of lists, words after the path, and parts that are not there."""
    document = Document(source="f", data={}, lines=LINES)
    (found,) = document.locate([Problem(where=where, found="x", wanted="y")]).problems
    assert found.where == (f"f:{line}: {where}" if where else f"f:{line}")


def test_problems_are_in_the_order_of_the_file_and_options_come_last():
    """What an option gave has no line; it is named by the option."""
    document = Document(source="f", data={}, lines=LINES, origins={("o",): "--set o=1"})
    wheres = ["o.x", "x", "a.d.e", "a"]
    located = document.locate(Problem(where=w, found="x", wanted="y") for w in wheres)
    assert [p.where for p in located.problems] == [
        "f:1: x",
        "f:2: a",
        "f:6: a.d.e",
        "--set o=1: o.x",
    ]


READERS = {"yaml": read_yaml, "toml": read_toml, "json": read_json}
GOOD = {
    "yaml": "# c\na: &x [1, 'b', {c: null}]\nd-e:\n  - *x\n  - |\n    text\nf: \"\\u00e9\"\n",
    "toml": '# c\na = [1, \'b\', {c = 2.5}]\n[d-e]\nf."g" = """\nx"""\n[[h]]\ni = true\n',
    "json": '{"a": [1, "b\\u00e9", {"c": null}],\n"d-e": {"f": -1.5e3,\n"g": [true, false]}}\n',
}
marks = st.text(max_size=3) | st.text("{}[]\"'=:,.#-&*|!\\\n \t019aeinf_", max_size=3)


def paths(data, path=()):
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from paths(value, (*path, key))


def read_or_refused(kind, text):
    """What each reader promises of any text."""
    try:
        document = READERS[kind](text, "f")
    except SpecError:
        return
    json.dumps(document.data, allow_nan=False).encode()
    assert set(document.lines) == (set(paths(document.data)) if document.lines else set())
    assert all(1 <= line <= len(text.splitlines()) + 1 for line in document.lines.values())


@pytest.mark.parametrize("kind", READERS)
@given(text=st.text() | st.text("{}[]\"'=:,.#-&*|!\\\n \t019aeinf_", max_size=40))
def test_any_text_is_read_or_refused(kind, text):
    """Whatever a file says, the result is plain data with a line for each part of it, or a SpecError."""
    read_or_refused(kind, text)


@pytest.mark.parametrize("kind", READERS)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 4), marks), min_size=1, max_size=3
    )
)
def test_a_good_file_with_anything_changed_is_read_or_refused(kind, changes):
    """Some characters of a good file replaced, removed or added, at any place."""
    text = GOOD[kind]
    assert READERS[kind](text, "f").data
    for start, length, mark in changes:
        text = text[:start] + mark + text[start + length :]
    read_or_refused(kind, text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bytes")


@pytest.mark.parametrize("kind", READERS)
@given(
    raw=st.binary(max_size=40),
    place=st.integers(0, 90),
    whole=st.booleans(),
)
def test_any_bytes_are_a_document_or_refused(folder, kind, raw, place, whole):
    """Any bytes in a file of any suffix, alone or within a good file, end in a document or a SpecError."""
    path = folder / f"f.{kind}"
    good = GOOD[kind].encode()
    path.write_bytes(raw if whole else good[:place] + raw + good[place:])
    with contextlib.suppress(SpecError):
        read_document(str(path))


def test_load_gives_lines_to_problems_of_resolving_too(write, tmp_path):
    """Rules that are checked after reading are located in the file as well."""
    folder = config_folder(tmp_path / "facts")
    path = write(
        f"model:\n  source: {folder}\n  max_model_len: 999\n"
        "speculative:\n  method: ngrm\n  num_speculative_tokens: 1\n"
    )
    with pytest.raises(SpecError) as caught:
        graphspec.load(path)
    assert [p.where for p in caught.value.problems] == [
        f"{path}:3: model.max_model_len",
        f"{path}:5: speculative.method",
    ]


def test_a_problem_of_the_checkpoint_is_at_the_line_of_its_source(write, tmp_path):
    """Facts that the checkpoint lacks are reported where the config names it."""
    folder = config_folder(tmp_path / "facts", {"model_type": "llama"})
    path = write(f"model:\n  dtype: float32\n  source: {folder}\n")
    with pytest.raises(SpecError) as caught:
        graphspec.load(path)
    assert {p.where.split(": ")[0] for p in caught.value.problems} == {f"{path}:3"}


def test_load_gives_the_contract(write, tmp_path):
    """A good file resolves."""
    folder = config_folder(tmp_path / "facts")
    assert graphspec.load(write(f"model: {{source: {folder}}}\n")).model.hidden_size == 32
