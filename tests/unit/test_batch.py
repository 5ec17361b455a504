"""The rows of a step: three implementations of one arithmetic, which the engine's buffers have."""

import random

import attrs
import pytest
import torch

import graphspec
from graphspec.engine.buffers import RequestRows, allocate_buffers
from graphspec.errors import CaptureError, KernelError
from graphspec.kernels import batch, batch_cpu
from support.specs import ROOT, run_python
from support.step_rows import int64, random_requests


def assert_equal_rows(one, other):
    for name, wanted in attrs.asdict(one, recurse=False).items():
        assert torch.equal(wanted, getattr(other, name)), name


def test_a_step_by_hand():
    """Two requests, two tokens at position 3 with one row of padding and one token at 0, in blocks of two slots."""
    made = batch.prepare(
        batch.Requests(
            tokens=int64([50, 51, 60]),
            cu_tokens=int64([0, 2, 3]),
            firsts=int64([3, 0]),
            padding=int64([1, 0]),
            blocks=int64([[4, 9, 6], [2, 0, 0]]),
            rows=4,
            block_size=2,
            fill_token=-5,
            fill_position=-6,
            fill_slot=-7,
        )
    )
    assert made.token_ids.tolist() == [50, 51, -5, 60]
    assert made.positions.tolist() == [3, 4, -6, 0]
    assert made.slots.tolist() == [19, 12, -7, 4]
    assert made.context_lens.tolist() == [6, 1]
    assert made.query_starts.tolist() == [0, 3, 4]


@pytest.mark.parametrize("seed", range(40))
def test_the_host_path_equals_the_reference(seed):
    """Empty batches, requests without tokens and padding included."""
    requests = random_requests(random.Random(seed))
    assert_equal_rows(batch.prepare(requests), batch_cpu.prepare(requests))


INTERPRETED = """
import random, sys
sys.path.insert(0, {tests!r})
import attrs, torch
from graphspec.kernels import batch, batch_triton
from support.step_rows import random_requests
for seed in range(25):
    for longest in (6, 300):
        requests = random_requests(random.Random(seed), longest=longest)
        one, other = batch.prepare(requests), batch_triton.prepare(requests)
        for name, wanted in attrs.asdict(one, recurse=False).items():
            assert torch.equal(wanted, getattr(other, name)), (seed, longest, name)
print("equal")
"""


def test_the_triton_kernel_equals_the_reference_under_the_interpreter(monkeypatch):
    """Also with more rows than one tile."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = run_python(INTERPRETED.format(tests=str(ROOT / "tests")))
    assert done.stdout.split() == ["equal"], done.stderr


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"cu_tokens": int64([0])}, "cu_tokens"),
        ({"padding": torch.zeros(1, dtype=torch.int32)}, "padding"),
        ({"blocks": int64([[1, 2], [3, 4]]).T}, "blocks"),
        ({"rows": 0}, "prepare"),
        ({"block_size": 0}, "blocks of 0"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, where):
    """The kernels read addresses: what they are given is checked before."""
    good = batch.Requests(
        tokens=int64([1, 2]),
        cu_tokens=int64([0, 2]),
        firsts=int64([0]),
        padding=int64([0]),
        blocks=int64([[0]]),
        rows=2,
        block_size=2,
    )
    batch.prepare(good)
    for module in (batch, batch_cpu):
        with pytest.raises(KernelError, match=where):
            module.prepare(attrs.evolve(good, **change))


def rows_by_hand(buffers, requests):
    """What the buffers should hold, one row after another."""
    ids, positions, slots, lens, starts = [], [], [], [], [0]
    for r in requests:
        for i, token in enumerate(r.tokens):
            at = r.position + i
            ids.append(token)
            positions.append(at)
            slots.append(
                r.blocks[at // buffers.block_size] * buffers.block_size + at % buffers.block_size
            )
        ids += [int(buffers.token_ids.fill)] * r.padding
        positions += [int(buffers.positions.fill)] * r.padding
        slots += [int(buffers.slots.fill)] * r.padding
        starts.append(len(ids))
        lens.append(r.position + len(r.tokens) + r.padding)
    return ids, positions, slots, lens, starts


@pytest.fixture(scope="module")
def spec():
    return graphspec.load(str(ROOT / "examples" / "smollm2-ngram.yaml"))


@pytest.mark.parametrize("debug", [False, True])
def test_step_buffers_hold_what_the_arithmetic_says(spec, debug):
    """Random steps, written one over another, with harmless and with poisoned padding."""
    buffers = allocate_buffers(spec, debug_padding=debug)
    rng = random.Random(1)
    for _ in range(20):
        requests = [
            RequestRows(
                tokens=[rng.randint(1, 99) for _ in range(rng.randint(0, 9))],
                position=rng.randint(0, 40),
                blocks=[rng.randint(1, 9) for _ in range(4)],
                padding=rng.randint(0, 2),
            )
            for _ in range(rng.randint(1, 5))
        ]
        rows = buffers.write(requests)
        ids, positions, slots, lens, starts = rows_by_hand(buffers, requests)
        assert rows == len(ids)
        assert buffers.token_ids.tensor[:rows].tolist() == ids
        assert buffers.positions.tensor[:rows].tolist() == positions
        assert buffers.slots.tensor[:rows].tolist() == slots
        assert buffers.context_lens.tensor[: len(lens)].tolist() == lens
        assert buffers.query_starts.tensor[: len(starts)].tolist() == starts
        for table, r in zip(buffers.block_tables.tensor.tolist(), requests, strict=False):
            assert table[:4] == list(r.blocks)
            assert set(table[4:]) == {0}


def test_a_token_past_its_blocks_is_refused(spec):
    """Its keys and values would go to the scratch block without a word."""
    buffers = allocate_buffers(spec)
    size = buffers.block_size
    buffers.write([RequestRows(tokens=[1], position=2 * size - 1, blocks=[1, 2])])
    with pytest.raises(CaptureError, match="2 blocks for positions below"):
        buffers.write([RequestRows(tokens=[1, 1], position=2 * size - 1, blocks=[1, 2])])


def test_a_step_wider_than_the_buffers_is_refused(spec):
    """In rows, in requests and in blocks."""
    buffers = allocate_buffers(spec)
    tokens = buffers.token_ids.tensor.shape[0]
    count, width = buffers.block_tables.tensor.shape
    one = RequestRows(tokens=[1], position=0, blocks=[1])
    for step in (
        [RequestRows(tokens=[1] * tokens, position=0, blocks=range(1, width), padding=1)],
        [one] * (count + 1),
        [RequestRows(tokens=[1], position=0, blocks=[1] * (width + 1))],
    ):
        with pytest.raises(CaptureError):
            buffers.write(step)
