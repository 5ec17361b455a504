"""The budget of a step: worked examples, brute force over every budget, and the curve that learns chances."""

import math
import random

import pytest

from graphspec.errors import KernelError
from graphspec.kernels.adaptive import CostTable, choose_budget, deal, survival
from graphspec.kernels.adaptive_model import (
    LEAST_OBSERVATIONS,
    MARGIN_CAP,
    RIDGE,
    AcceptanceModel,
    Curve,
    margin_of,
)

EXAMPLE = [survival([0.9, 0.8, 0.5]), survival([0.4, 0.9, 0.9])]


def test_the_example_of_two_requests():
    """K 3, confidences (.9,.8,.5) and (.4,.9,.9): the best three are two of the first and one of the second."""
    assert EXAMPLE[0] == pytest.approx([0.9, 0.72, 0.36])
    assert EXAMPLE[1] == pytest.approx([0.4, 0.36, 0.324])
    assert deal(EXAMPLE, 3) == [2, 1]


def test_a_tie_is_dealt_alike_on_every_rank():
    """Budget 4 has a tie at .36: the earlier request has it."""
    assert deal([[0.9, 0.72, 0.36], [0.4, 0.36, 0.324]], 4) == [3, 1]
    assert deal([[1.0, 1.0], [1.0, 1.0]], 3) == [2, 1]
    assert deal([], 4) == []


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan])
def test_a_confidence_that_is_no_chance_is_refused(chance):
    """Scores could rise along a request, and then the best would not be its first."""
    with pytest.raises(KernelError, match="confidences"):
        survival([0.5, chance])


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dealt_is_the_best_sum_of_prefixes(seed):
    """Against every way to deal the budget."""
    rng = random.Random(seed)
    scores = [survival([rng.choice([0.2, 0.5, 0.9, 1.0]) for _ in range(3)]) for _ in range(3)]
    ways = [(a, b, c) for a in range(4) for b in range(4) for c in range(4)]
    for budget in range(10):
        lengths = deal(scores, budget)
        assert sum(lengths) == budget
        best = max(
            sum(sum(row[:n]) for row, n in zip(scores, way, strict=True))
            for way in ways
            if sum(way) == budget
        )
        got = sum(sum(row[:n]) for row, n in zip(scores, lengths, strict=True))
        assert got == pytest.approx(best)


def test_costs_are_steps_up_to_the_largest_captured_size():
    """A step is padded to the next size; a measurement that fell is no gain."""
    table = CostTable.measured({1: 2.0, 4: 1.5, 8: 3.0}, captured=8)
    assert [table.at(n) for n in (0, 1, 2, 4, 5, 8)] == [2, 2, 2, 2, 3, 3]


def test_costs_beyond_are_lines_between_what_was_measured_there():
    """Not from the largest captured size on: a step without a graph costs more. Behind the last, the last slope."""
    table = CostTable.measured({8: 3.0, 16: 6.0, 24: 8.0}, captured=8)
    assert [table.at(n) for n in (9, 16, 20, 24, 28)] == [6, 6, 7, 8, 9]
    assert CostTable.measured({8: 3.0}, captured=8).at(100) == 3
    assert CostTable.measured({4: 1.0, 8: 3.0}, captured=8).at(10) == 4


def test_costs_have_a_floor():
    """Draft steps may be free, verification divides."""
    assert CostTable.measured({1: -1.0}, captured=1).at(1) == 0
    assert CostTable.of_verify({1: 0.0}, captured=1).at(1) == 1e-6


@pytest.mark.parametrize("seconds", [{}, {4: 1.0}])
def test_a_table_without_its_captured_size_is_refused(seconds):
    """Nothing would be known of the steps that run most."""
    with pytest.raises(KernelError, match="cost table"):
        CostTable.measured(seconds, captured=8)


def free(seconds=0.0):
    return CostTable.measured({64: seconds}, captured=64)


def test_drafts_that_cost_nothing_are_all_verified():
    """One padded size: more of it cannot hurt, and the smallest of equal budgets wins."""
    verify = CostTable.of_verify({64: 1.0}, captured=64)
    kwargs = {"non_draft_tokens": 2, "draft_cost": free(), "verify_cost": verify}
    assert choose_budget(EXAMPLE, **kwargs) == 6
    assert choose_budget([[0.5, 0.0], [0.0, 0.0]], **kwargs) == 1
    assert choose_budget([], **kwargs) == 0


