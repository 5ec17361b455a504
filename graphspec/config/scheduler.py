"""The scheduler section: how much one step may hold."""

from graphspec.fields import Stage, config_class, keyed, unkeyed


@config_class
class SchedulerConfig:
    """Limits of one step of continuous batching."""

    max_num_seqs: int = keyed(
        Stage.CAPTURE, default=64, minimum=1, maximum=65536, doc="Most requests in one step."
    )
    max_num_batched_tokens: int = keyed(
        Stage.COMPILE,
        default=2048,
        minimum=1,
        maximum=1 << 24,
        doc="Most tokens in one step, of all requests together; upper bound of every unit's token dimension.",
    )
    async_scheduling: bool = unkeyed(
        default=False,
        doc="Whether a step is scheduled while the one before still runs.",
        reason="the order of work on the host; the same graphs run",
    )
