"""Compiled verification equals the reference, and what holds of every verdict."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from support.verification import disagreements, random_batch, run

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
shapes = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([1, 2, 3, 5, 33, 127, 1023, 1024, 1025, 2500]),
        "most": st.sampled_from([0, 1, 2, 5]),
        "dense": st.booleans(),
        "spoilt": st.booleans(),
        "dtype": st.sampled_from(DTYPES),
    }
)


@given(st.integers(0, 2**32), shapes)
@example(3, {"vocab": 33, "most": 5, "dense": False, "spoilt": True, "dtype": torch.float32})
def test_compiled_verdicts_equal_the_reference(seed, shape):
    """Every method, setting and dtype; also with padded drafts, NaN, infinities and zero draft probabilities."""
    batch = random_batch(seed, requests=4, **shape)
    assert disagreements(batch, run(batch, "cpu")) == []


@given(st.integers(0, 2**32), shapes)
def test_every_verdict_is_well_formed(seed, shape):
    """At least one token unless a row is broken, never more than drafts + 1, ids of the vocabulary, then -1."""
    batch = random_batch(seed, requests=4, **shape)
    verdict = run(batch, "cpu")
    lengths = batch.cu_drafts.diff()
    for r in range(4):
        count, tokens = int(verdict.counts[r]), verdict.tokens[r].tolist()
        assert (0 if verdict.broken[r] else 1) <= count <= int(lengths[r]) + 1
        assert all(0 <= t < shape["vocab"] for t in tokens[:count])
        assert set(tokens[count:]) <= {-1}
        drafts = batch.drafts[batch.cu_drafts[r] : batch.cu_drafts[r + 1]].tolist()
        kept = count if verdict.broken[r] else count - 1
        assert tokens[:kept] == drafts[:kept]


@pytest.mark.deep
@pytest.mark.parametrize("vocab", [32000, 49152, 151936, 262144])
def test_large_vocabularies_equal_the_reference(vocab):
    """Sizes that engines have."""
    for seed in range(12):
        batch = random_batch(seed, vocab=vocab, requests=4, dense=seed % 2 == 0)
        assert disagreements(batch, run(batch, "cpu")) == []
