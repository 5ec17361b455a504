"""The fields of a checkpoint's config by name: replacing one under every name it has, and what no typed fact covers."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from graphspec.annotations import mismatch
from graphspec.errors import Problem, SpecError
from graphspec.frozen import FrozenMap, JsonValue, freeze, thaw
from graphspec.resolve.checkpoint import NESTED, canonical_rope, levels_of, main_rope
from graphspec.text import did_you_mean

_NAMES = {
    "model_type": "model_type",
    "architectures": "architectures",
    "hidden_size": "hidden_size n_embd d_model",
    "intermediate_size": "intermediate_size ffn_hidden_size n_inner ffn_dim",
    "num_hidden_layers": "num_hidden_layers n_layer n_layers num_layers",
    "num_attention_heads": "num_attention_heads n_head n_heads",
    "num_key_value_heads": "num_key_value_heads num_kv_heads n_head_kv multi_query_group_num",
    "head_dim": "head_dim kv_channels",
    "vocab_size": "vocab_size padded_vocab_size",
    "max_position_embeddings": "max_position_embeddings n_positions max_seq_len max_sequence_length seq_length n_ctx",
    "rms_norm_eps": "rms_norm_eps layer_norm_eps norm_eps layernorm_epsilon layer_norm_epsilon",
    "rope_theta": "rope_theta rotary_emb_base",
    "rope_type": "rope_type",
    "rope_parameters": "rope_parameters rope_scaling",
    # Gemma's first configs have both, and its code reads hidden_activation.
    "hidden_act": "hidden_activation hidden_act activation_function",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "tie_word_embeddings": "tie_word_embeddings",
    "num_experts": "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts",
    "num_nextn_predict_layers": "num_nextn_predict_layers",
    "draft_vocab_size": "draft_vocab_size",
    "quantization_config": "quantization_config compression_config",
    "head_dtype": "head_dtype",
    "dtype": "dtype torch_dtype",
    "sliding_window": "sliding_window sliding_window_size",
    "is_encoder_decoder": "is_encoder_decoder",
}
SPELLINGS: Mapping[str, tuple[str, ...]] = {f: tuple(names.split()) for f, names in _NAMES.items()}
"""Each fact with the names that families give it in their configs. The first that has a value counts."""

_FACT = {name: fact for fact, names in SPELLINGS.items() for name in names}
_ALSO_READ = """layer_types use_sliding_window partial_rotary_factor original_max_position_embeddings n_predict
num_lookahead_tokens block_size dspark_block_size mtp_num_hidden_layers num_mtp_modules index_share_for_mtp_iteration
target_layer_ids eagle_aux_hidden_state_layer_ids dflash_config eagle_config mask_token_id sample_from_anchor
dspark_draft_topk xpress_topc"""
KNOWN_NAMES = frozenset(_FACT) | frozenset(_ALSO_READ.split())
"""Names that some step of resolving reads, and that can be set where the checkpoint's config leaves them out."""

_NO_CODE = frozenset(
    """base_model_name_or_path torch_dtype dtype tie_word_embeddings bos_token_id eos_token_id pad_token_id
    unk_token_id sep_token_id tokenizer_class use_cache cache_implementation gradient_checkpointing initializer_range
    initializer_factor initializer_std router_aux_loss_coef router_z_loss_coef aux_loss_alpha mtp_loss_weight do_sample
    num_beams dropout output_router_logits speculators_version transformers.js_config""".split()
)
"""Where weights and tokens come from, how training and sampling went, and the two that the model section decides."""

_NOWHERE = frozenset(("_name_or_path", "name_or_path", "transformers_version", "auto_map", ""))
_IDENTITY = ("model_type", "architectures")


def fact_named(name: str) -> str:
    """The fact that a config gives under this name, or an empty text.

    >>> fact_named("n_routed_experts")
    'num_experts'
    """
    return _FACT.get(name, "")


def apply_overrides(
    config: Mapping[str, Any], overrides: Mapping[str, Any] | str | None, where: str
) -> FrozenMap:
    """The config with fields replaced at every level, or as the function ``module:function`` returns it.

    A replaced fact is replaced under each of its names that the config uses. A mapping for a nested language model
    replaces fields of that. `where` is the config field that `overrides` come from. Raises `SpecError` for a name that
    neither the config nor graphspec knows, and for a function that cannot be imported or fails.
    """
    if overrides is None:
        return FrozenMap(freeze(config))
    if isinstance(overrides, str):
        return _by_function(config, overrides, where)
    known = KNOWN_NAMES.union(*(level for _, level in levels_of(config)))
    unknown = [name for name in overrides if name not in known]
    if unknown:
        raise SpecError(
            Problem(
                where=f"{where}.{name}",
                found="an unknown field",
                wanted="a field of the checkpoint's config, or a model fact that graphspec reads",
                hint=did_you_mean(name, known),
            )
            for name in unknown
        )
    data: dict[str, Any] = thaw(config)
    inside = [n for n in overrides if _replaces_inside(data, n, overrides[n])]
    for name in inside:
        data[name] = thaw(apply_overrides(data[name], overrides[name], f"{where}.{name}"))
    # Rotary parameters come before their base and kind, which also have fields of their own.
    rest = [name for name in overrides if name not in inside]
    for name in sorted(rest, key=lambda n: n not in SPELLINGS["rope_parameters"]):
        _replace(data, name, thaw(overrides[name]))
    return FrozenMap(freeze(data))


