"""`EngineConfig`: the whole config as the user wrote it."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphspec.config.cache import CacheConfig
from graphspec.config.compilation import CompilationConfig
from graphspec.config.device import DeviceConfig
from graphspec.config.extras import LoRAConfig, WatermarkConfig
from graphspec.config.kernels import KernelConfig
from graphspec.config.kv_cache import KVCacheConfig
from graphspec.config.model import ModelConfig
from graphspec.config.parallel import ParallelConfig
from graphspec.config.scheduler import SchedulerConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import Stage, config_class, keyed, unkeyed

if TYPE_CHECKING:
    from graphspec.resolve.spec import EngineSpec


@config_class
class EngineConfig:
    """What the user wrote. Frozen; `resolve` turns it into the contract."""

    model: ModelConfig = keyed(Stage.COMPILE, doc="The model.")
    parallel: ParallelConfig = keyed(
        Stage.COMPILE, default=ParallelConfig(), doc="Parallel groups."
    )
    scheduler: SchedulerConfig = keyed(
        Stage.COMPILE, default=SchedulerConfig(), doc="Limits of one step."
    )
    kv_cache: KVCacheConfig = keyed(Stage.COMPILE, default=KVCacheConfig(), doc="The paged cache.")
    kernels: KernelConfig = keyed(
        Stage.COMPILE, default=KernelConfig(), doc="Implementations of attention and experts."
    )
    compilation: CompilationConfig = keyed(
        Stage.COMPILE, default=CompilationConfig(), doc="What to compile and capture."
    )
    speculative: SpeculativeConfig | None = keyed(
        Stage.COMPILE, default=None, doc="Speculative decoding; none by default."
    )
    lora: LoRAConfig | None = keyed(Stage.COMPILE, default=None, doc="Adapters; none by default.")
    watermark: WatermarkConfig | None = keyed(
        Stage.CAPTURE, default=None, doc="Watermarked sampling; none by default."
    )
    device: DeviceConfig = keyed(Stage.COMPILE, default=DeviceConfig(), doc="The device.")
    cache: CacheConfig = unkeyed(
        default=CacheConfig(),
        doc="The cache of compiled units.",
        reason="where compiled code is kept; nothing of it changes that code",
    )
    program: str = keyed(
        Stage.COMPILE,
        default="graphspec.engine.llama:program",
        doc="Import name module:factory of the engine's program.",
    )

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "EngineConfig":
        """The config that plain data describes. Raises one `SpecError` with every problem; coerces nothing."""
        from graphspec.config.structure import structure

        return structure(mapping, cls)

    def resolve(self) -> "EngineSpec":
        """The contract for this config: infers, derives and checks. Raises `SpecError` with every problem."""
        # The pipeline lies above this module and imports it, so it is bound by name when it is first called.
        spec: EngineSpec = importlib.import_module("graphspec.resolve").resolve(self)
        return spec
