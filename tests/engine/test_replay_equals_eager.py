"""A replay gives what the step gives without a graph: for each graph of a plan, in any order, whatever padding holds.

All runs poison their padding: ids, positions and slots of rows that no request owns are legal and unlike real ones, rows
behind a graph are out of range, so that reading one is an error, and the cache is full of large numbers.
"""

import random

import pytest
import torch

from graphspec.api import load
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Step
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import plan_capture
from graphspec.capture.warmup import make_ready
from graphspec.engine.buffers import SCRATCH_BLOCK, RequestRows
from graphspec.engine.executor import Executor
from graphspec.engine.llama import program
from graphspec.engine.weights import load_weights
from support.plans import spec_for

TABLE = [(1, 2, 3), (3, 5, 1), (6, 7, 2), (8, 9, 0)]
"""Depth goes up and down with the batch size, and is 0 for the largest."""
STEPS = 1000
NEAR, NEAR_ON_THE_EXAMPLE = 2e-4, 5e-3
"""How far results of the same rows may lie apart in batches of other shapes, whose sums are in another order: over two
layers, and over thirty on cached keys and values that no text would give."""


class Engine:
    """A sealed engine with poisoned padding, and requests of random tokens in blocks of their own."""

    def __init__(self, spec, artifacts, near, seed=0):
        self.spec, self.near = spec, near
        weights = load_weights(spec.model, spec.device)
        self.executor = Executor(spec, weights, artifacts, debug_padding=True)
        self.manager = CaptureManager(plan_capture(spec), self.executor, TapeBackend())
        self.manager.warm()
        self.manager.capture()
        assert all(v.agrees for v in self.manager.verify())
        self.manager.seal()
        self.random = random.Random(seed)
        self.executor.cache.normal_(generator=torch.Generator().manual_seed(seed))
        self.executor.cache[:, :, SCRATCH_BLOCK].fill_(1e4)

    def requests(self, count, k):
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

    def write(self, key, requests):
        padding = [self.executor.padding_request(key.k)] * (key.bucket - len(requests))
        self.executor.buffers.write([*requests, *padding])

    def check(self, key, requests, *, bitwise):
        """The replay equals the batch run alone and unpadded; and, to the bit, the padded step run eagerly."""
        near = self.near
        real = [
            at * (1 + key.k) + row for at, r in enumerate(requests) for row in range(len(r.tokens))
        ]
        alone = [t.clone() for t in self.executor.run(requests, real)]
        served = self.executor.cache[:, :, SCRATCH_BLOCK + 1 :]
        kept = served.clone() if bitwise else served
        written = torch.zeros(served.shape[2:4], dtype=torch.bool)
        for slot in self.executor.buffers.slots.tensor[: len(real)].tolist() if bitwise else ():
            written.view(-1)[slot - written.shape[1]] = True
        if bitwise:
            self.write(key, requests)
            with torch.no_grad():
                eager = [t[real].clone() for t in self.executor.step(key)]
        self.write(key, requests)
        replayed = [t[real] for t in self.manager.replay(key)]
        if bitwise:
            assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))
            # No padding row wrote where a request reads: all but the new tokens' places is as it was.
            assert torch.equal(served[:, :, ~written], kept[:, :, ~written])
            assert torch.allclose(served[:, :, written], kept[:, :, written], rtol=near, atol=near)
        ids, values, margins = alone
        assert torch.allclose(replayed[1], values, rtol=near, atol=near)
        assert torch.allclose(replayed[2], margins, rtol=near, atol=2 * near)
        clear = margins > 4 * near
        assert torch.equal(replayed[0][clear], ids[clear])
        # Enough of them are no near ties for this to say something.
        assert len(real) < 10 or clear.float().mean() > 0.5


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    """The reference program on the tiny model, on plain functions: what is compiled does not matter here."""

    def make(**sections):
        return {
            "model": {"source": str(tiny_checkpoint), "max_model_len": 96},
            "kv_cache": {"block_size": 8, "num_blocks": 128},
            **sections,
        }

    spec = spec_for(make, TABLE, k=3, max_num_seqs=9)
    units = program(spec).units()
    return Engine(spec, {u.name: _as_artifact(u.build(spec)) for u in units}, NEAR)


def _as_artifact(call):
    def run(*tensors):
        made = call(*tensors)
        return list(made) if isinstance(made, tuple) else [made]

    return run


def check_each_graph(engine):
    keys = engine.manager.plan.keys
    for key in (*keys, *reversed(keys)):
        for count in {1, key.bucket}:
            engine.check(key, engine.requests(count, key.k), bitwise=True)


def check_walk(engine, steps):
    """Batches that grow and shrink: each step verifies drafts of the depth before, as dispatch says."""
    most, schedule = engine.spec.scheduler.max_num_seqs, engine.manager.plan.schedule
    before, used = 1, set()
    for at in range(steps):
        far = engine.random.random() < 0.2
        now = engine.random.randint(1, most) if far else before + engine.random.randint(-2, 2)
        now = min(max(now, 1), most)
        found = engine.manager.dispatch(
            Step(requests=now, proposed_k=schedule.k_for(before), prefill=False)
        )
        assert found.reason is None
        engine.check(found.key, engine.requests(now, found.k), bitwise=at % 10 == 0)
        used.add(found.key)
        before = now
    return used


def test_each_graph_equals_eager_also_after_others(tiny):
    """Each graph of the plan, full and with one request, and again after all the others ran."""
    assert {k.k for k in tiny.manager.plan.keys} == {0, 1, 2, 3}
    check_each_graph(tiny)


def test_a_thousand_steps_of_k_going_up_and_down(tiny):
    """No step falls through, each replay equals the eager batch, and every graph is used."""
    assert check_walk(tiny, STEPS) == tiny.manager.captured


def test_poison_in_rows_that_a_step_reads_is_noticed(tiny):
    """The proof can fail: a batch whose rows are written one short reads a row that no step may."""
    key = tiny.manager.plan.keys[0]
    tiny.write(key, tiny.requests(key.bucket, key.k))
    tiny.executor.buffers.token_ids.leave(key.tokens - 1)
    with pytest.raises(IndexError):
        tiny.manager.replay(key)


@pytest.mark.deep
def test_the_example_replays_as_it_runs_eagerly(shared_cache):
    """The same on the real model with compiled units."""
    # Contexts of 64 tokens: the content of a thousand blocks is compared after each replay.
    spec = load("examples/smollm2-ngram.yaml", ["model.max_model_len=64", "kv_cache.num_blocks=65"])
    ready = make_ready(spec, cache_dir=str(shared_cache))
    source = ready.source
    artifacts = {
        "attention_input": source._input,
        "attention_output": source._output,
        "head": source._head,
    }
    engine = Engine(spec, artifacts, NEAR_ON_THE_EXAMPLE)
    check_each_graph(engine)
    check_walk(engine, STEPS)
