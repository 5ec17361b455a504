"""Who survives a failed capture, on one rank and on all."""

import pytest

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.survivors import CaptureFailure, Loss, after_failure, agree
from graphspec.errors import CaptureError

OOM, ERROR, INTERRUPTED = (
    CaptureFailure.OUT_OF_MEMORY,
    CaptureFailure.ERROR,
    CaptureFailure.INTERRUPTED,
)


def key(k, bucket, phase=Phase.TARGET_VERIFY):
    return CaptureKey(phase, k, bucket)


PLANNED = tuple(
    sorted(
        [key(1, 64), key(3, 16), key(1, 24), key(3, 8), key(3, 4), key(3, 1)],
        key=lambda one: -one.tokens,
    )
)  # 128, 64, 48, 32, 16 and 4 tokens


def test_out_of_memory_leaves_what_is_left_to_small_batches():
    """Captured graphs stay; graphs above half the tokens of the failed one are not tried, the smaller ones are."""
    found = after_failure(PLANNED, PLANNED[:1], {}, PLANNED[1], OOM)
    assert found.keep == PLANNED[:1]
    assert found.attempt == PLANNED[3:]
    assert found.lost == {PLANNED[1]: Loss.FAILED, PLANNED[2]: Loss.NO_ROOM}


def test_a_failed_step_takes_its_own_kind_with_it():
    """The code of a depth is the same at all its sizes; other depths go on, and what is captured stays."""
    found = after_failure(PLANNED, PLANNED[:1], {}, PLANNED[1], ERROR)
    assert found.keep == (key(1, 64),)
    assert found.attempt == (key(1, 24),)
    assert found.lost == {
        key(3, 16): Loss.FAILED,
        key(3, 8): Loss.SAME_CODE,
        key(3, 4): Loss.SAME_CODE,
        key(3, 1): Loss.SAME_CODE,
    }


def test_another_phase_of_the_same_depth_goes_on():
    """A verify step that fails says nothing about the draft's."""
    planned = (*PLANNED, key(3, 2, Phase.DRAFT))
    found = after_failure(planned, (), {}, key(3, 16), ERROR)
    assert key(3, 2, Phase.DRAFT) in found.attempt


def test_an_interrupt_leaves_nothing():
    """What was lost before keeps its reason."""
    found = after_failure(PLANNED, PLANNED[1:2], {PLANNED[0]: Loss.FAILED}, PLANNED[2], INTERRUPTED)
    assert (found.keep, found.attempt) == ((), ())
    assert found.lost == dict.fromkeys(PLANNED, Loss.INTERRUPTED) | {PLANNED[0]: Loss.FAILED}


@pytest.mark.parametrize("failed", [PLANNED[0], PLANNED[1], key(7, 7)])
def test_only_a_graph_that_is_to_come_can_fail(failed):
    """One that is captured, lost or not planned is a mistake of the caller."""
    with pytest.raises(CaptureError, match="wanted a planned graph"):
        after_failure(PLANNED, PLANNED[:1], {PLANNED[1]: Loss.FAILED}, failed, OOM)


def test_ranks_keep_what_all_of_them_have():
    """Planned order, whoever lists them how; for each other graph, who lacks it, and what a rank gives up."""
    first, second, third = PLANNED[:3]
    ranks = [(third, first, second), (first, third), (first, third)]
    found = agree(PLANNED[:3], ranks)
    assert found.keep == (first, third)
    assert found.lacking == {second: (1, 2)}
    assert [found.released_by(kept) for kept in ranks] == [(second,), (), ()]


def test_a_rank_with_another_plan_is_named():
    """Graphs that nobody planned here, and no ranks at all, are errors."""
    with pytest.raises(CaptureError) as caught:
        agree(PLANNED, [PLANNED, [key(7, 7)], [key(7, 7), key(7, 9)]])
    assert [p.where for p in caught.value.problems] == ["rank 1", "rank 2"]
    assert "2 captured graphs outside the plan" in caught.value.problems[1].found
    with pytest.raises(CaptureError, match="none"):
        agree(PLANNED, [])


def test_every_loss_has_its_reason_in_dispatch():
    """A step without its graph is told apart only by whether this rank or another lacks it."""
    assert {loss.fallthrough for loss in Loss} == {
        Fallthrough.NOT_CAPTURED,
        Fallthrough.RANK_DISAGREEMENT,
    }
