"""Drafting token by token: one pass over what the target kept, then one pass a draft.

Which rows are read and written, for a request whose last computed position is P, with the token at P + 1 just sampled:

    shift 0 (draft model)     pass 1: rows .. P + 1, tokens .. P + 1     pass i: row P + i, draft i - 1
    shift 1 (EAGLE, MTP)      pass 1: rows .. P,     tokens .. P + 1     pass i: row P + i - 1, draft i - 1

So k drafts write slots up to P + k, or P + k - 1. What is written for drafts is provisional: the next step's first pass
writes all that the target kept again, with the states and tokens that are true by then.

Pass 1 has as many rows as the target kept, so no graph holds it. The k - 1 passes after it are one graph: `DraftLoop`.
"""

from collections.abc import Mapping, Sequence

import torch

from graphspec.capture.keys import CaptureKey
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.loop import DraftLoop, Going
from graphspec.engine.drafters.network import (
    Network,
    Output,
    features_of,
    kept_rows,
    last_computed,
)
from graphspec.engine.drafters.protocol import Proposal, TargetStep
from graphspec.engine.drafters.sampling import take_each


class AutoregressiveDrafter:
    """Runs a network k times. It keeps nothing of a request but keys and values in the request's own blocks."""

    def __init__(self, context: DraftContext, network: Network) -> None:
        self._context, self._network = context, network
        self._loop = DraftLoop(context, network)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request; requests that want none only get their keys and values up to date."""
        draws = [self._context.draws(r) for r in step.requests]
        if not draws:
            return []
        depth = [self._context.depth(r) for r in step.requests]
        n = self._network
        with torch.no_grad():
            output = self._first_pass(step, depth)
            if output is not None:
                drafting = [(d, k) for d, k in zip(draws, depth, strict=True) if k]
                pairs = [(d, at) for at, (d, _) in enumerate(drafting)]
                take_each(pairs, n.logits(output.scored), n.to_target)
                # The first draft's row lies behind that of the last known token.
                going = [
                    Going(
                        draws=d,
                        position=last_computed(d.request) + 2 - n.shift,
                        passes=k - 1,
                    )
                    for d, k in drafting
                ]
                self._loop.go_on(step, going, output.carried)
        return [d.proposal(n.to_target, self._context.spec.model.vocab_size) for d in draws]

    def forget(self, request: int) -> None:
        """Nothing is kept for a request alone."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights."""
        return {**self._loop.bench.static_tensors(), **self._network.static_tensors()}

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The passes after the first: `DraftLoop.passes`."""
        return self._loop.run(key)

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens and features."""
        self._loop.fill_example(key, variant)

    def _first_pass(self, step: TargetStep, depth: Sequence[int]) -> Output | None:
        """Everything that the target kept; the output of the last row of each request that drafts."""
        n = self._network
        ends = [
            last_computed(r) + 1 + (1 - n.shift if k else 0)
            for r, k in zip(step.requests, depth, strict=True)
        ]
        parts = list(zip(step.requests, ends, strict=True))
        rows = self._loop.bench.write([kept_rows(r, end, n.shift) for r, end in parts])
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
