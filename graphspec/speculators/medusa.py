"""Medusa (arXiv 2401.10774): the worked example of a method that a plugin registers.

Nothing in graphspec names this module. Its distribution registers it under the entry-point group
``graphspec.methods``, exactly as another package would.
"""

from collections.abc import Iterator
from typing import ClassVar, Self

from graphspec.config.speculative import RejectionSampleMethod, SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import FrozenMap
from graphspec.speculators import checkpoint
from graphspec.speculators.base import Checkpoint, DraftPhase, Setup
from graphspec.speculators.eagle import EagleSpeculatorConfig
from graphspec.text import show

_HEADS = "medusa_num_heads"
_FROM_TARGET = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@config_class
class MedusaSpeculatorConfig(EagleSpeculatorConfig):
    """Several heads on the target's last hidden state, each for one position further. They keep no KV."""

    base_method: ClassVar[str | None] = "eagle"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.PARALLEL
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.medusa.MedusaSpeculator"
    supported_options: ClassVar[frozenset[str]] = frozenset({"speculator_options"})
    supports_watermarking: ClassVar[bool] = False
    trusted_declarations: ClassVar[frozenset[str]] = frozenset()

    num_heads: int = keyed(Stage.COMPILE, default=1, minimum=1, doc="Heads, one a position.")
    top_k: int = keyed(
        Stage.COMPILE, default=1, minimum=1, doc="Candidates a head; more than 1 makes a tree."
    )

    @property
    def bakes_k_into_graphs(self) -> bool:
        """All heads run in one pass."""
        return True

    @property
    def drafts_in_trees(self) -> bool:
        """With several candidates a head."""
        return self.top_k > 1

    @property
    def uses_draft_kv_cache(self) -> bool:
        """Heads are functions of one hidden state."""
        return False

    def draft_tokens_per_request(self, k: int) -> int:
        """All heads read one hidden state."""
        return 1 if k else 0

    def num_lookahead_tokens(self, k: int) -> int:
        """No KV, so no slots."""
        return 0

    def num_prefill_lookahead_tokens(self, k: int) -> int:
        """Heads read no tokens."""
        return 0

    def needs_eagle_block_drop(self) -> bool:
        """Without draft KV, every block is proven."""
        return False

    @classmethod
    def declares(cls, config: Checkpoint) -> bool:
        """The heads' own fields."""
        return _HEADS in config

    @classmethod
    def adapt_draft_model_config(cls, config: Checkpoint, target: Checkpoint) -> Checkpoint:
        """Heads state neither widths nor vocabulary: those are the target's."""
        taken = {n: checkpoint.find(config, n) or checkpoint.find(target, n) for n in _FROM_TARGET}
        layers = checkpoint.find_count(config, "medusa_num_layers") or 1
        return FrozenMap(
            {
                **config,
                **{name: value for name, value in taken.items() if value is not None},
                "num_hidden_layers": layers,
                "model_type": "medusa",
                "architectures": ("MedusaModel",),
            }
        )

    @classmethod
    def checkpoint_problems(
        cls, config: Checkpoint, target: Checkpoint, section: SpeculativeConfig
    ) -> list[Problem]:
        """Width as for any head, and not more drafts than the heads' candidates make: one a head, or a whole tree."""
        problems = super().checkpoint_problems(config, target, section)
        heads, k = checkpoint.find_count(config, _HEADS), section.num_speculative_tokens
        top_k = _top_k(section)
        if heads is not None and k is not None and k > _nodes(heads, top_k):
            shape = f"the checkpoint's {heads} heads, one a draft"
            if top_k > 1:
                shape = f"{_nodes(heads, top_k)}: {top_k} candidates of each of the checkpoint's {heads} heads"
            problems.append(
                Problem(where="num_speculative_tokens", found=show(k), wanted=f"at most {shape}")
            )
        if top_k > 1:
            problems.extend(_tree_problems(section))
        return problems

    @classmethod
    def default_depth(cls, section: SpeculativeConfig, config: Checkpoint | None) -> int | None:
        """One draft a head."""
        return checkpoint.find_count(config or {}, _HEADS)

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """Heads as the checkpoint states; `top_k` from ``speculator_options``."""
        return cls(
            num_heads=checkpoint.find_count(setup.draft or {}, _HEADS)
            or setup.num_speculative_tokens,
            top_k=(setup.section.speculator_options or {}).get("top_k", 1),  # type: ignore[arg-type]
        )


def _top_k(section: SpeculativeConfig) -> int:
    """Candidates a head; 1 where the option is no number, which `configure` refuses."""
    stated = (section.speculator_options or {}).get("top_k", 1)
    return stated if type(stated) is int and stated > 0 else 1


def _nodes(heads: int, top_k: int) -> int:
    """Nodes of the whole tree: each level has `top_k` for each node of the one above."""
    return sum(top_k**depth for depth in range(1, heads + 1))


def _tree_problems(section: SpeculativeConfig) -> Iterator[Problem]:
    """What works on chains alone."""
    rule = section.rejection_sample_method
    if rule in (RejectionSampleMethod.FLY, RejectionSampleMethod.SYNTHETIC):
        yield Problem(
            where="rejection_sample_method",
            found=f"{rule.value} for a tree of drafts",
            wanted="standard or block: a tree is kept as far as the target itself would write it",
            hint="speculator_options.top_k 1 drafts a chain",
        )
    if section.enable_adaptive_verification:
        yield Problem(
            where="enable_adaptive_verification",
            found="true for a tree of drafts",
            wanted="false: chances are learned by place in a chain",
            hint="speculator_options.top_k 1 drafts a chain",
        )
