"""The n-gram drafter: drafts for each request from its own tokens."""

from collections.abc import Mapping

import torch

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.protocol import Proposal, TargetStep
from graphspec.kernels.ngram import propose_ngram
from graphspec.speculators.ngram import NgramSpeculatorConfig


class NgramSpeculator:
    """Proposes continuations of earlier occurrences. Keeps no state."""

    def __init__(self, config: NgramSpeculatorConfig, max_model_len: int) -> None:
        self._config = config
        self._max_model_len = max_model_len

    @classmethod
    def make(cls, context: DraftContext) -> "NgramSpeculator":
        """The drafter of a contract."""
        config = context.speculative.speculator
        assert isinstance(config, NgramSpeculatorConfig)
        return cls(config, context.spec.model.max_model_len)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """What followed each request's last tokens where they occurred before."""
        c = self._config
        return [
            Proposal(
                tokens=propose_ngram(
                    r.tokens,
                    c.prompt_lookup_min,
                    c.prompt_lookup_max,
                    r.wanted,
                    self._max_model_len,
                )
            )
            for r in step.requests
        ]

    def forget(self, request: int) -> None:
        """Nothing is kept."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """None: matching runs on the host."""
        return {}
