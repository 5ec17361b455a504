"""A standalone draft model: token by token, in one pass (PARD, arXiv 2504.18583), or with a vocabulary of its own.

A draft model needs no training where the target's own first layers serve as one (`early_exit`).
"""

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from graphspec.engine.drafters.autoregressive import AutoregressiveDrafter
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.early_exit import draft_weights
from graphspec.engine.drafters.layers import DraftLayers, Rows
from graphspec.engine.drafters.network import Output
from graphspec.engine.drafters.parallel import ParallelDrafter
from graphspec.engine.drafters.protocol import TargetStep
from graphspec.engine.drafters.scoring import PlainScorer
from graphspec.engine.drafters.speculator import NetworkSpeculator
from graphspec.engine.drafters.vocabulary import TokenTables, token_tables
from graphspec.engine.llama import rms_norm
from graphspec.errors import Problem, SpecError
from graphspec.speculators.base import DraftPhase


class DraftModelNetwork:
    """A whole Llama-type model over the request's tokens."""

    shift = 0

    def __init__(self, context: DraftContext) -> None:
        if context.model.architecture != "llama":
            raise SpecError(
                Problem(
                    where="speculative.model",
                    found=f"a draft model of the family {context.model.architecture}",
                    wanted="llama: the reference engine runs no other",
                    hint="speculative.method custom_class runs a drafter of your own",
                )
            )
        self._weights = draft_weights(context)
        self._layers = DraftLayers(context, self._weights.layers)
        self._scorer = PlainScorer(self._weights.w_head)
        self._tables: TokenTables | None = token_tables(context)
        self.to_target = None if self._tables is None else self._tables.to_target

    def features(self, step: TargetStep) -> torch.Tensor | None:
        """The model reads tokens only."""
        return None

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """The final hidden states."""
        ids = rows.ids if self._tables is None else self._tables.to_draft[rows.ids]
        hidden = self._layers.run(F.embedding(ids, self._weights.embedding), rows)
        eps = self._layers.model.rms_norm_eps
        return Output(scored=rms_norm(hidden, self._weights.final_norm, eps))

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """Of tokens that the target has; others cannot be drafted."""
        logits = self._scorer.logits(scored)
        if self.to_target is not None:
            logits = logits.masked_fill(self.to_target < 0, float("-inf"))
        return logits

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache, weights and tables."""
        named = {
            **self._layers.static_tensors(),
            "embedding": self._weights.embedding,
            "final_norm": self._weights.final_norm,
            **self._scorer.static_tensors(),
        }
        return named if self._tables is None else {**named, **self._tables.static_tensors()}


class DraftModelSpeculator(NetworkSpeculator):
    """Drafts by a model of its own, whose keys and values lie in blocks of the same ids as the target's."""

    @classmethod
    def make(cls, context: DraftContext) -> "DraftModelSpeculator":
        """Reads the draft's weights. Raises `EnvironmentProblem` where they are not there or do not fit."""
        network = DraftModelNetwork(context)
        if context.speculative.speculator.draft_phase is DraftPhase.PARALLEL:
            return cls(ParallelDrafter(context, network))
        return cls(AutoregressiveDrafter(context, network))
