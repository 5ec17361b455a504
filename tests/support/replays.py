"""A sealed engine for tests of replays: requests of random tokens, and each replay held against its batch without a graph."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.keys import CaptureKey
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.config.schedule import Range
from graphspec.engine.buffers import SCRATCH_BLOCK, RequestRows
from graphspec.engine.executor import Executor
from graphspec.engine.llama import program
from graphspec.engine.outputs import unflat
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


class ReplayEngine:
    """A sealed engine, and requests of random tokens in blocks of their own. With poisoned padding, the scratch block is full
    of large numbers too."""

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
        self.executor.cache.normal_(generator=torch.Generator().manual_seed(seed))
        self.executor.cache[:, :, SCRATCH_BLOCK].fill_(1e4)

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

    def replay(self, key: CaptureKey, requests: Sequence[RequestRows]) -> Sequence[torch.Tensor]:
        """Results of the real rows from the graph."""
        self.write(key, requests)
        return [t[real_rows(requests)] for t in self.manager.replay(key)]

    def alone(self, requests: Sequence[RequestRows]) -> Sequence[torch.Tensor]:
        """Best tokens, logits and margins of the real rows, from the batch as it is: no graph, no padding to a bucket."""
        outputs = self.executor.run(requests, real_rows(requests))
        return [t.clone() for t in (outputs.best, outputs.value, outputs.margin)]

    def check(self, key: CaptureKey, requests: Sequence[RequestRows]) -> None:
        """The replay is near to the batch alone."""
        alone = self.alone(requests)
        self.compare(alone, self.replay(key, requests))

    def check_to_the_bit(self, key: CaptureKey, requests: Sequence[RequestRows]) -> None:
        """As `check`; and the replay equals the padded step run eagerly, and no padding row writes where a request reads."""
        near, real = self.near, real_rows(requests)
        alone = self.alone(requests)
        served = self.executor.cache[:, :, SCRATCH_BLOCK + 1 :]
        kept = served.clone()
        written = torch.zeros(served.shape[2:4], dtype=torch.bool)
        for slot in self.executor.buffers.slots.tensor[: len(real)].tolist():
            written.view(-1)[slot - written.shape[1]] = True
        self.write(key, requests)
        with torch.no_grad():
            eager = [t[real].clone() for t in self.executor.step(key)]
        replayed = self.replay(key, requests)
        assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))
        # All but the new tokens' places is as it was.
        assert torch.equal(served[:, :, ~written], kept[:, :, ~written])
        assert torch.allclose(served[:, :, written], kept[:, :, written], rtol=near, atol=near)
        self.compare(alone, replayed)

    def compare(self, alone: Sequence[torch.Tensor], replayed: Sequence[torch.Tensor]) -> None:
        """The best tokens are the same but for near ties, and their logits and margins are near."""
        near = self.near
        best, values, margins = alone
        found = unflat(self.spec, replayed)
        assert torch.allclose(found.value, values, rtol=near, atol=near)
        assert torch.allclose(found.margin, margins, rtol=near, atol=2 * near)
        clear = margins > 4 * near
        assert torch.equal(found.best[clear], best[clear])
        # Enough of them are no near ties for this to say something.
        assert len(best) < 10 or clear.float().mean() > 0.5


def real_rows(requests: Sequence[RequestRows]) -> Sequence[int]:
    """Rows of a batch that are tokens of requests, where all requests have equally many rows."""
    width = len(requests[0].tokens) + requests[0].padding
    return [at * width + row for at, r in enumerate(requests) for row in range(len(r.tokens))]
