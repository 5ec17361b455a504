"""Steps in pieces: any batch, padded to a bucket of tokens, gives what it gives without a graph, and padding writes nothing.

Padding rows are poisoned: ids and positions are legal and unlike real ones, attention's result is large, and rows behind the
bucket are out of range.
"""

import pytest
import torch

from graphspec.capture.pieces import PiecewiseGraph
from graphspec.capture.plan import PIECES, plan_capture
from graphspec.config.compilation import CudagraphMode
from graphspec.engine.buffers import RequestRows
from graphspec.engine.sampling import SamplingParams
from support.drafters import engine_spec
from support.replays import NEAR, plain_executor, sealed, tiny_spec_for
from support.tiny_engine import tiny_engine, with_mode

TABLE = [(1, 2, 3), (3, 5, 1), (6, 9, 0)]


class Pieces:
    """A sealed executor whose cache is full of keys and values that no text would give."""

    def __init__(self, spec):
        self.spec, self.executor = spec, plain_executor(spec, debug_padding=True)
        plan = plan_capture(spec, captures=frozenset({PIECES}))
        self.manager = sealed(plan, self.executor)
        made = torch.Generator().manual_seed(0)
        self.executor.cache.normal_(generator=made)
        self._first = self.executor.cache.clone()

    def check(self, requests):
        """Replay against the same pieces without a graph, to the bit, and against the step alone."""
        executor, tokens = self.executor, sum(len(r.tokens) for r in requests)
        key = self.manager.plan.piecewise_key(tokens)
        alone = executor.run(requests, range(tokens))
        wanted = [t.clone() for t in (alone.logits, executor.cache)]
        outcomes = []
        for run in (executor.step, self.manager.replay):
            executor.cache.copy_(self._first)
            assert executor.write_pieces(key, requests) == tokens
            with torch.no_grad():
                last = [t[:tokens].clone() for t in run(key)]
            outcomes.append([*last, executor.cache.clone()])
        assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))
        logits = executor.scored(outcomes[1][:-1], range(tokens)).logits
        for found, right in ((logits, wanted[0]), (outcomes[1][-1], wanted[1])):
            assert torch.allclose(found, right, rtol=NEAR, atol=NEAR)
        # What no request owns is as it was.
        changed = (outcomes[1][-1] != self._first).flatten(2, 3).transpose(0, 2).flatten(1).any(1)
        size, own = self.spec.kv_cache.block_size, set()
        for r in requests:
            places = range(r.position, r.position + len(r.tokens))
            own |= {r.blocks[p // size] * size + p % size for p in places}
        assert set(changed.nonzero().flatten().tolist()) <= own
        executor.cache.copy_(self._first)
        return key


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    """The reference program on the tiny model."""
    return Pieces(tiny_spec_for(tiny_checkpoint, TABLE, k=3, max_num_seqs=9))


def batch(made, most, vocabulary):
    """Requests of one to several tokens, of `most` in all: decodes, verifying steps and chunks of prompts together."""
    left, requests = most, []
    while left and len(requests) < 9:
        count = min(left, int(torch.randint(1, 12, (), generator=made)))
        left -= count
        at = len(requests)
        requests.append(
            RequestRows(
                tokens=torch.randint(vocabulary, (count,), generator=made).tolist(),
                position=int(torch.randint(0, 60, (), generator=made)),
                blocks=range(1 + at * 12, 1 + (at + 1) * 12),
            )
        )
    return requests


def test_mixed_batches_replay_as_they_run_and_padding_writes_nothing(tiny):
    """Every number of tokens up to the budget, so that every bucket is used, also after larger and smaller ones."""
    made, used = torch.Generator().manual_seed(1), set()
    most = tiny.spec.scheduler.max_num_batched_tokens
    order = torch.randperm(most, generator=made).add(1).tolist()
    for tokens in (*order, 1, most):
        used.add(tiny.check(batch(made, tokens, tiny.spec.model.vocab_size)))
    assert used == tiny.manager.captured


def test_a_graph_holds_every_piece_and_no_attention(tiny):
    """As many graphs as layers and one more; attention and writes to the cache lie between them."""
    for key in tiny.manager.captured:
        graph = tiny.manager._graphs[key]
        assert isinstance(graph, PiecewiseGraph)
        assert len(graph.graphs) == tiny.spec.model.num_hidden_layers + 1
        recorded = [str(n.function) for _, g in graph.graphs for n in g._nodes]
        assert recorded
        assert not any("paged_attention" in name or "index_copy" in name for name in recorded)


def test_poison_behind_the_bucket_is_noticed(tiny):
    """The proof can fail: a bucket that is padded one row short reads a row that no step may."""
    key = tiny.manager.plan.piecewise_key(5)
    tiny.executor.write_pieces(key, [RequestRows(tokens=[3] * 5, position=0, blocks=[1])])
    tiny.executor.buffers.token_ids.leave(key.bucket - 1)
    with pytest.raises(IndexError):
        tiny.manager.replay(key)


PROMPTS = [[5, 6, 7, 8] * 3, list(range(20, 43)), [9], [3, 4] * 9]


@pytest.mark.parametrize(
    ("mode", "full", "pieces"),
    [
        ("FULL_AND_PIECEWISE", True, {"mixed_batch"}),
        ("PIECEWISE", False, {"mixed_batch", "not_full_mode"}),
        ("FULL_DECODE_ONLY", True, set()),
        ("NONE", False, set()),
    ],
)
def test_steps_are_counted_by_mode_and_reason(tmp_path, mode, full, pieces):
    """Uniform decodes take full graphs where there are some, all else pieces, and what is left runs without a graph."""
    spec = engine_spec(tmp_path, "ngram", prompt_lookup_min=1, prompt_lookup_max=3)
    engine = tiny_engine(with_mode(spec, CudagraphMode[mode]), pieces=True)
    engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    modes = engine.counts.modes
    assert (modes.get(("full", ""), 0) > 0) == full
    assert {reason for kind, reason in modes if kind == "piecewise"} == pieces
    eager = {reason for kind, reason in modes if kind == "none"}
    assert eager == (
        {"mixed_batch", "not_full_mode"} - pieces - ({"not_full_mode"} if full else set())
    )
    # Rows of padding are counted as such, in pieces too.
    assert (engine.counts.padding > 0) == (full or bool(pieces))


def test_auxiliary_layers_come_out_of_pieces_too(tmp_path):
    """A drafter that reads intermediate layers sees the same states: its text and drafts do not change."""
    spec = engine_spec(tmp_path, "eagle3")
    made = [
        tiny_engine(with_mode(spec, mode), pieces=True).generate(
            PROMPTS, SamplingParams(max_tokens=10)
        )
        for mode in (CudagraphMode.PIECEWISE, CudagraphMode.NONE)
    ]
    assert [m.tokens for m in made[0]] == [m.tokens for m in made[1]]
    assert [m.drafted for m in made[0]] == [m.drafted for m in made[1]]


def test_the_pieces_of_one_layer_are_verified_at_their_first_middle_and_last(tiny):
    """Verifying costs three pieces a size, however deep the model is; each has content that is not zero."""
    executor, key = tiny.executor, tiny.manager.plan.piecewise_key(8)
    executor.fill_example(key, 1)
    ran = []
    for at, piece in enumerate(p for p in executor.pieces(key) if p.captured):
        outputs = piece.run()
        ran.append(at)
        assert all(t.abs().sum() > 0 for t in outputs)
    assert ran == list(range(tiny.spec.model.num_hidden_layers + 1))
