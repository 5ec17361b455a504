"""Reports B71 to B77 of theme G, replays and padding: each one's test and right outcome, on the tape."""

import gc
import random
import threading
from functools import partial

import pytest
import torch

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, GraphMode
from graphspec.capture.plan import plan_capture
from graphspec.capture.routes import Routes
from graphspec.engine.buffers import SCRATCH_BLOCK
from graphspec.engine.generate import Generator
from graphspec.engine.sampling import SamplingParams
from graphspec.errors import CaptureError
from support.fake_cuda import FakeCuda
from support.graphs import key
from support.plans import spec_for
from support.replays import ReplayEngine, plain_executor, sealed, tiny_spec_for

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def no_full_collection(monkeypatch):
    """A collection of all that torch imported takes 0.2 s; here reference counts free all."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def cuda(monkeypatch):
    """A scripted device in the place of torch's."""
    device = FakeCuda(total=1024 * MEBIBYTE)
    device.install(monkeypatch)
    return device


@pytest.fixture(scope="module")
def wide(tiny_checkpoint):
    """A sealed engine of two drafts whose only graphs are of 3 and 8 requests. What no request owns is not poisoned, as in
    production."""
    spec = tiny_spec_for(tiny_checkpoint, None, k=2, max_num_seqs=8)
    return ReplayEngine(spec, plain_executor(spec), plan_capture(spec, buckets={2: (3, 8)}))


# One request of four prompt tokens, a tail of four after a chunk of eight, a decode beside a prefill, other short prompts.
PREFILLS = {
    "prompt of 1 + k": {"requests": 1, "tokens": 4},
    "last chunk of 1 + k": {"requests": 1, "tokens": 4, "uniform": True},
    "decode and prefill of 1 + k": {"requests": 2, "tokens": 8},
    "prompt of 3": {"requests": 1, "tokens": 3},
    "prompt of 5": {"requests": 1, "tokens": 5},
    "uncounted": {"requests": 1},
}


@pytest.mark.parametrize("shape", PREFILLS.values(), ids=PREFILLS)
def test_B71_a_step_with_a_prefill_has_no_full_graph(tiny_config, shape):
    """Also where its tokens look like decodes: not by the rule, not by the table of a sealed engine, and with a reason."""
    plan = plan_capture(spec_for(tiny_config, None, k=3, max_num_seqs=4), captures=EVERY_KIND)
    captured = frozenset(plan.keys)
    prefill, decode = (Step(proposed_k=3, prefill=p, **shape) for p in (True, False))
    for answer in (partial(dispatch, plan, captured), Routes.of(plan, captured).route):
        found = answer(prefill)
        assert found.reason in (Fallthrough.PREFILL_CHUNK, Fallthrough.MIXED_BATCH)
        assert found.key is None or found.key.mode is GraphMode.PIECEWISE
    alike = shape.get("tokens") == shape["requests"] * 4
    assert (found.reason is Fallthrough.PREFILL_CHUNK) == alike
    # The same shape is a decode where nobody is in prefill: the phase alone tells them apart.
    assert (answer(decode).reason is None) == (alike or "tokens" not in shape)


def test_B71_nobody_can_ask_without_saying_the_phase():
    """A step has no default for it, so that an engine cannot forget it."""
    with pytest.raises(TypeError, match="prefill"):
        Step(requests=1, proposed_k=3)


def generate(spec, plan, prompts, max_tokens):
    """What prompts give on the tiny model; and of each step whether it had a prefill, its requests and whether it was a
    replay."""
    executor, steps = plain_executor(spec), []
    manager = sealed(plan, executor)
    asked = manager.dispatch

    def watched(step):
        found = asked(step)
        steps.append((step.prefill, step.requests, found))
        return found

    manager.dispatch = watched
    generator = Generator(executor, manager)
    told = generator.generate(prompts, SamplingParams(max_tokens=max_tokens))
    return told, steps, executor


def same_text(one, other):
    """All but the margins, which are sums of other shapes."""
    fields = ("tokens", "drafted", "accepted", "steps")
    return [[getattr(g, f) for f in fields] for g in one] == [
        [getattr(g, f) for f in fields] for g in other
    ]


def test_B71_short_prompts_give_what_they_give_without_graphs(tiny_checkpoint):
    """Prompts of 3, 4 and 5 tokens, and one whose last chunk has four: prefills run no full graph, and the text is right."""
    spec = tiny_spec_for(tiny_checkpoint, None, k=3, max_num_seqs=2)
    assert spec.scheduler.max_num_batched_tokens == 8
    plan = plan_capture(spec)
    prompts = [[5, 6, 7], [5, 6, 7, 8], [9, 8, 7, 6, 5], list(range(20, 33))]
    told, steps, _ = generate(spec, plan, prompts, max_tokens=8)
    prefills = [found for prefill, _, found in steps if prefill]
    assert prefills
    assert all(found.key is None for found in prefills)
    assert all(found.reason is None for prefill, _, found in steps if not prefill)
    without = plan.without(plan.keys, Fallthrough.NOT_CAPTURABLE)
    assert same_text(told, generate(spec, without, prompts, max_tokens=8)[0])


