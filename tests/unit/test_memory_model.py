"""What graphs are predicted to take: robust lines, stated errors, and no number where nothing was measured."""

import pytest

from graphspec.capture.memory_model import (
    Estimate,
    GraphCosts,
    GraphSample,
    PlannedAgainstActual,
    compare,
)
from graphspec.capture.robust_fit import fit_line


def samples(*pairs, seconds=0.5):
    return [GraphSample(tokens=t, mib=mib, seconds=seconds) for t, mib in pairs]


EVEN = samples((8, 18), (16, 26), (32, 42), (64, 74))  # 10 MiB and 1 a token


def test_a_line_goes_through_points_that_lie_on_one():
    """Constant, slope, no error."""
    line = fit_line([(8, 18), (16, 26), (64, 74)])
    assert (line.constant, line.slope, line.error, line.points) == (10, 1, 0, 3)
    assert line.at(100) == 110


@pytest.mark.parametrize("wild", [0, 1e6, 118_650])
def test_a_wild_point_in_five_does_not_move_the_line(wild):
    """One sample of 118 GiB, or of nothing, leaves prediction as it was. Its distance is the stated error."""
    line = fit_line([(8, 18), (16, 26), (24, wild), (32, 42), (64, 74)])
    assert (line.constant, line.slope) == (10, 1)
    assert line.error == abs(wild - 34)


def test_the_error_is_what_nine_of_ten_points_keep():
    """One of ten may lie further off."""
    points = [(x, 10 + x) for x in range(1, 10)]
    assert fit_line([*points, (10, 1e6)]).error == 0
    assert fit_line([*points[:8], (9, 50), (10, 1e6)]).error == 31


def test_more_tokens_never_take_less():
    """Noise that falls with size is a constant."""
    line = fit_line([(8, 30), (16, 20), (32, 10)])
    assert (line.slope, line.constant) == (0, 20)
    assert fit_line([(8, 30), (8, 20), (8, 28)]).at(500) == 28


def test_amounts_are_never_below_nothing():
    """A steep line that starts below 0 predicts 0 there."""
    assert fit_line([(10, 0), (20, 100), (30, 200)]).at(1) == 0


def test_two_points_state_no_error():
    """A line through two says nothing about a third."""
    assert fit_line([(8, 18), (16, 26)]).error is None
    assert fit_line([(8, 18)]).at(16) == 18
    assert fit_line([]) is None


def test_nothing_measured_is_nothing_predicted():
    """No number is made up, and the comparison says so."""
    for costs in (GraphCosts(), GraphCosts.from_samples([])):
        assert costs == GraphCosts()
        assert costs.predict_mib([8]) is None
        assert costs.predict_seconds([8]) is None
        found = compare(costs, EVEN)
        assert (found.planned, found.actual_mib, found.within) == (None, 160, None)
        assert str(found) == "planned: not measured; took 160 MiB"


def test_graphs_are_added_up_with_their_errors():
    """The error of a sum is the sum of the errors: graphs of one model err on the same side."""
    costs = GraphCosts.from_samples([*EVEN, *samples((128, 142))])
    assert costs.predict_mib([8, 16]) == Estimate(amount=44, error=8, unit="MiB")
    assert costs.predict_seconds([8, 16]) == Estimate(amount=1, error=0, unit="s")
    assert costs.predict_mib([]) == Estimate(amount=0, error=0, unit="MiB")


def test_what_opens_the_pool_is_counted_once():
    """The first graph pays for the pool; a line through it and a later one would charge every graph for it."""
    first = GraphSample(tokens=128, mib=938, seconds=9, opens_pool=True)
    costs = GraphCosts.from_samples([first, *EVEN])
    assert costs.pool_mib == 800
    assert costs.predict_mib([128, 64]) == Estimate(amount=800 + 138 + 74, error=0, unit="MiB")
    assert costs.predict_mib([]).amount == 0


def test_a_pool_alone_measures_no_graph():
    """One sample that opened a pool says what the pool and it took, not what either takes."""
    costs = GraphCosts.from_samples([GraphSample(tokens=8, mib=900, seconds=1, opens_pool=True)])
    assert costs.predict_mib([8]) is None
    assert costs.predict_seconds([8]).amount == 1


def test_planned_and_actual_are_compared_with_the_band():
    """Within, outside, or no band; and the graph that was furthest from its line."""
    # 15 of 8 tokens is off by 3, more than any other by far.
    costs = GraphCosts.from_samples([*EVEN, *samples((8, 15))])
    assert costs.predict_mib([8, 16]).error == 6
    near = compare(costs, samples((8, 19), (16, 27)))
    assert near.within
    assert "within the band" in str(near)
    far = compare(costs, samples((8, 19), (16, 126)))
    assert far.within is False
    assert far.furthest.tokens == 16
    assert str(far) == (
        "planned 44 MiB (38 to 50); took 145 MiB, outside the band; furthest: 16 tokens with 126 MiB"
    )
    two = compare(GraphCosts.from_samples(EVEN[:2]), EVEN[:2])
    assert two.within is None
    assert "no band" in str(two)
    assert "error not known" in str(two)
    assert str(PlannedAgainstActual(planned=near.planned, actual_mib=1)).endswith("the band")
