"""The contract of DSpark drafts for Qwen3-Omni: block, shapes, layers and layout are fixed by the training."""

import itertools
from collections.abc import Iterator

from graphspec.errors import Problem
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint
from graphspec.text import show

_SHAPES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def is_omni(target: Checkpoint) -> bool:
    """True when the target is of the Qwen3-Omni family."""
    return checkpoint.model_type(target).startswith("qwen3_omni")


def omni_problems(
    config: Checkpoint, target: Checkpoint, k: int | None, layer_ids: tuple[int, ...]
) -> Iterator[Problem]:
    """Every part of the contract that a draft breaks."""
    block = checkpoint.find_count(config, "block_size", "dspark_block_size")
    if k is not None and block is not None and k != block:
        yield _wrong("num_speculative_tokens", show(k), f"the trained block size ({block})")
    for name in _SHAPES:
        ours, theirs = checkpoint.find_count(config, name), checkpoint.find_count(target, name)
        if ours is not None and theirs is not None and ours != theirs:
            yield _wrong("model", f"a draft with {name} {ours}", f"the target's {theirs}")
    layers = checkpoint.find_count(target, "num_hidden_layers")
    rising = all(a < b for a, b in itertools.pairwise(layer_ids))
    if not layer_ids or not rising or (layers is not None and max(layer_ids) >= layers):
        yield _wrong(
            "model",
            f"target layers {list(layer_ids)}",
            f"at least one, strictly increasing, below {layers}",
        )
    vocab, mask = (
        checkpoint.find_count(config, "vocab_size"),
        checkpoint.find(config, "mask_token_id"),
    )
    if type(mask) is not int or (vocab is not None and not 0 <= mask < vocab):
        yield _wrong("model", f"mask_token_id {mask}", f"a token of the vocabulary ({vocab})")
    rope = checkpoint.find(config, "rope_parameters", "rope_scaling")
    if rope is not None and "mrope_section" in rope:
        yield _wrong("model", "rotary positions of several dimensions", "one dimension")
    rank, head = checkpoint.find(config, "markov_rank"), checkpoint.find(config, "markov_head_type")
    if type(rank) is not int or rank <= 0 or head not in (None, "vanilla"):
        yield _wrong("model", f"markov_rank {rank}, {head} head", "a rank above 0, the plain head")
    if checkpoint.find(config, "sample_from_anchor") is False:
        yield _wrong("model", "a fill-in layout", "sampling from the anchor")


def _wrong(where: str, found: str, wanted: str) -> Problem:
    return Problem(
        where=where,
        found=f"{found} for a Qwen3-Omni target",
        wanted=wanted,
        hint="DSpark drafts for this family run only as they were trained",
    )
