"""The dynamic depth table: worked examples of the reference (6.1) by number, and its validation rules."""

import pytest

from graphspec.config.schedule import KSchedule, dense_schedule, table_problems
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError


def test_6_1_example_1_gap_takes_the_previous_range_and_the_tail_the_last():
    """[(1,2,4),(5,8,1)], max 8, K_max 4."""
    made = dense_schedule([(1, 2, 4), (5, 8, 1)], 4, 8)
    assert made.dense == (0, 4, 4, 4, 4, 1, 1, 1, 1)


def test_6_1_example_2_no_depth_is_above_k_max_and_the_tail_keeps_the_last():
    """[(1,2,4),(5,6,1)], max 10, K_max 3."""
    made = dense_schedule([(1, 2, 4), (5, 6, 1)], 3, 10)
    assert made.dense == (0, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1)


def test_6_1_example_3_three_ranges_up_to_256():
    """[(1,8,4),(9,32,3),(33,128,2)], max 256, K_max 4."""
    made = dense_schedule([(1, 8, 4), (9, 32, 3), (33, 128, 2)], 4, 256)
    at = {1: 4, 8: 4, 9: 3, 32: 3, 33: 2, 128: 2, 129: 2, 256: 2}
    assert {b: made.k_for(b) for b in at} == at


def test_6_1_example_4_gaps_and_a_depth_of_zero():
    """[(1,16,3),(32,128,2),(256,2048,0)], max 256, K_max 3."""
    made = dense_schedule([(1, 16, 3), (32, 128, 2), (256, 2048, 0)], 3, 256)
    at = {17: 3, 31: 3, 129: 2, 255: 2, 256: 0}
    assert {b: made.k_for(b) for b in at} == at


def test_6_1_example_5_a_depth_above_k_max_is_cut_everywhere():
    """[(1,16,5)] with K_max 3."""
    assert set(dense_schedule([(1, 16, 5)], 3, 32).dense[1:]) == {3}


def test_without_a_table_every_batch_size_has_the_full_depth():
    """None means static k."""
    assert dense_schedule(None, 4, 3).dense == (0, 4, 4, 4)


def test_the_order_of_the_ranges_does_not_matter():
    """Ranges are sorted before use."""
    table = [(5, 8, 1), (1, 2, 4)]
    assert dense_schedule(table, 4, 8) == dense_schedule(sorted(table), 4, 8)


def test_ranges_beyond_max_num_seqs_are_cut():
    """The schedule ends at max_num_seqs."""
    made = dense_schedule([(1, 4, 2), (5, 900, 1)], 2, 6)
    assert made.dense == (0, 2, 2, 2, 2, 1, 1)
    assert made.max_num_seqs == 6


@pytest.mark.parametrize("requests", [-1, 0, 9, 1000])
def test_a_batch_size_outside_the_schedule_is_an_index_error(requests):
    """Index 0 is unused, negative indices do not wrap, and nothing lies above max_num_seqs."""
    with pytest.raises(IndexError):
        dense_schedule([(1, 2, 4)], 4, 8).k_for(requests)


def test_depths_are_distinct_and_largest_first():
    """The unused index 0 adds no depth 0."""
    assert KSchedule(dense=(0, 3, 3, 1, 1, 2)).depths == (3, 2, 1)
    assert KSchedule(dense=(0, 3, 0)).depths == (3, 0)


def test_tiers_are_maximal_runs_of_one_depth():
    """Two neighbouring ranges of equal depth are one tier, and tiers cover 1..max_num_seqs."""
    assert KSchedule(dense=(0, 4, 4, 2, 2, 4)).tiers == ((1, 2, 4), (3, 4, 2), (5, 5, 4))
    assert dense_schedule([(1, 2, 3), (3, 4, 5)], 3, 4).tiers == ((1, 4, 3),)


VALID = [
    [(1, 1, 0)],
    [(1, 16, 3), (17, 32, 2)],
    [(17, 32, 2), (1, 16, 3)],
    [(1, 2, 0), (100, 100, 7)],
]


@pytest.mark.parametrize("table", VALID)
def test_a_table_that_keeps_the_rules_has_no_problems(table):
    """Gaps, any order, depth 0 and single sizes are allowed."""
    assert table_problems(table) == []


INVALID = [
    ([], "", "at least one"),
    ([(0, 4, 1)], "[0]", "1 <= first"),
    ([(1, 4, 1), (-3, 8, 1)], "[1]", "1 <= first"),
    ([(1, 4, 2), (9, 8, 1)], "[1]", "first <= last"),
    ([(1, 4, -1)], "[0]", "k >= 0"),
    ([(2, 4, 1)], "", "starts at 1"),
    ([(1, 16, 3), (16, 32, 2)], "", "without overlap"),
    ([(1, 16, 3), (4, 8, 2)], "", "without overlap"),
    ([(1, 4, 1), (1, 4, 1)], "", "without overlap"),
]


@pytest.mark.parametrize(("table", "where", "wanted"), INVALID)
def test_each_broken_rule_is_named(table, where, wanted):
    """One problem, at the entry where one is at fault, saying what was wanted."""
    (problem,) = table_problems(table)
    assert problem.where == where
    assert wanted in problem.wanted


def test_overlapping_ranges_are_shown():
    """(1,16) and (16,32) overlap since both ends are inclusive; the message names both."""
    (problem,) = table_problems([(1, 16, 3), (16, 32, 2)])
    assert "[1, 16, 3]" in problem.found
    assert "[16, 32, 2]" in problem.found


def test_all_bad_entries_are_reported_together():
    """Every entry that is wrong on its own appears."""
    found = table_problems([(0, 1, 1), (5, 4, 1), (6, 7, -1)])
    assert [p.where for p in found] == ["[0]", "[1]", "[2]"]


@pytest.mark.parametrize(
    "entry",
    [(1, 2, 3.9), (1, 2, True), (1.0, 2, 3), ("1", 2, 3), (1, 2), (1, 2, 3, 4), [1, 2, 3], None],
)
def test_the_section_takes_only_three_integers_an_entry(entry):
    """Decision of section 12: floats and booleans are refused, not truncated."""
    with pytest.raises(SpecError) as caught:
        SpeculativeConfig(
            method="ngram", num_speculative_tokens=3, num_speculative_tokens_per_batch_size=(entry,)
        )
    (problem,) = caught.value.problems
    assert problem.where == "num_speculative_tokens_per_batch_size"


def test_table_problems_carry_the_path_of_the_entry():
    """The section's error names the field and the entry in it."""
    with pytest.raises(SpecError) as caught:
        SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=3,
            num_speculative_tokens_per_batch_size=((1, 2, 3), (4, 3, 1)),
        )
    (problem,) = caught.value.problems
    assert problem.where == "num_speculative_tokens_per_batch_size[1]"


@pytest.mark.parametrize(("depth", "fine"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_k_max_is_between_1_and_1024(depth, fine):
    """num_speculative_tokens sizes all buffers, so it has bounds."""
    if fine:
        assert SpeculativeConfig(method="ngram", num_speculative_tokens=depth)
    else:
        with pytest.raises(SpecError):
            SpeculativeConfig(method="ngram", num_speculative_tokens=depth)
