"""The model section: what the user writes of the model, and the facts that its checkpoint adds."""

import enum
from collections.abc import Mapping

from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.text import show

_LOCATION = "a location: the content behind it enters the key as model facts, and weights are inputs of every unit"


class Dtype(enum.Enum):
    """Floating-point type of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@config_class
class ModelConfig:
    """What the user writes of the model."""

    source: str = unkeyed(
        doc="Where the model lies: package:NAME (a GGUF file inside an installed package), a .gguf file, "
        "or a Hugging Face folder.",
        reason=_LOCATION,
    )
    dtype: Dtype = keyed(
        Stage.COMPILE, default=Dtype.FLOAT32, doc="Type of weights and activations."
    )
    max_model_len: int | None = keyed(
        Stage.CAPTURE,
        default=None,
        minimum=2,
        doc="Longest sequence in tokens, prompt and output; default: what the checkpoint was trained for.",
    )
    hf_overrides: Mapping[str, bool | int | float | str] = unkeyed(
        default={},
        doc="Replacements for fields of the checkpoint's own config, by their Hugging Face names.",
        reason="applied to the model facts, and those are keyed",
    )


@config_class
class ModelSpec:
    """The model as resolved: facts of a decoder-only checkpoint, by their Hugging Face names."""

    source: str = unkeyed(
        doc="Where the weights and the tokenizer are read from.", reason=_LOCATION
    )
    architecture: str = keyed(Stage.COMPILE, doc="Family of the decoder: llama.")
    dtype: Dtype = keyed(Stage.COMPILE, doc="Type of weights and activations.")
    max_model_len: int = keyed(Stage.CAPTURE, minimum=2, doc="Longest sequence in tokens.")
    hidden_size: int = keyed(Stage.COMPILE, minimum=1, doc="Width of the residual stream.")
    intermediate_size: int = keyed(Stage.COMPILE, minimum=1, doc="Width of the MLP.")
    num_hidden_layers: int = keyed(Stage.COMPILE, minimum=1, doc="Number of decoder layers.")
    num_attention_heads: int = keyed(Stage.COMPILE, minimum=1, doc="Query heads.")
    num_key_value_heads: int = keyed(Stage.COMPILE, minimum=1, doc="Key and value heads.")
    head_dim: int = keyed(Stage.COMPILE, minimum=1, doc="Width of one head.")
    vocab_size: int = keyed(Stage.COMPILE, minimum=1, doc="Rows of the embedding table.")
    rms_norm_eps: float = keyed(Stage.COMPILE, minimum=0, doc="Epsilon of the RMS norms.")
    rope_theta: float = keyed(Stage.COMPILE, minimum=0, doc="Base of the rotary frequencies.")
    rope_type: str = keyed(Stage.COMPILE, default="default", doc="Kind of rotary scaling.")
    hidden_act: str = keyed(Stage.COMPILE, default="silu", doc="Activation of the MLP.")
    attention_bias: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether q, k, v and o projections have biases."
    )
    mlp_bias: bool = keyed(Stage.COMPILE, default=False, doc="Whether MLP projections have biases.")
    tie_word_embeddings: bool = unkeyed(
        default=False,
        doc="Whether the head uses the embedding table.",
        reason="decides which tensor is passed to the head unit, not the unit's code",
    )

    def problems(self) -> list[Problem]:
        """Head counts must divide."""
        if self.num_attention_heads % self.num_key_value_heads:
            return [
                Problem(
                    where="num_key_value_heads",
                    found=show(self.num_key_value_heads),
                    wanted=f"a divisor of num_attention_heads ({self.num_attention_heads})",
                )
            ]
        return []
