"""Block drafters: DFlash, and DSpark with its Markov refiner and confidence head."""

from collections.abc import Sequence
from typing import ClassVar, Self

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import FrozenMap
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint, DraftModelSpeculatorConfig, DraftPhase, Setup
from graphspec.speculators.dspark_omni import is_omni, omni_problems
from graphspec.speculators.eagle import layer_id_problems, wrap_head
from graphspec.text import show

DEFAULT_XPRESS_TOPC = 512
_LAYERS = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_SELF_DRAFTING = frozenset({"deepseek_v4", "deepseek_v41"})
_ONLY_DSPARK = "deepseek_v41"


@config_class
class DFlashSpeculatorConfig(DraftModelSpeculatorConfig):
    """A pass of its own over one bonus query and k mask queries, on hidden states of several target layers."""

    base_method: ClassVar[str | None] = "dflash"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.PARALLEL
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.dflash.DFlashSpeculator"
    supported_options: ClassVar[frozenset[str]] = frozenset({"xpress_topc"})
    uses_target_hidden_states: ClassVar[bool] = True
    uses_aux_hidden_states: ClassVar[bool] = True
    supports_watermarking: ClassVar[bool] = True

    xpress_topc: int | None = keyed(
        Stage.COMPILE,
        default=None,
        minimum=0,
        doc="XPress refiner: candidates a position, 0 for the whole vocabulary; none: no refiner.",
    )
    target_layer_ids: tuple[int, ...] = keyed(
        Stage.COMPILE, default=(), doc="Target layers that the draft reads; empty: the engine's."
    )

    @property
    def bakes_k_into_graphs(self) -> bool:
        """The pass has k mask queries in its shapes."""
        return True

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """Target layers that the draft reads."""
        return self.target_layer_ids

    def num_lookahead_tokens(self, k: int) -> int:
        """The bonus query and k mask queries."""
        return k + 1

    def draft_tokens_per_request(self, k: int) -> int:
        """Every query of the block; none without drafts."""
        return self.num_lookahead_tokens(k) if k else 0

    def max_num_draft_seqs(self, max_num_batched_tokens: int, k: int) -> int | None:
        """Requests whose queries fit in one draft pass."""
        return max_num_batched_tokens // self.num_lookahead_tokens(k)

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """A class or algorithm name, or the method's own settings, and nothing of DSpark."""
        if DSparkSpeculatorConfig.declares(config):
            return False
        return (
            checkpoint.names_in_architectures(config, "dflash", "xpress")
            or checkpoint.algorithm(config) == "dflash"
            or "dflash_config" in config
        )

    @classmethod
    def matches(cls, path: str, config: Checkpoint) -> bool:
        """By the folder's name."""
        return "dflash" in path

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """The draft's class name: DFlash in front of what does not name the method yet."""
        return wrap_head(config, "DFlash", "eagle")

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """Layers, their number and the refiner's option must fit."""
        problems = layer_id_problems(checkpoint.find_layer_ids(config, *_LAYERS), target)
        trained = checkpoint.find_count(config, "num_target_layers")
        layers = checkpoint.find_count(target, "num_hidden_layers")
        if trained is not None and layers is not None and trained != layers:
            problems.append(
                Problem(
                    where="model",
                    found=f"a draft for a target of {trained} layers",
                    wanted=f"one for the target's {layers}",
                    hint="this draft was trained on another target",
                )
            )
        if section.xpress_topc is not None and not _has_xpress(config):
            problems.append(
                Problem(
                    where="xpress_topc",
                    found=f"{show(section.xpress_topc)} for a checkpoint without an XPress refiner",
                    wanted="no value",
                    hint="drop it, or name an XPress checkpoint",
                )
            )
        return problems

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """The refiner's width: as asked, else the checkpoint's, else 512; none without a refiner."""
        draft = setup.draft or {}
        topc = setup.section.xpress_topc
        if topc is None and _has_xpress(draft):
            stated = checkpoint.find(draft, "xpress_topc")
            topc = stated if type(stated) is int else DEFAULT_XPRESS_TOPC
        return cls(xpress_topc=topc, target_layer_ids=checkpoint.find_layer_ids(draft, *_LAYERS))


def _has_xpress(config: Checkpoint) -> bool:
    return checkpoint.names_in_architectures(config, "xpress") or "xpress_topc" in config


