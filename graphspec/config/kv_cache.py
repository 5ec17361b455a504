"""The kv_cache section: the paged key-value cache, and the connector that shares it."""

import enum

from graphspec.fields import Stage, config_class, keyed, unkeyed


class KVCacheDtype(enum.Enum):
    """Type of stored keys and values; `auto` is the model's own type."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    FP8_INC = "fp8_inc"
    INT8 = "int8"
    NVFP4 = "nvfp4"


@config_class
class KVConnectorConfig:
    """A connector that moves blocks between engines."""

    name: str = unkeyed(doc="Name of the connector.", reason="moves blocks outside of every graph")
    layerwise: bool = keyed(
        Stage.CAPTURE,
        default=False,
        doc="Whether it works between layers, so that no graph may span them.",
    )


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
        maximum=1 << 32,
        doc="Blocks of the cache; block 0 takes padding rows.",
    )
    dtype: KVCacheDtype = keyed(
        Stage.COMPILE, default=KVCacheDtype.AUTO, doc="Type of stored keys and values."
    )
    enable_prefix_caching: bool = unkeyed(
        default=True,
        doc="Whether finished blocks are kept and shared between requests with equal prefixes.",
        reason="bookkeeping of the block manager on the host: it changes block numbers, which are replay values",
    )
    connector: KVConnectorConfig | None = keyed(
        Stage.CAPTURE, default=None, doc="Connector that shares blocks with other engines, or none."
    )
