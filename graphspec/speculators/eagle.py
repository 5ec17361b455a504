"""EAGLE (arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840) and P-EAGLE: a small head on the target's hidden states."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import FrozenMap
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint, DraftModelSpeculatorConfig, DraftPhase, Setup
from graphspec.speculators.mtp_families import as_draft

_AUX = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def hidden_size_problems(config: Checkpoint, target: Checkpoint) -> list[Problem]:
    """A head must have been trained on hidden states as wide as the target's."""
    trained = checkpoint.find_count(config, "target_hidden_size", "hidden_size")
    width = checkpoint.find_count(target, "hidden_size")
    if trained is None or width is None or trained == width:
        return []
    return [
        Problem(
            where="model",
            found=f"a head for hidden states of width {trained}",
            wanted=f"one for the target's hidden_size ({width})",
            hint="this head was trained on another target",
        )
    ]


def layer_id_problems(ids: tuple[int, ...], target: Checkpoint) -> list[Problem]:
    """Intermediate layers must be the target's."""
    layers = checkpoint.find_count(target, "num_hidden_layers")
    outside = [i for i in ids if layers is not None and not 0 <= i <= layers]
    if not outside:
        return []
    return [
        Problem(
            where="model",
            found=f"a head that reads target layers {outside}",
            wanted=f"layers of a target with {layers}",
            hint="this head was trained on another target",
        )
    ]


@config_class
class EagleSpeculatorConfig(DraftModelSpeculatorConfig):
    """One decoder layer that reads the target's last hidden state and the next token."""

    base_method: ClassVar[str | None] = "eagle"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.eagle.EagleSpeculator"
    supported_options: ClassVar[frozenset[str]] = frozenset({"draft_lm_head_quantization"})
    uses_target_hidden_states: ClassVar[bool] = True
    supports_watermarking: ClassVar[bool] = True
    # DeepSeek's EAGLE heads carry the family's MTP type.
    trusted_declarations: ClassVar[frozenset[str]] = frozenset({"mtp"})

    def needs_eagle_block_drop(self) -> bool:
        """Draft KV at a position is made from the token after it, so a matched prefix's last block is unproven."""
        return True

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """A class name with Eagle, or the algorithm's name, and nothing of EAGLE-3."""
        named = checkpoint.names_in_architectures(config, "eagle")
        own = named or checkpoint.model_type(config) == "eagle"
        return (
            own or checkpoint.algorithm(config) == "eagle"
        ) and not Eagle3SpeculatorConfig.declares(config)

    @classmethod
    def matches(cls, path: str, config: Checkpoint) -> bool:
        """Heads of the first generation have plain class names; only their folders say what they are."""
        return "eagle-" in path

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """The head's class name: Eagle in front of the layer's, unless the checkpoint names a head's class.

        A head in the shape of a family's MTP module is rewritten as one first.
        """
        return wrap_head(as_draft(config), "Eagle", "eagle")

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """Width and layers must be the target's."""
        ids = checkpoint.find_layer_ids(config, *_AUX)
        return [*hidden_size_problems(config, target), *layer_id_problems(ids, target)]


def wrap_head(config: Checkpoint, prefix: str, model_type: str) -> Checkpoint:
    """The config of a head by its own model type, with `prefix` before class names that do not name a head yet.

    A checkpoint in the speculators format names its algorithm and, inside, the class of its layer. One that was
    wrapped before stays as it is.
    """
    if checkpoint.model_type(config) == model_type:
        return config
    names = checkpoint.architectures(config)
    algorithm = checkpoint.algorithm(config)
    if algorithm:
        prefix, model_type = algorithm.capitalize(), "speculators"
    wrapped = [n if prefix.lower() in n.lower() else f"{prefix}{n}" for n in names]
    changes: Mapping[str, Any] = {"model_type": model_type, "architectures": tuple(wrapped)}
    return FrozenMap({**config, **changes})


@config_class
class Eagle3SpeculatorConfig(EagleSpeculatorConfig):
    """A head that fuses hidden states of several target layers; P-EAGLE drafts all tokens in one pass."""

    base_method: ClassVar[str | None] = "eagle3"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.eagle.Eagle3Speculator"
    uses_aux_hidden_states: ClassVar[bool] = True
    trusted_declarations: ClassVar[frozenset[str]] = frozenset()

    parallel_drafting: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether all k drafts come from one pass (P-EAGLE)."
    )
    aux_hidden_state_layer_ids: tuple[int, ...] = keyed(
        Stage.COMPILE, default=(), doc="Target layers that the head fuses; empty: the engine's."
    )

    @property
    def draft_phase(self) -> DraftPhase:
        """One pass under parallel drafting, a loop otherwise."""
        return DraftPhase.PARALLEL if self.parallel_drafting else self.usual_draft_phase

    @property
    def bakes_k_into_graphs(self) -> bool:
        """One pass over k masked positions has k in its shapes."""
        return self.parallel_drafting

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """Target layers that the head fuses."""
        return self.aux_hidden_state_layer_ids

    def max_num_new_slots_for_drafting(self, k: int) -> int:
        """P-EAGLE reuses the query that is there and adds the masked ones."""
        return k - 1 if self.parallel_drafting else 0

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """A class or algorithm name, the fused layers' settings, or a draft vocabulary of its own.

        Some EAGLE-3 heads name a plain layer class; heads of the first generation read one layer and never have a
        draft vocabulary.
        """
        if checkpoint.names_in_architectures(config, "dflash", "dspark", "mtp", "medusa"):
            return False
        algorithm = checkpoint.algorithm(config)
        if algorithm:
            return algorithm in ("eagle3", "peagle")
        return (
            checkpoint.names_in_architectures(config, "eagle3", "peagle")
            or isinstance(config.get("eagle_config"), Mapping)
            or _fused_layers(config) > 1
            or ("draft_vocab_size" in config and bool(checkpoint.architectures(config)))
        )

    @classmethod
    def matches(cls, path: str, config: Checkpoint) -> bool:
        """By the folder's name."""
        return "eagle3" in path

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """The head's class name: Eagle3 in front of the layer's, unless the checkpoint names a head's class."""
        if checkpoint.names_in_architectures(config, "eagle"):
            return wrap_head(config, "Eagle", "eagle")
        return wrap_head(config, "Eagle3", "eagle")

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """Token by token, and in parallel."""
        return [("", cls()), ("parallel", cls(parallel_drafting=True))]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Parallel as asked, else as the checkpoint says; the fused layers are the checkpoint's."""
        draft = setup.draft or {}
        asked = setup.section.parallel_drafting
        return cls(
            parallel_drafting=is_parallel_head(draft) if asked is None else asked,
            aux_hidden_state_layer_ids=checkpoint.find_layer_ids(draft, *_AUX),
        )


def _fused_layers(config: Checkpoint) -> int:
    """Target layers whose states are side by side in the head's input, as far as the checkpoint says."""
    stated = checkpoint.find_count(config, "num_aux_hidden_states") or 0
    return max(stated, len(checkpoint.find_layer_ids(config, _AUX[0])))


def is_parallel_head(config: Checkpoint) -> bool:
    """True when a checkpoint says that it was trained to draft all tokens in one pass."""
    return (
        checkpoint.names_in_architectures(config, "peagle")
        or checkpoint.algorithm(config) == "peagle"
    )
