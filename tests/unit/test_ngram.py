"""n-gram drafting by the CPU rule: every row of the reference's table (8.2), and cases that vLLM computed."""

import pytest

from graphspec.kernels import propose_ngram
from support.ngram import PEER, ROWS, ids


@pytest.mark.parametrize(("context", "low", "high", "k", "longest", "earliest", "latest"), ROWS)
def test_rows_of_reference_8_2(context, low, high, k, longest, earliest, latest):
    """The CPU column of the table, row by row, and the right-most one without its fill."""
    assert propose_ngram(ids(context), low, high, k, longest) == ids(earliest)
    assert propose_ngram(ids(context), low, high, k, longest, tie="latest") == ids(latest)


@pytest.mark.parametrize("case", PEER, ids=lambda c: f"{c['kind']}-{len(c['tokens'])}")
def test_vllm_computes_the_same(case):
    """What vLLM 0.33.0's CPU function proposes for the same context."""
    got = propose_ngram(
        case["tokens"], case["min_n"], case["max_n"], case["k"], case["max_model_len"]
    )
    assert got == case["drafts"]


@pytest.mark.parametrize(
    "case",
    [c for c in PEER if "drafts_new_runner" in c],
    ids=lambda c: f"{c['kind']}-{len(c['tokens'])}",
)
def test_vllms_new_runner_takes_the_latest_place(case):
    """Its drafts are ours with tie="latest", if one knows no length limit and fills up with the last token."""
    found = propose_ngram(
        case["tokens"], case["min_n"], case["max_n"], case["k"], 10**9, tie="latest"
    )
    fill = [case["tokens"][-1]] * (case["k"] - len(found))
    assert found + fill == case["drafts_new_runner"]


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
