"""What went wrong in others' verification (theme L of the field reports), by number."""

import math

import pytest
import torch

from graphspec.config.speculative import RejectionSampleMethod as Method
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import KernelError
from graphspec.fields import policies
from graphspec.kernels import Sampling, verify_drafts
from graphspec.resolve.verification import rates_of_length
from support.verification import answers, ask, disagreements, random_batch, run

both = pytest.mark.parametrize("implementation", ["reference", "cpu"])
NAN, INF = math.nan, math.inf


def rows_of(vocab, *changes):
    """A row of zeros with some entries set."""
    row = [0.0] * vocab
    for at, value in changes:
        row[at] = value
    return row


@both
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bad",
    [
        [NAN] * 5,
        rows_of(5, (3, NAN)),
        rows_of(5, (3, -NAN)),
        [-INF] * 5,
        rows_of(5, (0, INF), (4, INF)),
        rows_of(5, (2, INF)),
        [NAN] * 20_000,
        rows_of(20_000, (19_999, NAN)),
    ],
    ids=["all NaN", "one NaN", "negative NaN", "all masked", "inf twice", "inf", "large", "last"],
)
def test_b116_a_broken_row_gives_no_token_and_is_flagged(bad, temperature, implementation):
    """Accepted drafts before it stay, no id is made up, and other requests are as without it."""
    vocab = len(bad)
    sure = [[50.0 if t == best else 0.0 for t in range(vocab)] for best in (1, 2, 3)]
    logits = torch.tensor([*sure, sure[0], bad, *sure], dtype=torch.float32)
    verdict = verify_drafts(
        logits,
        torch.tensor([1, 2, 1, 1, 2]),
        torch.tensor([0, 2, 3, 5]),
        sampling=Sampling.of(temperature=[temperature] * 3, seed=[1, 2, 3]),
        implementation=implementation,
    )
    assert answers(verdict) == [[1, 2, 3], [1], [1, 2, 3]]
    assert verdict.broken.tolist() == [False, True, False]
    alone = verify_drafts(
        torch.tensor([bad], dtype=torch.float32),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([0, 0]),
        sampling=Sampling.of(temperature=[temperature]),
        implementation=implementation,
    )
    assert alone.counts.tolist() == [0]
    assert alone.tokens.tolist() == [[-1]]
    assert alone.broken.tolist() == [True]


@both
def test_b117_temperatures_from_zero_to_tiny_in_one_batch(implementation):
    """0 is greedy, tiny temperatures take the best token, and a count is never negative."""
    values = [0.0, 1e-40, 1e-7, 1e-5, 1.0]
    logits = torch.randn(2 * len(values), 40, generator=torch.Generator().manual_seed(2))
    best = logits.argmax(-1)
    verdict = verify_drafts(
        logits,
        best[::2].contiguous(),
        torch.arange(len(values) + 1),
        sampling=Sampling.of(temperature=values, seed=range(len(values))),
        implementation=implementation,
    )
    assert verdict.counts.min() >= 1
    for r in range(4):
        assert verdict.tokens[r].tolist() == best[2 * r : 2 * r + 2].tolist()


@pytest.mark.parametrize("temperature", [-1.0, NAN, INF])
def test_b117_a_temperature_that_means_nothing_is_refused(temperature):
    """No marker stands for greedy but 0."""
    with pytest.raises(KernelError, match=r"sampling.temperature\[0\]"):
        ask([[[0.0, 1.0]]], [[]], sampling=Sampling.of(temperature=[temperature]))


def test_b120_offsets_of_rows_go_beyond_32_bits():
    """A row that begins past 2**31 entries is read where it lies; see also test_row_offsets_are_64_bit for the device."""
    from graphspec.kernels.verify_cpu import CODE, FLAT

    assert FLAT.dtype.bitwidth == 32
    _, base, vocab = CODE.signatures["best_of_row"].args
    assert (base.bitwidth, vocab.bitwidth) == (64, 64)


@both
def test_b121_the_first_request_reads_nothing_before_its_row(implementation):
    """The arrays begin in the middle of allocations whose other parts would change the answer if they were read."""
    hold = torch.full((50,), 7, dtype=torch.int64)
    cu, drafts = hold[20:22], hold[40:41]
    cu[0], cu[1], drafts[0] = 0, 1, 1
    around = torch.full((6, 4), 1e30)
    around[2:4] = torch.tensor([[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]])
    verdict = verify_drafts(
        around[2:4],
        drafts,
        cu,
        sampling=Sampling.of(temperature=[0.0]),
        implementation=implementation,
    )
    assert answers(verdict) == [[1, 2]]


