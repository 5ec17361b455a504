"""Draft verification: the examples of the reference (section 9), seeds, batches, and what is refused."""

import importlib.util
import math

import attrs
import pytest
import torch

from graphspec.config.speculative import RejectionSampleMethod as Method
from graphspec.errors import KernelError
from graphspec.kernels import FlyRule, Sampling, verify_drafts, warm_verify
from graphspec.kernels.verify_random import accept_uniform, philox, sample_uniform, words
from graphspec.kernels.verify_reference import (
    Rows,
    entropy,
    filtered,
    first_above,
    residual,
)
from graphspec.kernels.verify_values import conditional_rates
from graphspec.resolve.verification import rates_of_length
from support.verification import answers, ask, random_batch, run

IMPLEMENTATIONS = ["reference", "cpu"]
both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def row(best, vocab=10, second=None):
    """Logits whose best token is sure, or nearly as likely as a second one."""
    values = [0.0] * vocab
    values[best] = 20.0
    if second is not None:
        values[second] = 19.5
    return values


# 9.2


@both
def test_9_2_greedy_ends_at_the_first_mismatch_with_the_best_token(implementation):
    """Drafts are kept while they are the best token; the lowest index wins a tie."""
    target = [row(3), row(4), row(5), row(6)]
    assert ask([target], [[3, 4, 9]], implementation) == [[3, 4, 5]]
    assert ask([target], [[3, 4, 5]], implementation) == [[3, 4, 5, 6]]
    assert ask([[[1.0, 2.0, 2.0], [7.0, 7.0, 7.0]]], [[1]], implementation) == [[1, 0]]
    assert ask([[[1.0, 2.0, 2.0], [7.0, 7.0, 7.0]]], [[2]], implementation) == [[1]]


def test_9_2_a_sure_draft_is_replaced_by_anything_but_itself():
    """Without draft probabilities the target's row loses the rejected draft."""
    p = torch.tensor([[0.5, 0.3, 0.2]] * 2, dtype=torch.float64)
    assert residual(Rows(drafts=[0], target=p), 0).tolist() == [0.0, 0.3, 0.2]
    q = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    left = residual(Rows(drafts=[1], target=p, draft=q), 0).tolist()
    assert left == pytest.approx([0.3, 0.0, 0.0])


def test_9_2_an_empty_residual_gives_a_token_of_the_target():
    """Where p equals q everywhere, rounding may reject a draft and leave nothing: then p itself is sampled."""
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    assert residual(Rows(drafts=[0], target=p, draft=p[:1]), 0).tolist() == [0.5, 0.5]
    assert residual(Rows(drafts=[0], target=p[1:].repeat(2, 1)), 0).tolist() == [1.0, 0.0]


@both
def test_9_2_a_draft_of_probability_zero_is_rejected(implementation):
    """A draft that its drafter could not have drawn (q 0) is not kept; nor is one that the target cannot give."""
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    sampling = Sampling.of(temperature=[1.0], seed=[3])
    for q, target in (([0.0, 1.0], logits), ([1.0, 0.0], torch.tensor([[-math.inf, 0.0], [0, 0]]))):
        verdict = verify_drafts(
            target,
            torch.tensor([0]),
            torch.tensor([0, 1]),
            sampling=sampling,
            draft_probs=torch.tensor([q]),
            implementation=implementation,
        )
        assert int(verdict.counts) == 1


@both
def test_9_2_a_request_without_drafts_takes_the_number_of_plain_sampling(implementation):
    """Only the bonus token: it depends on seed and position alone, and torch's own generator is not asked."""
    state = torch.get_rng_state()
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    sampling = Sampling.of(temperature=[1.0], seed=[9], position=[100])
    made = ask([[logits[0].tolist()]], [[]], implementation, sampling=sampling)
    weights = torch.softmax(logits[0].double(), -1)
    assert made == [[first_above(weights, sample_uniform(9, 100))]]
    assert torch.equal(state, torch.get_rng_state())


