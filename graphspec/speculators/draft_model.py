"""Drafting by a standalone model: token by token, or all at once (PARD, arXiv 2504.18583)."""

from collections.abc import Sequence
from typing import ClassVar, Self

from graphspec.fields import Stage, config_class, keyed
from graphspec.speculators.base import DraftModelSpeculatorConfig, DraftPhase, Setup


@config_class
class StandaloneARSpeculatorConfig(DraftModelSpeculatorConfig):
    """A complete small model with the target's vocabulary, or one that is mapped to it."""

    base_method: ClassVar[str | None] = "draft_model"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE
    speculator_class: ClassVar[str | None] = (
        "graphspec.engine.drafters.draft_model.DraftModelSpeculator"
    )
    draft_has_own_vocab: ClassVar[bool] = True
    # An independent model keeps the positions that it was trained for.
    shares_target_positions: ClassVar[bool] = False

    parallel_drafting: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether all k drafts come from one pass (PARD)."
    )

    @property
    def draft_phase(self) -> DraftPhase:
        """One pass under parallel drafting, a loop otherwise."""
        return DraftPhase.PARALLEL if self.parallel_drafting else self.usual_draft_phase

    @property
    def bakes_k_into_graphs(self) -> bool:
        """One pass over k masked positions has k in its shapes."""
        return self.parallel_drafting

    def max_num_new_slots_for_drafting(self, k: int) -> int:
        """PARD does not shift its input, so it adds k positions; token by token, one unsliced token stays."""
        return k if self.parallel_drafting else 1

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """Token by token, and in parallel."""
        return [("", cls()), ("parallel", cls(parallel_drafting=True))]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Whether to draft in parallel."""
        return cls(parallel_drafting=bool(setup.section.parallel_drafting))
