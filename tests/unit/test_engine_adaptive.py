"""Adaptive verification: which drafts a step verifies, where their chances come from, and what is learned of them."""

import random
from functools import partial

import attrs
import pytest

from graphspec.capture.dispatch import Dispatch, dispatch
from graphspec.capture.plan import plan_capture
from graphspec.config.schedule import KSchedule
from graphspec.engine.adaptive import AdaptiveVerification
from graphspec.engine.drafters.protocol import Proposal
from graphspec.engine.kv_manager import KVLimits
from graphspec.engine.sampling import Accepted
from graphspec.engine.scheduler import Scheduled, StepPlan
from graphspec.errors import SpecError
from graphspec.kernels.adaptive import CostTable, choose_budget, deal, survival
from graphspec.kernels.adaptive_model import AcceptanceModel
from support.engine_sim import PLAIN, Sim, continuation
from support.plans import spec_for

KV = KVLimits(block_size=4, num_blocks=64)
TABLE = [(1, 2, 3), (3, 3, 1), (4, 4, 0)]
LINEAR = CostTable.of_verify({n: float(n) for n in range(1, 65)}, captured=64)
"""A token costs a second: no draft is worth its time, unless drafting has cost some already."""
FIXED = CostTable.of_verify({n: 3.0 + n for n in range(1, 65)}, captured=64)
"""And three seconds whatever a step has: a draft is worth its time if its chance is high."""
FLAT = CostTable.of_verify({1: 1.0}, captured=1)
"""A step costs a second, however many tokens it has."""


def exactly(rows):
    """A step that is not padded."""
    return lambda longest, drafts: rows + drafts


def chosen(scores, cost, *, size=None, sampling=None):
    adaptive = AdaptiveVerification(cost, None)
    return adaptive.lengths(
        scores, sampling=sampling or len(scores), size=size or exactly(len(scores))
    )


@pytest.mark.parametrize("seed", range(20))
def test_without_padding_the_choice_is_the_kernels_on_the_same_scores(seed):
    """The budget of `choose_budget`, dealt by `deal`, at costs by tokens."""
    made = random.Random(seed)
    scores = [
        survival([made.choice([0.1, 0.5, 0.9, 1.0]) for _ in range(made.randint(0, 4))])
        for _ in range(made.randint(1, 6))
    ]
    cost = CostTable.of_verify(
        {n: made.random() + n * made.choice([0.05, 0.5]) for n in range(1, 40)}, captured=39
    )
    budget = choose_budget(
        scores,
        non_draft_tokens=len(scores),
        draft_cost=CostTable.measured({1: 0.0}, captured=1),
        verify_cost=cost,
    )
    assert chosen(scores, cost) == deal(scores, budget)


@pytest.mark.parametrize("seed", range(20))
def test_in_graphs_the_choice_has_the_most_tokens_a_second_of_all_budgets(seed):
    """A graph has one depth for all requests: a budget costs what the graph of its longest request does."""
    made = random.Random(seed)
    scores = [
        survival([made.choice([0.2, 0.6, 0.9]) for _ in range(made.randint(0, 3))])
        for _ in range(made.randint(1, 4))
    ]

    def size(longest, drafts):
        return len(scores) * (1 + max(longest, 1))

    def value(budget):
        lengths = deal(scores, budget)
        gained = sum(sum(row[:n]) for row, n in zip(scores, lengths, strict=True))
        return (len(scores) + gained) / FIXED.at(size(max(lengths), budget))

    values = [value(b) for b in range(sum(map(len, scores)) + 1)]
    found = sum(chosen(scores, FIXED, size=size))
    assert values[found] == pytest.approx(max(values))


def test_a_draft_that_costs_nothing_is_verified_however_unlikely():
    """Within the depth of another request's drafts, and where steps of all sizes take as long."""
    scores = [survival([0.9, 0.9]), survival([0.01, 0.01])]
    assert chosen(scores, FIXED) == [2, 0]
    assert chosen(scores, FIXED, size=lambda longest, drafts: 2 * (1 + max(longest, 2))) == [2, 2]
    assert chosen(scores, FLAT) == [2, 2]