@both
@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafts", [[-1, -1, -1], [5, -1, -1], [-1, 5, 6]])
@pytest.mark.parametrize("dense", [False, True])
def test_b122_padded_drafts_are_never_kept(drafts, temperature, method, dense, implementation):
    """-1 ends the drafts in every method, is never emitted, and nothing after it is kept; synthetic rates of 1 included."""
    from graphspec.kernels import FlyRule

    best = [5, 6, 6, 7]
    logits = torch.zeros(4, 8)
    for i, token in enumerate(best):
        logits[i, token] = 60.0
    q = torch.full((3, 8), 1 / 8) if dense else None
    verdict = verify_drafts(
        logits,
        torch.tensor(drafts),
        torch.tensor([0, 3]),
        sampling=Sampling.of(temperature=[temperature], seed=[4]),
        methods=method,
        draft_probs=q,
        fly=FlyRule(window=1, entropy_threshold=0.0),
        synthetic_rates=[1.0, 1.0, 1.0],
        implementation=implementation,
    )
    kept = 1 if drafts[0] == 5 else 0
    assert answers(verdict) == [best[: kept + 1]]


@pytest.mark.parametrize("vocab", [1, 2, 5, 127, 8192, 8193, 32_000])
@pytest.mark.parametrize("most", [1, 31])
def test_b125_any_vocabulary_and_depth(vocab, most):
    """From one token on, for K 1 and 31; the verdict is that of the slow reference."""
    batch = random_batch(vocab + most, vocab=vocab, requests=2, most=most)
    batch.arguments["synthetic_rates"] = [0.9] * most
    assert disagreements(batch, run(batch, "cpu")) == []


@pytest.mark.deep
@pytest.mark.parametrize("vocab", [151_936, 262_144])
@pytest.mark.parametrize("most", [1, 31])
def test_b125_large_vocabularies(vocab, most):
    """The same for vocabularies that no block holds."""
    test_b125_any_vocabulary_and_depth(vocab, most)


@both
def test_b125_a_batch_of_none_is_empty(implementation):
    """No requests: a verdict of no rows."""
    verdict = verify_drafts(
        torch.zeros(0, 9),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        sampling=Sampling.of(temperature=[]),
        max_drafts=3,
        implementation=implementation,
    )
    assert (verdict.tokens.shape, verdict.counts.shape) == ((0, 4), (0,))


STEPS = 100_000


def mean_length(rates, temperature):
    """Tokens a step, over 100,000 steps that differ in their seed."""
    k = len(rates)
    logits = torch.zeros(1, 4).expand(STEPS * (k + 1), 4).contiguous()
    verdict = verify_drafts(
        logits,
        torch.zeros(STEPS * k, dtype=torch.int64),
        torch.arange(STEPS + 1) * k,
        sampling=Sampling.of(temperature=[temperature] * STEPS, seed=range(STEPS)),
        methods=Method.SYNTHETIC,
        synthetic_rates=rates,
        implementation="cpu",
    )
    return float(verdict.counts.double().mean())


@pytest.mark.parametrize(
    ("rates", "length"),
    [
        ((0.9, 0.7, 0.5), 3.1),
        ((0.5, 0, 0), 1.5),
        ((1, 1, 1), 4),
        ((0, 0, 0), 1),
        (rates_of_length(2.6, 3), 2.6),
    ],
)
def test_b126_synthetic_rates_give_their_mean_length(rates, length):
    """Within 0.02 of 1 + the sum of rates, and greedy requests the same as sampled ones, to the bit."""
    greedy, sampled = mean_length(rates, 0.0), mean_length(rates, 1.0)
    assert greedy == sampled == pytest.approx(length, abs=0.02)


@pytest.mark.parametrize("rates", [[0.5, 0.7, 0.6], [0.5, 0.5], [1.1, 1, 1], [NAN, 0, 0]])
def test_b126_rates_that_mean_nothing_are_refused(rates):
    """Rising rates, too few, above one, NaN."""
    with pytest.raises(KernelError, match="synthetic_rates"):
        ask([[[0.0, 1.0]] * 4], [[0, 0, 0]], methods=Method.SYNTHETIC, synthetic_rates=rates)


def test_b126_rates_are_in_no_key():
    """No graph and no compiled code depends on the rates, and the declaration says why."""
    for field in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
        policy = policies(SpeculativeConfig)[field]
        assert policy.stage is None
        assert policy.reason
