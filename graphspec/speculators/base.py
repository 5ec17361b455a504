"""`SpeculatorConfig`: what a drafting method declares of itself, and every consumer reads."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class

Checkpoint = Mapping[str, Any]
"""A checkpoint's config: plain data by Hugging Face names."""


@attrs.frozen(kw_only=True)
class Setup:
    """What `SpeculatorConfig.configure` is given: all that is known when a method's own options are settled.

    `draft` is the draft's final config, after rewriting; None for methods without a draft model.
    """

    section: SpeculativeConfig
    target: Checkpoint
    draft: Checkpoint | None
    num_speculative_tokens: int


class DraftPhase(enum.Enum):
    """How drafts come about on the device after a target's step: what a graph of the draft phase would hold."""

    NONE = "none"
    """Nothing on the device, or nothing of a fixed shape: drafts are looked up, or there are none."""
    AUTOREGRESSIVE = "autoregressive"
    """A loop of k passes. The first also reads what the target kept; each other one is over one token a request."""
    PARALLEL = "parallel"
    """One pass that gives all k drafts."""


@config_class
class SpeculatorConfig:
    """A drafting method's capabilities. The defaults describe a drafter without checkpoint and special needs.

    ClassVars are facts of the method; methods that take k, and properties, are facts of one configuration; class
    methods are the hooks that resolution calls, in the order in which they stand here. A subclass states what differs
    and may add fields of its own, each with a key policy.
    """

    base_method: ClassVar[str | None] = None
    """Built-in method that this one is, or builds on."""
    speculator_class: ClassVar[str | None] = None
    """Dotted name of the drafter's implementation, imported on first use."""
    supported_options: ClassVar[frozenset[str]] = frozenset()
    """Guarded options of the speculative section that the method accepts."""
    uses_target_hidden_states: ClassVar[bool] = False
    """The drafter reads hidden states of the target's last step."""
    uses_separate_workspace_lane: ClassVar[bool] = False
    """The drafter needs an extra workspace beside the target's."""
    prefer_dense_token_history: ClassVar[bool] = False
    """The drafter reads token ids of whole requests."""
    proposes_draft_tokens: ClassVar[bool] = True
    """False for methods that only export something, such as hidden states."""
    adaptive_verification_uses_draft_logits: ClassVar[bool] = True
    """Adaptive verification takes its confidence from draft logits."""
    draft_has_own_vocab: ClassVar[bool] = False
    """The drafter's token ids need not be the target's."""
    supports_watermarking: ClassVar[bool] = False
    """Drafting works with watermarked sampling."""
    supports_pcp: ClassVar[bool] = False
    """Drafting works with prefill context parallelism."""

    uses_aux_hidden_states: ClassVar[bool] = False
    """The target also returns the outputs of intermediate layers."""
    has_draft_model: ClassVar[bool] = False
    """The method runs a model of its own, from a checkpoint."""
    trims_depth: ClassVar[bool] = False
    """The drafter itself proposes fewer drafts when asked, so a runner need not trim them."""
    runners: ClassVar[frozenset[str]] = frozenset({"v1", "v2"})
    """Generations of model runners that have the method."""
    trusted_declarations: ClassVar[frozenset[str]] = frozenset()
    """Other methods that a checkpoint of this one may declare."""
    owned_prefixes: ClassVar[tuple[str, ...]] = ()
    """Prefixes of option names that only this method reads."""
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    """How drafts are made; `draft_phase` has what one configuration does. Every built-in method states it."""

    @property
    def bakes_k_into_graphs(self) -> bool:
        """Whether compiled shapes contain k, so that k is a COMPILE factor and not only a CAPTURE one."""
        return False

    @property
    def draft_phase(self) -> DraftPhase:
        """How this configuration makes drafts on the device."""
        return self.usual_draft_phase

    def draft_tokens_per_request(self, k: int) -> int:
        """Tokens of each request in one pass of the draft phase at depth k; 0 where there is no pass."""
        if k == 0 or self.draft_phase is DraftPhase.NONE:
            return 0
        return 1 if self.draft_phase is DraftPhase.AUTOREGRESSIVE else k

    def draft_passes(self, k: int) -> int:
        """Passes of a fixed shape that the draft phase has at depth k: what one graph of it holds.

        The first pass of a loop also reads what the target kept, a different number of rows each time. So a loop has k - 1.
        """
        if k == 0 or self.draft_phase is DraftPhase.NONE:
            return 0
        return k - 1 if self.draft_phase is DraftPhase.AUTOREGRESSIVE else 1

    @property
    def drafts_in_trees(self) -> bool:
        """Whether drafts of a request may form a tree. Each of the k drafts is a node and takes a slot; a step of less depth
        verifies the first ones, so a drafter names each parent before its children and the likeliest nodes first."""
        return False

    @property
    def implementation(self) -> str | None:
        """Dotted name of the drafter that the engine imports."""
        return self.speculator_class

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs the drafter reads; empty: the engine's choice, or none."""
        return ()

    @property
    def uses_draft_kv_cache(self) -> bool:
        """Whether the drafter keeps keys and values of its own."""
        return self.uses_target_hidden_states or self.has_draft_model

    def num_lookahead_tokens(self, k: int) -> int:
        """KV slots to reserve beyond the scheduled tokens of a request."""
        return 0

    def num_prefill_lookahead_tokens(self, k: int) -> int:
        """Prompt tokens past a chunk's end that the drafter reads."""
        return 1 if self.uses_target_hidden_states else 0

    def max_num_new_slots_for_drafting(self, k: int) -> int:
        """Token slots that drafting adds to a request's part of the batch."""
        return 0

    def needs_eagle_block_drop(self) -> bool:
        """The last block of a matched prefix must be recomputed for the drafter's sake."""
        return False

    def max_num_draft_seqs(self, max_num_batched_tokens: int, k: int) -> int | None:
        """Most requests that one draft pass holds; None: as many as the target's step."""
        return None

    @classmethod
    def default_model(cls, section: SpeculativeConfig, target: ModelConfig) -> str | None:
        """Where the draft lies when the user names no model; None: the method has no default."""
        return None

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """True when a checkpoint's config, never its path, says that it is of this method."""
        return False

    @classmethod
    def matches(cls, path: str, config: Checkpoint) -> bool:
        """True when a draft without a declaration is taken for this method's. `path` is in lower case."""
        return False

    @classmethod
    def specialize(cls, config: Checkpoint | None, section: SpeculativeConfig) -> type[Self]:
        """The class that fits the checkpoint best: this one, or a subclass."""
        return cls

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """The draft's config as the method runs it, from what its checkpoint says."""
        return config

    @classmethod
    def default_depth(cls, section: SpeculativeConfig, config: Checkpoint | None) -> int | None:
        """k when the user gives none; None: it must be given."""
        return None

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """What makes this draft unfit for the target. Paths are below ``speculative``."""
        return []

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """The method's own options, settled. Raises `SpecError` with paths below ``speculative``."""
        return cls()

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """Instances that differ in what they declare, each with what tells it apart: for tables and tests."""
        return [("", cls())]

    def hash_factors(self, stage: Stage, k: int) -> Mapping[str, Any]:
        """Factors beyond the declared fields. The base adds k at COMPILE where graphs bake it in."""
        if stage is Stage.COMPILE and self.bakes_k_into_graphs:
            return {"num_speculative_tokens": k}
        return {}


@config_class
class DraftModelSpeculatorConfig(SpeculatorConfig):
    """A method that runs a model from a checkpoint, beside the target or on its hidden states."""

    shares_target_positions: ClassVar[bool] = True
    """The draft sees the target's positions, so its rotary tables must reach as far as the target's."""
    trims_depth: ClassVar[bool] = True
    has_draft_model: ClassVar[bool] = True
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE

    def num_lookahead_tokens(self, k: int) -> int:
        """One slot for each draft."""
        return k
