"""What runs without a captured graph, and why, for reports: steps of decoding, of prefill, and of drafting."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import CaptureKey, GraphMode
from graphspec.capture.plan import CapturePlan
from graphspec.resolve.spec import EngineSpec

Span = tuple[int, int]


@attrs.frozen(kw_only=True)
class EagerSteps:
    """Steps of one kind that run without a graph for one reason, with the batch sizes, as ranges, that they have.

    `kind` is decode, prefill or draft. `why` is the reason in words, with what is particular to these steps.
    """

    kind: str
    requests: tuple[Span, ...]
    reason: Fallthrough
    why: str

    @property
    def sizes(self) -> str:
        """The batch sizes in words: ``1 to 4, 9``."""
        return in_words(self.requests)

    def __str__(self) -> str:
        return f"{_STEPS[self.kind]} of {self.sizes} requests: {self.why}"

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "steps": self.kind,
            "requests": [list(span) for span in self.requests],
            "reason": self.reason.name.lower(),
            "why": self.why,
        }


_STEPS = {"decode": "decode steps", "prefill": "steps with prefill", "draft": "drafting"}


def eager_steps(spec: EngineSpec, plan: CapturePlan) -> Sequence[EagerSteps]:
    """Everything that runs without a graph once what is planned is captured, in the order decode, prefill, draft."""
    schedule = plan.schedule
    found = _by_reason("decode", plan, plan.verify_key, plan.why_no_verify)
    if not any(key.mode is GraphMode.PIECEWISE for key in plan.keys):
        found.append(
            EagerSteps(
                kind="prefill",
                requests=((1, schedule.max_num_seqs),),
                reason=Fallthrough.MIXED_BATCH,
                why=f"{Fallthrough.MIXED_BATCH.value}, and {_no_pieces(spec, plan)}",
            )
        )
    if spec.speculative is not None:
        found += _by_reason("draft", plan, plan.draft_key, plan.why_no_draft)
    return found


def _no_pieces(spec: EngineSpec, plan: CapturePlan) -> str:
    reasons = {
        reason.value for key, reason in plan.left_out.items() if key.mode is GraphMode.PIECEWISE
    }
    if reasons:
        return f"of its piecewise graphs: {', '.join(sorted(reasons))}"
    return f"graph mode {spec.mode.granted.value} has no piecewise graphs"


def _by_reason(
    kind: str,
    plan: CapturePlan,
    key_of: Callable[[int, int], CaptureKey | None],
    why_none: Callable[[int, int], Fallthrough],
) -> list[EagerSteps]:
    sizes: dict[Fallthrough, list[int]] = {}
    for requests in range(1, plan.schedule.max_num_seqs + 1):
        k = plan.schedule.k_for(requests)
        if key_of(k, requests) is None:
            sizes.setdefault(why_none(k, requests), []).append(requests)
    return [
        EagerSteps(kind=kind, requests=spans(found), reason=reason, why=reason.value)
        for reason, found in sizes.items()
    ]


def in_words(ranges: Sequence[Span]) -> str:
    """``1 to 4, 9``; ``none`` for none."""
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges) or "none"


def spans(sizes: Sequence[int]) -> tuple[Span, ...]:
    """Ascending numbers as ranges.

    >>> spans([1, 2, 3, 9])
    ((1, 3), (9, 9))
    """
    found: list[list[int]] = []
    for size in sizes:
        if found and found[-1][1] == size - 1:
            found[-1][1] = size
        else:
            found.append([size, size])
    return tuple((first, last) for first, last in found)
