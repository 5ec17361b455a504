"""A sealed engine for tests of replays: requests of random tokens, and each replay held against its batch without a graph."""

import random
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.keys import CaptureKey
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.config.schedule import Range
from graphspec.engine.buffers import SCRATCH_BLOCK, RequestRows
from graphspec.engine.executor import Executor
from graphspec.engine.llama import program
from graphspec.engine.outputs import StepOutputs, unflat
from graphspec.engine.weights import load_weights
from graphspec.resolve.spec import EngineSpec
from support.after_ready import plain
from support.plans import spec_for

NEAR = 2e-4
"""How far results of the same rows may lie apart in batches of other shapes, whose sums are in another order: over the two
layers of the tiny model."""


def tiny_spec_for(
    checkpoint: object, table: Sequence[Range] | None, *, k: int, max_num_seqs: int
) -> EngineSpec:
    """The contract of the tiny model on short contexts, with this schedule."""

    def make(**sections: Any) -> dict[str, Any]:
        return {
            "model": {"source": str(checkpoint), "max_model_len": 96},
            "kv_cache": {"block_size": 8, "num_blocks": 128},
            **sections,
        }

    return spec_for(make, table, k=k, max_num_seqs=max_num_seqs)


def plain_executor(spec: EngineSpec, *, debug_padding: bool = False) -> Executor:
    """The reference executor on plain functions: what is compiled does not matter to a replay."""
    units = {unit.name: plain(unit, spec) for unit in program(spec).units()}
    weights = load_weights(spec.model, spec.device)
    return Executor(spec, weights, units, debug_padding=debug_padding)


def sealed(plan: CapturePlan, executor: Executor) -> CaptureManager:
    """A manager that has captured the plan on the tape, verified it and sealed."""
    manager = CaptureManager(plan, executor, TapeBackend())
    manager.warm()
    manager.capture(strict=True)
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    return manager


@attrs.frozen(kw_only=True, eq=False)
class Batch:
    """Requests for a graph, and what they give without one, from the cache as it was at first.

    `rows` are the rows of the padded step that are tokens of requests. For these, `alone` has best tokens, logits and margins
    of the batch run as it is, and `padded` the outputs of the padded step. `slots` are where their keys and values go, and
    `written` what the padded step wrote there.
    """

    key: CaptureKey
    requests: Sequence[RequestRows]
    rows: Sequence[int]
    alone: Sequence[torch.Tensor]
    padded: Sequence[torch.Tensor]
    slots: torch.Tensor
    written: torch.Tensor


class ReplayEngine:
    """A sealed engine, and requests of random tokens in blocks of their own. Every batch starts from the same cache, full of
    keys and values that no text would give, and a scratch block of large numbers."""

    def __init__(
        self,
        spec: EngineSpec,
        executor: Executor,
        plan: CapturePlan | None = None,
        *,
        near: float = NEAR,
        seed: int = 0,
    ) -> None:
        self.spec, self.executor, self.near = spec, executor, near
        self.manager = sealed(plan or plan_capture(spec), executor)
        self.random = random.Random(seed)
        executor.cache.normal_(generator=torch.Generator().manual_seed(seed))
        executor.cache[:, :, SCRATCH_BLOCK].fill_(1e4)
        self._first = executor.cache.clone()

    def requests(self, count: int, k: int) -> Sequence[RequestRows]:
        """Decode rows of `count` requests: own blocks, random lengths, and now and then fewer drafts than k."""
        block, blocks = self.spec.kv_cache.block_size, self.spec.kv_cache.num_blocks - 1
        width = self.executor.buffers.block_tables.tensor.shape[1]
        each = min(width, blocks // self.spec.scheduler.max_num_seqs)
        longest = min(each * block, self.spec.model.max_model_len) - 1 - k
        made = []
        for at in self.random.sample(range(self.spec.scheduler.max_num_seqs), count):
            drafts = k if self.random.random() < 0.8 else self.random.randint(0, k)
            vocabulary = self.spec.model.vocab_size
            made.append(
                RequestRows(
                    tokens=[self.random.randrange(vocabulary) for _ in range(1 + drafts)],
                    position=self.random.randint(0, longest),
                    blocks=range(1 + at * each, 1 + (at + 1) * each),
                    padding=k - drafts,
                )
            )
        return made

    def write(self, key: CaptureKey, requests: Sequence[RequestRows]) -> None:
        """Copies a batch in, and pads it to the graph's requests."""
        padding = [self.executor.padding_request(key.k)] * (key.bucket - len(requests))
        self.executor.buffers.write([*requests, *padding])

    def batch(self, key: CaptureKey, requests: Sequence[RequestRows]) -> Batch:
        """The batch with what it gives eagerly, alone and padded."""
        rows = real_rows(requests)
        outputs = self.executor.run(requests, rows)
        alone = [t.clone() for t in (outputs.best, outputs.value, outputs.margin)]
        self._restore()
        self.write(key, requests)
        slots = self.executor.buffers.slots.tensor[torch.tensor(rows)]
        with torch.no_grad():
            padded = [t[rows].clone() for t in self.executor.step(key)]
        written = self._by_slot(self.executor.cache)[:, :, slots].clone()
        self._restore()
        return Batch(
            key=key,
            requests=requests,
            rows=rows,
            alone=alone,
            padded=padded,
            slots=slots,
            written=written,
        )

    def check(self, batch: Batch) -> None:
        """The replay gives and writes to the bit what the padded step does, and nothing else where a request reads; and its
        results are near to those of the batch alone."""
        self.write(batch.key, batch.requests)
        replayed = [t[batch.rows] for t in self.manager.replay(batch.key)]
        assert all(torch.equal(a, b) for a, b in zip(batch.padded, replayed, strict=True))
        now, first = self._by_slot(self.executor.cache), self._by_slot(self._first)
        assert torch.equal(now[:, :, batch.slots], batch.written)
        now[:, :, batch.slots] = first[:, :, batch.slots]
        self.executor.cache[:, :, SCRATCH_BLOCK] = self._first[:, :, SCRATCH_BLOCK]
        assert torch.equal(now, first)
        self._compare(batch.alone, unflat(self.spec, replayed))

    def _compare(self, alone: Sequence[torch.Tensor], found: StepOutputs) -> None:
        """The best tokens are the same but for near ties, and their logits and margins are near."""
        near, (best, values, margins) = self.near, alone
        assert torch.allclose(found.value, values, rtol=near, atol=near)
        assert torch.allclose(found.margin, margins, rtol=near, atol=2 * near)
        clear = margins > 4 * near
        assert torch.equal(found.best[clear], best[clear])
        # Enough of them are no near ties for this to say something.
        assert len(best) < 10 or clear.float().mean() > 0.5

    def _by_slot(self, cache: torch.Tensor) -> torch.Tensor:
        """[layers, 2, slots, kv_heads, head_dim]."""
        return cache.flatten(2, 3)

    def _restore(self) -> None:
        self.executor.cache.copy_(self._first)


def real_rows(requests: Sequence[RequestRows]) -> Sequence[int]:
    """Rows of a batch that are tokens of requests, where all requests have equally many rows."""
    width = len(requests[0].tokens) + requests[0].padding
    return [at * width + row for at, r in enumerate(requests) for row in range(len(r.tokens))]
