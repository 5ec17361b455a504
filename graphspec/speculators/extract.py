"""Export of hidden states: the target's intermediate layers through the drafting interface, without drafts."""

from typing import ClassVar, Self

from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import FrozenMap
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint, DraftPhase, Setup, SpeculatorConfig

_LAYERS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


@config_class
class ExtractHiddenStatesSpeculatorConfig(SpeculatorConfig):
    """Writes hidden states of chosen layers into a cache of their own."""

    base_method: ClassVar[str | None] = "extract_hidden_states"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    speculator_class: ClassVar[str | None] = (
        "graphspec.engine.drafters.extract.ExtractHiddenStatesSpeculator"
    )
    proposes_draft_tokens: ClassVar[bool] = False
    uses_aux_hidden_states: ClassVar[bool] = True

    aux_hidden_state_layer_ids: tuple[int, ...] = keyed(
        Stage.COMPILE, default=(), doc="Target layers to export; empty: the engine's choice."
    )

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """Target layers to export."""
        return self.aux_hidden_state_layer_ids

    @property
    def uses_draft_kv_cache(self) -> bool:
        """The states lie in a cache with the draft cache's layout."""
        return True

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """A copy of the target's config under the exporter's class name."""
        return FrozenMap({**config, "architectures": ("ExtractHiddenStatesModel",)})

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Layers from the target's config, where model.hf_overrides can set them."""
        return cls(aux_hidden_state_layer_ids=checkpoint.find_layer_ids(setup.target, *_LAYERS))
