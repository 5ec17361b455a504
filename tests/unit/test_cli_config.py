"""The commands of the declarative layer: check, show, convert, schema, methods."""

import json
from pathlib import Path

import pytest
import yaml

from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.formats.schema import schema_text
from graphspec.speculators.registry import known_methods
from support.peer_cases import folder
from support.specs import config_folder, plain_config


@pytest.fixture
def config(tmp_path):
    """The path of a config file of the tiny model."""
    file = tmp_path / "engine.yaml"
    file.write_text(yaml.safe_dump(plain_config(config_folder(tmp_path / "model"))))
    return str(file)


def called(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = run(_root, list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_check_says_that_nothing_is_wrong(capsys, config):
    """A valid config gives exit code 0 and one line."""
    assert called(capsys, "check", "--config", config) == (0, f"{config}: no problems\n", "")


def test_check_tells_what_was_lowered_and_what_is_worth_knowing(capsys, config):
    """Notes and lowered settings are part of the report, also as JSON."""
    table = "speculative.num_speculative_tokens_per_batch_size=[[1, 2, 2], [3, 4, 1]]"
    changes = ("--set", table, "--set", "compilation.runner=v1")
    changes += ("--set", "scheduler.max_num_batched_tokens=7")
    code, out, _ = called(capsys, "check", "--config", config, *changes)
    assert code == 0
    assert "lowered: runner_v1_dynamic_k" in out
    assert "note: max_num_seqs_lowered" in out
    code, out, _ = called(capsys, "check", "--config", config, *changes, "--json")
    report = json.loads(out)
    assert [n["code"] for n in report["notes"]] == ["max_num_seqs_lowered"]
    assert report["lowered"][0].startswith("runner_v1_dynamic_k")


def test_check_reports_all_problems_with_exit_code_2(capsys, config):
    """Problems of type, of rules and of the checkpoint come together."""
    changes = ("speculative.method=eagel", "kv_cache.num_blocks=2", "scheduler.max_num_seqs=0")
    code, _, err = called(
        capsys, "check", "--config", config, *(w for c in changes for w in ("--set", c))
    )
    assert code == 2
    assert all(f"--set {change}" in err for change in changes)


def test_a_missing_checkpoint_alone_is_the_machines_fault(capsys, config):
    """Exit code 3 when nothing else is wrong, 2 with other problems beside it."""
    gone = ("--set", "model.source=/nowhere/model")
    assert called(capsys, "check", "--config", config, *gone)[0] == 3
    code, _, err = called(capsys, "check", "--config", config, *gone, "--set", "program=x")
    assert code == 2
    assert "/nowhere/model" in err


def test_show_prints_a_config_that_reads_as_the_same(capsys, config, tmp_path):
    """What show prints is a config file with the same meaning."""
    _, out, _ = called(capsys, "show", "--config", config)
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert called(capsys, "show", "--config", str(again))[1] == out


def test_show_resolved_has_the_contract(capsys, config):
    """Sections, forwards and hashes of the spec, the schedule as ranges."""
    _, out, _ = called(capsys, "show", "--config", config, "--resolved", "--json")
    values = json.loads(out)["values"]
    assert values["forwards"]["uniform_decode_query_len"] == 3
    assert values["speculative"]["schedule"]["granted"] == [[1, 4, 2]]
    assert len(values["hashes"]["compile"]) == 32


def test_show_origin_names_line_setting_default_and_derivation(capsys, config):
    """Each value says which line or option gave it, or that nobody did."""
    arguments = ("show", "--config", config, "--origin", "--set", "kv_cache.num_blocks=200")
    _, out, _ = called(capsys, *arguments)
    assert f"({config}:" in out
    assert "kv_cache.num_blocks = 200  (--set kv_cache.num_blocks=200)" in out
    assert "compilation.strict = False  (default)" in out
    _, out, _ = called(capsys, *arguments, "--resolved")
    assert "forwards.num_lookahead_tokens = 0  (derived)" in out


def test_show_trace_tells_each_step(capsys, config):
    """Every step of the pipeline, what it decided, and why; an inferred method among it."""
    changes = (f"model.source={folder('target-llama')}", "model.max_model_len=null")
    changes += ("kv_cache.num_blocks=4096", "speculative={num_speculative_tokens: 3, model: X}")
    settings = [w for c in changes for w in ("--set", c.replace("X", folder("eagle3-head")))]
    code, out, err = called(capsys, "show", "--config", config, "--trace", *settings)
    assert (code, err) == (0, "")
    steps = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert steps[:7] == ["infer", "locate", "choose", "specialise", "depth", "derive", "configure"]
    assert steps[7:] == ["runner", "schedule", "mode"]
    assert "the checkpoint declares it: LlamaForCausalLMEagle3" in out


def test_convert_lists_what_it_leaves_out(capsys, tmp_path):
    """The result on standard output, the rest on standard error; with --json both in one object."""
    line = "vllm serve m --tensor-parallel-size 2 --port 8000 --spec-method ngram --spec-tokens 3"
    code, out, err = called(capsys, "convert", "--from", "vllm", line)
    assert code == 0
    assert yaml.safe_load(out)["speculative"] == {"method": "ngram", "num_speculative_tokens": 3}
    assert "left out: --port" in err
    file = tmp_path / "out.yaml"
    code, out, _ = called(
        capsys, "convert", "--from", "vllm", "--output", str(file), "--json", line
    )
    assert json.loads(out)["text"] == file.read_text()
    assert any(left["where"] == "--port" for left in json.loads(out)["left"])


@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
def test_a_config_goes_out_and_comes_back(capsys, config, tmp_path, target):
    """Our config as another engine's, and back: the fields that both know are equal."""
    _, there, _ = called(capsys, "convert", "--from", "graphspec", "--to", target, config)
    file = tmp_path / "there"
    file.write_text(there)
    code, back, err = called(capsys, "convert", "--from", target, str(file))
    assert code == 0, err
    first, second = yaml.safe_load(Path(config).read_text()), yaml.safe_load(back)
    assert second["model"]["source"] == first["model"]["source"]
    assert second["scheduler"]["max_num_seqs"] == first["scheduler"]["max_num_seqs"]
    assert second["speculative"]["num_speculative_tokens"] == 2


def test_convert_refuses_with_exit_code_2(capsys):
    """An unknown engine, and settings that contradict each other."""
    assert called(capsys, "convert", "--from", "vlm", "x")[0] == 2
    twice = 'vllm serve m --spec-method ngram --speculative-config \'{"method": "eagle"}\''
    code, _, err = called(capsys, "convert", "--from", "vllm", twice)
    assert code == 2
    assert "method" in err


def test_schema_prints_what_the_wheel_ships(capsys):
    """The schema of this version, byte for byte."""
    assert called(capsys, "schema") == (0, schema_text(), "")


def test_methods_prints_every_method(capsys):
    """Built-in and registered methods, as a table and as JSON."""
    _, table, _ = called(capsys, "methods")
    assert all(name in table for name in known_methods())
    _, out, _ = called(capsys, "methods", "--json")
    rows = json.loads(out)["methods"]
    assert {row["method"].split(" ")[0] for row in rows} == set(known_methods())
    (row,) = (r for r in rows if r["method"] == "eagle3 (parallel)")
    assert (row["lookahead"], row["extra slots"], row["block drop"]) == ("k", "k-1", "yes")
