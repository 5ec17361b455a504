"""Depth schedules over generated tables, against a lookup that is written independently."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.config.schedule import dense_schedule, table_problems
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError


@st.composite
def tables(draw):
    """A table that keeps the rules, in any order: ranges with gaps between them, the first from 1."""
    first, ranges = 1, []
    for _ in range(draw(st.integers(1, 5))):
        last = first + draw(st.integers(0, 6))
        ranges.append((first, last, draw(st.integers(0, 6))))
        first = last + 1 + draw(st.integers(0, 4))
    return draw(st.permutations(ranges))


def expected(table, k_max, requests):
    """The k of the last range that starts at or before `requests`: its own, the gap's or the tail's."""
    before = [entry for entry in table if entry[0] <= requests]
    return min(k_max, max(before)[2])


sizes = st.integers(1, 64)
depths = st.integers(1, 6)


@given(tables(), depths, sizes)
def test_each_batch_size_has_the_depth_of_the_rules(table, k_max, largest):
    """Range, gap, tail and cap, for every batch size."""
    schedule = dense_schedule(table, k_max, largest)
    assert schedule.max_num_seqs == largest
    for requests in range(1, largest + 1):
        assert schedule.k_for(requests) == expected(table, k_max, requests)
    for requests in (-1, 0, largest + 1):
        with pytest.raises(IndexError):
            schedule.k_for(requests)


@given(tables(), depths, sizes)
def test_tiers_and_depths_say_the_same_as_the_dense_table(table, k_max, largest):
    """Tiers cover 1..max_num_seqs without gaps, neighbours differ, and depths are theirs."""
    schedule = dense_schedule(table, k_max, largest)
    tiers = schedule.tiers
    assert [b for first, last, _ in tiers for b in range(first, last + 1)] == list(
        range(1, largest + 1)
    )
    assert all(schedule.k_for(b) == k for first, last, k in tiers for b in range(first, last + 1))
    assert all(one[2] != other[2] for one, other in itertools.pairwise(tiers))
    assert schedule.depths == tuple(sorted({k for _, _, k in tiers}, reverse=True))


@given(tables(), depths, sizes)
def test_a_table_made_of_the_tiers_is_the_same_schedule(table, k_max, largest):
    """Tiers are a table that keeps the rules, and resolve to what they came from."""
    schedule = dense_schedule(table, k_max, largest)
    assert table_problems(schedule.tiers) == []
    assert dense_schedule(schedule.tiers, k_max, largest) == schedule


@given(depths, sizes)
def test_no_table_is_one_range_of_full_depth(k_max, largest):
    """Static k is the table [(1, max_num_seqs, k)]."""
    assert dense_schedule(None, k_max, largest) == dense_schedule(
        [(1, largest, k_max)], k_max, largest
    )


def keeps_the_rules(table):
    """The rules of 6.1, by counting which batch sizes the ranges hold."""
    if not table or any(first < 1 or last < first or k < 0 for first, last, k in table):
        return False
    held = [b for first, last, _ in table for b in range(first, last + 1)]
    return 1 in held and len(held) == len(set(held))


triples = st.tuples(st.integers(-1, 9), st.integers(-1, 12), st.integers(-1, 4))


@given(st.lists(triples, max_size=4) | tables())
def test_a_table_is_accepted_exactly_when_it_keeps_the_rules(table):
    """No rule is missing and none is invented; the section refuses with the field's path."""
    assert (table_problems(table) == []) == keeps_the_rules(table)
    options = {"method": "ngram", "num_speculative_tokens": 3}
    if keeps_the_rules(table):
        SpeculativeConfig(**options, num_speculative_tokens_per_batch_size=tuple(table))
        return
    with pytest.raises(SpecError) as caught:
        SpeculativeConfig(**options, num_speculative_tokens_per_batch_size=tuple(table))
    where = "num_speculative_tokens_per_batch_size"
    assert all(p.where.startswith(where) for p in caught.value.problems)
