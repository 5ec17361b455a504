"""n-gram drafting equals a brute force that follows the reference (8.1) line by line."""

from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.kernels import propose_ngram
from support.ngram import brute_force

# Two or three different tokens make long and overlapping matches; repeated pieces make periods with breaks.
small = st.lists(st.integers(0, 2), max_size=60)
periodic = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 12),
    st.lists(st.integers(0, 3), max_size=3),
).map(lambda p: p[0] * p[1] + p[2] + p[0] * 2)
contexts = small | periodic | st.lists(st.integers(0, 2**31 - 1), max_size=20)
windows = st.tuples(st.integers(1, 8), st.integers(0, 8)).map(lambda w: (w[0], w[0] + w[1]))


ties = st.sampled_from(["earliest", "latest"])


@given(contexts, windows, st.integers(0, 9), st.integers(0, 100), ties)
@example([7] * 5, (1, 3), 4, 100, "earliest")
@example([1, 2, 3, 1, 2], (2, 2), 4, 6, "earliest")
@example([], (1, 1), 3, 100, "earliest")
def test_drafts_equal_the_brute_force(tokens, window, k, longest, tie):
    """Every context, window, depth, length limit and tie."""
    wanted = brute_force(tokens, *window, k, longest, tie)
    assert propose_ngram(tokens, *window, k, longest, tie=tie) == wanted


@given(contexts, windows, st.integers(1, 9), st.integers(0, 100))
def test_drafts_stay_within_depth_and_length(tokens, window, k, longest):
    """Never more than k drafts, never past max_model_len, only tokens of the context."""
    drafts = propose_ngram(tokens, *window, k, longest)
    assert len(drafts) <= k
    assert not drafts or len(tokens) + len(drafts) <= longest
    assert set(drafts) <= set(tokens)


@given(contexts, windows, st.integers(1, 9))
def test_a_smaller_depth_gives_a_beginning_of_the_same_drafts(tokens, window, k):
    """Lowering k, as dynamic depth does, only cuts the list."""
    full = propose_ngram(tokens, *window, 10, 1000)
    assert propose_ngram(tokens, *window, k, 1000) == full[:k]
