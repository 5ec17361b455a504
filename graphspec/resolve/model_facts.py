"""What a checkpoint's config says of its model, target or draft: typed facts, and the model section they make."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from graphspec.annotations import mismatch
from graphspec.config.model import Dtype, ModelConfig, ModelSpec
from graphspec.config.partial import readable
from graphspec.errors import Problem, SpecError
from graphspec.fields import out_of_bounds, policies
from graphspec.frozen import FrozenMap, JsonValue, freeze
from graphspec.resolve.checkpoint import (
    NESTED,
    canonical_rope,
    levels_of,
    locate_checkpoint,
    main_rope,
    read_checkpoint,
    text_config_of,
)
from graphspec.resolve.overrides import (
    KNOWN_NAMES,
    SPELLINGS,
    apply_overrides,
    fact_named,
    uncovered_fields,
)
from graphspec.text import show

__all__ = ["locate_checkpoint", "text_config_of"]


@attrs.frozen(kw_only=True)
class ModelFacts:
    """Facts by their Hugging Face names; None where the config does not say. `bad` lists what has a wrong type.

    `rope_parameters` has the newest form of the format, with kind and base inside, whatever form the config has.
    """

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_type: str = "default"
    rope_parameters: FrozenMap = attrs.field(factory=lambda: FrozenMap({}))
    hidden_act: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    num_experts: int = 0
    num_nextn_predict_layers: int | None = None
    draft_vocab_size: int | None = None
    quantization: str | None = None
    head_dtype: str | None = None
    dtype: str | None = None
    sliding_window: int | None = None
    is_encoder_decoder: bool = False
    has_mamba: bool = False
    has_attention: bool = True
    bad: tuple[Problem, ...] = ()


_INTEGERS = """hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
vocab_size max_position_embeddings num_experts num_nextn_predict_layers draft_vocab_size sliding_window"""
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(_INTEGERS.split(), int),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), float),
    **dict.fromkeys("attention_bias mlp_bias tie_word_embeddings is_encoder_decoder".split(), bool),
    **dict.fromkeys("model_type rope_type hidden_act head_dtype dtype".split(), str),
}
_MAPPING = Mapping[str, JsonValue]
_PER_LAYER = ("intermediate_size", "num_key_value_heads", "num_experts", "sliding_window")
_ROPE_OUTSIDE = ("original_max_position_embeddings", "partial_rotary_factor")
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types")
_STATES = ("mamba", "linear", "recurrent", "conv")
_STATE_FIELDS = (
    "ssm_state_size",
    "linear_attn_config",
    "full_attention_interval",
    "attn_type_list",
)
_STATE_TYPES = ("mamba", "mamba2", "falcon_mamba", "rwkv")
_USERS_CHOICE = ("dtype", "quantization")
_SPEC_FACTS = attrs.fields_dict(ModelFacts).keys() & policies(ModelSpec).keys() - set(_USERS_CHOICE)
_TIED_TYPES = "cohere cohere2 gpt2 opt falcon smollm3 starcoder2 lfm2 zamba2 ernie4_5 ernie4_5_moe"
_GEMMA_TYPES = "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text"
_GEMMA = {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}
_FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"tie_word_embeddings": True} for name in _TIED_TYPES.split()},
    **dict.fromkeys(_GEMMA_TYPES.split(), _GEMMA),
}
"""What transformers' own classes assume where a config leaves a fact out, if it is not what `ModelSpec` assumes."""


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """The facts that `config` states or that follow from it. Never raises: what cannot be read is listed in `bad`."""
    plain = freeze(config)
    read = _Reader(text_config_of(plain))
    for _, level in levels_of(plain):
        for name in NESTED:
            read.value(name, Mapping[str, Any], level)
    facts = {name: read.fact(name, kind) for name, kind in _KINDS.items()}
    facts |= _heads(read, facts)
    facts |= _rope(read, facts)
    facts["has_mamba"], facts["has_attention"] = _kinds_of_layers(read, facts["model_type"])
    facts["architectures"] = read.value("architectures", tuple[str, ...])
    scheme = read.fact("quantization_config", _MAPPING) or {}
    facts["quantization"] = read.value("quant_method", str, scheme)
    if read.text.get("use_sliding_window") is False:
        facts["sliding_window"] = None
    facts["dtype"] = (facts["dtype"] or "").removeprefix("torch.") or None
    stated = {name: value for name, value in facts.items() if value is not None}
    return ModelFacts(**stated, bad=tuple(dict.fromkeys(read.bad)))