@both
def test_9_1_the_narrower_vocabulary_counts(implementation):
    """Columns past the draft's vocabulary, or past vocab_size, are padding: they are neither kept nor sampled."""
    logits = torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0]])
    cut = {"sampling": Sampling.of(temperature=[0.0]), "implementation": implementation}
    drafts, cu = torch.tensor([1]), torch.tensor([0, 1])
    narrow = verify_drafts(logits, drafts, cu, draft_probs=torch.tensor([[0.5, 0.5]]), **cut)
    named = verify_drafts(logits, drafts, cu, vocab_size=2, **cut)
    assert answers(narrow) == answers(named) == [[1, 0]]
    assert answers(verify_drafts(logits, torch.tensor([2]), cu, vocab_size=2, **cut)) == [[1]]


# 9.3


@pytest.mark.parametrize(
    ("length", "k", "rates"),
    [
        (1, 3, (0, 0, 0)),
        (2.5, 4, (1, 0.5, 0, 0)),
        (3, 4, (1, 1, 0, 0)),
        (3.4, 5, (1, 1, 0.3999999999999999, 0, 0)),
        (5, 4, (1, 1, 1, 1)),
    ],
)
def test_9_3_rates_of_a_length(length, k, rates):
    """The least variance for a mean length; tokens a step are 1 + the sum of rates."""
    assert rates_of_length(length, k) == rates
    assert 1 + sum(rates) == pytest.approx(length)


@pytest.mark.parametrize(
    ("rates", "chances"),
    [
        ((0.9, 0.6, 0.3), (0.9, 0.6667, 0.5)),
        ((0.7, 0.4, 0.1), (0.7, 0.5714, 0.25)),
        ((0.8, 0, 0), (0.8, 0, 0)),
    ],
)
def test_9_3_conditional_rates(rates, chances):
    """The chance of a draft, given that all before it are kept; 0 where nothing before it can be."""
    assert conditional_rates(rates) == pytest.approx(chances, abs=1e-4)


@both
def test_9_3_an_accepted_draft_is_emitted_even_if_it_is_not_the_best(implementation):
    """With rates of 1 everything is kept, with rates of 0 the first token is the target's."""
    target, drafts = [[row(3), row(4), row(5)]], [[7, 8]]
    ask_for = {"methods": Method.SYNTHETIC, "implementation": implementation}
    assert ask(target, drafts, synthetic_rates=[1, 1], **ask_for) == [[7, 8, 5]]
    assert ask(target, drafts, synthetic_rates=[0, 0], **ask_for) == [[3]]


# 9.4: losslessness and the comparison with standard are in tests/property/test_verify_lossless.py.


@both
def test_9_4_a_greedy_request_of_block_verification_is_greedy(implementation):
    """Temperature 0 has precedence over block."""
    target = [[row(3), row(4), row(5)]]
    assert ask(target, [[3, 9]], implementation, methods=Method.BLOCK) == [[3, 4]]


# 9.5

UNSURE = [0.0] * 10
UNSURE[4], UNSURE[5] = 2.0, 1.9


@both
@pytest.mark.parametrize(
    ("first", "window", "tokens"),
    [(UNSURE, 2, [5, 1, 2, 9]), (row(4), 2, [4]), (UNSURE, 3, [4])],
)
def test_9_5_fly_examples(first, window, tokens, implementation):
    """A rejection passes if the target is unsure and the next drafts are right; not if it is sure, or one of them wrong."""
    target = [[first, row(1), row(2), row(9), row(0)]]
    fly = FlyRule(window=window)
    made = ask(target, [[5, 1, 2, 3]], implementation, methods=Method.FLY, fly=fly)
    assert made == [tokens]


