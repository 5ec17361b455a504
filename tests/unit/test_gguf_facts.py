"""Model facts from GGUF files, which the test makes with the gguf package."""

import pytest

from graphspec.config.model import ModelConfig
from graphspec.errors import SpecError
from graphspec.resolve.model_facts import model_spec


@pytest.fixture
def gguf_facts(tmp_path):
    """The model section of a small GGUF file; None leaves a value out."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")

    def make(tensors=("output.weight",), text=None, **options):
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
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in keys.items():
            if isinstance(value, int):
                writer.add_uint32(f"llama.{name}", value)
            elif isinstance(value, str):
                writer.add_string(f"llama.{name}", value)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 0.5)
        writer.add_token_list(text or ["a", "b", "c"])
        for name in tensors:
            writer.add_tensor(name, np.ones(4, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return model_spec(ModelConfig(source=str(path)))

    return make


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
