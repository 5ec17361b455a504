"""Drafting token by token: one pass over what the target kept, then one pass a draft.

Which rows are read and written, for a request whose last computed position is P, with the token at P + 1 just sampled:

    shift 0 (draft model)     pass 1: rows .. P + 1, tokens .. P + 1     pass i: row P + i, draft i - 1
    shift 1 (EAGLE, MTP)      pass 1: rows .. P,     tokens .. P + 1     pass i: row P + i - 1, draft i - 1

So k drafts write slots up to P + k, or P + k - 1. What is written for drafts is provisional: the next step's first pass
writes all that the target kept again, with the states and tokens that are true by then.
"""

from collections.abc import Mapping, Sequence

import torch

from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.layers import Rows
from graphspec.engine.drafters.network import (
    Bench,
    Network,
    Output,
    features_of,
    kept_rows,
    last_computed,
)
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.drafters.sampling import Draws, take_each

_PADDING = RequestRows(tokens=(), position=0, blocks=(), padding=1)


class AutoregressiveDrafter:
    """Runs a network k times. It keeps nothing of a request but keys and values in the request's own blocks."""

    def __init__(self, context: DraftContext, network: Network) -> None:
        self._context, self._network = context, network
        self._bench = Bench.allocate(context)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request; requests that want none only get their keys and values up to date."""
        draws = [self._context.draws(r) for r in step.requests]
        if not draws:
            return []
        depth = [self._context.depth(r) for r in step.requests]
        with torch.no_grad():
            output = self._first_pass(step, depth)
            if output is not None:
                self._draft([(d, k) for d, k in zip(draws, depth, strict=True) if k], output)
        n = self._network
        return [d.proposal(n.to_target, self._context.spec.model.vocab_size) for d in draws]

    def forget(self, request: int) -> None:
        """Nothing is kept for a request alone."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights."""
        return {**self._bench.static_tensors(), **self._network.static_tensors()}

    def draft_pass(self, bucket: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One pass over one row of each of `bucket` requests, on the buffers' content.

        Gives logits [bucket, draft vocabulary] and what the next pass reads as features [bucket, H]. Shapes and addresses
        depend on `bucket` alone, so that a graph can hold the pass.
        """
        rows = Rows.of(self._bench.buffers, bucket, bucket)
        features = self._bench.features
        output = self._network.forward(rows, None if features is None else features[:bucket])
        return self._network.logits(output.scored), output.carried

    def _first_pass(self, step: TargetStep, depth: Sequence[int]) -> Output | None:
        """Everything that the target kept; the output of the last row of each request that drafts."""
        n = self._network
        ends = [
            last_computed(r) + 1 + (1 - n.shift if k else 0)
            for r, k in zip(step.requests, depth, strict=True)
        ]
        parts = list(zip(step.requests, ends, strict=True))
        rows = self._bench.write([kept_rows(r, end, n.shift) for r, end in parts])
        output = n.forward(rows, features_of(n.features(step), parts))
        last, row = [], -1
        for (r, end), k in zip(parts, depth, strict=True):
            row += end - r.first
            if k:
                last.append(row)
        if not last:
            return None
        at = torch.tensor(last, device=output.scored.device)
        carried = output.carried
        return Output(scored=output.scored[at], carried=None if carried is None else carried[at])

    def _draft(self, requests: Sequence[tuple[Draws, int]], output: Output) -> None:
        n, draws = self._network, [d for d, _ in requests]
        logits, carried = n.logits(output.scored), output.carried
        ids = take_each([(d, i) for i, d in enumerate(draws)], logits, n.to_target)
        for at in range(1, max(k for _, k in requests)):
            self._bench.write(
                [self._row(d.request, ids[i], at, k) for i, (d, k) in enumerate(requests)]
            )
            if carried is not None and self._bench.features is not None:
                self._bench.features[: len(requests)].copy_(carried)
            logits, carried = self.draft_pass(len(requests))
            more = [(d, i) for i, (d, k) in enumerate(requests) if at < k]
            for (_, i), token in zip(more, take_each(more, logits, n.to_target), strict=True):
                ids[i] = token

    def _row(self, request: Computed, token: int, at: int, k: int) -> RequestRows:
        """The row that draft `at` (from 1) is read at; a request that has its drafts computes padding."""
        if at >= k:
            return _PADDING
        position = last_computed(request) + 1 - self._network.shift + at
        return RequestRows(tokens=(token,), position=position, blocks=request.blocks)
