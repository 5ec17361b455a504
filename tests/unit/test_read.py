"""Config files on disk and standard input: every way to be unreadable, and the place of every problem."""

import io
import os
import sys
import types

import pytest

import graphspec
from graphspec.errors import SpecError
from graphspec.formats.read import config_of, read_document
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
        "    - [3, 4, y]\n"
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
    """The hint names the configs in the same folder."""
    write("a: 1", "prod.yaml")
    write("a: 1", "notes.txt")
    (problem,) = refused(str(tmp_path / "prd.yaml"))
    assert problem.found == "no such file"
    assert "prod.yaml" in problem.hint
    assert "notes.txt" not in problem.hint


@pytest.mark.parametrize("path", ["", "no/such/folder/x.yaml"])
def test_a_missing_folder_is_a_missing_file(path):
    """Without a folder to look in, the error still says no such file."""
    (problem,) = refused(path)
    assert problem.found == "no such file"


def test_a_path_through_a_file_is_unreadable(write):
    """Any other failure of the system carries its own words."""
    (problem,) = refused(os.path.join(write("a: 1"), "x.yaml"))
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
