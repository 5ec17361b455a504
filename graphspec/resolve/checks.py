"""Rules that span sections: what must hold between the target model and the rest, with or without drafting.

Each takes the resolved model and the config, or what could be read of one, and yields what is wrong.
"""

from collections.abc import Callable, Iterator
from typing import Any

from graphspec.config.model import ModelSpec
from graphspec.errors import Problem

Check = Callable[[ModelSpec, Any], Iterator[Problem]]


def _blocks(model: ModelSpec, config: Any) -> Iterator[Problem]:
    blocks, size = config.kv_cache.num_blocks, config.kv_cache.block_size
    capacity, length = (blocks - 1) * size, config.model.max_model_len or model.max_model_len
    if capacity < length:
        yield Problem(
            where="kv_cache.num_blocks",
            found=f"{blocks} blocks, which hold {capacity} tokens beside block 0",
            wanted=f"room for one sequence of model.max_model_len ({length}) tokens",
            hint="raise kv_cache.num_blocks, or lower model.max_model_len",
        )


def _heads(model: ModelSpec, config: Any) -> Iterator[Problem]:
    size = config.parallel.tensor_parallel_size
    if model.num_attention_heads % size:
        yield Problem(
            where="parallel.tensor_parallel_size",
            found=str(size),
            wanted=f"a divisor of the model's {model.num_attention_heads} attention heads",
        )


def _experts(model: ModelSpec, config: Any) -> Iterator[Problem]:
    if config.parallel.enable_expert_parallel and not model.is_moe:
        yield Problem(
            where="parallel.enable_expert_parallel",
            found="true for a model without experts",
            wanted="false",
        )


MODEL_CHECKS: tuple[Check, ...] = (_blocks, _heads, _experts)
"""All rules between the target model and the rest."""


def program_problems(config: Any) -> Iterator[Problem]:
    """A program is named as module:factory."""
    module, _, factory = config.program.partition(":")
    if not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        yield Problem(
            where="program",
            found=repr(config.program),
            wanted="module:factory, both importable names",
            hint="for the reference engine: graphspec.engine.llama:program",
        )
