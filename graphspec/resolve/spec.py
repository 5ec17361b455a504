"""`EngineSpec`: the resolved, final contract that every component reads, and the only thing that is hashed."""

from collections.abc import Mapping
from typing import Any

from graphspec.config.compilation import CudagraphMode, Runner
from graphspec.config.device import DeviceConfig
from graphspec.config.kv_cache import KVCacheConfig
from graphspec.config.model import ModelSpec
from graphspec.config.parallel import ParallelConfig
from graphspec.config.schedule import KSchedule
from graphspec.config.scheduler import SchedulerConfig
from graphspec.fields import Stage, config_class, evolve, keyed, unkeyed
from graphspec.keys.factors import compute_hash, key_text
from graphspec.speculators.base import SpeculatorConfig


@config_class
class SpeculativeSpec:
    """Speculative decoding as resolved."""

    method: str = keyed(Stage.COMPILE, doc="Name of the drafting method.")
    num_speculative_tokens: int = keyed(Stage.CAPTURE, minimum=1, doc="Largest depth k of all.")
    schedule: KSchedule = keyed(Stage.CAPTURE, doc="Depth k for each batch size.")
    speculator: SpeculatorConfig = keyed(
        Stage.COMPILE, doc="The method's declared capabilities, with its own options."
    )

    def key_factors(self, stage: Stage) -> Mapping[str, Any]:
        """What the method's class adds to the key, k among it where its graphs bake k in."""
        return dict(self.speculator.hash_factors(stage, self.num_speculative_tokens))


@config_class
class ModeDecision:
    """What graph mode was asked for, what is granted, and why the two differ."""

    asked: CudagraphMode = unkeyed(doc="Mode in the config.", reason="only the granted mode acts")
    granted: CudagraphMode = keyed(Stage.CAPTURE, doc="Mode that capture uses.")
    reasons: tuple[str, ...] = unkeyed(
        default=(), doc="One reason code and sentence per downgrade.", reason="explanation only"
    )


@config_class
class EngineSpec:
    """The contract: frozen and final. Build it with ``EngineConfig.resolve()`` or ``graphspec.load(path)``."""

    model: ModelSpec = keyed(Stage.COMPILE, doc="The model.")
    parallel: ParallelConfig = keyed(Stage.COMPILE, doc="Parallel groups.")
    scheduler: SchedulerConfig = keyed(Stage.COMPILE, doc="Limits of one step.")
    kv_cache: KVCacheConfig = keyed(Stage.COMPILE, doc="The paged cache.")
    runner: Runner = keyed(Stage.CAPTURE, doc="Generation of the model runner.")
    mode: ModeDecision = keyed(Stage.CAPTURE, doc="Graph mode, asked and granted.")
    speculative: SpeculativeSpec | None = keyed(Stage.COMPILE, doc="Drafting, or none.")
    device: DeviceConfig = keyed(Stage.COMPILE, doc="The device to compile for.")
    program: str = keyed(Stage.COMPILE, doc="Import name of the engine's program factory.")

    def compute_hash(self, stage: Stage) -> str:
        """The spec's identity for `stage`, 32 hexadecimal digits: equal on every machine, in every process.

        It covers the spec alone; an entry's key adds code, toolchain and device.
        """
        return compute_hash(self, stage)

    def key_text(self, stage: Stage) -> bytes:
        """The canonical bytes behind `compute_hash`."""
        return key_text(self, stage)

    def without_speculation(self) -> "EngineSpec":
        """The same contract with drafting switched off. Units keep their keys; the capture plan is that of k = 0."""
        return evolve(self, speculative=None)

    @property
    def num_speculative_tokens(self) -> int:
        """Largest draft depth, 0 without speculation."""
        return self.speculative.num_speculative_tokens if self.speculative else 0

    @property
    def uniform_decode_query_len(self) -> int:
        """Tokens per request in a verify step of full depth: 1 + k, never derived from the lookahead."""
        return 1 + self.num_speculative_tokens

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots to reserve beyond the scheduled tokens of a request."""
        if self.speculative is None:
            return 0
        return self.speculative.speculator.num_lookahead_tokens(self.num_speculative_tokens)

    @property
    def schedule(self) -> KSchedule:
        """Depth for each batch size; 0 everywhere without speculation."""
        if self.speculative:
            return self.speculative.schedule
        return KSchedule(dense=(0,) * (self.scheduler.max_num_seqs + 1))
