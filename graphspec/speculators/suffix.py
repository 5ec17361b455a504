"""Suffix decoding: continuations from suffix trees of the prompt and of finished requests (arXiv 2411.04975)."""

from typing import ClassVar, Self

from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import config_class, unkeyed
from graphspec.speculators.base import Checkpoint, DraftPhase, Setup, SpeculatorConfig

DEFAULT_DEPTH = 24
_HOST = "matching runs on the host; no graph contains it"


@config_class
class SuffixSpeculatorConfig(SpeculatorConfig):
    """Drafts as many tokens as the matched suffix and their frequency justify; k is the most."""

    base_method: ClassVar[str | None] = "suffix"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.suffix.SuffixSpeculator"
    runners: ClassVar[frozenset[str]] = frozenset({"v1"})
    owned_prefixes: ClassVar[tuple[str, ...]] = ("suffix_decoding_",)

    max_tree_depth: int = unkeyed(
        default=DEFAULT_DEPTH, minimum=1, doc="Depth of the trees.", reason=_HOST
    )
    max_cached_requests: int = unkeyed(
        default=10000,
        minimum=0,
        doc="Requests in the global tree; 0: no global tree.",
        reason=_HOST,
    )
    max_spec_factor: float = unkeyed(
        default=1.0, minimum=0, doc="Drafts per matched token, at most.", reason=_HOST
    )
    min_token_prob: float = unkeyed(
        default=0.1, minimum=0, maximum=1, doc="Smallest frequency of a draft.", reason=_HOST
    )

    @classmethod
    def default_depth(cls, section: SpeculativeConfig, config: Checkpoint | None) -> int | None:
        """The depth of the trees: no match can be longer."""
        return section.suffix_decoding_max_tree_depth or DEFAULT_DEPTH

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """The section's values, by their short names; what is not given keeps the default."""
        written = {
            name: getattr(setup.section, f"suffix_decoding_{name}")
            for name in (
                "max_tree_depth",
                "max_cached_requests",
                "max_spec_factor",
                "min_token_prob",
            )
        }
        return cls(**{name: value for name, value in written.items() if value is not None})
