"""`EngineSpec`: the resolved, final contract that every component reads, and the only thing that is hashed."""

from collections.abc import Mapping
from typing import Any

from graphspec.config.cache import CacheConfig
from graphspec.config.compilation import CudagraphMode
from graphspec.config.device import DeviceConfig
from graphspec.config.extras import LoRAConfig, WatermarkConfig
from graphspec.config.kernels import KernelConfig
from graphspec.config.kv_cache import KVCacheConfig, KVCacheDtype
from graphspec.config.model import ModelSpec
from graphspec.config.parallel import ParallelConfig
from graphspec.config.schedule import KSchedule
from graphspec.config.scheduler import SchedulerConfig
from graphspec.config.speculative import HeadQuantization
from graphspec.fields import Stage, config_class, evolve, keyed, unkeyed
from graphspec.frozen import JsonValue
from graphspec.keys.factors import compute_hash, key_text
from graphspec.resolve.decision import ModeDecision
from graphspec.resolve.draft import DraftOverrides
from graphspec.resolve.records import Note
from graphspec.resolve.runner import RunnerDecision
from graphspec.resolve.schedule import ScheduleDecision
from graphspec.resolve.verification import VerificationSpec
from graphspec.speculators.base import SpeculatorConfig

_BLOCKS = "bookkeeping of the block manager on the host; block numbers are replay values"


@config_class
class SpeculativeSpec:
    """Speculative decoding as resolved."""

    method: str = keyed(Stage.COMPILE, doc="Built-in name of the drafting method.")
    custom_method: str | None = keyed(
        Stage.COMPILE, default=None, doc="Registered name, of methods that are not built in."
    )
    num_speculative_tokens: int = keyed(Stage.CAPTURE, minimum=1, doc="Largest depth k of all.")
    schedule: ScheduleDecision = keyed(Stage.CAPTURE, doc="Depth by batch size, asked and granted.")
    speculator: SpeculatorConfig = keyed(
        Stage.COMPILE, doc="The method's declared capabilities, with its own options."
    )
    draft_model: ModelSpec | None = keyed(
        Stage.COMPILE, default=None, doc="The draft's model, or none."
    )
    draft_parallel: ParallelConfig = keyed(
        Stage.COMPILE, default=ParallelConfig(), doc="The draft's parallel groups."
    )
    draft_kernels: KernelConfig = keyed(
        Stage.COMPILE, default=KernelConfig(), doc="The draft's implementations."
    )
    draft_kv_cache_dtype: KVCacheDtype = keyed(
        Stage.COMPILE, default=KVCacheDtype.AUTO, doc="Type of the draft's keys and values."
    )
    draft_cudagraph_mode: CudagraphMode = keyed(
        Stage.CAPTURE,
        default=CudagraphMode.NONE,
        doc="Graph mode of the draft phase: the target's, or NONE where the draft is eager.",
    )
    draft_lm_head_quantization: HeadQuantization | None = keyed(
        Stage.COMPILE, default=None, doc="Quantisation of the drafter's copy of the target's head."
    )
    use_local_argmax_reduction: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether the draft's argmax is taken per device first."
    )
    disable_padded_drafter_batch: bool = keyed(
        Stage.CAPTURE, default=False, doc="Whether the drafter runs on ragged batches."
    )
    verification: VerificationSpec | None = keyed(
        Stage.COMPILE, default=None, doc="How drafts are verified."
    )
    disable_eagle_block_drop: bool = unkeyed(
        default=False, doc="Whether an unproven last block is kept.", reason=_BLOCKS
    )
    disable_lookahead_block_hashes: bool = unkeyed(
        default=False, doc="Whether block hashes leave out what the drafter reads.", reason=_BLOCKS
    )
    draft_overrides: DraftOverrides | None = unkeyed(
        default=None,
        doc="What turns the draft checkpoint's config into the one that runs, for workers that read it themselves.",
        reason="its result is the draft model, which is keyed",
    )
    draft_load_config: Mapping[str, JsonValue] | None = unkeyed(
        default=None, doc="How the draft weights are loaded.", reason="weights are inputs of units"
    )

    def key_factors(self, stage: Stage) -> Mapping[str, Any]:
        """What the method's class adds to the key, k among it where its graphs bake k in."""
        return dict(self.speculator.hash_factors(stage, self.num_speculative_tokens))