@config_class
class DSparkSpeculatorConfig(DFlashSpeculatorConfig):
    """DFlash with a Markov refiner, sampling from the anchor, and its own confidence for adaptive verification."""

    base_method: ClassVar[str | None] = "dspark"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.PARALLEL
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.dspark.DSparkSpeculator"
    supported_options: ClassVar[frozenset[str]] = frozenset({"dspark_draft_topk"})
    uses_separate_workspace_lane: ClassVar[bool] = True
    adaptive_verification_uses_draft_logits: ClassVar[bool] = False
    supports_pcp: ClassVar[bool] = True
    trims_depth: ClassVar[bool] = False
    runners: ClassVar[frozenset[str]] = frozenset({"v2"})
    # A DeepSeek V4 target ships MTP modules beside DSpark's.
    trusted_declarations: ClassVar[frozenset[str]] = frozenset({"mtp"})

    sample_from_anchor: bool = keyed(
        Stage.COMPILE,
        default=True,
        doc="Whether the first draft is sampled from the anchor, which saves one query.",
    )
    draft_topk: int | None = keyed(
        Stage.COMPILE, default=None, minimum=1, doc="Candidates a position; none: all."
    )
    enable_adaptive_verification: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether the confidence head runs for verification."
    )

    def num_lookahead_tokens(self, k: int) -> int:
        """k queries when the first draft comes from the anchor, else DFlash's k + 1."""
        return k if self.sample_from_anchor else super().num_lookahead_tokens(k)

    @classmethod
    def default_model(cls, section: SpeculativeConfig, target: ModelConfig) -> str | None:
        """The target's own checkpoint. `checkpoint_problems` refuses targets that do not ship the weights."""
        return target.weights or target.source

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """A class, type or algorithm name, DSpark's Markov settings, or a target that ships no other modules."""
        return (
            checkpoint.names_in_architectures(config, "dspark")
            or "dspark" in checkpoint.model_type(config)
            or checkpoint.model_type(config) == _ONLY_DSPARK
            or checkpoint.algorithm(config) == "dspark"
            or checkpoint.find(config, "markov_rank") is not None
        )

    @classmethod
    def matches(cls, path: str, config: Checkpoint) -> bool:
        """By the folder's name."""
        return "dspark" in path

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """Qwen3 drafts get their family's class; inside a DeepSeek V4 checkpoint the draft's class is DSpark's."""
        kind = checkpoint.model_type(config)
        names = checkpoint.architectures(config)
        if kind in _SELF_DRAFTING:
            return FrozenMap({**config, "architectures": ("DSparkDraftModel",)})
        if kind == "qwen3" and names == ("DSparkDraftModel",):
            return FrozenMap({**config, "architectures": ("Qwen3DSparkModel",)})
        if kind.startswith("gemma4") and "dspark_target_layer_ids" not in config:
            ids = checkpoint.find_layer_ids(config, "target_layer_ids")
            return FrozenMap({**config, "dspark_target_layer_ids": ids}) if ids else config
        return config

    @classmethod
    def default_depth(cls, section: SpeculativeConfig, config: Checkpoint | None) -> int | None:
        """The depth that the checkpoint names, else its block size; n_predict says nothing about DSpark."""
        if config is None:
            return None
        return checkpoint.trained_depth(config) or checkpoint.find_count(
            config, "block_size", "dspark_block_size"
        )

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """DFlash's rules; a model of its own unless the target ships it; candidates within the vocabulary."""
        problems = super().checkpoint_problems(config, target, section)
        if checkpoint.is_whole_model(config) and not cls.declares(config):
            problems.append(
                Problem(
                    where="model",
                    found=f"{section.model or 'the target itself'}, a complete model without DSpark modules",
                    wanted="a DSpark checkpoint: of all targets only DeepSeek V4 ships one inside",
                    hint="name the draft checkpoint in speculative.model",
                )
            )
        if is_omni(target):
            ids = checkpoint.find_layer_ids(config, *_LAYERS)
            problems.extend(omni_problems(config, target, section.num_speculative_tokens, ids))
        topk = section.dspark_draft_topk
        vocab = checkpoint.find_count(config, "draft_vocab_size", "vocab_size")
        if topk is not None and vocab is not None and topk > vocab:
            problems.append(
                Problem(
                    where="dspark_draft_topk",
                    found=show(topk),
                    wanted=f"at most the draft's vocabulary ({vocab})",
                )
            )
        if topk is not None and not checkpoint.names_in_architectures(config, "qwen3"):
            problems.append(
                Problem(
                    where="dspark_draft_topk",
                    found=f"{topk} for {', '.join(checkpoint.architectures(config)) or 'no class'}",
                    wanted="no value: only drafts of the Qwen3 families rank candidates",
                    hint="drop it; the others score the whole vocabulary",
                )
            )
        return problems

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """The first draft from the anchor, and the layout that fills it in."""
        return [("", cls()), ("fill-in", cls(sample_from_anchor=False))]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Layout and candidates: as asked, else the checkpoint's. A checkpoint that says nothing uses the anchor."""
        draft = setup.draft or {}
        stated = checkpoint.find(draft, "dspark_draft_topk")
        topk = setup.section.dspark_draft_topk
        return cls(
            target_layer_ids=checkpoint.find_layer_ids(draft, "dspark_target_layer_ids", *_LAYERS),
            sample_from_anchor=checkpoint.find(draft, "sample_from_anchor") is not False,
            draft_topk=stated if topk is None and type(stated) is int else topk,
            enable_adaptive_verification=setup.section.enable_adaptive_verification,
        )
