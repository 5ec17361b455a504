"""Rules that span sections: what must hold between a resolved spec's limits."""

from collections.abc import Iterator

from graphspec.errors import Problem
from graphspec.resolve.spec import EngineSpec


def spec_problems(spec: EngineSpec) -> Iterator[Problem]:
    """Every rule that `spec` breaks."""
    capacity = (spec.kv_cache.num_blocks - 1) * spec.kv_cache.block_size
    if capacity < spec.model.max_model_len:
        yield Problem(
            where="kv_cache.num_blocks",
            found=f"{spec.kv_cache.num_blocks} blocks, which hold {capacity} tokens beside block 0",
            wanted=f"room for one sequence of model.max_model_len ({spec.model.max_model_len}) tokens",
            hint="raise kv_cache.num_blocks, or lower model.max_model_len",
        )
    size = spec.parallel.tensor_parallel_size
    if spec.model.num_attention_heads % size:
        yield Problem(
            where="parallel.tensor_parallel_size",
            found=str(size),
            wanted=f"a divisor of the model's {spec.model.num_attention_heads} attention heads",
        )
    if spec.parallel.enable_expert_parallel and not spec.model.is_moe:
        yield Problem(
            where="parallel.enable_expert_parallel",
            found="true for a model without experts",
            wanted="false",
        )


def program_problems(name: str) -> Iterator[Problem]:
    """A program is named as module:factory."""
    module, _, factory = name.partition(":")
    if not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        yield Problem(
            where="program",
            found=repr(name),
            wanted="module:factory, both importable names",
            hint="for the reference engine: graphspec.engine.llama:program",
        )