@both
def test_9_5_a_rejection_in_the_last_window_never_passes(implementation):
    """The window of row 2 would reach row 4, and there are drafts up to row 3."""
    target = [[row(1), row(2), UNSURE, row(3), row(0)]]
    fly = FlyRule(window=2)
    made = ask(target, [[1, 2, 5, 3]], implementation, methods=Method.FLY, fly=fly)
    assert made == [[1, 2, 4]]


@both
def test_9_5_a_masked_draft_never_passes(implementation):
    """A draft whose logit is -inf is no token of the target, however unsure it is."""
    masked = [-math.inf if t == 5 else x for t, x in enumerate(UNSURE)]
    target = [[masked, row(1), row(2), row(9), row(0)]]
    fly = FlyRule(window=2, entropy_threshold=0.0)
    made = ask(target, [[5, 1, 2, 3]], implementation, methods=Method.FLY, fly=fly)
    assert made == [[4]]


@pytest.mark.parametrize(
    ("p", "nats"),
    [
        ((0.5, 0.3, 0.1, 0.1), 0.938),
        ((0.97, 0.01, 0.01, 0.01), 0.122),
        ((1 / 3, 1 / 3, 1 / 3), 1.0986),
        ((1.0, 0.0, 0.0), 0.0),
    ],
)
def test_9_5_entropies(p, nats):
    """Of the three largest, not renormalised; nothing for a probability of zero."""
    assert entropy(torch.tensor(p, dtype=torch.float64), 3) == pytest.approx(nats, abs=1e-3)
    assert entropy(torch.tensor(p, dtype=torch.float64), 99) >= entropy(torch.tensor(p), 1)


def test_9_5_the_entropy_is_that_of_the_filtered_distribution():
    """The same row passes at temperature 1 and not when the filters leave one token."""
    target = [[UNSURE, row(1), row(2), row(9), row(0)]]
    passed = set()
    for seed in range(40):
        for top_k in (0, 1):
            sampling = Sampling.of(temperature=[1.0], seed=[seed], top_k=[top_k])
            fly = FlyRule(window=2)
            ask_for = {"methods": Method.FLY, "fly": fly, "sampling": sampling}
            made = ask(target, [[5, 1, 2, 9]], "cpu", **ask_for)
            assert made == ask(target, [[5, 1, 2, 9]], **ask_for)
            passed |= {(top_k, made[0][0])}
    assert (0, 5) in passed
    assert {t for k, t in passed if k == 1} == {4}


# Sampling settings


def test_filters_keep_what_is_as_likely_as_the_last_one_kept():
    """min-p, then top-k, then top-p of the rest; equal tokens are kept or dropped together."""
    logits = torch.tensor([[4.0, 4.0, 3.0, 3.0, 0.0]], dtype=torch.float64)

    def kept(*settings):
        return (filtered(logits, *settings)[0] > 0).tolist()

    assert kept(1.0, 3, 1.0, 0.0) == [True, True, True, True, False]
    assert kept(1.0, 1, 1.0, 0.0) == [True, True, False, False, False]
    assert kept(1.0, 0, 0.5, 0.0) == [True, True, False, False, False]
    assert kept(1.0, 0, 0.9, 0.0) == [True, True, True, True, False]
    assert kept(1.0, 0, 1.0, 0.5) == [True, True, False, False, False]
    assert kept(1.0, 0, 1e-6, 1.0) == [True, True, False, False, False]


@both
def test_the_bonus_token_obeys_the_same_filters(implementation):
    """With top_k 1 at a high temperature, every row and the last one give their best token."""
    target = [[row(1, second=2), row(3, second=4), row(5, second=6)]]
    for seed in range(20):
        sampling = Sampling.of(temperature=[5.0], top_k=[1], seed=[seed])
        assert ask(target, [[1, 3]], implementation, sampling=sampling) == [[1, 3, 5]]


# Random numbers


