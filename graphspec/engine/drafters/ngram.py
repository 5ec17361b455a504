"""The n-gram drafter: drafts for each request from its own tokens."""

from collections.abc import Mapping

import torch

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.kernels import NgramIndex
from graphspec.kernels.ngram_warm import ngram_backend
from graphspec.speculators.ngram import NgramSpeculatorConfig


class NgramSpeculator:
    """Proposes continuations of earlier occurrences. Each request has a slot of one `NgramIndex` until it is forgotten."""

    def __init__(self, index: NgramIndex) -> None:
        self.index = index
        self._slots: dict[int, int] = {}
        self._free = list(range(len(index.counts)))

    @classmethod
    def make(cls, context: DraftContext) -> "NgramSpeculator":
        """The drafter of a contract."""
        config, spec = context.speculative.speculator, context.spec
        assert isinstance(config, NgramSpeculatorConfig)
        slots, longest = spec.scheduler.max_num_seqs, spec.model.max_model_len
        return cls(
            NgramIndex(
                min_n=config.prompt_lookup_min,
                max_n=config.prompt_lookup_max,
                k=context.speculative.num_speculative_tokens,
                max_model_len=longest,
                slots=slots,
                backend=ngram_backend(slots, longest),
            )
        )

    def propose(self, step: TargetStep) -> list[Proposal]:
        """What followed each request's last tokens where they occurred before."""
        return [Proposal(tokens=self._drafts(r)) for r in step.requests]

    def _drafts(self, r: Computed) -> list[int]:
        slot = self._slots.get(r.request)
        if slot is None:
            slot = self._slots[r.request] = self._free.pop()
        have = self.index.length(slot)
        if len(r.tokens) < have:
            self.index.truncate(len(r.tokens), slot)
        elif len(r.tokens) > have:
            self.index.append(r.tokens[have:], slot)
        return self.index.propose(r.wanted, slot)

    def forget(self, request: int) -> None:
        """Frees the request's slot."""
        slot = self._slots.pop(request, None)
        if slot is not None:
            self.index.reset(slot)
            self._free.append(slot)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """None: matching runs on the host."""
        return {}
