"""Sections that few configs have: LoRA adapters and watermarked sampling."""

import enum

from graphspec.fields import Stage, config_class, keyed, unkeyed


@config_class
class LoRAConfig:
    """Adapters that share the base model's steps."""

    max_loras: int = keyed(
        Stage.COMPILE,
        default=1,
        minimum=1,
        maximum=1 << 16,
        doc="Most different adapters in one step.",
    )
    max_lora_rank: int = keyed(
        Stage.COMPILE, default=16, minimum=1, maximum=1 << 16, doc="Largest rank of an adapter."
    )


class WatermarkAlgorithm(enum.Enum):
    """How sampling is biased by the key. Only the one with two keys keeps its mark under speculation."""

    GUMBEL = "gumbel"
    DUAL_KEY_GUMBEL = "dual_key_gumbel"


@config_class
class WatermarkConfig:
    """Watermarked sampling."""

    key: int = unkeyed(
        minimum=0,
        maximum=(1 << 64) - 1,
        doc="Secret of the mark.",
        reason="a replay value, and a secret besides",
        secret=True,
    )
    algorithm: WatermarkAlgorithm = keyed(
        Stage.CAPTURE, default=WatermarkAlgorithm.GUMBEL, doc="How sampling is biased."
    )
