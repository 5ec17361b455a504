"""Rules that span sections: what must hold between a resolved spec's limits."""

from graphspec.errors import Problem
from graphspec.resolve.spec import EngineSpec


def check_spec(spec: EngineSpec) -> list[Problem]:
    """Every rule that `spec` breaks."""
    problems = []
    schedule = spec.schedule
    widest, requests = max(
        (b * (1 + schedule.k_for(b)), b) for b in range(1, schedule.max_num_seqs + 1)
    )
    budget = spec.scheduler.max_num_batched_tokens
    if widest > budget:
        problems.append(
            Problem(
                where="scheduler.max_num_batched_tokens",
                found=str(budget),
                wanted=f"at least {widest}: a verify step of {requests} requests with "
                f"{schedule.k_for(requests)} drafts each",
                hint="raise it, or lower scheduler.max_num_seqs or the draft depth for large batches",
            )
        )
    capacity = (spec.kv_cache.num_blocks - 1) * spec.kv_cache.block_size
    if capacity < spec.model.max_model_len:
        problems.append(
            Problem(
                where="kv_cache.num_blocks",
                found=f"{spec.kv_cache.num_blocks} blocks, which hold {capacity} tokens beside block 0",
                wanted=f"room for one sequence of model.max_model_len ({spec.model.max_model_len}) tokens",
                hint="raise kv_cache.num_blocks, or lower model.max_model_len",
            )
        )
    return problems
