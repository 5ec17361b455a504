"""Drafting in one pass: the last known token and k - 1 masks, of which each gives one draft.

For a request whose last computed position is P, with the token at P + 1 just sampled:

    shift 0 (PARD)      rows P + 1 .. P + k, tokens: the one at P + 1, masks
    shift 1 (P-EAGLE)   rows P .. P + k - 1, tokens: the one at P + 1, masks; features: the target's at P, the masks' own

What the target kept before these rows is brought up to date first. Rows of masks are provisional, as drafts' are.
"""

import random
from collections.abc import Mapping, Sequence

import torch

from graphspec.capture.keys import CaptureKey
from graphspec.engine.buffers import RequestRows, example_requests
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.graphs import key_for, replay
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
                self._draft(step, drafting, features)
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

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The pass over the last token and the masks: `draft_pass`."""
        return [self.draft_pass(key.bucket, key.k)]

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens and features, in blocks of the requests' own where there are enough."""
        requests = example_requests(self._context.spec, key.bucket, key.k, random.Random(variant))
        padding = RequestRows(tokens=(), position=0, blocks=(), padding=key.k)
        self._bench.write(requests or [padding] * key.bucket)
        self._bench.fill_features(variant if requests else None)

    def draft_pass(self, bucket: int, k: int) -> torch.Tensor:
        """One pass over k rows of each of `bucket` requests, on the buffers' content: logits [bucket * k, draft vocabulary].

        Shapes and addresses depend on the two numbers alone, so that a graph can hold the pass.
        """
        count = bucket * k
        rows = Rows.of(self._bench.buffers, count, bucket)
        features = self._bench.features
        output = self._network.forward(rows, None if features is None else features.tensor[:count])
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

    def _draft(
        self,
        step: TargetStep,
        requests: Sequence[tuple[Draws, int]],
        features: torch.Tensor | None,
    ) -> None:
        key, count = key_for(step, len(requests)), len(requests)
        deepest = max(depth for _, depth in requests)
        bucket, k = (count, deepest) if key is None else (key.bucket, key.k)
        nobody = RequestRows(tokens=(), position=0, blocks=(), padding=k)
        self._bench.write(
            [
                *(
                    RequestRows(
                        tokens=(d.request.tokens[-1], *[self._mask] * (depth - 1)),
                        position=self._anchor(d.request),
                        blocks=d.request.blocks,
                        padding=k - depth,
                    )
                    for d, depth in requests
                ),
                *[nobody] * (bucket - count),
            ]
        )
        if features is not None:
            assert self._mask_features is not None, "networks with features have some for masks"
            rows = self._mask_features.repeat(count * k, 1)
            rows[::k] = features[[d.request.row + d.request.count - 1 for d, _ in requests]]
            self._bench.write_features(rows, bucket * k)
        logits = self.draft_pass(bucket, k) if key is None else replay(step, key)[0]
        taken = [
            (d, at * k + row) for at, (d, depth) in enumerate(requests) for row in range(depth)
        ]
        take_each(taken, logits, self._network.to_target)
