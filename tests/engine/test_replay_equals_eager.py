"""A replay gives what the step gives without a graph: for each graph of a plan, in any order, whatever padding holds.

All runs poison their padding: ids, positions and slots of rows that no request owns are legal and unlike real ones, rows
behind a graph are out of range, so that reading one is an error, and the cache is full of large numbers.
"""

import pytest

from graphspec.api import load
from graphspec.capture.dispatch import Step
from graphspec.capture.warmup import make_ready
from graphspec.engine.executor import Executor
from support.replays import ReplayEngine, plain_executor, tiny_spec_for

TABLE = [(1, 2, 3), (3, 5, 1), (6, 7, 2), (8, 9, 0)]
"""Depth goes up and down with the batch size, and is 0 for the largest."""
STEPS = 1000
NEAR_ON_THE_EXAMPLE = 5e-3
"""Over thirty layers, on cached keys and values that no text would give."""


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    """The reference program on the tiny model."""
    spec = tiny_spec_for(tiny_checkpoint, TABLE, k=3, max_num_seqs=9)
    return ReplayEngine(spec, plain_executor(spec, debug_padding=True))


def check_each_graph(engine):
    batches = [
        engine.batch(key, engine.requests(count, key.k))
        for key in engine.manager.plan.keys
        for count in sorted({1, key.bucket})
    ]
    for batch in (*batches, *reversed(batches)):
        engine.check(batch)


def check_walk(engine, steps, batches_each):
    """Batches that grow and shrink: each step verifies drafts of the depth before, as dispatch says. Gives the graphs used.

    There are `batches_each` different batches for each pair of a size and a depth: what they give eagerly is worked out
    once, and takes twice as long as a replay.
    """
    most, schedule = engine.spec.scheduler.max_num_seqs, engine.manager.plan.schedule
    before, used, known = 1, set(), {}
    for _ in range(steps):
        far = engine.random.random() < 0.2
        now = engine.random.randint(1, most) if far else before + engine.random.randint(-2, 2)
        now = min(max(now, 1), most)
        found = engine.manager.dispatch(
            Step(requests=now, proposed_k=schedule.k_for(before), prefill=False)
        )
        assert found.reason is None
        place = (now, found.k, engine.random.randrange(batches_each))
        if place not in known:
            known[place] = engine.batch(found.key, engine.requests(now, found.k))
        engine.check(known[place])
        used.add(found.key)
        before = now
    return used


def test_each_graph_equals_eager_also_after_others(tiny):
    """Each graph of the plan, full and with one request, and again after all the others ran."""
    assert {k.k for k in tiny.manager.plan.keys} == {0, 1, 2, 3}
    check_each_graph(tiny)


def test_a_thousand_steps_of_k_going_up_and_down(tiny):
    """No step falls through, each replay equals the eager batch, and every graph is used."""
    assert check_walk(tiny, STEPS, batches_each=16) == tiny.manager.captured


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
    source = make_ready(spec, cache_dir=str(shared_cache)).source
    artifacts = {
        "attention_input": source._input,
        "attention_output": source._output,
        "head": source._head,
    }
    executor = Executor(spec, source.weights, artifacts, debug_padding=True)
    engine = ReplayEngine(spec, executor, near=NEAR_ON_THE_EXAMPLE)
    check_each_graph(engine)
    assert check_walk(engine, STEPS, batches_each=2) == engine.manager.captured
