"""``graphspec warmup`` over a matrix, as people and scripts call it; and the example of docs/fleet.md, word for word."""

import json
import re
import shlex
from pathlib import Path

import pytest

from graphspec.cli.common import run
from graphspec.cli.warmup import warmup
from support import fleet_units

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_of_the_page_runs(fleet_of, tmp_path, capsys, monkeypatch):
    """The first command of docs/fleet.md that warms a fleet compiles what the page says, with a stand-in for the compiler,
    and a second run compiles nothing."""
    fleet_of()
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "fleet.md").read_text()
    command = re.search(
        r"^\$ graphspec warmup (.*(?:\\\n.*)*--executor local.*)$", page, re.MULTILINE
    )
    words = shlex.split(command[1].replace("\\\n", " "))
    words += [
        "--set",
        "program=support.fleet_units:example",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    assert run(warmup, [*words, "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    said = re.search(r"^compiled \d+, present \d+", printed, re.MULTILINE)[0]
    assert said == re.search(r"^compiled \d+, present \d+", page, re.MULTILINE)[0]
    assert run(warmup, [*words, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["executor"], again["scheduled"], again["compiled"]) == ("none", 0, 0)
    assert all(variant["ready"] for variant in again["variants"])


def test_the_json_of_a_run_with_failures_says_all_of_it(fleet_of, capsys, inline):
    """Exit code 1, one JSON object, and the page has a row for each of its keys."""
    fleet = fleet_of("tp_a", "poisoned")
    where = ["--config", fleet.config, "--cache-dir", fleet.cache, "--matrix", "tp=1,2"]
    assert run(warmup, [*where, "--jobs", "1", "--memory", "0.25", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["executor"], report["slots"]) == ("local", 1)
    assert sorted(job["state"] for job in report["jobs"]) == ["compiled", "compiled", "failed"]
    assert {job["resources"]["memory_bytes"] for job in report["jobs"]} == {1 << 28}
    assert [variant["missing"] for variant in report["variants"]] == [["poisoned"], ["poisoned"]]
    printed = {*report, *(f"jobs[].{k}" for k in report["jobs"][0])}
    printed |= {f"variants[].{k}" for k in report["variants"][0]}
    page = (ROOT / "docs" / "fleet.md").read_text()
    table = page.partition("## JSON")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == printed


def test_a_dry_run_starts_nothing(fleet_of, capsys):
    """It tells what would be compiled, in text and in JSON, and writes nothing."""
    fleet = fleet_of("tp_a", "b")
    where = [
        "--config",
        fleet.config,
        "--cache-dir",
        fleet.cache,
        "--matrix",
        "tp=1,2",
        "--dry-run",
    ]
    assert run(warmup, where) == 0
    assert "would compile 3, stored 0" in capsys.readouterr().out
    assert run(warmup, [*where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_compile"] == 3
    assert not Path(fleet.cache).exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--matrix", "tp=1", "--strict"], "--strict"),
        (["--executor", "local", "--trace", "t.json"], "--trace"),
        (["--matrix", "tp=1", "--address", "auto"], "--executor ray"),
        (["--device", "nvidia-h200", "--matrix", "tp=1"], "--matrix"),
        (["--executor", "slurm"], "local"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(more, said, fleet_of, capsys):
    """Exit code 2 and the option's name, before anything is read."""
    fleet = fleet_of("a")
    assert run(warmup, ["--config", fleet.config, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_matrix_with_a_wrong_variant_is_an_invalid_config(fleet_of, capsys):
    """No variant is warmed before all of them are known to be right."""
    fleet = fleet_of("a")
    assert run(warmup, ["--config", fleet.config, "--matrix", "tp=1,0"]) == 2
    assert "tp=0" in capsys.readouterr().err
    assert not fleet.compiled


def test_two_files_are_a_fleet_of_their_own(fleet_of, tmp_path, capsys):
    """Two --config without more fill the cache for both: equal units of both are one key."""
    fleet = fleet_of("a")
    other = tmp_path / "other.yaml"
    other.write_text(Path(fleet.config).read_text().replace("max_num_seqs: 4", "max_num_seqs: 2"))
    where = ["--config", fleet.config, "--config", str(other), "--cache-dir", fleet.cache]
    assert run(warmup, [*where, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (len(plan["variants"]), plan["units"], plan["would_compile"]) == (2, 2, 1)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")
def test_the_example_of_the_page_runs_on_ray(fleet_of, tmp_path, capsys, monkeypatch):
    """The same matrix on a cluster of this machine."""
    pytest.importorskip("ray")
    fleet_of()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    matrix = ["--matrix", "dtype=float32,bfloat16", "--matrix", "scheduler.max_num_seqs=8,16"]
    words = ["--config", "examples/smollm2-ngram.yaml", *matrix, "--executor", "ray", "--jobs", "2"]
    words += [
        "--set",
        "program=support.fleet_units:example",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    assert run(warmup, [*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["executor"], report["compiled"]) == ("ray", 6)
    assert sorted(fleet_units.compiles(tmp_path)) == sorted(
        ["attention_input", "attention_output", "head"] * 2
    )
