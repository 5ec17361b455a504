"""Files about graphs are of some numbers of ranks: on others they are refused, unless they name none.

Invariant 25 of shared/reference/compile-and-cudagraph.md, section 6.2.
"""

import json
from types import SimpleNamespace

import attrs
import pytest
import yaml

from graphspec.capture import warmup as warmup_module
from graphspec.capture.buckets_file import buckets_text, read_buckets
from graphspec.capture.rank_sizes import rank_sizes
from graphspec.capture.warmup_file import read_warmup
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.engine import EngineConfig
from graphspec.config.parallel import ParallelConfig
from graphspec.errors import BucketsError, WarmupFileError
from support import toy
from support.graphs import Steps
from support.specs import config_folder, plain_config

SIZES = tuple(rank_sizes(ParallelConfig()))
BUCKETS = {2: (1, 4)}
REPORT = {"graphs": {"samples": [{"tokens": 8, "mib": 1.0, "seconds": 0.1}]}}


@pytest.fixture
def file(tmp_path):
    """A file that is not there yet."""
    return tmp_path / "file.json"


def read_either(file, parallel):
    """What the file holds: buckets or a report."""
    if "buckets" in json.loads(file.read_text()):
        return read_buckets(str(file), parallel)
    return read_warmup(str(file), parallel)


def written(file, kind, parallel):
    """A file of this kind as the commands write it for such ranks; None for one that names none."""
    if kind == "buckets":
        text = buckets_text(BUCKETS, parallel or ParallelConfig())
        data = json.loads(text)
    else:
        data = {**REPORT, "parallel": rank_sizes(parallel or ParallelConfig())}
    if parallel is None:
        del data["parallel"]
    file.write_text(json.dumps(data, indent=1))
    return file


def test_every_size_of_the_parallel_section_counts():
    """A group that is added to the section is in the files without anybody remembering."""
    numbers = {field.name for field in attrs.fields(ParallelConfig) if field.type is int}
    assert set(SIZES) == numbers
    assert "tensor_parallel_size" in SIZES


@pytest.mark.parametrize("kind", ["buckets", "report"])
@pytest.mark.parametrize("name", SIZES)
def test_a_file_of_other_ranks_is_refused_naming_what_differs(file, kind, name):
    """The line, the size in the file, the size in the config; on its own numbers of ranks it is read."""
    theirs = ParallelConfig(**{name: 2})
    written(file, kind, theirs)
    with pytest.raises((BucketsError, WarmupFileError)) as caught:
        read_either(file, ParallelConfig())
    (problem,) = caught.value.problems
    line = 1 + [name in text for text in file.read_text().splitlines()].index(True)
    assert problem.where == f"{file}:{line}: parallel.{name}"
    assert problem.found.startswith("2")
    assert problem.wanted == "1, as in this config"
    assert problem.hint
    read_either(file, theirs)


@pytest.mark.parametrize("kind", ["buckets", "report"])
def test_every_size_that_differs_is_named_at_once(file, kind):
    """Nobody has to start the command once for each."""
    written(file, kind, ParallelConfig(tensor_parallel_size=4, pipeline_parallel_size=2))
    with pytest.raises((BucketsError, WarmupFileError)) as caught:
        read_either(file, ParallelConfig())
    assert [p.where.rpartition(".")[2] for p in caught.value.problems] == [
        "tensor_parallel_size",
        "pipeline_parallel_size",
    ]


@pytest.mark.parametrize("kind", ["buckets", "report"])
def test_a_file_that_names_no_ranks_holds_for_any(file, kind):
    """Sizes of one's own, written by hand."""
    written(file, kind, None)
    found = read_either(file, ParallelConfig(tensor_parallel_size=8))
    assert found == BUCKETS if kind == "buckets" else len(found.samples) == 1


@pytest.mark.parametrize("bad", [3, "tp=2", {"ranks": 2}, {"tensor_parallel_size": True}, None])
def test_what_are_no_sizes_is_refused(file, bad):
    """Another type, another name, a truth value: nothing is taken for agreement."""
    file.write_text(json.dumps({"buckets": {"2": [1]}, "parallel": bad}))
    with pytest.raises(BucketsError) as caught:
        read_buckets(str(file), ParallelConfig())
    assert ": parallel" in caught.value.problems[0].where


@pytest.fixture
def config(tmp_path):
    """The path of a small config."""
    data = plain_config(config_folder(tmp_path / "model"), program=toy.NAME)
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


TWO = ["--set", "parallel.tensor_parallel_size=2"]


def test_the_commands_refuse_files_of_other_ranks(capsys, config, file, tmp_path):
    """What plan writes for two ranks, warmup takes for two and not for one; and so with a report: exit code 2."""
    where = ["--cache-dir", str(tmp_path / "cache"), "--dry-run"]
    assert run(_root, ["plan", "--config", config, *TWO, "--output", str(file)]) == 0
    assert run(_root, ["warmup", "--config", config, *TWO, *where, "--buckets", str(file)]) == 0
    capsys.readouterr()
    assert run(_root, ["warmup", "--config", config, *where, "--buckets", str(file)]) == 2
    assert "parallel.tensor_parallel_size: found 2" in capsys.readouterr().err

    written(file, "report", ParallelConfig(tensor_parallel_size=2))
    assert run(_root, ["plan", "--config", config, *TWO, "--report", str(file)]) == 0
    for command in ("plan", "warmup"):
        assert run(_root, [command, "--config", config, "--report", str(file)]) == 2
        assert "wanted 1, as in this config" in capsys.readouterr().err


def test_a_report_is_of_the_ranks_that_warmed_up(file, monkeypatch, tiny_config, tmp_path):
    """What a warmup writes of itself is read again on as many ranks, and refused on others."""
    program = SimpleNamespace(units=tuple, start=lambda artifacts: Steps())
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)
    two = {"tensor_parallel_size": 2}
    spec = EngineConfig.from_dict(tiny_config(parallel=two)).resolve()
    report = warmup_module.warmup(spec, cache_dir=str(tmp_path)).as_dict()
    assert report["parallel"] == {**dict.fromkeys(SIZES, 1), **two}
    file.write_text(json.dumps(report))
    assert read_warmup(str(file), spec.parallel).samples
    with pytest.raises(WarmupFileError):
        read_warmup(str(file), ParallelConfig())
