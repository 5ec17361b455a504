"""n-gram drafting by the CPU rule: every row of the reference's table (8.2), and cases that vLLM computed."""

import json
from pathlib import Path

import pytest

from graphspec.kernels.ngram import propose_ngram

PEER = json.loads((Path(__file__).parents[1] / "data" / "ngram-cases.json").read_text())["cases"]

# Context; smallest n, largest n, k, max_model_len; drafts.
ROWS = [
    ("1 2 3 4 2 3", 2, 3, 4, 100, "4 2 3"),
    ("1 2 3 4 1 2 3 5 6", 2, 2, 2, 100, ""),
    ("1 2 3 4 1 2 3", 2, 2, 3, 100, "4 1 2"),
    ("1 2 3 4 1 2 3", 1, 1, 2, 100, "4 1"),
    ("1 2 3 4 1 2 3", 4, 4, 2, 100, ""),
    ("1 2 3 4 1 2 3", 3, 4, 2, 100, "4 1"),
    ("1 3 6 2 3 4 1 2 3", 2, 2, 3, 100, "4 1 2"),
    ("1 3 6 2 3 4 1 2 3", 1, 1, 2, 100, "6 2"),
    ("2 3 4 5 1 2 3 4 1 2 3 4", 3, 4, 2, 100, "1 2"),
    ("3 4 5 2 3 4 1 2 3 4", 2, 4, 2, 100, "1 2"),
    ("1 2 3 100 1 2 3 200 1 2 3 300 1 2 3", 3, 3, 2, 100, "100 1"),
    ("10 11 12 10 11 13 10 11", 2, 2, 2, 100, "12 10"),
    ("1 2 1 2", 2, 2, 3, 100, "1 2"),
    ("4 1 4 1 4", 1, 4, 3, 100, "1 4"),
    ("7 7 7 7 7", 1, 3, 4, 100, "7 7"),
    ("7 7", 1, 5, 4, 100, "7"),
    ("1 1 1 1 2 1 1", 1, 5, 3, 100, "1 1 2"),
    ("5 6", 2, 2, 2, 100, ""),
    ("9", 1, 1, 3, 100, ""),
    ("", 1, 1, 3, 100, ""),
    ("1 2 3 4 5", 2, 2, 2, 100, ""),
    ("1 2 3 4 5 6 1 2 3 4 5 6", 2, 2, 4, 100, "1 2 3 4"),
    ("1 2 3 4 5 6 1 2 3 4 5 6", 2, 2, 1, 100, "1"),
    ("1 2 3 1 2", 2, 2, 4, 7, "3 1"),
    ("1 2 3 1 2", 2, 2, 4, 6, "3"),
    ("1 2 3 1 2", 2, 2, 4, 5, ""),
]


@pytest.mark.parametrize(("context", "low", "high", "k", "longest", "drafts"), ROWS)
def test_rows_of_reference_8_2(context, low, high, k, longest, drafts):
    """The CPU column of the table, row by row."""
    got = propose_ngram([int(t) for t in context.split()], low, high, k, longest)
    assert got == [int(t) for t in drafts.split()]


@pytest.mark.parametrize("case", PEER, ids=lambda c: f"{c['kind']}-{len(c['tokens'])}")
def test_vllm_computes_the_same(case):
    """What vLLM 0.33.0's CPU function proposes for the same context."""
    got = propose_ngram(
        case["tokens"], case["min_n"], case["max_n"], case["k"], case["max_model_len"]
    )
    assert got == case["drafts"]


def test_the_longest_match_may_give_fewer_drafts_than_a_shorter_one():
    """Footgun 38: 7 7 7 7 7 with max 3 gives 2 drafts, with max 1 gives 4."""
    assert propose_ngram([7] * 5, 1, 3, 4, 100) == [7, 7]
    assert propose_ngram([7] * 5, 1, 1, 4, 100) == [7, 7, 7, 7]


@pytest.mark.parametrize("k", [0, -1])
def test_no_depth_no_drafts(k):
    """A step with k = 0 proposes nothing."""
    assert propose_ngram([1, 2, 1, 2], 1, 2, k, 100) == []


def test_a_context_beyond_max_model_len_gets_no_drafts():
    """A request that is already full, or over, gets nothing."""
    assert propose_ngram([1, 2, 1, 2], 1, 2, 3, 4) == []
    assert propose_ngram([1, 2, 1, 2], 1, 2, 3, 3) == []


def test_the_context_is_left_as_it_was():
    """Proposing reads the tokens and returns a new list."""
    tokens = [1, 2, 3, 1, 2]
    drafts = propose_ngram(tokens, 1, 2, 2, 100)
    drafts.append(0)
    assert tokens == [1, 2, 3, 1, 2]


def test_tuples_work_like_lists():
    """Any sequence of tokens is accepted, and the answer is a list."""
    assert propose_ngram((1, 2, 3, 1, 2), 1, 2, 2, 100) == [3, 1]


def comparisons(length, period):
    """How many token comparisons one proposal makes on a text that repeats, with a break at its end."""
    count = 0

    class Token(int):
        def __eq__(self, other):
            nonlocal count
            count += 1
            return int(self) == int(other)

        def __ne__(self, other):
            return not self == other

        __hash__ = int.__hash__

    tokens = [Token(t % period) for t in range(length)]
    tokens[length // 2] = Token(99)
    propose_ngram(tokens, 1, 8, 4, 10**9)
    return count


@pytest.mark.parametrize("period", [1, 2, 5])
def test_the_work_is_linear_in_the_context(period):
    """Repetitive text, the worst case of naive search, costs at most a few comparisons a token."""
    assert comparisons(4000, period) <= 4 * 4000
