"""Model facts from GGUF files, which the test makes with the gguf package."""

import pytest

from graphspec.config.model import ModelConfig
from graphspec.errors import SpecError
from graphspec.resolve.checkpoint import read_checkpoint
from graphspec.resolve.model_facts import facts_of, model_spec


@pytest.fixture
def gguf_file(tmp_path):
    """A small GGUF file; None leaves a value out."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")

    def make(tensors=("output.weight",), text=None, family="llama", **options):
        keys = {
            "embedding_length": 32,
            "feed_forward_length": 64,
            "block_count": 2,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "context_length": 256,
            "rope.dimension_count": 8,
            **options,
        }
        path = tmp_path / "m.gguf"
        writer = gguf.GGUFWriter(path, family)
        for name, value in keys.items():
            if isinstance(value, int):
                writer.add_uint32(f"{family}.{name}", value)
            elif isinstance(value, str):
                writer.add_string(f"{family}.{name}", value)
            elif isinstance(value, float):
                writer.add_float32(f"{family}.{name}", value)
            elif isinstance(value, list):
                writer.add_array(f"{family}.{name}", value)
        writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", 0.5)
        writer.add_token_list(text or ["a", "b", "c"])
        for name in tensors:
            writer.add_tensor(name, np.ones(4, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(path)

    return make


@pytest.fixture
def gguf_facts(gguf_file):
    """The model section of such a file."""
    return lambda *args, **options: model_spec(ModelConfig(source=gguf_file(*args, **options)))


def test_a_gguf_file_gives_its_facts(gguf_facts):
    """Names of the format map to those of Hugging Face; the vocabulary is counted."""
    spec = gguf_facts(vocab_size=None)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_hidden_layers) == (32, 64, 2)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (4, 2, 8)
    assert (spec.architecture, spec.max_model_len, spec.vocab_size) == ("llama", 256, 3)
    assert spec.rms_norm_eps == 0.5


def test_what_a_gguf_file_may_leave_out_has_the_format_s_defaults(gguf_facts):
    """Key-value heads as heads, head width from the hidden size, and a rotary base of 10000."""
    spec = gguf_facts(**{"attention.head_count_kv": None, "rope.dimension_count": None})
    assert (spec.num_key_value_heads, spec.head_dim, spec.rope_theta) == (4, 8, 10000.0)


def test_tensors_of_a_gguf_file_tell_tying_and_biases(gguf_facts):
    """No output.weight means a tied head; a query bias means biased projections."""
    assert gguf_facts(tensors=("output.weight",)).tie_word_embeddings is False
    tied = gguf_facts(tensors=("token_embd.weight", "blk.0.attn_q.bias"))
    assert tied.tie_word_embeddings is True
    assert tied.attention_bias is True


def test_rotary_scaling_of_a_gguf_file_is_a_fact(gguf_facts):
    """The kind of scaling enters the key."""
    assert gguf_facts(**{"rope.scaling.type": "linear"}).rope_type == "linear"


def test_a_gguf_fact_of_the_wrong_kind_is_named(gguf_facts):
    """Metadata of another type is a SpecError."""
    with pytest.raises(SpecError) as caught:
        gguf_facts(embedding_length="wide")
    assert any("hidden_size" in p.where for p in caught.value.problems)


def test_a_gguf_file_of_a_known_family_leaves_nothing_over(gguf_facts):
    """What is translated is covered by typed facts."""
    assert gguf_facts().extra == {}


def test_the_parameters_of_rotary_scaling_are_read(gguf_facts):
    """All of them are under their Hugging Face names, and a factor alone makes another model."""
    keys = {
        "rope.freq_base": 5e5,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    spec = gguf_facts(**keys)
    assert (spec.rope_type, spec.rope_theta) == ("yarn", 5e5)
    assert spec.extra == {
        "rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 64}
    }
    assert gguf_facts(**{**keys, "rope.scaling.factor": 8.0}) != spec


@pytest.mark.parametrize(
    ("keys", "tensors", "kind"),
    [
        ({"rope.scaling.type": "none"}, (), "default"),
        ({"rope.scale_linear": 2.0}, (), "linear"),
        ({}, ("rope_freqs.weight",), "llama3"),
        ({}, ("rope_factors_long.weight", "rope_factors_short.weight"), "longrope"),
    ],
)
def test_rotary_scaling_that_no_type_names_is_seen(gguf_facts, keys, tensors, kind):
    """llama.cpp writes Llama 3's and Phi 3's factors as tensors; without them the frequencies would be wrong."""
    assert gguf_facts(tensors=("output.weight", *tensors), **keys).rope_type == kind


def test_experts_windows_and_prediction_layers_have_their_names(gguf_file):
    """GGUF counts prediction layers among the blocks; Hugging Face keeps them apart."""
    source = gguf_file(
        family="glm4moe",
        block_count=47,
        nextn_predict_layers=1,
        expert_count=128,
        expert_used_count=8,
        leading_dense_block_count=1,
        expert_weights_scale=2.5,
        **{"attention.sliding_window": 512, "attention.key_length": 16},
    )
    config = read_checkpoint(source)
    facts = facts_of(config)
    assert (facts.model_type, facts.architectures) == ("glm4moe", ())
    assert (facts.num_hidden_layers, facts.num_nextn_predict_layers) == (46, 1)
    assert (facts.num_experts, facts.sliding_window, facts.head_dim) == (128, 512, 16)
    assert (config["num_experts_per_tok"], config["first_k_dense_replace"]) == (8, 1)
    # What has no Hugging Face name keeps its own, and so does a rotary part that is not the whole head.
    assert config["glm4moe.expert_weights_scale"] == 2.5
    assert config["glm4moe.rope.dimension_count"] == 8
    assert facts.bad == ()


def test_latent_heads_come_in_their_two_parts(gguf_file):
    """GGUF stores the whole width of a head and its rotary part."""
    keys = {"attention.kv_lora_rank": 512, "rope.dimension_count": 64}
    compressed = {"attention.key_length": 576, "attention.key_length_mla": 192}
    for widths in (compressed, {"attention.key_length": 192}):
        config = read_checkpoint(gguf_file(family="deepseek2", **keys, **widths))
        assert (config["qk_nope_head_dim"], config["qk_rope_head_dim"]) == (128, 64)
        assert facts_of(config).head_dim == 192


def test_values_for_each_layer_are_read(gguf_file):
    """Hybrid models have no key-value heads in some layers, and a recurrent state there."""
    source = gguf_file(
        family="jamba",
        **{"attention.head_count_kv": [0, 2], "ssm.state_size": 16, "ssm.conv_kernel": 4},
    )
    facts = facts_of(read_checkpoint(source))
    assert facts.num_key_value_heads == 2
    assert facts.has_mamba is True
    assert facts.bad == ()


def test_a_number_that_is_not_finite_is_named(gguf_facts):
    """GGUF can hold NaN; no fact may."""
    with pytest.raises(SpecError) as caught:
        gguf_facts(**{"rope.freq_base": float("nan")})
    assert "rope_theta" in caught.value.problems[0].where
