"""The Triton kernels of verification, under the interpreter, equal the reference."""

import attrs
import pytest
import torch

from graphspec.kernels import FlyRule, Sampling
from support.interpreter import interpreted
from support.verification import Batch, disagreements, random_batch, run


@pytest.fixture(scope="module")
def triton():
    """Runs a batch in the process that interprets Triton."""
    with interpreted() as call:
        yield lambda batch: call(run, batch, "triton")


def light(batch, filters):
    """The batch without filters for most requests: each search of a threshold takes the interpreter a second."""
    s = batch.arguments["sampling"]
    off = torch.arange(len(s.seed)) >= filters
    sampling = attrs.evolve(
        s, top_k=s.top_k.masked_fill(off, 0), top_p=s.top_p.masked_fill(off, 1.0)
    )
    return attrs.evolve(batch, arguments={**batch.arguments, "sampling": sampling})


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(1, DTYPES[0]), (2, DTYPES[1]), (5, DTYPES[2]), *((127, dtype) for dtype in DTYPES)],
)
def test_small_vocabularies_equal_the_reference(triton, vocab, dtype):
    """Every method and setting, padded drafts, NaN and infinities, with draft probabilities and without."""
    for dense in (False, True):
        batch = random_batch(
            vocab, vocab=vocab, requests=6, most=3, dense=dense, dtype=dtype, spoilt=True
        )
        batch = light(batch, 1)
        assert disagreements(batch, triton(batch)) == []


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(8192, DTYPES[1]), (8193, DTYPES[2]), pytest.param(151936, DTYPES[0], marks=pytest.mark.deep)],
)
def test_large_vocabularies_equal_the_reference(triton, vocab, dtype):
    """Whole tiles, one entry more, and a vocabulary that no block could hold; few rows."""
    batch = light(random_batch(vocab, vocab=vocab, requests=3, most=2, dtype=dtype), 0)
    assert disagreements(batch, triton(batch)) == []


@pytest.mark.deep
@pytest.mark.parametrize("vocab", [1, 2, 5, 127, 2047, 2048, 2049, 8192, 8193, 32000, 151936])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape_equals_the_reference(triton, vocab, dtype):
    """All filters, more requests, draft vocabularies that are narrower."""
    for seed in range(6 if vocab < 10_000 else 1):
        batch = random_batch(
            seed,
            vocab=vocab,
            requests=8 if vocab < 10_000 else 2,
            dense=seed % 2 == 0,
            dtype=dtype,
            spoilt=seed % 3 == 2,
            draft_vocab=max(1, vocab - seed % 4),
        )
        assert disagreements(batch, triton(batch)) == []


def test_mixed_batches_equal_each_request_alone(triton):
    """Every method in one batch: bit for bit what each request gives alone."""
    batch = light(random_batch(5, vocab=300, requests=6, most=3), 1)
    whole = triton(batch)
    for r in range(6):
        one = triton(batch.alone(r))
        assert torch.equal(one.tokens[0], whole.tokens[r])
        assert torch.equal(one.counts[0], whole.counts[r])


def test_random_bits_are_those_of_the_reference(triton):
    """Uniform weights turn a token into a random number: 16 seeds and positions give the reference's tokens exactly."""
    n, vocab = 16, 4096
    batch = Batch(
        logits=torch.zeros(n, vocab),
        drafts=torch.zeros(0, dtype=torch.int64),
        cu_drafts=torch.zeros(n + 1, dtype=torch.int64),
        arguments={
            "sampling": Sampling.of(
                temperature=[1.0] * n,
                seed=[s * 0x1234567890ABCDE - 2**62 for s in range(n)],
                position=[p * 0x100000001 for p in range(n)],
            ),
            "methods": torch.zeros(n, dtype=torch.int8),
            "draft_probs": None,
            "fly": FlyRule(window=1),
            "synthetic_rates": (),
            "max_drafts": 0,
        },
    )
    made = triton(batch).tokens
    assert torch.equal(made, run(batch, "reference").tokens)
    assert len(set(made.flatten().tolist())) > 12


def test_an_empty_batch_gives_an_empty_verdict(triton):
    """No request, no launch."""
    batch = random_batch(0, vocab=7, requests=1, most=0)
    none = Sampling.of(temperature=[])
    empty = attrs.evolve(
        batch,
        logits=batch.logits[:0],
        cu_drafts=torch.tensor([0]),
        arguments={**batch.arguments, "sampling": none, "methods": [], "max_drafts": 2},
    )
    assert triton(empty).tokens.shape == (0, 3)


def test_row_offsets_are_64_bit():
    """B120: a row's place is computed from 64-bit numbers in each kernel: cu_drafts, from which rows come, is int64."""
    from graphspec.kernels.verify_triton import variants

    for variant in variants():
        assert variant["signature"]["cu_drafts"] == "*i64"
        assert variant["signature"]["drafts"] == "*i64"
