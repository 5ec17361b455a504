"""The loop of a drafter that goes on from its own drafts: passes over one row a request, all of which one graph holds.

Where each row of each pass lies is known before the first one: only its token and its features come from the pass before. So
the rows of all passes are written at once, pass after pass, and nothing goes through the host between them:

    pass 1    rows 0 .. bucket - 1            token: the draft before     features: as given
    pass 2    rows bucket .. 2 bucket - 1     token: the best of pass 1   features: what pass 1 carried

Drafts that are drawn take their token on the host, one pass at a time, without a graph.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Protocol

import attrs
import torch

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import CaptureKey
from graphspec.engine.buffers import RequestRows, example_requests
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.graphs import decline, key_for, replay
from graphspec.engine.drafters.layers import Rows
from graphspec.engine.drafters.network import Bench, Output
from graphspec.engine.drafters.protocol import TargetStep
from graphspec.engine.drafters.sampling import Draws, take_each
from graphspec.kernels.adaptive_model import margin_of

_PADDING = RequestRows(tokens=(), position=0, blocks=(), padding=1)


class Pass(Protocol):
    """One pass as a function of rows, as `Network` has it. Ids that it takes are the target's."""

    to_target: torch.Tensor | None

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """`carried` is what the next pass reads as features."""
        ...

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, draft vocabulary] float32."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class Going:
    """A request in the loop, whose last draft is the first token: where its first row lies, and its number of passes."""

    draws: Draws
    position: int
    passes: int

    def row(self, at: int, token: int) -> RequestRows:
        """Its row in pass `at` (from 0); padding where it has all its drafts."""
        if at >= self.passes:
            return _PADDING
        blocks = self.draws.request.blocks
        return RequestRows(tokens=(token,), position=self.position + at, blocks=blocks)


class DraftLoop:
    """Runs passes of `step` on the buffers of `bench`, which it makes: other passes may use them between.

    `more` rows of each request may be in such a pass beside those of the target's step.
    """

    def __init__(self, context: DraftContext, one_pass: Pass, *, more: int = 1) -> None:
        self._context, self._pass = context, one_pass
        most = self.passes_at(context.spec.num_speculative_tokens)
        self.bench = Bench.allocate(context, width=max(1, most), alone=True, more=more)

    def passes_at(self, k: int) -> int:
        """Passes of the loop at depth k, as the contract counts them."""
        return self._context.speculative.speculator.draft_passes(k)

    def go_on(
        self, step: TargetStep, going: Sequence[Going], features: torch.Tensor | None
    ) -> None:
        """Adds to each request the drafts that its passes give. features [requests, H]: what the first pass reads."""
        left = max(g.passes for g in going)
        if not left:
            decline(step, len(going), Fallthrough.FIRST_PASS_ONLY)
        elif any(g.draws.drawn for g in going):
            decline(step, len(going), Fallthrough.DRAWN_ON_HOST)
            self._one_by_one(going, left, features)
        else:
            self._all_at_once(step, going, left, features)

    def run(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """What a graph of `key` holds: see `passes`."""
        return self.passes(key.bucket, self.passes_at(key.k))

    def passes(self, bucket: int, count: int) -> Sequence[torch.Tensor]:
        """`count` passes over one row of each of `bucket` requests, on the buffers' content.

        Gives drafts [count, bucket] int64 as ids of the target and, where the engine learns from them, the two best logits of
        each [count, bucket, 2]. Shapes and addresses depend on the two numbers alone, so that a graph can hold it.
        """
        n, held = self._pass, self.bench.features
        ids = self.bench.buffers.token_ids.tensor[:bucket]
        features = None if held is None else held.tensor[:bucket]
        drafts, tops = [], []
        for at in range(count):
            output = n.forward(self._rows(at, bucket, ids), features)
            logits, features = n.logits(output.scored), output.carried
            best = logits.argmax(-1)
            ids = best if n.to_target is None else n.to_target[best]
            drafts.append(ids)
            if self._context.wants_margins:
                tops.append(logits.topk(2, dim=-1).values)
        return [torch.stack(each) for each in (drafts, tops) if each]

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens and features, in blocks of the requests' own where there are enough."""
        passes = self.passes_at(key.k)
        requests = example_requests(self._context.spec, key.bucket, passes, random.Random(variant))
        # Pass after pass, one row of each request in each.
        rows = zip(*(r.one_by_one() for r in requests or ()), strict=True)
        padding = [_PADDING] * (passes * key.bucket)
        self.bench.write(list(itertools.chain(*rows)) if requests else padding)
        self.bench.fill_features(variant if requests else None)

    def _all_at_once(
        self,
        step: TargetStep,
        going: Sequence[Going],
        left: int,
        features: torch.Tensor | None,
    ) -> None:
        key = key_for(step, len(going))
        bucket, passes = (len(going), left) if key is None else (key.bucket, self.passes_at(key.k))
        padding = [_PADDING] * (bucket - len(going))
        rows: list[RequestRows] = []
        for at in range(passes):
            # Of later passes the token is never read.
            rows += [*(g.row(at, g.draws.tokens[-1]) for g in going), *padding]
        self.bench.write(rows)
        self.bench.write_features(features, bucket)
        made = self.passes(bucket, passes) if key is None else replay(step, key)
        tops = made[1].tolist() if len(made) > 1 else None
        for at, drafts in enumerate(made[0].tolist()):
            for i, g in enumerate(going):
                if at < g.passes:
                    g.draws.tokens.append(drafts[i])
                    if tops is not None:
                        g.draws.margins.append(margin_of(*tops[at][i]))

    def _one_by_one(self, going: Sequence[Going], left: int, features: torch.Tensor | None) -> None:
        n = self._pass
        for at in range(left):
            rows = self.bench.write([g.row(at, g.draws.tokens[-1]) for g in going])
            output = n.forward(rows, features)
            features = output.carried
            more = [(g.draws, i) for i, g in enumerate(going) if at < g.passes]
            take_each(more, n.logits(output.scored), n.to_target)

    def _rows(self, at: int, bucket: int, ids: torch.Tensor) -> Rows:
        b, here = self.bench.buffers, slice(at * bucket, (at + 1) * bucket)
        return Rows(
            ids=ids,
            positions=b.positions.tensor[here],
            slots=b.slots.tensor[here],
            block_tables=b.block_tables.tensor[here],
            context_lens=b.context_lens.tensor[here],
            # One row a request: the starts are the same in each pass.
            query_starts=b.query_starts.tensor[: bucket + 1],
        )
