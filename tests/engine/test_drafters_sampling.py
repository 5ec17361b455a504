"""Drafts are drawn from the distribution that they are verified against, by numbers of the request's own."""

import math
from collections import Counter

import torch

from graphspec.engine.drafters.protocol import Computed
from graphspec.engine.drafters.sampling import Draws, draft_uniform, spread, take_each
from graphspec.kernels.verify_random import accept_uniform, sample_uniform

LOGITS = torch.tensor([1.0, -2.0, 0.5, float("-inf"), 0.0])


def draws(seed=1, temperature=1.0, samples=True, tokens=(0, 0, 0)):
    request = Computed(
        request=0,
        tokens=tokens,
        first=0,
        count=2,
        row=0,
        blocks=(),
        wanted=1,
        temperature=temperature,
        seed=seed,
    )
    return Draws(request, samples)


def test_frequencies_are_the_softmax_of_the_returned_logits():
    """Over 4,000 seeds each token is drawn as often as its probability says, within five standard errors."""
    n, seen = 4000, Counter()
    for seed in range(n):
        made = draws(seed, temperature=0.6)
        seen[made.take(0, LOGITS, None)] += 1
    returned = made.proposal(None, 5).logits
    chances = torch.softmax(returned[0], -1).tolist()
    assert chances == torch.softmax(LOGITS / 0.6, -1).tolist()
    for token, p in enumerate(chances):
        assert abs(seen[token] / n - p) <= 5 * math.sqrt(p * (1 - p) / n)
    assert seen[3] == 0


def test_a_draft_depends_on_seed_and_position_alone():
    """The same place of the same request gets the same number, whatever came before it or beside it."""
    alone = draws(seed=7)
    token = alone.take(0, LOGITS, None)
    beside = [draws(seed=3), draws(seed=7)]
    rows = [(beside[0], 1), (beside[1], 0)]
    assert take_each(rows, torch.stack([LOGITS, LOGITS]), None)[1] == token
    assert draft_uniform(7, 3) != draft_uniform(7, 4)
    assert draft_uniform(7, 3) != draft_uniform(8, 3)


def test_drafting_and_verification_use_different_numbers():
    """A draft drawn with the number that accepts it, or that replaces it, would bias the text."""
    for seed in range(20):
        for position in range(20):
            mine = draft_uniform(seed, position)
            assert 0 < mine < 1
            assert abs(mine - accept_uniform(seed, position)) > 1e-9
            assert abs(mine - sample_uniform(seed, position)) > 1e-9


def test_greedy_drafts_are_sure():
    """Without a temperature, or where drafts are not sampled, the best token is taken and has no logits."""
    for made in (draws(temperature=0.0), draws(samples=False)):
        assert made.take(0, LOGITS, None) == 0
        assert made.proposal(None, 5).logits is None


def test_a_reduced_vocabulary_is_spread_over_the_targets():
    """Ids are mapped, and tokens that the draft lacks have no probability."""
    to_target = torch.tensor([4, 2, -1])
    wide = spread(torch.tensor([[1.0, 2.0, 3.0]]), to_target, 6)
    inf = float("-inf")
    assert wide.tolist() == [[inf, inf, 2.0, inf, 1.0, inf]]
    made = draws(temperature=0.0)
    assert made.take(1, torch.tensor([1.0, 2.0, inf]), to_target) == 2
