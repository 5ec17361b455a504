"""Model facts from checkpoints: Hugging Face folders and GGUF files, defaults, overrides, and what is missing."""

import json
import sys

import pytest

from graphspec.config.model import ModelConfig
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.resolve.model_facts import locate_checkpoint, model_spec
from support.checkpoints import TINY
from support.specs import config_folder


def without(*names, **changes):
    return {k: v for k, v in {**TINY, **changes}.items() if k not in names}


@pytest.fixture
def facts(tmp_path):
    """The model section that a config.json with this content resolves to."""

    def make(content, **options):
        folder = config_folder(tmp_path / "model", content)
        return model_spec(ModelConfig(source=str(folder), **options))

    return make


def problems_of(call):
    with pytest.raises(SpecError) as caught:
        call()
    return caught.value.problems


def test_a_hugging_face_folder_gives_its_facts(facts):
    """Every fact arrives under its own name."""
    spec = facts({**TINY, "attention_bias": True, "mlp_bias": True, "unrelated": [1]})
    for name in TINY.keys() - {"model_type", "eos_token_id", "max_position_embeddings"}:
        assert getattr(spec, name) == TINY[name]
    assert (spec.architecture, spec.max_model_len) == ("llama", 256)
    assert spec.attention_bias is True
    assert spec.mlp_bias is True


def test_what_a_config_may_leave_out_has_the_format_s_defaults(facts):
    """Key-value heads, head width, base of the rotary frequencies, activation, biases and tying."""
    left_out = (
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "hidden_act",
        "tie_word_embeddings",
    )
    spec = facts(without(*left_out))
    assert spec.num_key_value_heads == spec.num_attention_heads == 4
    assert spec.head_dim == 8
    assert spec.rope_theta == 10000.0
    assert (spec.hidden_act, spec.rope_type) == ("silu", "default")
    assert (spec.tie_word_embeddings, spec.attention_bias, spec.mlp_bias) == (False, False, False)


def test_null_in_the_json_is_left_out(facts):
    """Hugging Face writes null for what does not apply."""
    spec = facts({**TINY, "head_dim": None, "rope_scaling": None, "num_key_value_heads": None})
    assert (spec.head_dim, spec.num_key_value_heads, spec.rope_type) == (8, 4, "default")


@pytest.mark.parametrize(
    ("rope", "kind", "theta"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "default", 5e5),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn"}}, "yarn", 5e5),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 32.0}}, "llama3", 10000.0),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear", 10000.0),
        ({"rope_parameters": {}}, "default", 10000.0),
    ],
)
def test_rotary_facts_come_from_either_generation_of_the_format(facts, rope, kind, theta):
    """rope_parameters holds base and kind; the older rope_scaling holds the kind beside rope_theta."""
    spec = facts({**TINY, **rope})
    assert (spec.rope_type, spec.rope_theta) == (kind, theta)


def test_every_missing_fact_is_named_with_the_way_to_set_it(facts, tmp_path):
    """All that lacks comes at once, with the checkpoint and the override's name."""
    found = problems_of(lambda: facts({"model_type": "llama"}))
    text = "\n".join(p.where for p in found)
    for name in (
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ):
        assert name in text
    assert all(p.found == "nothing" for p in found)
    assert all(str(tmp_path) in p.where and "model.hf_overrides." in p.hint for p in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "576"),
        ("hidden_size", 32.0),
        ("hidden_size", [1]),
        ("hidden_size", 0),
        ("num_attention_heads", "4"),
        ("num_attention_heads", 0),
        ("num_attention_heads", [4, 4]),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", True),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", -1.0),
        ("attention_bias", "yes"),
        ("rope_parameters", {"rope_theta": "big"}),
        ("rope_parameters", {"rope_type": 4}),
        ("vocab_size", -1),
    ],
)
def test_a_fact_of_the_wrong_kind_is_named(facts, name, value):
    """A damaged or unsupported config is a SpecError that names a fact and the checkpoint, never a crash."""
    dropped = ("head_dim",) if name in ("hidden_size", "num_attention_heads") else ()
    found = problems_of(lambda: facts(without(*dropped, **{name: value})))
    assert all(p.where.startswith("model.source: ") for p in found)
    wanted = "rope_t" if name == "rope_parameters" else name
    assert any(wanted in p.where for p in found)


