"""Model facts from checkpoints: Hugging Face folders and GGUF files, defaults, overrides, and what is missing."""

import json
import sys

import pytest

from graphspec.config.model import Dtype, ModelConfig
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.frozen import FrozenMap
from graphspec.resolve.checkpoint import locate_checkpoint, read_checkpoint, text_config_of
from graphspec.resolve.model_facts import facts_of, model_spec, model_spec_of, target_facts
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


def test_the_section_has_what_the_user_chose_and_what_no_fact_covers(facts):
    """Weights, type and quantisation come from the user, and any other field goes to `extra`."""
    quantized = {**TINY, "quantization_config": {"quant_method": "awq", "bits": 4}, "window": [1]}
    spec = facts(quantized, weights="elsewhere", dtype=Dtype.BFLOAT16)
    assert (spec.weights, spec.dtype, spec.quantization) == ("elsewhere", Dtype.BFLOAT16, "awq")
    assert spec.extra == {
        "quantization_config": {"quant_method": "awq", "bits": 4},
        "window": (1,),
    }
    assert facts(quantized, quantization="fp8").quantization == "fp8"
    assert facts(TINY).extra == {}


def test_rotary_scaling_beyond_its_kind_is_part_of_the_section(facts):
    """Two checkpoints that differ in a factor alone are two models."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    one = facts({**TINY, "rope_scaling": scaling})
    other = facts({**TINY, "rope_scaling": {**scaling, "factor": 32.0}})
    assert one != other
    assert (one.rope_type, other.rope_type) == ("llama3", "llama3")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"rope_scaling": {"type": "su", "factor": 2.0}, "rope_theta": 5e5},
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "rope_theta": 5e5}},
        ),
        (
            {"rope_scaling": None, "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
        ),
        ({"torch_dtype": "float16"}, {"dtype": "float32", "transformers_version": "5"}),
        ({"num_local_experts": 8}, {"num_experts": 8}),
    ],
)
def test_a_config_in_the_old_form_and_in_the_new_is_one_model(facts, old, new):
    """transformers rewrites configs when it saves them; that is no reason to compile again."""
    base = without("rope_theta")
    assert facts({**base, **old}) == facts({**base, **new})


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


def test_rotary_parameters_for_each_kind_of_layer_are_read():
    """Gemma writes one set a kind of layer: full attention gives the base, any scaled set the kind."""
    sets = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "other": None,
    }
    found = facts_of({"rope_parameters": sets})
    assert (found.rope_type, found.rope_theta) == ("linear", 1e6)
    assert found.rope_parameters["full_attention"]["rope_type"] == "linear"
    assert found.bad == ()
    scaled = {**sets, "full_attention": {"rope_theta": 1e6}, "other": {"rope_type": "yarn"}}
    assert facts_of({"rope_parameters": scaled}).rope_type == "yarn"


def test_a_nested_language_model_counts_before_what_lies_above():
    """Nested values first, the outer ones where a nested one is lacking or null; the identity is the outer one."""
    config = {
        "model_type": "outer",
        "hidden_size": 1,
        "vocab_size": 2,
        "tie_word_embeddings": True,
        "thinker_config": {
            "head_dim": 3,
            "text_config": {
                "model_type": "inner",
                "architectures": ["Inner"],
                "hidden_size": 4,
                "vocab_size": None,
            },
        },
    }
    text = text_config_of(config)
    assert text == {
        "model_type": "outer",
        "architectures": ["Inner"],
        "hidden_size": 4,
        "vocab_size": 2,
        "head_dim": 3,
        "tie_word_embeddings": True,
    }
    found = facts_of(config)
    assert (found.model_type, found.architectures) == ("outer", ("Inner",))
    assert (found.hidden_size, found.vocab_size, found.head_dim) == (4, 2, 3)
    assert found.tie_word_embeddings is True


def test_a_shadowed_field_that_differs_stays_in_the_section(facts):
    """What an outer level says of a nested field is not lost, and stands under another name."""
    nested = {"model_type": "llava", "hidden_size": 5, "text_config": {**TINY, "window": 1}}
    extra = facts({**nested, "window": 2}).extra
    assert extra == {
        "model_type": "llama",
        "window": 1,
        "top_level.window": 2,
        "top_level.hidden_size": 5,
    }


@pytest.mark.parametrize(
    ("config", "head_dim"),
    [
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}, 192),
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "head_dim": 64}, 192),
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "head_dim": 256}, 256),
        ({"qk_rope_head_dim": 64, "head_dim": 512}, 512),
        ({}, None),
    ],
)
def test_a_latent_head_is_both_its_parts(config, head_dim):
    """With a kv_lora_rank the width of a head is not that of the hidden size over the heads."""
    latent = {"kv_lora_rank": 512, "hidden_size": 64, "num_attention_heads": 4}
    assert facts_of({**latent, **config}).head_dim == head_dim


@pytest.mark.parametrize(
    ("config", "mamba", "attention"),
    [
        ({"hybrid_override_pattern": "M-M*"}, True, True),
        ({"hybrid_override_pattern": "M-ME"}, True, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, True, True),
        ({"layer_types": ["sliding_attention"], "mamba_d_state": 1}, False, True),
        ({"layers_block_type": ["mamba", "hybrid"]}, True, True),
        ({"layers_block_type": ["mamba", "moe"]}, True, False),
        ({"model_type": "mamba2"}, True, False),
        ({"model_type": "jamba", "mamba_d_state": 16}, True, True),
        ({"linear_attn_config": {}}, True, True),
        ({"linear_attn_config": None}, False, True),
        ({}, False, True),
    ],
)
def test_kinds_of_layers_are_told_by_lists_then_by_known_fields(config, mamba, attention):
    """A recurrent state and attention each have their cache; a list of the layers counts before all else."""
    found = facts_of(config)
    assert (found.has_mamba, found.has_attention) == (mamba, attention)
    assert found.bad == ()


def test_a_fact_with_a_value_for_each_layer_is_its_largest():
    """Sizes of buffers follow the largest; the list itself stays in the section."""
    found = facts_of({"intermediate_size": [64, 128], "num_experts": [8, 0], "hidden_size": [1]})
    assert (found.intermediate_size, found.num_experts) == (128, 8)
    assert [p.where for p in found.bad] == ["hidden_size"]


def test_what_has_a_wrong_type_is_listed_and_counts_as_not_stated():
    """Nothing is dropped silently, under whatever name it stands."""
    found = facts_of(
        {
            "n_embd": "wide",
            "architectures": "Llama",
            "rope_scaling": "yarn",
            "quantization_config": {"quant_method": 4},
            "layer_types": [1],
            "text_config": "none",
            "rope_theta": 10**400,
        }
    )
    assert {p.where: p.wanted for p in found.bad} == {
        "n_embd": "an integer",
        "architectures": "a list",
        "rope_scaling": "a mapping",
        "quant_method": "a string",
        "layer_types": "a list of a string",
        "text_config": "a mapping",
        "rope_theta": "a finite number",
    }
    assert (found.hidden_size, found.quantization, found.rope_type) == (None, None, "default")


def draft(config, **options):
    given = {"source": "d", "weights": None, "dtype": Dtype.FLOAT32, "quantization": None}
    return model_spec_of(facts_of(config), config, **given, where="speculative.model", **options)


def test_a_draft_needs_fewer_facts_than_a_target():
    """Positions may come from elsewhere, and a draft of prediction modules has no layers of its own."""
    small = without("max_position_embeddings", "rms_norm_eps", model_type="x", num_hidden_layers=0)
    spec = draft(small, max_model_len=None, default_max_model_len=99)
    assert (spec.max_model_len, spec.max_position_embeddings) == (99, 0)
    assert (spec.num_hidden_layers, spec.rms_norm_eps) == (0, 0.0)
    assert draft(small, max_model_len=7, default_max_model_len=99).max_model_len == 7
    assert draft(TINY, max_model_len=None, default_max_model_len=99).max_model_len == 256
    (problem,) = problems_of(lambda: draft(small, max_model_len=None))
    assert problem.where == "speculative.model: max_position_embeddings in the config of d"
    assert problem.hint == ""


def test_a_llama_draft_needs_what_its_layers_read():
    """The reference program reads both from every Llama-type model."""
    found = problems_of(
        lambda: draft(without("rms_norm_eps", "intermediate_size"), max_model_len=8)
    )
    assert len(found) == 2


def test_a_target_has_layers(facts):
    """A model without layers is no target."""
    (problem,) = problems_of(lambda: facts({**TINY, "num_hidden_layers": 0}))
    assert "num_hidden_layers" in problem.where
    assert problem.wanted == "at least 1"


def test_a_length_beyond_the_positions_comes_with_the_other_problems(facts):
    """One report has both."""
    found = problems_of(lambda: facts(without("vocab_size"), max_model_len=999))
    assert {p.where.split(":")[0] for p in found} == {"model.source", "model.max_model_len"}


def test_target_facts_are_those_of_the_overridden_config(tmp_path):
    """What drafts inside the target's checkpoint start from: the config with the user's overrides on it."""
    folder = config_folder(tmp_path / "m", TINY)
    config, found = target_facts(
        ModelConfig(source=str(folder), hf_overrides={"num_nextn_predict_layers": 2})
    )
    assert isinstance(config, FrozenMap)
    assert config == {**TINY, "num_nextn_predict_layers": 2}
    assert found.num_nextn_predict_layers == 2


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
    [
        *("", "{", "[]", "3", "null", '{"a": 1', '{"a": NaN', "\ufeff{}", "[" * 100_000, "\x00"),
        '{"a": ' + "[" * 30 + "]" * 30 + "}",
        '{"a": ' + "1" * 5000 + "}",
        '{"a": "\\ud800"}',
        '{"a": "' + "x" * (17 << 20) + '"}',
    ],
    ids=range(14),
)
def test_damaged_json_is_a_problem_of_the_machine(tmp_path, content):
    """What cannot be read is an EnvironmentProblem that names config.json."""
    folder = config_folder(tmp_path)
    (folder / "config.json").write_text(content)
    with pytest.raises(EnvironmentProblem) as caught:
        model_spec(ModelConfig(source=str(folder)))
    (problem,) = caught.value.problems
    assert problem.where == f"model.source {folder / 'config.json'}"
    assert "model.source" in problem.hint
    assert len(str(caught.value)) < 1000


def test_a_config_is_read_as_plain_frozen_data(tmp_path):
    """Of a field that stands twice the last counts, and numbers that are not finite come by name, as Mamba's limits."""
    folder = config_folder(tmp_path)
    text = '{"a": 1, "a": [2, {"b": Infinity}], "c": [-1e999, NaN], "": null}'
    (folder / "config.json").write_text(text)
    config = read_checkpoint(str(folder))
    assert config == {"a": (2, {"b": "Infinity"}), "c": ("-Infinity", "NaN"), "": None}
    assert hash(config) == hash(read_checkpoint(str(folder)))


def test_another_field_than_the_target_s_is_named_in_the_error(tmp_path):
    """A draft's source is written elsewhere."""
    with pytest.raises(EnvironmentProblem) as caught:
        read_checkpoint("no/such/draft", "speculative.model")
    assert caught.value.problems[0].where == "speculative.model no/such/draft"
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(EnvironmentProblem) as caught:
        read_checkpoint(str(folder), "speculative.model")
    assert "speculative.model" in caught.value.problems[0].hint


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
