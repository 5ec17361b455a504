"""What standard and block verification emit has the target's distribution: every outcome counted, with its exact probability."""

import itertools
import math
import random

import pytest
import torch

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.kernels import FlyRule, Sampling, verify_drafts
from graphspec.kernels.verify_reference import Rows, decide
from support.enumeration import outcomes

EXACT = 1e-12


def distribution(choose, vocab, zeros):
    """Random probabilities, each zero with chance `zeros` but one."""
    weights = [0.0 if choose.random() < zeros else choose.expovariate(1) for _ in range(vocab)]
    weights[choose.randrange(vocab)] += choose.expovariate(1)
    return [w / sum(weights) for w in weights]


def models(seed, vocab, drafts, sure):
    """p and q after each prefix: tables of a target and a drafter. A sure drafter has one draft after each prefix."""
    choose = random.Random(seed)
    zeros = choose.choice([0.0, 0.3, 0.7])
    prefixes = [x for n in range(drafts + 1) for x in itertools.product(range(vocab), repeat=n)]
    p = {x: distribution(choose, vocab, zeros) for x in prefixes}
    alike = choose.random() < 0.2
    q = {x: p[x] if alike else distribution(choose, vocab, zeros) for x in prefixes}
    if sure:
        chosen = {x: choose.randrange(vocab) for x in prefixes}
        q = {x: [float(t == chosen[x]) for t in range(vocab)] for x in prefixes}
    return p, q


def emitted(p, q, vocab, n, method, sure):
    """Probability of each text of n + 1 tokens, and the mean of accepted drafts: all draft sequences, all outcomes."""
    texts, accepted = {}, 0.0
    for x in itertools.product(range(vocab), repeat=n):
        likely = math.prod(q[x[:i]][x[i]] for i in range(n))
        if likely == 0:
            continue
        rows = Rows(
            drafts=x,
            target=torch.tensor([p[x[:i]] for i in range(n + 1)], dtype=torch.float64),
            draft=None
            if sure
            else torch.tensor([q[x[:i]] for i in range(n)], dtype=torch.float64).reshape(n, vocab),
            method=method,
        )
        for (kept, token), chance in outcomes(lambda c, rows=rows: decide(rows, c)):
            accepted += likely * chance * kept
            # What follows the step's tokens is the target's own choice.
            begin = (*x[:kept], token)
            for rest in itertools.product(range(vocab), repeat=n + 1 - len(begin)):
                text, after = begin + rest, likely * chance
                for i in range(len(begin), n + 1):
                    after *= p[text[:i]][text[i]]
                texts[text] = texts.get(text, 0.0) + after
    return texts, accepted


CASES = [
    (seed, vocab, n, sure)
    for vocab, n in itertools.product((2, 3, 4), (1, 2, 3))
    for sure in (False, True)
    for seed in range(2)
]


def check(seed, vocab, n, sure):
    p, q = models(seed * 1000 + vocab * 10 + n, vocab, n, sure)
    mean = {}
    for method in ("standard", "block"):
        texts, mean[method] = emitted(p, q, vocab, n, method, sure)
        for text in itertools.product(range(vocab), repeat=n + 1):
            wanted = math.prod(p[text[:i]][text[i]] for i in range(n + 1))
            assert abs(texts.get(text, 0.0) - wanted) < EXACT, (method, text)
    assert mean["block"] >= mean["standard"] - EXACT


@pytest.mark.parametrize(("seed", "vocab", "n", "sure"), CASES)
def test_texts_have_the_distribution_of_the_target(seed, vocab, n, sure):
    """Standard and block give each text the target's probability to 1e-12, zeros and sure drafts included; block accepts
    at least as many drafts."""
    check(seed, vocab, n, sure)


@pytest.mark.deep
@pytest.mark.parametrize(("vocab", "n"), itertools.product((2, 3, 4), (1, 2, 3)))
def test_more_texts_have_the_distribution_of_the_target(vocab, n):
    """The same for many more models."""
    for seed in range(100, 104 if vocab**n > 30 else 130):
        for sure in (False, True):
            check(seed, vocab, n, sure)


def test_the_enumeration_notices_a_wrong_rule():
    """With the fly rule in place of the standard one, texts do not have the target's distribution."""
    p, q = models(3, 3, 2, False)
    rule = FlyRule(window=1, entropy_threshold=0.0)
    wrong = 0.0
    for x in itertools.product(range(3), repeat=2):
        rows = Rows(
            drafts=x,
            target=torch.tensor([p[x[:i]] for i in range(3)], dtype=torch.float64),
            draft=torch.tensor([q[x[:i]] for i in range(2)], dtype=torch.float64),
            method="fly",
            fly=rule,
        )
        likely = q[()][x[0]] * q[x[:1]][x[1]]
        for (kept, token), chance in outcomes(lambda c, rows=rows: decide(rows, c)):
            wrong += likely * chance * ((*x[:kept], token)[0] == 0)
    assert abs(wrong - p[()][0]) > 1e-3


STEPS = 40_000
SIGNIFICANCE = 1e-6


def first_tokens(method, implementation, bias=0.0):
    """Counts of the first token of many requests that differ in their seed alone."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    q = torch.tensor([0.2, 0.2, 0.3, 0.3])
    make = torch.Generator().manual_seed(11)
    drafts = torch.multinomial(q.expand(STEPS, 4), 1, generator=make).reshape(-1)
    skewed = p.clone()
    skewed[0], skewed[1] = skewed[0] + bias, skewed[1] - bias
    verdict = verify_drafts(
        skewed.log().expand(2 * STEPS, 4).contiguous(),
        drafts,
        torch.arange(STEPS + 1),
        sampling=Sampling.of(temperature=[1.0] * STEPS, seed=range(STEPS), position=[7] * STEPS),
        methods=method,
        draft_probs=q.expand(STEPS, 4).contiguous(),
        implementation=implementation,
    )
    return torch.bincount(verdict.tokens[:, 0].long(), minlength=4), p


def p_value(counts, p):
    """Of Pearson's chi-squared test with 3 degrees of freedom."""
    expected = p * counts.sum()
    x = float(((counts - expected) ** 2 / expected).sum())
    return math.erfc(math.sqrt(x / 2)) + math.sqrt(2 * x / math.pi) * math.exp(-x / 2)


@pytest.mark.parametrize("method", ["standard", "block"])
def test_sampled_tokens_fit_the_target(method):
    """40,000 seeds: the first token's counts fit at a significance of 1e-6, and a bias of 2 points does not."""
    chosen = RejectionSampleMethod(method)
    assert p_value(*first_tokens(chosen, "cpu")) > SIGNIFICANCE
    assert p_value(*first_tokens(chosen, "cpu", bias=0.02)) < SIGNIFICANCE