def test_overrides_replace_facts(facts):
    """hf_overrides wins over the checkpoint, also where the checkpoint says nothing."""
    spec = facts(
        without("vocab_size"),
        hf_overrides={"vocab_size": 100, "rope_theta": 5.0, "max_position_embeddings": 64},
    )
    assert (spec.vocab_size, spec.rope_theta, spec.max_model_len) == (100, 5.0, 64)


def test_an_unknown_override_is_refused_with_the_nearest_name(facts):
    """A misspelled override would change nothing silently."""
    (problem,) = problems_of(lambda: facts(TINY, hf_overrides={"rope_teta": 5.0}))
    assert problem.where == "model.hf_overrides.rope_teta"
    assert "rope_theta" in problem.hint


def test_an_override_of_the_wrong_type_is_refused(facts):
    """Overrides are facts and obey their types."""
    (problem,) = problems_of(lambda: facts(TINY, hf_overrides={"hidden_size": 32.0}))
    assert "hidden_size" in problem.where
    assert problem.wanted == "an integer"


def test_max_model_len_defaults_to_what_the_checkpoint_was_trained_for(facts):
    """None means the checkpoint's positions."""
    assert facts(TINY).max_model_len == 256


def test_max_model_len_may_be_less_and_not_more(facts):
    """The bound is included, and the error names both numbers."""
    assert facts(TINY, max_model_len=256).max_model_len == 256
    assert facts(TINY, max_model_len=2).max_model_len == 2
    (problem,) = problems_of(lambda: facts(TINY, max_model_len=257))
    assert problem.where == "model.max_model_len"
    assert "257" in problem.found
    assert "256" in problem.wanted


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "null", '{"a": 1', '{"a": NaN', "\ufeff{}", "[" * 100_000, "\x00"],
)
def test_damaged_json_is_a_problem_of_the_machine(tmp_path, content):
    """What cannot be read is an EnvironmentProblem that names config.json."""
    folder = config_folder(tmp_path)
    (folder / "config.json").write_text(content)
    with pytest.raises(EnvironmentProblem) as caught:
        model_spec(ModelConfig(source=str(folder)))
    assert caught.value.problems[0].where == str(folder / "config.json")


def test_a_config_that_is_not_utf_8_is_a_problem_of_the_machine(tmp_path):
    """Bytes that are no text are named too."""
    folder = config_folder(tmp_path)
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(EnvironmentProblem):
        model_spec(ModelConfig(source=str(folder)))


def test_a_nan_fact_is_refused(tmp_path):
    """JSON as Python writes it may hold NaN; no fact may."""
    folder = config_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps({**TINY, "rms_norm_eps": float("nan")}))
    (problem,) = problems_of(lambda: model_spec(ModelConfig(source=str(folder))))
    assert "rms_norm_eps" in problem.where


@pytest.mark.parametrize(
    "source",
    [
        "",
        "no/such/place",
        "a\x00b",
        "package:",
        "package:no_such_package_x",
        "package:a.b",
        "package:../x",
        "package:json.decoder",
        "package:base64",
    ],
)
def test_a_source_that_is_not_there_is_named(source):
    """A path or package without a checkpoint is an EnvironmentProblem that repeats the source."""
    with pytest.raises(EnvironmentProblem) as caught:
        locate_checkpoint(source)
    assert caught.value.problems[0].where == f"model.source {source}"


def test_the_main_script_is_no_package(monkeypatch):
    """A module without an import spec is not there, and no other error."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(EnvironmentProblem):
        locate_checkpoint("package:__main__")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_package_must_hold_exactly_one_gguf_file(tmp_path, monkeypatch, count):
    """With none or two the error counts them; the package is never imported."""
    package = tmp_path / "held_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    for at in range(count):
        (package / f"m{at}.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    if count == 1:
        assert locate_checkpoint("package:held_model") == str(package / "m0.gguf")
        return
    with pytest.raises(EnvironmentProblem) as caught:
        locate_checkpoint("package:held_model")
    assert caught.value.problems[0].found.startswith(f"{count} GGUF files")
