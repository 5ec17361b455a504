"""Medusa (arXiv 2401.10774): heads on the target's last hidden state, each for one position further.

The target's own head gives the token after the last position; Medusa's first head gives the one after that. With one
candidate a head the drafts are a chain. With more they are a tree, grown where the product of probabilities is largest.
"""

import heapq
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from graphspec.capture.keys import CaptureKey
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.graphs import key_for, replay
from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.protocol import Proposal, TargetStep
from graphspec.kernels.adaptive_model import margin_of
from graphspec.speculators.medusa import MedusaSpeculatorConfig


class MedusaHead:
    """Residual blocks x + silu(linear(x)), then a matrix over the vocabulary.

    Tensors: ``N.B.linear.weight`` [H, H] and its ``bias`` for block B of head N, and ``N.B.weight`` [V, H] after the last.
    A checkpoint that states ``original_lm_head`` has the target's matrix in place of the heads' own; ``N.map.weight`` [H, H],
    where it is there, turns a head's state into what that matrix reads.
    """

    def __init__(self, context: DraftContext, read: HeadReader, at: int, blocks: int) -> None:
        width, vocabulary = context.spec.model.hidden_size, context.spec.model.vocab_size
        self._blocks = [
            (
                read(f"{at}.{b}.linear.weight", width, width),
                read(f"{at}.{b}.linear.bias", width),
            )
            for b in range(blocks)
        ]
        shared = context.stated("original_lm_head") is True
        mapped = shared and (read.seeded or read.has(f"{at}.map.weight"))
        self._map = read(f"{at}.map.weight", width, width) if mapped else None
        self._head = (
            context.weights.w_head if shared else read(f"{at}.{blocks}.weight", vocabulary, width)
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32."""
        for weight, bias in self._blocks:
            hidden = (hidden + F.silu(F.linear(hidden, weight) + bias)).contiguous()
        if self._map is not None:
            hidden = F.linear(hidden, self._map).contiguous()
        return F.linear(hidden, self._head).float()

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Weights, by name."""
        named = {"head": self._head}
        for b, (weight, bias) in enumerate(self._blocks):
            named |= {f"{b}.weight": weight, f"{b}.bias": bias}
        if self._map is not None:
            named["map"] = self._map
        return named


class MedusaSpeculator:
    """Runs every head once. It keeps nothing at all."""

    def __init__(self, context: DraftContext, heads: Sequence[MedusaHead], top_k: int) -> None:
        self._context, self._heads, self._top_k = context, heads, top_k
        # A margin is that to the second one.
        self._candidates = max(top_k, 2) if context.wants_margins else top_k
        spec = context.spec
        self._hidden = torch.zeros(
            spec.scheduler.max_num_seqs,
            spec.model.hidden_size,
            dtype=context.dtype,
            device=context.device,
        )

    @classmethod
    def make(cls, context: DraftContext) -> "MedusaSpeculator":
        """Reads the heads' weights, or makes them from the seed."""
        speculator = context.speculative.speculator
        assert isinstance(speculator, MedusaSpeculatorConfig)
        blocks = context.model.num_hidden_layers
        with HeadReader(context) as read:
            heads = [MedusaHead(context, read, at, blocks) for at in range(speculator.num_heads)]
        return cls(context, heads, speculator.top_k)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """A chain for each request, or a tree of as many tokens as it wants."""
        depth = [self._context.depth(r) for r in step.requests]
        rows = [r.row + r.count - 1 for r, k in zip(step.requests, depth, strict=True) if k]
        if not rows:
            return [Proposal() for _ in depth]
        assert step.hidden is not None
        with torch.no_grad():
            key = key_for(step, len(rows))
            self._hidden[: len(rows)].copy_(step.hidden[rows])
            scores, ids = self.draft_pass(len(rows)) if key is None else replay(step, key)
        # One copy to the host; trees are grown there.
        best = iter(zip(scores.tolist()[: len(rows)], ids.tolist()[: len(rows)], strict=True))
        return [self._proposal(*next(best), k) if k else Proposal() for k in depth]

    def forget(self, request: int) -> None:
        """Nothing is kept."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """The input buffer and weights."""
        named = {
            f"{at}.{name}": tensor
            for at, head in enumerate(self._heads)
            for name, tensor in head.static_tensors().items()
        }
        return {"draft.hidden": self._hidden, **named}

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """All heads over the bucket: `draft_pass`. How many drafts become of it is the host's choice."""
        return self.draft_pass(key.bucket)

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random states."""
        made = torch.Generator().manual_seed(variant)
        self._hidden.copy_(torch.randn(self._hidden.shape, generator=made))

    def draft_pass(self, bucket: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All heads over `bucket` states in the buffer: log probabilities and ids of the best, each [bucket, heads, candidates]."""
        hidden = self._hidden[:bucket]
        tops = [
            torch.topk(torch.log_softmax(head.logits(hidden), -1), self._candidates, -1)
            for head in self._heads
        ]
        return torch.stack([t.values for t in tops], 1), torch.stack([t.indices for t in tops], 1)

    def _proposal(
        self, scores: Sequence[Sequence[float]], ids: Sequence[Sequence[int]], k: int
    ) -> Proposal:
        if self._top_k == 1:
            margins = [margin_of(row[0], row[1]) for row in scores[:k] if len(row) > 1]
            return Proposal(tokens=tuple(row[0] for row in ids[:k]), margins=margins or None)
        tokens, parents = grow_tree(scores, ids, k)
        return Proposal(tokens=tokens, parents=parents)


def grow_tree(
    scores: Sequence[Sequence[float]], ids: Sequence[Sequence[int]], size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The `size` likeliest nodes: a node's score is the sum of the log probabilities on its way.

    `scores` and `ids` [heads][top_k], best first. Gives tokens and parents, each parent before its children. A tree that
    takes the likeliest node next is always connected, since no child is likelier than its parent.

    >>> grow_tree([[-0.1, -3.0], [-0.2, -1.0]], [[5, 6], [7, 8]], 3)
    ((5, 7, 8), (-1, 0, 0))
    """
    tokens: list[int] = []
    parents: list[int] = []
    # (negative score, depth, rank in its head, parent, score of the way to the parent)
    open_nodes = [(-scores[0][0], 0, 0, -1, 0.0)]
    while open_nodes and len(tokens) < size:
        cost, depth, rank, parent, before = heapq.heappop(open_nodes)
        at = len(tokens)
        tokens.append(ids[depth][rank])
        parents.append(parent)
        if rank + 1 < len(ids[depth]):
            sibling = before + scores[depth][rank + 1]
            heapq.heappush(open_nodes, (-sibling, depth, rank + 1, parent, before))
        if depth + 1 < len(ids):
            child = -cost + scores[depth + 1][0]
            heapq.heappush(open_nodes, (-child, depth + 1, 0, at, -cost))
    return tuple(tokens), tuple(parents)
