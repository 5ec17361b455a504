"""Drafting in one pass: the last known token and k - 1 masks, of which each gives one draft.

For a request whose last computed position is P, with the token at P + 1 just sampled:

    shift 0 (PARD)      rows P + 1 .. P + k, tokens: the one at P + 1, masks
    shift 1 (P-EAGLE)   rows P .. P + k - 1, tokens: the one at P + 1, masks; features: the target's at P, the masks' own

What the target kept before these rows is brought up to date first. Rows of masks are provisional, as drafts' are.
"""

from collections.abc import Mapping, Sequence

import torch

from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.layers import Rows
from graphspec.engine.drafters.network import (
    Bench,
    Network,
    features_of,
    kept_rows,
    last_computed,
)
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.drafters.sampling import Draws, take_each


class ParallelDrafter:
    """Runs a network once for all drafts. `mask_features` [F] stand for the target's state at a mask, if it reads any."""

    def __init__(
        self,
        context: DraftContext,
        network: Network,
        mask_features: torch.Tensor | None = None,
    ) -> None:
        self._context, self._network, self._mask_features = context, network, mask_features
        self._mask = context.mask_token()
        self._bench = Bench.allocate(context, width=context.spec.num_speculative_tokens)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request; requests that want none only get their keys and values up to date."""
        draws = [self._context.draws(r) for r in step.requests]
        depth = [self._context.depth(r) for r in step.requests]
        with torch.no_grad():
            features = self._network.features(step)
            self._bring_up_to_date(step, depth, features)
            drafting = [(d, k) for d, k in zip(draws, depth, strict=True) if k]
            if drafting:
                self._draft(drafting, features)
        n = self._network
        return [d.proposal(n.to_target, self._context.spec.model.vocab_size) for d in draws]

    def forget(self, request: int) -> None:
        """Nothing is kept for a request alone."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights."""
        named = {**self._bench.static_tensors(), **self._network.static_tensors()}
        if self._mask_features is not None:
            named["mask_features"] = self._mask_features
        return named

    def draft_pass(self, bucket: int, k: int) -> torch.Tensor:
        """One pass over k rows of each of `bucket` requests, on the buffers' content: logits [bucket * k, draft vocabulary].

        Shapes and addresses depend on the two numbers alone, so that a graph can hold the pass.
        """
        count = bucket * k
        rows = Rows.of(self._bench.buffers, count, bucket)
        features = self._bench.features
        output = self._network.forward(rows, None if features is None else features[:count])
        return self._network.logits(output.scored)

    def _bring_up_to_date(
        self, step: TargetStep, depth: Sequence[int], features: torch.Tensor | None
    ) -> None:
        parts = [
            (r, self._anchor(r) if k else last_computed(r) + 1)
            for r, k in zip(step.requests, depth, strict=True)
        ]
        parts = [(r, end) for r, end in parts if end > r.first]
        if parts:
            rows = self._bench.write([kept_rows(r, end, self._network.shift) for r, end in parts])
            self._network.forward(rows, features_of(features, parts))

    def _anchor(self, request: Computed) -> int:
        """The row that the last known token is read at."""
        return last_computed(request) + 1 - self._network.shift

    def _draft(self, requests: Sequence[tuple[Draws, int]], features: torch.Tensor | None) -> None:
        k = max(depth for _, depth in requests)
        self._bench.write(
            [
                RequestRows(
                    tokens=(d.request.tokens[-1], *[self._mask] * (depth - 1)),
                    position=self._anchor(d.request),
                    blocks=d.request.blocks,
                    padding=k - depth,
                )
                for d, depth in requests
            ]
        )
        if features is not None:
            assert self._bench.features is not None
            assert self._mask_features is not None, "networks with features have some for masks"
            block = self._bench.features[: len(requests) * k]
            block.copy_(self._mask_features.expand_as(block))
            block[::k].copy_(features[[d.request.row + d.request.count - 1 for d, _ in requests]])
        logits = self.draft_pass(len(requests), k)
        rows = [(d, at * k + row) for at, (d, depth) in enumerate(requests) for row in range(depth)]
        take_each(rows, logits, self._network.to_target)