@config_class
class EngineSpec:
    """The contract: frozen and final. Build it with ``EngineConfig.resolve()`` or ``graphspec.load(path)``."""

    model: ModelSpec = keyed(Stage.COMPILE, doc="The model.")
    parallel: ParallelConfig = keyed(Stage.COMPILE, doc="Parallel groups.")
    scheduler: SchedulerConfig = keyed(Stage.COMPILE, doc="Limits of one step, as granted.")
    kv_cache: KVCacheConfig = keyed(Stage.COMPILE, doc="The paged cache.")
    kernels: KernelConfig = keyed(Stage.COMPILE, doc="Implementations of attention and experts.")
    runner: RunnerDecision = keyed(Stage.CAPTURE, doc="The model runner, asked and granted.")
    mode: ModeDecision = keyed(Stage.CAPTURE, doc="Graph mode, asked and granted.")
    speculative: SpeculativeSpec | None = keyed(Stage.COMPILE, doc="Drafting, or none.")
    lora: LoRAConfig | None = keyed(Stage.COMPILE, doc="Adapters, or none.")
    watermark: WatermarkConfig | None = keyed(Stage.CAPTURE, doc="Watermarked sampling, or none.")
    device: DeviceConfig = keyed(Stage.COMPILE, doc="The device to compile for.")
    program: str = keyed(Stage.COMPILE, doc="Import name of the engine's program factory.")
    hysteresis: bool = keyed(
        Stage.CAPTURE,
        default=False,
        doc="Whether each depth has a captured size more on either side of its batch sizes.",
    )
    cache: CacheConfig = unkeyed(
        default=CacheConfig(),
        doc="The cache of compiled units.",
        reason="where compiled code is kept; nothing of it changes that code",
    )
    notes: tuple[Note, ...] = unkeyed(
        default=(),
        doc="What is valid and still worth knowing: defaults taken, limits lowered.",
        reason="explanation only",
    )

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
    def _speculator(self) -> SpeculatorConfig:
        return self.speculative.speculator if self.speculative else SpeculatorConfig()

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
        return self._speculator.num_lookahead_tokens(self.num_speculative_tokens)

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        """Prompt tokens past a chunk's end that the drafter reads. A chunk leaves none, or at least as many."""
        return self._speculator.num_prefill_lookahead_tokens(self.num_speculative_tokens)

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its hash also covers, so that a hit proves what the drafter reads there.

        0 without prefix caching, without a block drop, when switched off, and with a KV connector, which keeps the
        hashes that other engines know. Every engine that shares the cache must agree.
        """
        if self.speculative is None or self.speculative.disable_lookahead_block_hashes:
            return 0
        if not self.kv_cache.enable_prefix_caching or self.kv_cache.connector is not None:
            return 0
        return self.num_prefill_lookahead_tokens if self.use_eagle_block_drop else 0

    @property
    def needs_eagle_block_drop(self) -> bool:
        """Whether the last block of a matched prefix is unproven for the drafter."""
        return self._speculator.needs_eagle_block_drop()

    @property
    def use_eagle_block_drop(self) -> bool:
        """Whether the block manager recomputes that block."""
        off = self.speculative is not None and self.speculative.disable_eagle_block_drop
        return self.needs_eagle_block_drop and not off

    @property
    def uses_target_hidden_states(self) -> bool:
        """Whether the target's step also returns its last hidden states."""
        return self._speculator.uses_target_hidden_states

    @property
    def uses_aux_hidden_states(self) -> bool:
        """Whether the target's step also returns outputs of intermediate layers."""
        return self._speculator.uses_aux_hidden_states

    @property
    def aux_hidden_state_layer_ids(self) -> tuple[int, ...]:
        """Which intermediate layers; empty: the engine's choice, or none."""
        return self._speculator.aux_layer_ids

    @property
    def uses_draft_kv_cache(self) -> bool:
        """Whether the drafter keeps keys and values of its own."""
        return self._speculator.uses_draft_kv_cache

    @property
    def drafts_in_trees(self) -> bool:
        """Whether the drafts that a step verifies may form trees, of at most k nodes each."""
        return self._speculator.drafts_in_trees

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        """Token slots that drafting adds to each request's part of the target's batch."""
        return self._speculator.max_num_new_slots_for_drafting(self.num_speculative_tokens)

    @property
    def max_num_draft_seqs(self) -> int:
        """Most requests of one draft pass."""
        held = self._speculator.max_num_draft_seqs(
            self.scheduler.max_num_batched_tokens, self.num_speculative_tokens
        )
        most = self.scheduler.max_num_seqs
        return most if held is None else min(most, held)

    @property
    def max_draft_len(self) -> int:
        """Longest sequence that drafts are made for, in tokens. Beyond it a request runs without drafts."""
        draft = self.speculative.draft_model if self.speculative else None
        return self.model.max_model_len if draft is None else draft.max_model_len

    @property
    def schedule(self) -> KSchedule:
        """Depth for each batch size; 0 everywhere without speculation."""
        if self.speculative:
            return self.speculative.schedule.granted
        return KSchedule(dense=(0,) * (self.scheduler.max_num_seqs + 1))