def test_B72_padding_rows_stay_what_they_are(wide):
    """Five requests in the graph of eight, for three steps in which they grow: rows 5 to 7 keep position and length, their
    slots and blocks are the scratch block's, and no index is negative."""
    bucket, buffers = key(2, 8), wide.executor.buffers
    width, requests = 1 + bucket.k, wide.requests(5, 2)
    scratch = range(wide.spec.kv_cache.block_size)
    for _ in range(3):
        wide.check(wide.batch(bucket, requests))
        rows = slice(5 * width, 8 * width)
        assert set(buffers.positions.tensor[rows].tolist()) == {0}
        assert set(buffers.slots.tensor[rows].tolist()) <= set(scratch)
        assert buffers.block_tables.tensor[5:8].unique().tolist() == [SCRATCH_BLOCK]
        assert buffers.context_lens.tensor[5:8].tolist() == [width] * 3
        assert buffers.query_starts.tensor[:9].tolist() == list(range(0, 9 * width, width))
        assert all(int(buffer.tensor.min()) >= 0 for buffer in buffers.all)
        requests = [grown(r) for r in requests]


def grown(request):
    """The same request some tokens later, or from its begin again where its blocks end."""
    limit = len(request.blocks) * 8 - 16
    position = (request.position + 3) % limit
    return type(request)(
        tokens=request.tokens, position=position, blocks=request.blocks, padding=request.padding
    )


NOWHERE = 1 << 40


def falling_then_any():
    """Batch sizes from 8 down to 1, then in any order."""
    made = random.Random(75)
    return [*range(8, 0, -1), *(made.randint(1, 8) for _ in range(24))]


def test_B75_nothing_of_an_earlier_batch_is_left(wide):
    """Every static buffer holds numbers that no row may have before a batch is copied in: real rows are as without a graph,
    and padding rows hold the neutral value."""
    buffers = wide.executor.buffers
    for count in falling_then_any():
        bucket = key(2, 3 if count <= 3 else 8)
        batch = wide.batch(bucket, wide.requests(count, 2))
        for buffer in buffers.all:
            buffer.tensor.fill_(NOWHERE)
        wide.check(batch)
        padded = slice(count * 3, bucket.tokens)
        for buffer in (buffers.token_ids, buffers.positions, buffers.slots):
            assert set(buffer.tensor[padded].tolist()) <= {buffer.padding.harmless}
        # What lies behind the graph is not read, or it would have been an error.
        assert buffers.token_ids.tensor[bucket.tokens :].unique().tolist() in ([NOWHERE], [])


def test_B75_a_batch_writes_every_buffer(wide):
    """No input is left out of a step, so none keeps what an earlier one put there."""
    buffers = wide.executor.buffers
    for buffer in buffers.all:
        buffer.tensor.fill_(NOWHERE)
    wide.write(key(2, 8), wide.requests(2, 2))
    assert {b.name for b in buffers.all if b.tensor.flatten()[0] == NOWHERE} == set()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (torch.zeros(5, 2), "rows 0 to 5"),
        (torch.zeros(3, 3), "rows of shape [3]"),
        (torch.zeros(3), "rows of shape []"),
        ([[1, 2], [3]], "rows of unequal lengths"),
    ],
)
def test_B75_rows_are_checked_against_the_buffer(rows, found):
    """More rows than were allocated, and rows of another length, are refused before anything is written."""
    buffer = StaticBuffer("x", torch.ones(4, 2), Padding(poison=7, unread=9))
    with pytest.raises(CaptureError) as caught:
        buffer.copy_in(rows)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == ("static buffer x", found)
    assert torch.equal(buffer.tensor, torch.ones(4, 2))


WATCHDOG_SECONDS = 10


@pytest.mark.parametrize("bucket", [3, 8])
def test_B76_every_padded_batch_returns_and_equals_the_exact_one(wide, bucket):
    """Each number of requests up to the bucket, three tokens wide, within ten seconds each."""
    for count in range(1, bucket + 1):
        requests, ended = wide.requests(count, 2), []

        def run(count=count, requests=requests, ended=ended):
            wide.check(wide.batch(key(2, bucket), requests))
            ended.append(count)

        watched = threading.Thread(target=run, daemon=True)
        watched.start()
        watched.join(WATCHDOG_SECONDS)
        assert ended == [count]


ON_OFF_ON = [(1, 1, 2), (2, 2, 0), (3, 8, 2)]
"""Three requests are drafted for, two are not, and one is again."""


def test_B77_dummies_are_in_no_result_and_as_wide_as_the_step(tiny_checkpoint):
    """Three requests in graphs of eight, speculation on, then off, then on as they end: results and counts of drafts are
    those of graphs of exactly three, two and one, and each dummy has the step's own width."""
    spec = tiny_spec_for(tiny_checkpoint, ON_OFF_ON, k=2, max_num_seqs=8)
    plan = plan_capture(spec, buckets={2: (8,), 0: (8,)})
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [3, 4] * 20, list(range(30, 62))]
    # They end one after another: each at the model's length limit.
    told, steps, executor = generate(spec, plan, prompts, max_tokens=64)
    assert len(told) == 3
    decodes = [(n, found.key) for prefill, n, found in steps if not prefill]
    assert all(found.bucket == 8 for _, found in decodes)
    assert {(n, found.k) for n, found in decodes} >= {(3, 2), (2, 0), (1, 2)}
    assert executor.buffers.query_starts.tensor[8] == 8 * (1 + decodes[-1][1].k)

    exact = plan_capture(spec, buckets={2: (1, 2, 3, 8), 0: (1, 2, 3)})
    plainly, steps, _ = generate(spec, exact, prompts, max_tokens=64)
    assert {n - found.key.bucket for prefill, n, found in steps if not prefill} == {0}
    assert same_text(told, plainly)
    assert sum(g.drafted for g in told) > 0


def test_B77_a_dummy_is_as_wide_as_the_depth_of_the_step(wide):
    """1 + k rows at every depth, whatever the depth before was: on, off, on."""
    for k in (2, 0, 2):
        dummies = [wide.executor.padding_request(k)] * 5
        assert wide.executor.buffers.write(dummies) == 5 * (1 + k)
