"""DSpark: DFlash's block, refined token by token by a Markov head, with a confidence for each draft.

The block's logits come from one pass and know nothing of one another. The Markov head adds to each what the draft before it
makes likely: w2 @ w1[previous], two matrices of low rank. The confidence head reads a query's state beside w1[previous], and
gives the probability that the draft is kept if those before it are.
"""

import torch
from torch.nn import functional as F

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.dflash import BlockNetwork, DFlashSpeculator
from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.sampling import Draws
from graphspec.errors import Problem, SpecError
from graphspec.speculators.dflash import DSparkSpeculatorConfig


class Refiner:
    """The Markov head, and the confidence head where the contract asks for confidences.

    Tensors: ``markov_head.markov_w1.weight`` and ``markov_w2.weight`` [V, rank]; ``confidence_head.proj.weight``
    [1, H + rank] or [1, H], ``confidence_head.proj.bias`` [1]. A refiner without rank adds nothing.
    """

    def __init__(
        self, context: DraftContext, read: HeadReader, config: DSparkSpeculatorConfig
    ) -> None:
        vocabulary, width = context.spec.model.vocab_size, context.model.hidden_size
        stated, kind = context.stated("markov_rank"), context.stated("markov_head_type")
        if kind not in (None, "vanilla"):
            raise SpecError(
                Problem(
                    where="speculative.model",
                    found=f"markov_head_type {kind!r} in {context.model.source}",
                    wanted="vanilla: the reference drafter has no other",
                )
            )
        self._topk, rank = config.draft_topk, stated if type(stated) is int else 0
        self.w1 = read("markov_head.markov_w1.weight", vocabulary, rank) if rank else None
        self.w2 = read("markov_head.markov_w2.weight", vocabulary, rank) if rank else None
        self.confidence = self.bias = None
        self._with_markov = context.stated("confidence_head_with_markov") is not False and rank > 0
        if config.enable_adaptive_verification:
            if not context.stated("enable_confidence_head"):
                raise SpecError(
                    Problem(
                        where="speculative.enable_adaptive_verification",
                        found=f"true for {context.model.source}, which has no confidence head",
                        wanted="a checkpoint with enable_confidence_head",
                        hint="drop it: drafts are then verified whole",
                    )
                )
            inputs = width + (rank if self._with_markov else 0)
            self.confidence = read("confidence_head.proj.weight", 1, inputs)
            self.bias = read("confidence_head.proj.bias", 1)

    def refined(self, logits: torch.Tensor, previous: int) -> torch.Tensor:
        """A query's logits [V] after the token `previous`; only its best `topk` stay, where that is set."""
        if self._topk is not None and self._topk < logits.shape[0]:
            least = logits.topk(self._topk).values[-1]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.w1 is None or self.w2 is None:
            return logits
        return logits + (self.w2 @ self.w1[previous]).float()

    def kept(self, state: torch.Tensor, previous: int) -> float | None:
        """The probability that the draft from the query's state [H] is kept; None where nobody asks."""
        if self.confidence is None or self.bias is None:
            return None
        if self._with_markov and self.w1 is not None:
            state = torch.cat((state, self.w1[previous]))
        return float(torch.sigmoid(F.linear(state, self.confidence, self.bias).float()))

    def static_tensors(self) -> dict[str, torch.Tensor]:
        """Weights, by name."""
        named = {
            "markov_w1": self.w1,
            "markov_w2": self.w2,
            "confidence": self.confidence,
            "confidence_bias": self.bias,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class DSparkSpeculator(DFlashSpeculator):
    """Drafts whole blocks and refines them. Its buffers are its own: they are the separate lane that the contract asks for."""

    def __init__(self, context: DraftContext, network: BlockNetwork, refiner: Refiner) -> None:
        speculator = context.speculative.speculator
        assert isinstance(speculator, DSparkSpeculatorConfig)
        self.anchored = speculator.sample_from_anchor
        super().__init__(context, network)
        self._refiner = refiner

    @classmethod
    def make(cls, context: DraftContext) -> "DSparkSpeculator":
        """Reads the draft's weights, or makes them from the seed."""
        speculator = context.speculative.speculator
        assert isinstance(speculator, DSparkSpeculatorConfig)
        with HeadReader(context) as read:
            refiner = Refiner(context, read, speculator)
            return cls(context, BlockNetwork(context, read), refiner)

    def static_tensors(self) -> dict[str, torch.Tensor]:
        """Buffers, cache and weights."""
        return {**super().static_tensors(), **self._refiner.static_tensors()}

    def _take(self, draws: Draws, scored: torch.Tensor, logits: torch.Tensor) -> None:
        previous = draws.request.tokens[-1]
        for row in range(logits.shape[0]):
            kept = self._refiner.kept(scored[row], previous)
            if kept is not None:
                draws.confidence.append(kept)
            refined = self._refiner.refined(logits[row], previous)
            previous = draws.take(int(refined.argmax()), refined, None)
