"""The commands hash, diff and explain: what they print, as text and as JSON, and their exit codes."""

import json

import pytest
import yaml

import graphspec
from graphspec.cache.folder.disk import DiskStore
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.extras import WatermarkAlgorithm, WatermarkConfig
from graphspec.fields import Stage, evolve
from graphspec.keys.explain import factors_of
from support.specs import config_folder, plain_config
from support.stored import store_units

PROGRAM = "support.toy:program"


@pytest.fixture
def config(tmp_path):
    """The path of a config file of the tiny model, with the toy program."""
    file = tmp_path / "engine.yaml"
    data = plain_config(config_folder(tmp_path / "model"), program=PROGRAM)
    file.write_text(yaml.safe_dump(data))
    return str(file)


def called(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = run(_root, list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def settings(*changes):
    return [word for change in changes for word in ("--set", change)]


def test_hash_prints_both_hashes(capsys, config):
    """One line a stage, and the same as JSON."""
    spec = graphspec.load(config)
    lines = "".join(f"{s.value:<8} {spec.compute_hash(s)}\n" for s in Stage)
    assert called(capsys, "hash", "--config", config) == (0, lines, "")
    _, out, _ = called(capsys, "hash", "--config", config, "--json")
    assert json.loads(out)["hashes"] == {s.value: spec.compute_hash(s) for s in Stage}


@pytest.mark.parametrize("stage", Stage)
def test_hash_of_one_stage_is_the_hash_alone(capsys, config, stage):
    """What a script asks for, without a label."""
    code, out, _ = called(capsys, "hash", "--config", config, "--stage", stage.value)
    assert (code, out) == (0, f"{graphspec.load(config).compute_hash(stage)}\n")


def test_hash_takes_settings(capsys, config):
    """--set changes the hash as it changes the config."""
    arguments = ("hash", "--config", config, "--stage", "compile")
    _, plain, _ = called(capsys, *arguments)
    _, deeper, _ = called(capsys, *arguments, *settings("speculative.num_speculative_tokens=3"))
    _, wider, _ = called(capsys, *arguments, *settings("scheduler.max_num_batched_tokens=64"))
    assert plain == deeper != wider


def test_hash_explain_lists_every_field_below_its_keys(capsys, config):
    """Each field once: in both keys, in one, or in none with the reason."""
    code, out, _ = called(capsys, "hash", "--config", config, "--explain")
    both, capture, none = out.split("\n\n")[1:]
    assert code == 0
    assert both.startswith("in the COMPILE and CAPTURE keys:\n")
    assert capture.startswith("in the CAPTURE key:\n")
    assert none.startswith("in no key:\n")
    assert "  model.hidden_size = 32  (Width of the residual stream.)\n" in both
    assert "  speculative.schedule.granted.dense = 1 to 4: 2  (k by batch size" in capture
    assert "  mode.asked = FULL_AND_PIECEWISE  (only the granted mode acts)\n" in none
    listed = [line.split(" = ")[0].strip() for line in out.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(f.path for f in factors_of(graphspec.load(config)))


def test_hash_explain_of_one_stage_has_its_key_first(capsys, config):
    """The hash with its label, and the fields of the other key apart."""
    _, out, _ = called(capsys, "hash", "--config", config, "--explain", "--stage", "compile")
    titles = [line for line in out.splitlines() if line.endswith(":")]
    assert titles == ["in the COMPILE and CAPTURE keys:", "in the CAPTURE key:", "in no key:"]
    assert out.startswith("compile  ")


def test_hash_explain_as_json(capsys, config):
    """The same as data: path, value in words, keys, why."""
    _, out, _ = called(capsys, "hash", "--config", config, "--explain", "--json")
    data = json.loads(out)
    rows = {row["path"]: row for row in data["factors"]}
    assert rows["kv_cache.block_size"] == {
        "path": "kv_cache.block_size",
        "value": "8",
        "keys": ["capture"],
        "why": "Tokens in one block.",
    }
    assert rows["model.source"]["keys"] == []


def test_hash_explain_never_shows_a_secret(capsys, config, monkeypatch):
    """The key of the mark is a field that exists, and its value is hidden in text and JSON."""
    mark = WatermarkConfig(key=7123456, algorithm=WatermarkAlgorithm.GUMBEL)
    spec = evolve(graphspec.load(config), watermark=mark)
    monkeypatch.setattr("graphspec.api.load", lambda *_: spec)
    for more in ([], ["--json"]):
        _, out, _ = called(capsys, "hash", "--config", config, "--explain", *more)
        assert "watermark.key" in out
        assert "(hidden)" in out
        assert "7123456" not in out


def test_diff_groups_fields_by_the_keys_that_they_move(capsys, config):
    """Old and new value of each field, what it moves, and for unkeyed ones why it moves none."""
    changes = settings(
        "scheduler.max_num_batched_tokens=64",
        "speculative.num_speculative_tokens=3",
        "kv_cache.enable_prefix_caching=false",
    )
    code, out, _ = called(capsys, "diff", config, *changes)
    heads, both, capture, none = out.split("\n\n")
    assert code == 1
    assert [line.split()[0] for line in heads.splitlines()] == ["compile", "capture"]
    assert "->" in heads
    assert both == (
        "move the COMPILE and CAPTURE keys:\n  scheduler.max_num_batched_tokens: 32 -> 64"
    )
    assert capture == (
        "move the CAPTURE key:\n"
        "  speculative.num_speculative_tokens: 2 -> 3\n"
        "  speculative.schedule.granted.dense: 1 to 4: 2 -> 1 to 4: 3"
    )
    assert none.startswith("move no key:\n  kv_cache.enable_prefix_caching: true -> false  (book")


def test_diff_of_two_files(capsys, config, tmp_path):
    """Two files that resolve to one contract are equal, however they are written; --set is for the second."""
    other = tmp_path / "other.yaml"
    data = plain_config(tmp_path / "model", program=PROGRAM)
    table = [[1, 4, 2]]
    data["speculative"]["num_speculative_tokens_per_batch_size"] = table
    other.write_text(yaml.safe_dump(data))
    code, out, _ = called(capsys, "diff", config, str(other))
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()[:2]] == ["equal", "equal"]
    assert "speculative.schedule.asked: null -> [[1, 4, 2]]  (only the granted" in out
    assert called(capsys, "diff", config, config) == (0, "\n".join(out.splitlines()[:2]) + "\n", "")
    code, out, _ = called(capsys, "diff", config, str(other), *settings("kv_cache.num_blocks=64"))
    assert code == 1
    assert "kv_cache.num_blocks: 128 -> 64" in out


def test_diff_of_one_stage_judges_by_that_stage(capsys, config):
    """A deeper k differs at CAPTURE and not at COMPILE."""
    change = settings("speculative.num_speculative_tokens=3")
    assert called(capsys, "diff", config, *change, "--stage", "compile")[0] == 0
    assert called(capsys, "diff", config, *change, "--stage", "capture")[0] == 1


def test_diff_as_json(capsys, config):
    """Hashes before and after, and each difference with its kind and the keys that it moves."""
    change = settings("scheduler.max_num_batched_tokens=64")
    code, out, _ = called(capsys, "diff", config, *change, "--json")
    data = json.loads(out)
    assert (code, data["equal"]) == (1, False)
    assert data["hashes"]["compile"]["before"] != data["hashes"]["compile"]["after"]
    (row,) = data["differences"]
    assert row == {
        "path": "scheduler.max_num_batched_tokens",
        "kind": "changed",
        "before": "32",
        "after": "64",
        "moves": ["compile", "capture"],
        "why": row["why"],
    }
    assert row["why"].startswith("Most tokens in one step")


def test_diff_needs_two_sides(capsys, config):
    """One file and no change is wrong usage."""
    code, _, err = called(capsys, "diff", config)
    assert code == 2
    assert "--set" in err


@pytest.mark.parametrize("command", ["hash", "explain"])
def test_an_invalid_config_exits_2(capsys, config, command):
    """Problems of the config are told as by every command."""
    code, _, err = called(
        capsys, command, "--config", config, *settings("scheduler.max_num_seqs=0")
    )
    assert code == 2
    assert "scheduler.max_num_seqs" in err


@pytest.fixture
def stored(config, tmp_path):
    """A cache folder with an entry for each unit of the toy program, and its path."""
    pytest.importorskip("torch")
    from support.toy import program

    spec = graphspec.load(config)
    folder = tmp_path / "cache"
    return folder, store_units(folder, program(spec).units(), spec, reads=["model.rms_norm_eps"])


def test_explain_says_that_all_is_there(capsys, config, stored):
    """Exit code 0 and one line a unit."""
    folder, _ = stored
    code, out, _ = called(capsys, "explain", "--config", config, "--cache-dir", str(folder))
    assert code == 0
    assert out == (
        "unit scale (hit): it would be loaded\n"
        "unit mix (hit): it would be loaded\n"
        f"would compile 0, would load 2; 2 files in {folder}\n"
    )


def test_explain_names_what_differs_and_whether_it_was_read(capsys, config, stored):
    """Exit code 1; the nearest entry, the field with old and new value, and the verdict."""
    folder, (scale, _) = stored
    change = settings("model.hf_overrides={rms_norm_eps: 0.5}")
    arguments = ("explain", "--config", config, "--cache-dir", str(folder), *change)
    code, out, _ = called(capsys, *arguments)
    assert code == 1
    assert out.splitlines()[:4] == [
        "unit scale (miss): it would be compiled, and must be: what differs can change the code",
        f"  nearest: entry {scale.key.digest} of unit scale, which differs in 1 factor:",
        "    scope: model.rms_norm_eps: 1e-05 -> 0.5  (read by the stored trace)",
        "unit mix (hit): it would be loaded",
    ]
    code, out, _ = called(capsys, *arguments, "--json")
    data = json.loads(out)
    assert code == 1
    assert data["missing"] == 1
    assert data["units"][0]["nearest"]["differences"][0]["read"] is True
    assert data["units"][1]["outcome"] == "hit"


def test_explain_counts_broken_files_and_leaves_them(capsys, config, stored):
    """A damaged entry is a corrupt one for its unit, is counted, and stays where it is."""
    folder, (_, mix) = stored
    path = DiskStore(str(folder)).path_of(mix.key)
    with open(path, "r+b") as file:
        file.truncate(60)
    code, out, _ = called(capsys, "explain", "--config", config, "--cache-dir", str(folder))
    assert code == 1
    assert "unit mix (corrupt): it would be compiled: truncated" in out
    assert f"2 files in {folder}, 1 of them unreadable and left alone" in out
    with open(path, "rb") as file:
        assert len(file.read()) == 60
