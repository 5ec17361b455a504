"""The parallel section: how many devices one replica, and the deployment, spread over."""

import enum

from graphspec.fields import Stage, config_class, keyed, unkeyed

_HOST = "starts and loads processes on the host; no graph contains it"


class All2AllBackend(enum.Enum):
    """How expert-parallel ranks exchange tokens."""

    ALLGATHER_REDUCESCATTER = "allgather_reducescatter"
    DEEPEP_HIGH_THROUGHPUT = "deepep_high_throughput"
    DEEPEP_LOW_LATENCY = "deepep_low_latency"
    MOONEP = "moonep"


@config_class
class ParallelConfig:
    """Sizes of the parallel groups."""

    tensor_parallel_size: int = keyed(
        Stage.COMPILE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Devices that share one layer's weights.",
    )
    pipeline_parallel_size: int = keyed(
        Stage.COMPILE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Groups of layers on devices of their own.",
    )
    data_parallel_size: int = keyed(
        Stage.CAPTURE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Replicas that step together. Ranks could choose different k, so it clears the dynamic table.",
    )
    prefill_context_parallel_size: int = keyed(
        Stage.COMPILE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Devices that share the tokens of one prompt.",
    )
    decode_context_parallel_size: int = keyed(
        Stage.COMPILE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Devices that share the KV cache of one request.",
    )
    enable_expert_parallel: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether experts, not their weights, are spread."
    )
    all2all_backend: All2AllBackend | None = keyed(
        Stage.COMPILE, default=None, doc="Token exchange of expert parallelism; none: the engine's."
    )
    disable_custom_all_reduce: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether reductions use the library's kernel only."
    )
    distributed_executor_backend: str | None = unkeyed(
        default=None, doc="How worker processes are started, such as mp or ray.", reason=_HOST
    )
    max_parallel_loading_workers: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1 << 16,
        doc="Workers that load weights at a time.",
        reason=_HOST,
    )
    ray_workers_use_nsight: bool = unkeyed(
        default=False, doc="Whether Ray workers run under a profiler.", reason=_HOST
    )
