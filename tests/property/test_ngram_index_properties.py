"""The n-gram index equals the brute force after every append and every truncation, with numba and without."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.kernels import NgramIndex, propose_ngram
from support.ngram import brute_force, walk

windows = st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda w: (w[0], w[0] + w[1]))
pieces = st.lists(st.integers(0, 2), min_size=1, max_size=30) | st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 12)
).map(lambda p: p[0] * p[1])
# An append of a piece, or a cut to a part of what is there.
actions = st.lists(pieces | st.floats(0, 1), max_size=12)
ties = st.sampled_from(["earliest", "latest"])
backends = st.sampled_from(["numba", "python"])


@given(actions, windows, st.integers(1, 8), st.integers(0, 12), ties, backends)
@example([[0] * 40, 0.5, [0, 1], 0.9, [0]], (1, 4), 3, 0, "latest", "numba")
@example([[1, 2, 1, 2], 0.5, [1, 2], 0.0, [1]], (1, 2), 3, 0, "earliest", "numba")
def test_any_life_of_a_request_equals_the_brute_force(acts, window, k, room, tie, backend):
    """Appends and cuts in any order; after each, the drafts are those of the text that is there."""
    longest = sum(len(a) for a in acts if isinstance(a, list)) + room + 1
    index = NgramIndex(
        min_n=window[0], max_n=window[1], k=k, max_model_len=longest, tie=tie, backend=backend
    )
    text = []
    for act in acts:
        if isinstance(act, list):
            index.append(act)
            text = text + act
        else:
            text = text[: int(act * len(text))]
            index.truncate(len(text))
        assert index.propose() == brute_force(text, *window, k, longest, tie)


def compare(seed):
    """One walk, both ties: brute force, scan, index with numba and without. Returns how many texts were compared."""
    settings, acts = walk(seed)
    compared = 0
    for tie in ("earliest", "latest"):
        indices = [NgramIndex(**settings, tie=tie, backend=b) for b in ("numba", "python")]
        text = []
        for act in acts:
            for index in indices:
                getattr(index, act[0])(*act[1:])
            text = text + act[1] if act[0] == "append" else text[: (act[1:] or (0,))[0]]
            s = settings
            wanted = brute_force(text, s["min_n"], s["max_n"], s["k"], s["max_model_len"], tie)
            scanned = propose_ngram(
                text, s["min_n"], s["max_n"], s["k"], s["max_model_len"], tie=tie
            )
            assert [scanned, *(i.propose() for i in indices)] == [wanted] * 3, (seed, tie, text)
            compared += 1
    return compared


def test_four_ways_agree_on_seeded_walks():
    """Some five thousand texts: periodic, broken, Fibonacci, Thue-Morse, equal and large ids, cut and grown at random."""
    assert sum(compare(seed) for seed in range(130)) > 5000


@pytest.mark.deep
def test_four_ways_agree_on_two_hundred_thousand_texts():
    """The same, over 200,000 texts."""
    assert sum(compare(seed) for seed in range(1000, 6000)) > 200_000