def _replaces_inside(data: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in NESTED and isinstance(value, Mapping) and isinstance(data.get(name), Mapping)


def _replace(data: dict[str, Any], name: str, value: Any) -> None:
    fact = fact_named(name)
    for path, level in levels_of(data):
        assert isinstance(level, dict)
        for spelling in SPELLINGS.get(fact, ()):
            if spelling in level:
                level[spelling] = _with_theta(level[spelling], value, fact)
        if fact in ("rope_theta", "rope_type"):
            _replace_in_rope(level, fact, value)
        if path == "" or name in level or (fact and fact not in _IDENTITY):
            level[name] = _with_theta(level.get(name), value, fact)


def _with_theta(old: Any, value: Any, fact: str) -> Any:
    """The new value. New rotary parameters without a base keep the old ones' base: it is not what was replaced."""
    if fact != "rope_parameters" or not isinstance(old, Mapping):
        return value
    theta, new = main_rope(old).get("rope_theta"), {} if value is None else value
    if theta is None or not isinstance(new, Mapping) or main_rope(new) is not new:
        return value
    return {"rope_theta": theta, **new}


def _replace_in_rope(level: Mapping[str, Any], fact: str, value: Any) -> None:
    for holder in SPELLINGS["rope_parameters"]:
        rope = level.get(holder)
        parts = [rope, *rope.values()] if isinstance(rope, dict) else []
        for part in (p for p in parts if isinstance(p, dict)):
            for name in ("rope_type", "type") if fact == "rope_type" else ("rope_theta",):
                if name in part:
                    part[name] = value


def _by_function(config: Mapping[str, Any], name: str, where: str) -> FrozenMap:
    function = _imported(name, where)
    try:
        made = function(thaw(config))
    except Exception as error:
        raise _function_problem(
            where, f"{name}, which raised {type(error).__name__}: {error}", "a config as a mapping"
        ) from error
    if not isinstance(made, Mapping):
        raise _function_problem(
            where,
            f"{name}, which returned {type(made).__name__}",
            "a mapping",
            "return the config that you were given, changed or not",
        )
    wrong = mismatch(made, Mapping[str, JsonValue])
    if wrong:
        raise _function_problem(where, f"{name}, which returned something else", wrong)
    return FrozenMap(freeze(made))


def _imported(name: str, where: str) -> Callable[[dict[str, Any]], Any]:
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise _function_problem(where, repr(name), "module:function, both importable names")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise _function_problem(
            where,
            f"{name}, which cannot be imported: {type(error).__name__}: {error}",
            "an importable function that takes the config as a mapping and returns another",
        ) from error
    if not callable(found):
        raise _function_problem(where, f"{name}, {type(found).__name__}", "a function")
    function: Callable[[dict[str, Any]], Any] = found
    return function


def _function_problem(where: str, found: str, wanted: str, hint: str = "") -> SpecError:
    return SpecError(Problem(where=where, found=found, wanted=wanted, hint=hint))


def uncovered_fields(
    config: Mapping[str, Any], typed: Mapping[str, Any], rope: Mapping[str, Any]
) -> FrozenMap:
    """The fields that can change code and whose value is not that of a fact in `typed`, nested ones among the others.

    Where two levels differ, the inner one has the field's name and the outer one its path. `rope` are the rotary
    parameters in their present form; they replace either form of the config's own.

    >>> uncovered_fields({"n_embd": 8, "window": 4, "dtype": "float16"}, {"hidden_size": 8}, {})
    {'window': 4}
    """
    kept: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    nested = ""
    for path, level in reversed(levels_of(FrozenMap(freeze(config)))):
        for name, value in level.items():
            if name == nested or _changes_no_code(name) or _covered(name, value, typed, rope):
                continue
            if name not in inner:
                kept[name] = _placeless(value)
            elif value is not None and value != inner[name]:
                kept[f"{path or 'top_level'}.{name}"] = _placeless(value)
        inner |= level
        nested = path.rpartition(".")[2]
    scaling = {k: v for k, v in rope.items() if k not in ("rope_type", "rope_theta")}
    return FrozenMap({**kept, "rope_parameters": FrozenMap(scaling)} if scaling else kept)


def _changes_no_code(name: str) -> bool:
    return name in _NO_CODE or name in _NOWHERE or name.endswith(("_dropout", "_pdrop"))


def _covered(name: str, value: Any, typed: Mapping[str, Any], rope: Mapping[str, Any]) -> bool:
    fact = fact_named(name)
    if fact == "rope_parameters" and isinstance(value, Mapping | None):
        return all(rope.get(k) == v for k, v in canonical_rope(value or {}).items())
    if fact in typed:
        return value is None or value == typed[fact]
    return name in rope and value == rope[name]


def _placeless(value: Any) -> Any:
    """The value without locations and versions further down, such as that of a speculators draft's verifier."""
    if isinstance(value, Mapping):
        return FrozenMap({k: _placeless(v) for k, v in value.items() if k not in _NOWHERE})
    return tuple(_placeless(v) for v in value) if isinstance(value, tuple) else value