def test_random_words_are_those_of_philox():
    """The known answers of the paper's own test vectors."""
    ones = 0xFFFFFFFF
    assert philox((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    answer = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == answer


def test_compiled_code_has_the_same_random_bits():
    """Both numbers of many seeds and positions, negative and large ones too."""
    from graphspec.kernels.verify_cpu import CODE

    made = CODE.ready()
    accept_number, sample_number = made["accept_number"], made["sample_number"]
    for seed in (0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF):
        for position in (0, 1, 4095, 2**32 - 1, 2**32, 2**40 + 5):
            assert accept_number(seed, position) == accept_uniform(seed, position)
            assert sample_number(seed, position) == sample_uniform(seed, position)


def test_uniform_numbers_are_never_zero_or_one():
    """The least and the largest word give numbers inside (0, 1)."""
    assert 0 < 0.5 * 2.0**-32
    assert (2**32 - 1 + 0.5) * 2.0**-32 < 1
    assert (2**52 - 1 + 0.5) * 2.0**-52 < 1
    assert len({words(5, 7, purpose) for purpose in range(3)}) == 3


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 40.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.9999, 1 - 2**-24])
def test_what_top_p_keeps_is_that_of_sorted_probabilities(spread, top_p):
    """Flat rows, rows of equals, rows with one sure token, masked tokens; several blocks, and one that is not full. No token
    comes that a sort leaves out, and of many that it keeps, more than one does."""
    make, n = torch.Generator().manual_seed(int(spread * 1000)), 60
    logits = torch.randn(1, 2100, generator=make) * spread
    logits[0, 50:60] = -math.inf
    if spread == 40:
        logits[0, 2099] = logits.max() + 3
    ordered = torch.softmax(logits[0].double(), 0).sort(descending=True)
    before = ordered.values.cumsum(0) - ordered.values
    least = ordered.values[before < top_p + 1e-6].min()
    possible = set(ordered.indices[ordered.values >= least * (1 - 1e-5)].tolist())
    verdict = verify_drafts(
        logits.expand(n, -1).contiguous(),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(n + 1, dtype=torch.int64),
        sampling=Sampling.of(temperature=[1.0] * n, seed=range(n), top_p=[top_p] * n),
        implementation="cpu",
    )
    drawn = verdict.tokens[:, 0].tolist()
    assert set(drawn) <= possible
    assert len(set(drawn)) > 1 or ordered.values[0] > 0.9 * min(top_p, 0.999)


# Batches


@both
@pytest.mark.parametrize("seed", range(6))
def test_mixed_batches_equal_each_request_alone(seed, implementation):
    """Greedy, sampled, synthetic, FLy and block requests in one batch: bit for bit what each gives alone."""
    batch = random_batch(seed, vocab=1500, requests=12, dense=seed % 2 == 0, spoilt=seed > 2)
    whole = run(batch, implementation)
    for r in range(12):
        one = run(batch.alone(r), implementation)
        for field in ("tokens", "counts", "broken"):
            assert torch.equal(getattr(one, field)[0], getattr(whole, field)[r])


def test_any_number_of_threads_gives_the_same_bits():
    """One thread and three."""
    batch, threads = random_batch(3, vocab=3000, requests=9), torch.get_num_threads()
    made = []
    for count in (1, 3):
        torch.set_num_threads(count)
        made.append(run(batch, "cpu"))
    torch.set_num_threads(threads)
    assert torch.equal(made[0].tokens, made[1].tokens)


def test_inputs_are_left_as_they_are():
    """Nothing writes into logits, drafts, draft probabilities or settings."""
    batch = random_batch(4, vocab=40, spoilt=True)
    held = [batch.logits, batch.drafts, batch.cu_drafts, batch.arguments["draft_probs"]]
    held += list(attrs.asdict(batch.arguments["sampling"], recurse=False).values())
    before = [t.clone() for t in held]
    for implementation in IMPLEMENTATIONS:
        run(batch, implementation)
    assert all(
        torch.equal(a.nan_to_num(nan=7), b.nan_to_num(nan=7))
        for a, b in zip(held, before, strict=True)
    )


