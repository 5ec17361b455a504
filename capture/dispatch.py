"""Dispatch: which captured graph a step runs, or the named reason why none."""

import enum

import attrs

from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import CapturePlan


class Fallthrough(enum.Enum):
    """Why a step runs without a full graph."""

    PREFILL_PRESENT = "a request in the batch is still in prefill"
    ABOVE_MAX = "more requests than scheduler.max_num_seqs"
    NOT_FULL_MODE = "the granted graph mode has no full graphs for decode"
    NOT_CAPTURED = "the graph was planned and is not captured"


@attrs.frozen(kw_only=True)
class Step:
    """What dispatch needs to know of a step: requests in it, the depth their drafts were proposed at, and whether any
    of them still has prompt tokens to compute. A prompt chunk of 1+k tokens is not a decode, however it looks."""

    requests: int
    proposed_k: int
    prefill: bool


@attrs.frozen(kw_only=True)
class Dispatch:
    """Where a step goes: a key, or the reason why there is none. `k` is the depth that it verifies."""

    k: int
    key: CaptureKey | None = None
    reason: Fallthrough | None = None


def dispatch(plan: CapturePlan, captured: frozenset[CaptureKey], step: Step) -> Dispatch:
    """The smallest captured graph of the step's depth that holds its requests."""
    if not 1 <= step.requests <= plan.schedule.max_num_seqs:
        return Dispatch(k=step.proposed_k, reason=Fallthrough.ABOVE_MAX)
    k = plan.depth_to_verify(step.requests, step.proposed_k)
    if step.prefill:
        return Dispatch(k=k, reason=Fallthrough.PREFILL_PRESENT)
    key = plan.key_for(step.requests, step.proposed_k)
    if key is None:
        return Dispatch(k=k, reason=Fallthrough.NOT_FULL_MODE)
    if key not in captured:
        return Dispatch(k=k, reason=Fallthrough.NOT_CAPTURED)
    return Dispatch(k=k, key=key)
