"""n-gram drafting (prompt lookup): the continuation of an earlier occurrence of the last tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

from graphspec.errors import Problem
from graphspec.fields import Rule, config_class, unkeyed
from graphspec.speculators.base import DraftPhase, Setup, SpeculatorConfig
from graphspec.text import show

DEFAULT_WINDOW = 5
_HOST = "matching runs on the host; no graph contains it"


def _window(section: Any) -> Iterator[Problem]:
    if section.prompt_lookup_min > section.prompt_lookup_max:
        yield Problem(
            where="prompt_lookup_min",
            found=show(section.prompt_lookup_min),
            wanted=f"at most prompt_lookup_max ({section.prompt_lookup_max})",
        )


@config_class
class NgramSpeculatorConfig(SpeculatorConfig):
    """Looks the last `prompt_lookup_min`..`prompt_lookup_max` tokens up in the request's own tokens."""

    base_method: ClassVar[str | None] = "ngram"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.ngram.NgramSpeculator"
    prefer_dense_token_history: ClassVar[bool] = True
    trims_depth: ClassVar[bool] = True
    owned_prefixes: ClassVar[tuple[str, ...]] = ("prompt_lookup_",)
    rules: ClassVar[tuple[Rule, ...]] = (_window,)

    prompt_lookup_min: int = unkeyed(
        minimum=1, doc="Shortest suffix that must match.", reason=_HOST
    )
    prompt_lookup_max: int = unkeyed(minimum=1, doc="Longest suffix looked up.", reason=_HOST)

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """With the default window."""
        return [("", cls(prompt_lookup_min=DEFAULT_WINDOW, prompt_lookup_max=DEFAULT_WINDOW))]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """One given bound stands for both; without any, the window is five tokens."""
        low, high = setup.section.prompt_lookup_min, setup.section.prompt_lookup_max
        return cls(
            prompt_lookup_min=low or high or DEFAULT_WINDOW,
            prompt_lookup_max=high or low or DEFAULT_WINDOW,
        )


@config_class
class NgramGPUSpeculatorConfig(NgramSpeculatorConfig):
    """The same rule, matched on the device."""

    base_method: ClassVar[str | None] = "ngram_gpu"
    # The matching kernel has no model pass that a graph could hold.
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    trims_depth: ClassVar[bool] = False
