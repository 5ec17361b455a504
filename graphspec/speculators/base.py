"""`SpeculatorConfig`: what a drafting method declares of itself, and every consumer reads."""

from collections.abc import Mapping
from typing import Any, ClassVar

from graphspec.fields import Stage, config_class


@config_class
class SpeculatorConfig:
    """A drafting method's capabilities. The defaults describe a drafter without checkpoint and special needs.

    ClassVars are facts of the method; methods that take k are facts of one configuration. A subclass states what
    differs and may add fields of its own, each with a key policy.
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
    bakes_k_into_graphs: ClassVar[bool] = False
    """Compiled shapes contain k, so k is a COMPILE factor and not only a CAPTURE one."""

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

    def hash_factors(self, stage: Stage, k: int) -> Mapping[str, Any]:
        """Factors beyond the declared fields. The base adds k at COMPILE for methods that bake it in."""
        if stage is Stage.COMPILE and self.bakes_k_into_graphs:
            return {"num_speculative_tokens": k}
        return {}