def test_time_of_drafting_makes_more_drafts_worth_their_time():
    """9.9: it is paid whatever is verified. The median of the last five counts."""
    adaptive = AdaptiveVerification(LINEAR, None)
    scores = [survival([0.6, 0.6, 0.6])]
    choice = partial(adaptive.lengths, scores, sampling=1, size=exactly(1))
    assert choice() == [0]
    for seconds in (9.0, 0.4, 0.4, 2.0, 2.0, 2.0):
        adaptive.drafted(1, seconds)
    assert adaptive.draft_cost.at(1) == 2.0
    assert choice() == [1]


def test_scores_are_survivals_of_the_drafters_confidence():
    """And a chance that is none is no chance, instead of an error that ends all requests."""
    adaptive = AdaptiveVerification(LINEAR, None)
    proposal = Proposal(tokens=[1, 2, 3], confidence=[0.5, 0.5, float("nan")])
    assert adaptive.scores(0, proposal) == [0.5, 0.25, 0.0]


def test_scores_of_drawn_drafts_are_those_of_the_step_before():
    """9.9: chosen by its own score, a draft that was drawn is verified when it is a lucky one, and then it is no draw of its
    distribution any more. A request without a step before has chances of 1."""
    adaptive = AdaptiveVerification(LINEAR, None)

    def scores(confidence, request=0):
        drawn = Proposal(tokens=[7] * len(confidence), logits=object(), confidence=confidence)
        return list(adaptive.scores(request, drawn))

    assert scores([0.5, 0.5]) == [1.0, 1.0]
    assert scores([0.9, 0.9, 0.9]) == [0.5, 0.25, 0.25]
    assert scores([0.1]) == [0.9]
    assert scores([0.3], request=1) == [1.0]
    adaptive.forget(0)
    assert scores([0.2]) == [1.0]


@pytest.mark.parametrize("given", [{}, {"confidence": [0.5]}])
def test_a_drafter_without_an_opinion_is_named(given):
    """The contract asked for adaptive verification: verifying all of them without a word would be something else."""
    with pytest.raises(SpecError, match=r"enable_adaptive_verification.*confidence for each draft"):
        AdaptiveVerification(LINEAR, None).scores(0, Proposal(tokens=[1, 2], **given))
    learns = AdaptiveVerification(LINEAR, AcceptanceModel.fresh(2))
    with pytest.raises(SpecError, match="margins for each draft"):
        learns.scores(0, Proposal(tokens=[1, 2], confidence=[1, 1]))


def sim(tiny_config, adaptive, guess, **more):
    """The scheduler with the graphs of a schedule of depths 3, 1 and 0, each for every batch of deeper ones too."""
    spec = spec_for(tiny_config, TABLE, k=3, max_num_seqs=4)
    plan = plan_capture(spec)
    deeper = {3: (1, 2), 1: (1, 2, 3), 0: (1, 2, 3, 4)}
    plan = attrs.evolve(plan, buckets=deeper)
    limits = attrs.evolve(PLAIN, schedule=KSchedule(dense=(0, 3, 3, 1, 0)))
    route = partial(dispatch, plan, frozenset(plan.keys))
    return Sim(limits, KV, guess, route=route, trim=adaptive.lengths, **more)


def with_scores(*chances):
    """Right drafts, with these chances that each is kept if those before it are."""
    return lambda request, wanted: (continuation(request.tokens, wanted), None, chances[:wanted])


@pytest.mark.parametrize(
    ("chances", "depth"), [((0.9, 0.01, 0.01), 1), ((0.99, 0.99, 0.99), 3), ((0.1, 0.1, 0.1), 0)]
)
def test_a_step_runs_in_the_smallest_graph_for_what_is_worth_its_time(tiny_config, chances, depth):
    """A draft of low confidence is not verified, and the graph is that of a depth of the schedule. Text is the same."""
    s = sim(tiny_config, AdaptiveVerification(FIXED, None), with_scores(*chances))
    s.arrive([1, 2], max_tokens=17)
    s.run()
    decodes = [p for p in s.plans[1:] if p.requests[0].drafts + p.requests[0].trimmed == 3]
    assert len(decodes) > 2
    for plan in decodes:
        (part,) = plan.requests
        assert (plan.route.k, part.drafts, part.trimmed) == (depth, depth, 3 - depth)
        assert plan.route.key.k == depth
        assert len(part.tokens) == 1 + depth


