"""How a drafter takes a token from its logits: the best one, or one drawn by the request's own random number."""

from collections.abc import Sequence

import attrs
import torch

from graphspec.engine.drafters.protocol import Computed, Proposal
from graphspec.kernels.adaptive_model import margin_of
from graphspec.kernels.verify_random import DRAFT, words


def draft_uniform(seed: int, position: int) -> float:
    """One of 2**52 evenly spaced numbers in (0, 1) for the draft at `position`.

    Its purpose differs from those of verification: a draft that was drawn with the number which later decides on it
    would not be verified at all.
    """
    high, low, _, _ = words(seed, position, DRAFT)
    return (((high >> 6) << 26 | low >> 6) + 0.5) * 2.0**-52


@attrs.define(eq=False)
class Draws:
    """The drafts of one request while they are made. With `samples`, a temperature above 0 draws them; `with_margins` keeps
    how far each one's best logit lies above the next.

    Draft logits count by their temperature alone: filters such as top-k would change which drafts are accepted and not
    what is generated.
    """

    request: Computed
    samples: bool
    with_margins: bool = False
    tokens: list[int] = attrs.field(factory=list)
    logits: list[torch.Tensor] = attrs.field(factory=list)
    confidence: list[float] = attrs.field(factory=list)
    margins: list[float] = attrs.field(factory=list)

    @property
    def drawn(self) -> bool:
        """Whether drafts are drawn, and not the best tokens."""
        return self.samples and self.request.temperature > 0

    def take(self, best: int, logits: torch.Tensor, to_target: torch.Tensor | None) -> int:
        """Adds the next draft, and returns it as an id of the target.

        `best` is the best draft id, `logits` [draft vocabulary] float32 the row that it comes from; `to_target` [draft
        vocabulary] int64 maps ids, where the draft has its own.
        """
        token = best
        if self.drawn:
            scaled = logits / self.request.temperature
            position = len(self.request.tokens) + len(self.tokens)
            token = _below(scaled, draft_uniform(self.request.seed, position))
            self.logits.append(scaled)
        self.tokens.append(token if to_target is None else int(to_target[token]))
        return self.tokens[-1]

    def proposal(self, to_target: torch.Tensor | None, vocabulary: int) -> Proposal:
        """All drafts so far. Logits are spread over the target's `vocabulary`: tokens that the draft lacks have none."""
        logits = None
        if self.logits:
            rows = torch.stack(self.logits)
            logits = rows if to_target is None else spread(rows, to_target, vocabulary)
        return Proposal(
            tokens=tuple(self.tokens),
            logits=logits,
            confidence=tuple(self.confidence) or None,
            margins=tuple(self.margins) if self.with_margins else None,
        )


def _below(logits: torch.Tensor, uniform: float) -> int:
    """The first token whose share, with those before it, exceeds `uniform`."""
    shares = torch.softmax(logits.double(), dim=-1).cumsum(-1)
    at = int(torch.searchsorted(shares, uniform * float(shares[-1]), right=True))
    return min(at, len(shares) - 1)


def spread(logits: torch.Tensor, to_target: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Logits [rows, draft vocabulary] at their places in [rows, vocabulary]; -inf elsewhere."""
    wide = logits.new_full((logits.shape[0], vocabulary), float("-inf"))
    known = to_target >= 0
    wide[:, to_target[known]] = logits[:, known]
    return wide


def take_each(
    draws: Sequence[tuple[Draws, int]], logits: torch.Tensor, to_target: torch.Tensor | None
) -> list[int]:
    """The next draft of each request from its row of `logits` [rows, draft vocabulary]; one copy to the host for all."""
    best = logits.argmax(-1).tolist()
    if any(d.with_margins for d, _ in draws):
        pairs = logits.topk(2, dim=-1).values.tolist()
        for d, row in draws:
            d.margins.append(margin_of(*pairs[row]))
    return [d.take(best[row], logits[row], to_target) for d, row in draws]