def test_a_step_up_of_the_cost_bounds_the_budget():
    """Four tokens cost 1 s, five cost 2 s: two drafts fill the padding, and the third is not worth it."""
    verify = CostTable.of_verify({4: 1.0, 8: 2.0}, captured=8)
    assert choose_budget(EXAMPLE, non_draft_tokens=2, draft_cost=free(), verify_cost=verify) == 2


def test_rows_of_logits_bound_the_budget():
    """Each sampling request takes one for its own token."""
    verify = CostTable.of_verify({64: 1.0}, captured=64)
    kwargs = {"non_draft_tokens": 2, "draft_cost": free(), "verify_cost": verify}
    assert choose_budget(EXAMPLE, logits_cap=5, **kwargs) == 3
    assert choose_budget(EXAMPLE, logits_cap=1, **kwargs) == 0
    assert choose_budget(EXAMPLE, logits_cap=5, sampling_requests=1, **kwargs) == 4


@pytest.mark.parametrize("seed", range(40))
def test_the_budget_is_that_of_a_search_over_all(seed):
    """value(b) written out, with the first maximum."""
    rng = random.Random(seed)
    count, k = rng.randint(1, 5), rng.randint(1, 4)
    scores = [survival([rng.random() for _ in range(k)]) for _ in range(count)]
    sizes = sorted(rng.sample(range(1, 40), 5))
    verify = CostTable.of_verify({s: rng.random() for s in sizes}, captured=sizes[2])
    draft = CostTable.measured({8: rng.random()}, captured=8)
    cap = rng.choice([None, rng.randint(0, 20)])
    most = count * k if cap is None else max(0, min(count * k, cap - count))
    ranked = sorted((s for row in scores for s in row), reverse=True)
    values = [
        (count + math.fsum(ranked[:b])) / (draft.at(count) + verify.at(count + b))
        for b in range(most + 1)
    ]
    found = choose_budget(
        scores,
        non_draft_tokens=count,
        draft_cost=draft,
        verify_cost=verify,
        logits_cap=cap,
    )
    assert values[found] == pytest.approx(max(values))
    assert all(v < values[found] for v in values[:found])


def test_margins_are_capped_and_a_tie_is_nothing():
    """Infinite logits included."""
    assert margin_of(3.0, 1.0) == 2.0
    assert margin_of(100.0, 1.0) == MARGIN_CAP
    assert margin_of(1.0, -math.inf) == MARGIN_CAP
    assert margin_of(-math.inf, -math.inf) == 0.0


def test_before_anything_is_seen_the_margin_does_not_count():
    """Slope 0, offset 1.5."""
    assert (
        Curve().chance(0.0) == Curve().chance(MARGIN_CAP) == pytest.approx(1 / (1 + math.exp(-1.5)))
    )


def seen(curve, observations):
    for margin, kept in observations:
        curve = curve.seen(margin, kept)
    return curve


def random_observations(seed, count, slope=0.5, offset=-1.0):
    rng = random.Random(seed)
    margins = [rng.uniform(0, 8) for _ in range(count)]
    return [(m, rng.random() < 1 / (1 + math.exp(-slope * m - offset))) for m in margins]


def test_a_refit_is_one_newton_step():
    """Against gradient and Hessian by finite differences of the log-likelihood."""
    observations = random_observations(1, 80)

    def likelihood(slope, offset):
        return sum(
            math.log(1 / (1 + math.exp(-(1 if kept else -1) * (slope * m + offset))))
            for m, kept in observations
        )

    x, y, h = 0.0, 1.5, 1e-4
    gx = (likelihood(x + h, y) - likelihood(x - h, y)) / (2 * h)
    gy = (likelihood(x, y + h) - likelihood(x, y - h)) / (2 * h)
    hxx = -(likelihood(x + h, y) - 2 * likelihood(x, y) + likelihood(x - h, y)) / h**2 + RIDGE
    hyy = -(likelihood(x, y + h) - 2 * likelihood(x, y) + likelihood(x, y - h)) / h**2 + RIDGE
    hxy = -(
        likelihood(x + h, y + h)
        - likelihood(x + h, y - h)
        - likelihood(x - h, y + h)
        + likelihood(x - h, y - h)
    ) / (4 * h**2)
    det = hxx * hyy - hxy**2
    made = seen(Curve(), observations).refitted()
    assert made.slope == pytest.approx((hyy * gx - hxy * gy) / det, rel=1e-3)
    assert made.offset == pytest.approx(1.5 + (hxx * gy - hxy * gx) / det, rel=1e-3)
    assert made.count == 0