def test_beside_a_prompt_each_draft_costs_its_own_token():
    """A mixed step is not padded, so requests keep different numbers of drafts."""
    chances = {0: (0.99, 0.99, 0.99), 1: (0.1, 0.1, 0.1)}

    def guess(request, wanted):
        return continuation(request.tokens, wanted), None, chances[request.id][:wanted]

    s = Sim(PLAIN, KV, guess, trim=AdaptiveVerification(FIXED, None).lengths)
    for _ in range(2):
        s.arrive([1, 2], max_tokens=30)
    s.step()
    s.arrive([2] * 3, max_tokens=1)
    s.step()
    plan = s.plans[-1]
    assert plan.prefill
    assert [(p.drafts, p.trimmed) for p in plan.requests] == [(3, 0), (0, 3), (0, 0)]
    assert plan.tokens == 4 + 1 + 3
    s.run()


def test_trimmed_drafts_count_as_rejected(tiny_config):
    """9.9: the normal accounting."""
    s = sim(tiny_config, AdaptiveVerification(FIXED, None), with_scores(0.9, 0.01, 0.01))
    s.arrive([1, 2], max_tokens=17)
    finished = []
    while (result := s.step()) is not None:
        finished += result.finished
    (request,) = finished
    verified = sum(p.requests[0].drafts for p in s.plans)
    trimmed = sum(p.requests[0].trimmed for p in s.plans)
    assert trimmed > 0
    assert request.counts.drafted == verified + trimmed
    assert request.counts.accepted == verified


class Steps:
    """Steps for a model that learns: one request, its drafts' margins, and how many of them were verified and right."""

    def __init__(self, places):
        self.adaptive = AdaptiveVerification(LINEAR, AcceptanceModel.fresh(places))

    def step(self, margins, verified, right):
        self.adaptive.scores(0, Proposal(tokens=[1] * len(margins), margins=margins))
        part = Scheduled(
            request=0,
            position=5,
            tokens=(1,) * (1 + verified),
            drafts=verified,
            samples=True,
            blocks=(1, 2),
            trimmed=len(margins) - verified,
        )
        plan = StepPlan(requests=(part,), prefill=False, route=Dispatch(k=verified), depth=2)
        self.adaptive.observe(plan, [Accepted(tokens=(1,) * (right + 1))])


def test_the_model_learns_from_what_is_kept_which_margins_are_good():
    """Wide margins were right, narrow ones wrong: after the first refits the one is verified and the other is not. Until then
    all are, since a model that chooses what it learns from would never learn of the others."""
    steps = Steps(places=1)
    made = random.Random(1)
    lengths = partial(steps.adaptive.lengths, sampling=1, size=exactly(1))
    for at in range(400):
        wide = made.random() < 0.5
        chance = 0.95 if wide else 0.05
        steps.step([8.0 if wide else 0.5], 1, int(made.random() < chance))
        if at < 299:
            assert lengths([[0.01]]) == [1]
    model = steps.adaptive.model
    assert (model.steps, model.refits) == (400, 4)
    assert model.curves[0].slope > 0
    narrow, wide = model.confidences([0.5]) + model.confidences([8.0])
    assert narrow < 0.4 < 0.8 < wide

    def verified(margin):
        return lengths([steps.adaptive.scores(1, Proposal(tokens=[1], margins=[margin]))])

    cheap = CostTable.of_verify({1: 1.0, 2: 1.5}, captured=2)
    steps.adaptive._verify_cost = cheap
    assert verified(8.0) == [1]
    assert verified(0.5) == [0]


def test_a_margin_that_is_no_number_teaches_nothing_wrong():
    """One NaN in the sums would stay there for ever."""
    steps = Steps(places=2)
    steps.step([float("nan"), 1.0], 2, 0)
    steps.step([1.0, 1.0], 1, 1)
    curve = steps.adaptive.model.curves[0]
    assert curve.count == 2
    assert curve.residual == curve.residual
    # The second place was reached by nobody.
    assert steps.adaptive.model.curves[1].count == 0
