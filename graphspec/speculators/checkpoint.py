"""Reading a checkpoint's config for what it says about drafting. Configs are plain mappings of Hugging Face names."""

from collections.abc import Iterator, Mapping
from typing import Any

_NESTED = ("text_config", "transformer_layer_config")
_OWN_GROUPS = ("dflash_config", "eagle_config")
_WHOLE_MODEL = ("ForCausalLM", "ForConditionalGeneration")


def levels(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and the sub-configs that may hold a draft's facts, outermost first."""
    yield config
    for name in (*_OWN_GROUPS, *_NESTED):
        inner = config.get(name)
        if isinstance(inner, Mapping):
            yield inner


def find(config: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that any level states with a value; None when none does."""
    for name in names:
        for level in levels(config):
            if level.get(name) is not None:
                return level[name]
    return None


def find_count(config: Mapping[str, Any], *names: str) -> int | None:
    """The same for a positive integer; a value of another kind counts as not stated."""
    value = find(config, *names)
    return value if type(value) is int and value > 0 else None


def find_layer_ids(config: Mapping[str, Any], *names: str) -> tuple[int, ...]:
    """The same for a list of layer numbers; empty when none is stated."""
    value = find(config, *names)
    if not isinstance(value, list | tuple) or not all(type(v) is int for v in value):
        return ()
    return tuple(value)


def architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Class names that the checkpoint gives for its model."""
    names = config.get("architectures")
    return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list | tuple) else ()


def layer_architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Class names of the decoder layer inside a checkpoint in the speculators format."""
    inner = config.get("transformer_layer_config")
    return architectures(inner) if isinstance(inner, Mapping) else ()


def names_in_architectures(config: Mapping[str, Any], *parts: str) -> bool:
    """True when a class name contains one of `parts`, whatever the case."""
    return any(p.lower() in a.lower() for a in architectures(config) for p in parts)


def model_type(config: Mapping[str, Any]) -> str:
    """The family of the model, without the suffix that multimodal configs give its text part."""
    value = config.get("model_type")
    return value.removesuffix("_text") if isinstance(value, str) else ""


def is_whole_model(config: Mapping[str, Any]) -> bool:
    """True when the class names say a complete language model, which can draft on its own."""
    return any(a.endswith(_WHOLE_MODEL) for a in architectures(config))


def algorithm(config: Mapping[str, Any]) -> str:
    """The method that a checkpoint in the speculators format names for itself, or an empty text."""
    inner = config.get("speculators_config")
    named = inner.get("algorithm") if isinstance(inner, Mapping) else None
    value = config.get("speculators_model_type") or named
    return value if isinstance(value, str) else ""


def trained_depth(config: Mapping[str, Any]) -> int | None:
    """The depth that a checkpoint in the speculators format was made for."""
    inner = config.get("speculators_config")
    proposals = inner.get("proposal_methods") if isinstance(inner, Mapping) else None
    if not isinstance(proposals, list | tuple) or not proposals:
        return None
    first = proposals[0]
    return find_count(first, "speculative_tokens") if isinstance(first, Mapping) else None
