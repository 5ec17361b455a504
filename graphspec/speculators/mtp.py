"""Multi-token prediction: draft modules that ship inside the target's checkpoint (arXiv 2412.19437)."""

from collections.abc import Sequence
from typing import ClassVar, Self

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import FrozenMap
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint, DraftModelSpeculatorConfig, DraftPhase, Setup
from graphspec.speculators.mtp_families import as_draft, is_mtp

_SHARE = "index_share_for_mtp_iteration"


@config_class
class MTPSpeculatorConfig(DraftModelSpeculatorConfig):
    """One module that is run k times."""

    base_method: ClassVar[str | None] = "mtp"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.mtp.MTPSpeculator"
    supported_options: ClassVar[frozenset[str]] = frozenset({"draft_lm_head_quantization", _SHARE})
    uses_target_hidden_states: ClassVar[bool] = True
    supports_pcp: ClassVar[bool] = True

    num_modules: int = keyed(
        Stage.COMPILE, default=1, minimum=1, doc="Modules in the checkpoint (n_predict)."
    )
    index_share_for_mtp_iteration: bool = keyed(
        Stage.COMPILE,
        default=False,
        doc="Whether later iterations reuse the first one's sparse indices.",
    )

    def draft_passes(self, k: int) -> int:
        """Each module runs once over what the target kept; the last one is then run on for the other drafts."""
        return max(0, k - self.num_modules)

    def needs_eagle_block_drop(self) -> bool:
        """Draft KV at a position is made from the token after it, so a matched prefix's last block is unproven."""
        return True

    @classmethod
    def default_model(cls, section: SpeculativeConfig, target: ModelConfig) -> str | None:
        """The target's own checkpoint."""
        return target.weights or target.source

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """An MTP type or class name, or a family's count of MTP modules above 0."""
        return is_mtp(config)

    @classmethod
    def specialize(cls, config: Checkpoint | None, section: SpeculativeConfig) -> type[Self]:
        """The multi-module class where k uses more than one module that is a step of its own."""
        modules = checkpoint.find_count(config or {}, "num_nextn_predict_layers") or 1
        k = section.num_speculative_tokens or modules
        if min(modules, k) > 1 and issubclass(MultiModuleMTPSpeculatorConfig, cls):
            return MultiModuleMTPSpeculatorConfig  # type: ignore[return-value]
        return cls

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """The target's config rewritten to its family's draft."""
        return as_draft(config)

    @classmethod
    def default_depth(cls, section: SpeculativeConfig, config: Checkpoint | None) -> int | None:
        """One draft a module."""
        return checkpoint.find_count(config or {}, "n_predict")

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """Gemma 4's draft has no head to quantise; a list of the modules' layer types has one for each."""
        problems = []
        quantized = section.draft_lm_head_quantization
        if quantized is not None and checkpoint.model_type(config) == "gemma4_mtp":
            problems.append(
                Problem(
                    where="draft_lm_head_quantization",
                    found=f"{quantized.value} for a Gemma 4 draft",
                    wanted="no value: it scores rows of the tied embedding and has no head to share",
                )
            )
        kinds, modules = config.get("mtp_layer_types"), checkpoint.find_count(config, "n_predict")
        if isinstance(kinds, list | tuple) and modules is not None and len(kinds) != modules:
            problems.append(
                Problem(
                    where="model",
                    found=f"{len(kinds)} mtp_layer_types for {modules} modules",
                    wanted="one layer type for each module",
                    hint="the checkpoint contradicts itself; fetch it again",
                )
            )
        return problems

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """One module, and several."""
        several = MultiModuleMTPSpeculatorConfig(num_modules=2)
        return [("", cls()), ("multi-module", several)]  # type: ignore[list-item]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Modules as the checkpoint states; index sharing as asked, else as it states."""
        draft = setup.draft or {}
        asked = setup.section.index_share_for_mtp_iteration
        return cls(
            num_modules=checkpoint.find_count(draft, "n_predict", "num_nextn_predict_layers") or 1,
            index_share_for_mtp_iteration=checkpoint.find(draft, _SHARE) is True
            if asked is None
            else asked,
        )


def with_index_share(config: Checkpoint, asked: bool | None) -> Checkpoint:
    """The draft's config with the user's index sharing, where one is given."""
    return config if asked is None else FrozenMap({**config, _SHARE: asked})


@config_class
class MultiModuleMTPSpeculatorConfig(MTPSpeculatorConfig):
    """Several modules, one a draft. Each reads one token further than the one before."""

    supports_pcp: ClassVar[bool] = False
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE

    def num_prefill_lookahead_tokens(self, k: int) -> int:
        """The last module reads k tokens past the chunk."""
        return k
