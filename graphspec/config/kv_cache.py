"""The kv_cache section: the paged key-value cache."""

from graphspec.fields import Stage, config_class, keyed, unkeyed


@config_class
class KVCacheConfig:
    """Shape of the paged key-value cache of one layer: num_blocks x block_size tokens."""

    block_size: int = keyed(
        Stage.CAPTURE, default=16, minimum=1, maximum=1 << 16, doc="Tokens in one block."
    )
    num_blocks: int = keyed(
        Stage.CAPTURE,
        default=1024,
        minimum=2,
        doc="Blocks of the cache; block 0 takes padding rows.",
    )
    enable_prefix_caching: bool = unkeyed(
        default=True,
        doc="Whether finished blocks are kept and shared between requests with equal prefixes.",
        reason="bookkeeping of the block manager on the host: it changes block numbers, which are replay values",
    )
