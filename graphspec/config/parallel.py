"""The parallel section: how many devices one replica, and the deployment, spread over."""

from graphspec.fields import Stage, config_class, keyed


@config_class
class ParallelConfig:
    """Sizes of the parallel groups."""

    tensor_parallel_size: int = keyed(
        Stage.COMPILE, default=1, minimum=1, doc="Devices that share one layer's weights."
    )
    data_parallel_size: int = keyed(
        Stage.CAPTURE,
        default=1,
        minimum=1,
        doc="Replicas that step together. Ranks could choose different k, so it limits the dynamic table.",
    )