class _Reader:
    """Typed values of one config. What has another type is noted as bad and counts as not stated."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.text = text
        self.bad: list[Problem] = []

    def value(self, name: str, kind: Any, within: Mapping[str, Any] | None = None) -> Any:
        value = (self.text if within is None else within).get(name)
        wrong = "" if value is None else mismatch(value, kind)
        if kind is float and type(value) is int and abs(value) > sys.float_info.max:
            wrong = "a finite number"
        if not wrong:
            return value
        self.bad.append(Problem(where=name, found=show(value), wanted=wrong))
        return None

    def fact(self, fact: str, kind: Any) -> Any:
        """The value under the first of the fact's names that has one; the largest where each layer has its own."""
        for name in SPELLINGS[fact]:
            value = self.text.get(name)
            if value is None or value == {}:
                continue
            if fact in _PER_LAYER and value and not mismatch(value, tuple[int, ...]):
                return max(value)
            return self.value(name, kind)
        return None


def _heads(read: _Reader, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    heads, width, head_dim = (facts[n] for n in ("num_attention_heads", "hidden_size", "head_dim"))
    if facts["num_key_value_heads"] is None:
        yield "num_key_value_heads", heads
    if read.text.get("kv_lora_rank") is not None:
        plain, rotary = read.value("qk_nope_head_dim", int), read.value("qk_rope_head_dim", int)
        # transformers writes the rotary part alone as head_dim.
        if plain is not None and rotary is not None and head_dim in (None, rotary):
            yield "head_dim", plain + rotary
    elif head_dim is None and heads is not None and heads > 0 and width is not None:
        yield "head_dim", width // heads


def _rope(read: _Reader, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Kind, base and parameters. Of the sets for several kinds of layer, a scaled one tells the kind."""
    rope = canonical_rope(read.fact("rope_parameters", _MAPPING) or {})
    main = main_rope(rope)
    sets = (main,) if main is rope else (main, *rope.values())
    stated = [kind for part in sets if (kind := read.value("rope_type", str, part)) is not None]
    kinds = stated or [canonical_rope({"type": facts["rope_type"]}).get("rope_type", "default")]
    kind = next((k for k in kinds if k != "default"), "default")
    inside = read.value("rope_theta", float, main)
    theta = facts["rope_theta"] if inside is None else inside
    if main is rope:
        outside = {n: read.text[n] for n in _ROPE_OUTSIDE if read.text.get(n) is not None}
        base = {} if theta is None else {"rope_theta": theta}
        rope = FrozenMap({**outside, **rope, **base, "rope_type": kind})
    yield from (("rope_type", kind), ("rope_theta", theta), ("rope_parameters", rope))


def _kinds_of_layers(read: _Reader, model_type: str | None) -> tuple[bool, bool]:
    """Whether layers keep a recurrent state, and whether layers attend. A list of the layers counts before all else."""
    pattern = read.value("hybrid_override_pattern", str) or ""
    kinds = [{"M": "mamba", "*": "attention"}.get(letter, "mlp") for letter in pattern]
    for name in _LAYER_LISTS:
        kinds = kinds or list(read.value(name, tuple[str, ...]) or ())
    if kinds:
        both = "hybrid" in kinds
        stateless = [k for k in kinds if not any(part in k for part in _STATES)]
        attends = any("mlp" not in k and "moe" not in k for k in stateless)
        return both or len(stateless) < len(kinds), both or attends
    stated = (name for name, value in read.text.items() if value is not None)
    state = any(name in _STATE_FIELDS or name.startswith("mamba_") for name in stated)
    return state or model_type in _STATE_TYPES, model_type not in _STATE_TYPES


def target_facts(config: ModelConfig) -> tuple[FrozenMap, ModelFacts]:
    """The target checkpoint's config with the user's overrides on it, and its facts."""
    read = read_checkpoint(config.source)
    data = apply_overrides(read, config.hf_overrides, "model.hf_overrides")
    return data, facts_of(data)


def model_spec(config: ModelConfig) -> ModelSpec:
    """The resolved model section of the target. Raises `SpecError` with every fact that is missing or wrong."""
    return target_spec(config, *target_facts(config), config.max_model_len)


def target_spec(
    config: ModelConfig, data: FrozenMap, facts: ModelFacts, max_model_len: int | None
) -> ModelSpec:
    """The same from what `target_facts` read. A field with a problem of its own counts as not given."""
    return model_spec_of(
        facts,
        data,
        source=config.source,
        weights=readable(config, "weights"),
        dtype=readable(config, "dtype", Dtype.FLOAT32),
        quantization=readable(config, "quantization"),
        max_model_len=max_model_len,
        where="model.source",
        hints="model.hf_overrides",
        target=True,
    )


def model_spec_of(
    facts: ModelFacts,
    config: Mapping[str, Any],
    *,
    source: str,
    weights: str | None,
    dtype: Dtype,
    quantization: str | None,
    max_model_len: int | None,
    where: str,
    hints: str = "",
    default_max_model_len: int | None = None,
    target: bool = False,
) -> ModelSpec:
    """The model section that `facts` make, with what else `config` says that can change code.

    Without `max_model_len` the length is what the checkpoint was trained for, or `default_max_model_len` where it does
    not say. A target must say, is at most so long, and has layers. `where` is the field that names the checkpoint,
    `hints` the one that its facts can be set under. Raises `SpecError` with every fact that is missing or wrong.
    """
    longest = facts.max_position_embeddings
    length = max_model_len or longest or default_max_model_len

    def located(problem: Problem) -> Problem:
        name = problem.where
        settable = hints and (name in KNOWN_NAMES or name in text_config_of(config))
        hint = f"set it under {hints}.{name}" if settable else ""
        return attrs.evolve(problem, where=f"{where}: {name} in the config of {source}", hint=hint)

    required = {"hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers"}
    if facts.model_type == "llama":
        required |= {"intermediate_size", "rms_norm_eps"}
    if facts.num_attention_heads and facts.hidden_size:  # without them, they are what lacks
        required.add("head_dim")
    if target or length is None:
        required.add("max_position_embeddings")
    problems = [located(p) for p in _problems(facts, required, target)]
    if target:
        problems += length_problems(facts, max_model_len)
    if problems or length is None:
        raise SpecError(problems)
    typed = {name: getattr(facts, name) for name in _SPEC_FACTS}
    stated = {name: value for name, value in typed.items() if value is not None}
    extra = uncovered_fields(
        config, typed | {"model_type": facts.model_type}, facts.rope_parameters
    )
    try:
        return ModelSpec(
            source=source,
            weights=weights,
            architecture=facts.model_type,
            dtype=dtype,
            quantization=quantization or facts.quantization,
            max_model_len=length,
            extra=extra,
            **{**_FAMILY_DEFAULTS.get(facts.model_type, {}), **stated},
        )
    except SpecError as error:
        raise SpecError(located(p) for p in error.problems) from None


def length_problems(facts: ModelFacts, max_model_len: int | None) -> Iterator[Problem]:
    """A sequence of the target is at most as long as those that it was trained on."""
    longest = facts.max_position_embeddings
    if max_model_len is not None and longest is not None and max_model_len > longest:
        yield Problem(
            where="model.max_model_len",
            found=show(max_model_len),
            wanted=f"at most the {longest} positions that the checkpoint was trained for",
        )


def _problems(facts: ModelFacts, required: set[str], target: bool) -> Iterator[Problem]:
    yield from facts.bad
    known = {fact_named(p.where) for p in facts.bad}
    positive = {*required, "max_position_embeddings"} - {"rms_norm_eps"}
    if not target:  # drafts made of multi-token-prediction modules have no other layers
        positive.discard("num_hidden_layers")
    for name, policy in policies(ModelSpec).items():
        value = getattr(facts, name) if name in _SPEC_FACTS else None
        if value is not None:
            wrong = out_of_bounds(value, policy)
            if wrong or (name in positive and value < 1):
                yield Problem(where=name, found=show(value), wanted=wrong or "at least 1")
        elif name in required - known:
            yield Problem(where=name, found="nothing", wanted="a value")
