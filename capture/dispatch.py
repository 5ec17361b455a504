"""Dispatch: which captured graph a step runs, or the named reason why it runs no full graph.

The rule. The drafts that a step verifies were proposed after the step before it, at the depth of that step's size; in
between, requests finish and join.

1. While a graph of the proposed depth holds the batch, that depth is verified. A batch that shrank so runs in that
   depth's smallest graph that holds it, however far below its tier.
2. A batch that grew past every graph of that depth is verified at the depth of its own size: drafts are trimmed, or
   padded with drafts that are always rejected.
3. The graph is the smallest of exactly that depth that holds the batch. Padding adds requests, never tokens to one.

Every graph of a plan is the answer for some pair of steps, and a steady engine has an answer for every pair.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from graphspec.capture.keys import CaptureKey

if TYPE_CHECKING:
    from graphspec.capture.plan import CapturePlan


class Fallthrough(enum.Enum):
    """Why a step runs without a full graph."""

    MIXED_BATCH = "a request in the batch is still in prefill"
    PREFILL_CHUNK = (
        "prompt chunks of as many tokens as a decode has: they look like one and are none"
    )
    NON_UNIFORM = "the requests have different numbers of tokens, or not 1 + k each"
    NO_REQUESTS = "the step has no requests"
    ABOVE_MAX = "more requests than scheduler.max_num_seqs"
    ABOVE_MAX_ADAPTERS = "more active adapters than lora.max_loras"
    NOT_FULL_MODE = "the granted graph mode has no full graphs for decode"
    DOWNGRADED = "full graphs were asked for, and the mode was lowered"
    NO_DRAFT_PHASE = "the method drafts nothing on the device at this depth"
    RAGGED_DRAFTS = "the drafter runs on ragged batches"
    FIRST_PASS_ONLY = (
        "the drafts come from the pass over what the target kept, which has no fixed shape"
    )
    DRAWN_ON_HOST = "a request draws its drafts, which the host does between passes"
    ABOVE_TOKEN_BUDGET = "the graph would hold more tokens than scheduler.max_num_batched_tokens"
    NOT_PLANNED = "the plan has no graph of this depth for so many requests"
    NOT_CAPTURABLE = "the program's steps cannot be captured in this phase and mode"
    DROPPED_BY_BUDGET = "the graph was dropped to keep within the capture budget"
    RANK_DISAGREEMENT = "another rank does not have the graph"
    NOT_CAPTURED = "the graph was planned and is not captured"
    NOT_SEALED = "capturing has not ended"


@attrs.frozen(kw_only=True)
class Step:
    """What dispatch needs to know of a step.

    `proposed_k` is the depth that its drafts were proposed at. `prefill` says whether any request still has prompt
    tokens to compute: nothing else can, since a prompt chunk of 1 + k tokens looks like a decode. `tokens` counts the
    tokens of all requests; None for a decode whose requests the engine pads to 1 + k each. `uniform` is False where
    requests have different numbers of tokens. `lora` counts the adapters that are active in the step.
    """

    requests: int
    proposed_k: int
    prefill: bool
    tokens: int | None = None
    uniform: bool = True
    lora: int = 0

    @property
    def not_a_decode(self) -> Fallthrough | None:
        """Why the step's shape alone rules a full graph out; None for a uniform decode step."""
        as_decode = self.requests * (1 + self.proposed_k)
        if self.prefill:
            alike = self.uniform and self.tokens == as_decode
            return Fallthrough.PREFILL_CHUNK if alike else Fallthrough.MIXED_BATCH
        if not self.uniform or (self.tokens is not None and self.tokens != as_decode):
            return Fallthrough.NON_UNIFORM
        return None


@attrs.frozen(kw_only=True)
class Dispatch:
    """Where a step goes. `k` is the depth that it verifies, or that its drafts are made at.

    Without a `reason`, `key` is a full graph. With one, the step has no full graph, and `key` is the piecewise graph
    that it runs in, or None.
    """

    k: int
    key: CaptureKey | None = None
    reason: Fallthrough | None = None


def depth_to_verify(requests: int, proposed_k: int, *, holds: int, scheduled_k: int) -> int:
    """Parts 1 and 2 of the rule: the depth that a step of `requests` verifies.

    `holds` is the largest graph of the proposed depth, in requests; 0 without any. `scheduled_k` is the depth that the
    schedule gives to this batch size.
    """
    return proposed_k if requests <= holds else scheduled_k


def dispatch(
    plan: "CapturePlan",
    captured: frozenset[CaptureKey],
    step: Step,
    missing: Mapping[CaptureKey, Fallthrough] | None = None,
) -> Dispatch:
    """The smallest captured graph of the step's depth that holds its requests, or the reason why there is none.

    A planned graph that is not captured is never replaced by a larger one: `missing` has the reasons, and is
    NOT_CAPTURED for those it does not name. A graph that shall be done without is taken out of the plan instead
    (`CapturePlan.without`), and then the next larger one serves its batches.
    """
    if step.requests < 1:
        return Dispatch(k=step.proposed_k, reason=Fallthrough.NO_REQUESTS)
    if step.requests > plan.schedule.max_num_seqs:
        return Dispatch(k=step.proposed_k, reason=Fallthrough.ABOVE_MAX)
    k = plan.depth_to_verify(step.requests, step.proposed_k, step.lora)
    reason = step.not_a_decode
    if reason is None:
        key = plan.verify_key(k, step.requests, step.lora)
        if key is not None and key in captured:
            return Dispatch(k=k, key=key)
        reason = (
            plan.why_no_verify(k, step.requests, step.lora) if key is None else _why(key, missing)
        )
    return Dispatch(k=k, key=_pieces(plan, captured, step, k), reason=reason)


def dispatch_draft(
    plan: "CapturePlan",
    captured: frozenset[CaptureKey],
    requests: int,
    k: int,
    missing: Mapping[CaptureKey, Fallthrough] | None = None,
) -> Dispatch:
    """The graph of the draft phase that proposes `k` drafts for each of `requests`, or why there is none."""
    if requests < 1:
        return Dispatch(k=k, reason=Fallthrough.NO_REQUESTS)
    if requests > plan.schedule.max_num_seqs:
        return Dispatch(k=k, reason=Fallthrough.ABOVE_MAX)
    key = plan.draft_key(k, requests)
    if key is None:
        return Dispatch(k=k, reason=plan.why_no_draft(k, requests))
    if key not in captured:
        return Dispatch(k=k, reason=_why(key, missing))
    return Dispatch(k=k, key=key)


def _why(key: CaptureKey, missing: Mapping[CaptureKey, Fallthrough] | None) -> Fallthrough:
    return (missing or {}).get(key, Fallthrough.NOT_CAPTURED)


def _pieces(
    plan: "CapturePlan", captured: frozenset[CaptureKey], step: Step, k: int
) -> CaptureKey | None:
    tokens = step.tokens
    if step.not_a_decode is None:
        tokens = step.requests * (1 + k)
    if tokens is None:
        return None
    key = plan.piecewise_key(tokens, step.lora)
    return key if key in captured else None
