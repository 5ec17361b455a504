"""Whatever fails while graphs are captured: every graph is decided, few captures fail, and ranks agree."""

import math

from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.survivors import CaptureFailure, after_failure, agree

OOM, ERROR = CaptureFailure.OUT_OF_MEMORY, CaptureFailure.ERROR


keys = st.builds(CaptureKey, st.sampled_from(Phase), st.integers(0, 3), st.integers(1, 64))
plans = st.lists(keys, min_size=1, max_size=12, unique=True).map(
    lambda some: tuple(sorted(some, key=lambda one: (-one.tokens, one)))
)


@given(planned=plans, data=st.data())
def test_every_graph_is_decided_and_few_captures_fail(planned, data):
    """However captures end, each graph is kept, to come or lost at each time; memory runs out at most log2 times."""
    captured, lost, coming, failures = (), {}, planned, 0
    while coming:
        now = coming[0]
        outcome = data.draw(st.sampled_from([None, OOM, ERROR]))
        if outcome is None:
            captured, coming = (*captured, now), coming[1:]
            continue
        failures += outcome is OOM
        found = after_failure(planned, captured, lost, now, outcome)
        assert sorted([*found.keep, *found.attempt, *found.lost]) == sorted(planned)
        assert set(captured) == set(found.keep)
        assert found.lost.items() >= lost.items()
        captured, coming, lost = found.keep, found.attempt, found.lost
    assert [key for key in planned if key in captured] == list(captured)
    assert failures <= 1 + math.log2(planned[0].tokens)


@given(planned=plans, data=st.data())
def test_agreement_is_the_same_for_every_order_of_a_rank(planned, data):
    """It is the intersection, a subset of each rank, and adds up with what each releases."""
    ranks = data.draw(
        st.lists(st.lists(st.sampled_from(planned), unique=True), min_size=1, max_size=4)
    )
    found = agree(planned, ranks)
    assert set(found.keep) == set.intersection(*map(set, ranks))
    assert list(found.keep) == [key for key in planned if key in found.keep]
    assert found == agree(planned, [sorted(kept) for kept in ranks])
    for kept in ranks:
        assert {*found.keep, *found.released_by(kept)} == set(kept)