def test_refits_find_the_curve_that_made_the_data():
    """Ten steps over fresh data come near slope 0.5 and offset -1."""
    curve = Curve()
    for seed in range(10):
        curve = seen(curve, random_observations(seed, 4000)).refitted()
    assert curve.slope == pytest.approx(0.5, abs=0.08)
    assert curve.offset == pytest.approx(-1.0, abs=0.25)


def test_few_observations_wait():
    """49 change nothing and are kept; the 50th makes a refit of all."""
    few = seen(Curve(), random_observations(2, LEAST_OBSERVATIONS - 1))
    assert few.refitted() == few
    assert few.seen(1.0, True).refitted().count == 0


def test_a_negative_slope_is_refused():
    """Surer drafts that are kept less often: the coefficients stay, and what was seen is forgotten."""
    curve = seen(Curve(), random_observations(3, 400, slope=-0.5, offset=2.0))
    assert curve.refitted() == Curve()


def test_equal_margins_do_not_break_a_refit():
    """The Hessian is singular then; the ridge is what makes the step finite."""
    made = seen(Curve(), [(0.0, True)] * 60).refitted()
    assert math.isfinite(made.slope)
    assert math.isfinite(made.offset)
    many = seen(Curve(slope=1.0), [(MARGIN_CAP, True)] * 60).refitted()
    assert math.isfinite(many.slope)
    assert math.isfinite(many.offset)


def test_only_drafts_that_were_reached_count():
    """Two kept of three verified of four: the third was rejected, the fourth never looked at. One kept of one: the second
    was not verified."""
    model = AcceptanceModel.fresh(4).after_step([([1.0] * 4, 3, 2), ([1.0] * 4, 1, 1)])
    assert [c.count for c in model.curves] == [2, 1, 1, 0]
    assert AcceptanceModel.fresh(2).after_step([([], 0, 0)]).curves == (Curve(), Curve())


@pytest.mark.parametrize("outcome", [([1.0], 1, 2), ([1.0], 2, 1), ([1.0] * 3, 3, 0)])
def test_an_outcome_that_cannot_be_is_refused(outcome):
    """It would teach the curves something that nobody saw."""
    with pytest.raises(KernelError, match="outcome"):
        AcceptanceModel.fresh(2).after_step([outcome])


def test_every_hundredth_step_refits_and_the_first_three_learn_from_whole_blocks():
    """A budget that the model chose itself would hide the drafts that it thinks little of."""
    model, rng = AcceptanceModel.fresh(1), random.Random(0)
    for step in range(1, 401):
        margin = rng.uniform(0, 8)
        kept = int(rng.random() < 1 / (1 + math.exp(-0.5 * margin + 1)))
        model = model.after_step([([margin], 1, kept)])
        assert model.refits == step // 100
        assert model.full_blocks == (step < 300)
    assert model.curves[0].slope > 0


def test_ranks_with_averaged_coefficients_are_equal():
    """Whatever each of them saw: differing budgets would be differing shapes, and a hang."""
    ranks = [
        AcceptanceModel(curves=(Curve(slope=s, offset=1.0), Curve(slope=2 * s)))
        for s in (0.1, 0.7, 0.2)
    ]
    told = [r.coefficients for r in ranks]
    one, *others = [r.averaged(told) for r in ranks]
    assert all(o == one for o in others)
    assert one.curves[0].slope == pytest.approx(1 / 3)
    assert one.confidences([1.0, 0.0]) == others[0].confidences([1.0, 0.0])
