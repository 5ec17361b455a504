"""The model section: what the user writes of the model, and the facts that its checkpoint adds."""

import enum
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from graphspec.errors import Problem
from graphspec.fields import Rule, Stage, config_class, keyed, unkeyed
from graphspec.frozen import JsonValue
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
    weights: str | None = unkeyed(
        default=None, doc="Where the weights lie; none: beside the config.", reason=_LOCATION
    )
    tokenizer: str | None = unkeyed(
        default=None,
        doc="Where the tokenizer lies; none: beside the config.",
        reason="text is turned into token ids on the host; no graph contains it",
    )
    dtype: Dtype = keyed(
        Stage.COMPILE, default=Dtype.FLOAT32, doc="Type of weights and activations."
    )
    quantization: str | None = keyed(
        Stage.COMPILE,
        default=None,
        doc="Quantisation of the weights; none: what the checkpoint says.",
    )
    max_model_len: int | None = keyed(
        Stage.CAPTURE,
        default=None,
        minimum=2,
        maximum=1 << 27,
        doc="Longest sequence in tokens, prompt and output; default: what the checkpoint was trained for.",
    )
    pooling: bool = keyed(
        Stage.CAPTURE, default=False, doc="Whether the model gives embeddings instead of tokens."
    )
    hf_overrides: Mapping[str, JsonValue] | str = unkeyed(
        default={},
        doc="Replacements for fields of the checkpoint's own config by their Hugging Face names, or "
        "module:function, which takes that config as a mapping and returns another.",
        reason="applied to the model facts, and those are keyed",
    )


def _heads(model: Any) -> Iterator[Problem]:
    if model.num_attention_heads % model.num_key_value_heads:
        yield Problem(
            where="num_key_value_heads",
            found=show(model.num_key_value_heads),
            wanted=f"a divisor of num_attention_heads ({model.num_attention_heads})",
        )


@config_class
class ModelSpec:
    """A model as resolved, target or draft: facts of its checkpoint, by their Hugging Face names."""

    source: str = unkeyed(doc="Where config and tokenizer are read from.", reason=_LOCATION)
    weights: str | None = unkeyed(
        default=None, doc="Where the weights are read from, if not beside them.", reason=_LOCATION
    )
    architecture: str = keyed(Stage.COMPILE, doc="Family of the model by its model_type: llama.")
    architectures: tuple[str, ...] = keyed(
        Stage.COMPILE, default=(), doc="Class names that the checkpoint gives for the model."
    )
    dtype: Dtype = keyed(Stage.COMPILE, doc="Type of weights and activations.")
    quantization: str | None = keyed(
        Stage.COMPILE, default=None, doc="Quantisation of the weights, or none."
    )
    max_model_len: int = keyed(Stage.CAPTURE, minimum=1, doc="Longest sequence in tokens.")
    max_position_embeddings: int = keyed(
        Stage.COMPILE,
        default=0,
        minimum=0,
        doc="Positions that rotary tables are made for; 0: not stated.",
    )
    hidden_size: int = keyed(Stage.COMPILE, minimum=1, doc="Width of the residual stream.")
    intermediate_size: int = keyed(
        Stage.COMPILE, default=0, minimum=0, doc="Width of the dense MLP; 0: not stated."
    )
    num_hidden_layers: int = keyed(Stage.COMPILE, minimum=0, doc="Number of decoder layers.")
    num_attention_heads: int = keyed(Stage.COMPILE, minimum=1, doc="Query heads.")
    num_key_value_heads: int = keyed(Stage.COMPILE, minimum=1, doc="Key and value heads.")
    head_dim: int = keyed(Stage.COMPILE, minimum=1, doc="Width of one head.")
    vocab_size: int = keyed(Stage.COMPILE, minimum=1, doc="Rows of the embedding table.")
    num_experts: int = keyed(
        Stage.COMPILE, default=0, minimum=0, doc="Routed experts of a layer; 0: dense."
    )
    rms_norm_eps: float = keyed(
        Stage.COMPILE, default=0.0, minimum=0, doc="Epsilon of the RMS norms; 0: not stated."
    )
    rope_theta: float = keyed(
        Stage.COMPILE, default=10000.0, minimum=0, doc="Base of the rotary frequencies."
    )
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
    extra: Mapping[str, JsonValue] = keyed(
        Stage.COMPILE,
        default={},
        doc="Every other field of the checkpoint's config that can change code: rotary scaling, experts, layer types.",
    )

    @property
    def is_moe(self) -> bool:
        """True when layers have routed experts."""
        return self.num_experts > 0

    rules: ClassVar[tuple[Rule, ...]] = (_heads,)