@both
def test_rows_of_a_wider_buffer_are_taken_without_a_copy(implementation):
    """Logits may be the first columns of a wider tensor."""
    batch = random_batch(8, vocab=64)
    wide = torch.full((batch.logits.shape[0], 80), 1e9)
    wide[:, :64] = batch.logits
    plain, viewed = (
        run(batch, implementation),
        run(attrs.evolve(batch, logits=wide[:, :64]), implementation),
    )
    assert torch.equal(plain.tokens, viewed.tokens)


def test_half_precision_batches_are_copied_in_parts(monkeypatch):
    """With room for two rows at a time, bfloat16 logits give what one copy gives."""
    from graphspec.kernels import verify_cpu

    batch = random_batch(5, vocab=33, dtype=torch.bfloat16)
    whole = run(batch, "cpu")
    monkeypatch.setattr(verify_cpu, "COPY_BYTES", 2 * 4 * 33)
    assert torch.equal(run(batch, "cpu").tokens, whole.tokens)


def test_nothing_is_compiled_after_warming():
    """Calls of every kind: numba tells of no compile."""
    from numba.core import event

    assert warm_verify() >= 0
    with event.install_recorder("numba:compile") as compiles:
        for seed, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
            run(random_batch(seed, vocab=9, dtype=dtype, dense=seed > 0), "cpu")
    assert compiles.buffer == []


def test_without_numba_the_reference_runs_and_nothing_is_compiled(monkeypatch):
    """auto needs no numba; the choice and its reasons are the registry's."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *rest: None if n == "numba" else real(n, *rest)
    )
    assert warm_verify() < 1
    assert ask([[row(3)]], [[]], "auto") == [[3]]


# What is refused


def test_every_problem_of_the_arguments_is_reported():
    """Shapes and dtypes first, then values; all that are wrong."""
    batch = random_batch(1, vocab=8, requests=2, most=2, dense=False)
    with pytest.raises(KernelError) as shapes:
        verify_drafts(
            batch.logits[:-1].double(),
            batch.drafts,
            batch.cu_drafts,
            sampling=Sampling.of(temperature=[1.0] * 3),
            vocab_size=9,
        )
    where = [p.where for p in shapes.value.problems]
    assert {"logits", "sampling.temperature", "vocab_size"} <= set(where)
    with pytest.raises(KernelError) as values:
        verify_drafts(
            batch.logits,
            batch.drafts,
            batch.cu_drafts,
            sampling=Sampling.of(
                temperature=[-1.0, math.nan], top_k=[-1, 0], top_p=[0.0, 1.1], min_p=[-0.1, 2.0]
            ),
            methods=[Method.FLY, Method.SYNTHETIC],
            synthetic_rates=[0.5, 0.7],
            max_drafts=2,
        )
    where = {p.where for p in values.value.problems}
    assert where >= {
        "synthetic_rates[1]",
        "fly",
        "sampling.temperature[0]",
        "sampling.temperature[1]",
    }
    assert where >= {"sampling.top_k[0]", "sampling.top_p[0]", "sampling.top_p[1]"}


@pytest.mark.parametrize("cu", [[0, 3], [1, 2], [0, 2, 1, 2], []])
def test_lengths_that_do_not_add_up_are_refused(cu):
    """cu_drafts begins with 0, never falls, and ends with the number of drafts."""
    requests = max(len(cu) - 1, 0)
    with pytest.raises(KernelError, match="cu_drafts"):
        verify_drafts(
            torch.zeros(2 + requests, 4),
            torch.tensor([1, 2]),
            torch.tensor(cu, dtype=torch.int64),
            sampling=Sampling.of(temperature=[0.0] * requests),
        )


def test_an_unknown_implementation_is_refused():
    """The names are listed."""
    with pytest.raises(KernelError, match="auto, reference, cpu, triton"):
        ask([[row(3)]], [[]], "fast")
