"""Adaptive verification: a step verifies the drafts whose chances pay for the time that they take, and no others.

Chances come from the drafter's own confidence, or from a model of each place among the drafts that learns, from the margins of
the draft's logits, which drafts are kept. Times are measured: those of the captured steps before the engine is ready, those of
drafting while it serves. `graphspec.kernels.adaptive` chooses; here are its inputs.

What is chosen never depends on the value of a draft that was drawn, nor on what was drawn after it: drafts of which the lucky
ones are verified are no draws from their distribution any more, and rejection sampling would not give the target's. So the
scores of drawn drafts are those of the request's drafts of one step before.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from graphspec.capture.keys import CaptureKey
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import VERIFY
from graphspec.engine.drafters.protocol import Proposal
from graphspec.engine.executor import Executor
from graphspec.engine.sampling import Accepted
from graphspec.engine.scheduler import StepPlan
from graphspec.errors import Problem, SpecError
from graphspec.kernels.adaptive import CostTable, choose_budget, deal, longest_dealt, survival
from graphspec.kernels.adaptive_model import AcceptanceModel
from graphspec.resolve.spec import EngineSpec

REPLAYS = 5
"""A time is the median of so many."""


class AdaptiveVerification:
    """Chooses how many drafts of each request a step verifies. `verify_cost` has seconds by the tokens of a step.

    `model` is the one that learns, or None where the drafter has a confidence of its own.
    """

    def __init__(self, verify_cost: CostTable, model: AcceptanceModel | None) -> None:
        self.model = model
        self._verify_cost = verify_cost
        self._draft_seconds: dict[int, deque[float]] = {}
        self._margins: dict[int, Sequence[float]] = {}
        self._before: dict[int, list[float]] = {}

    @classmethod
    def of(
        cls, spec: EngineSpec, manager: CaptureManager, executor: Executor
    ) -> "AdaptiveVerification | None":
        """As the contract asks; None where it does not. Replays captured steps over padding, to measure them."""
        drafting = spec.speculative
        rule = drafting.verification if drafting else None
        if drafting is None or rule is None or not rule.enable_adaptive_verification:
            return None
        learns = drafting.speculator.adaptive_verification_uses_draft_logits
        return cls(
            verify_costs(manager, executor),
            AcceptanceModel.fresh(spec.num_speculative_tokens) if learns else None,
        )

    @property
    def draft_cost(self) -> CostTable:
        """Seconds of drafting by requests; nothing before the first drafts."""
        seconds = {n: statistics.median(taken) for n, taken in self._draft_seconds.items()}
        return CostTable.measured(seconds or {1: 0.0}, captured=max(seconds, default=1))

    def drafted(self, requests: int, seconds: float) -> None:
        """Drafts for so many requests took so long."""
        self._draft_seconds.setdefault(requests, deque(maxlen=REPLAYS)).append(seconds)

    def scores(self, request: int, proposal: Proposal) -> Sequence[float]:
        """The chance of each draft of a proposal that it is reached and kept. A chance that is none (a NaN) counts as 0.

        Raises `SpecError` for a proposal without what its chances could come from.
        """
        if self.model is None:
            chances = _numbers(proposal.confidence, proposal, "confidence")
        else:
            margins = _numbers(proposal.margins, proposal, "margins")
            self._margins[request] = margins
            chances = self.model.confidences(margins)
        scores = survival(chances)
        if proposal.logits is None:
            return scores
        before, self._before[request] = self._before.get(request, [1.0]), scores
        return [*before, *before[-1:] * len(scores)][: len(scores)]

    def lengths(
        self,
        scores: Sequence[Sequence[float]],
        *,
        sampling: int,
        size: Callable[[int, int], int],
    ) -> Sequence[int]:
        """Drafts of each request to verify: a `Trim` of the scheduler.

        A budget costs what the step costs that it leads to: a graph has one depth for all requests, so a draft within the
        depth of another request's costs nothing.
        """
        if self.model is not None and self.model.full_blocks:
            return [len(row) for row in scores]
        longest = longest_dealt(scores)
        costs = tuple(self._verify_cost.at(size(most, b)) for b, most in enumerate(longest))
        budget = choose_budget(
            scores,
            non_draft_tokens=0,
            draft_cost=self.draft_cost,
            verify_cost=CostTable(tuple(range(len(costs))), costs, len(costs) - 1),
            sampling_requests=sampling,
        )
        return deal(scores, budget)

    def observe(self, plan: StepPlan, accepted: Sequence[Accepted | None]) -> None:
        """Learns from a step which of the verified drafts were kept."""
        if self.model is None:
            return
        outcomes = []
        for part, new in zip(plan.requests, accepted, strict=True):
            margins = self._margins.pop(part.request, None)
            if new is not None and margins is not None:
                outcomes.append((margins, part.drafts, min(new.right, part.drafts)))
        self.model = self.model.after_step(outcomes)

    def forget(self, request: int) -> None:
        """The request has ended, or lost its drafts."""
        self._margins.pop(request, None)
        self._before.pop(request, None)


def verify_costs(manager: CaptureManager, executor: Executor) -> CostTable:
    """Seconds of the captured verification steps by their tokens, padding included, where requests have no context.

    Without any graph all sizes cost the same, and every draft is worth its time.
    """
    seconds: dict[int, float] = {}
    for key in sorted(key for key in manager.captured if key.kind == VERIFY):
        executor.buffers.write([executor.padding_request(key.k)] * key.bucket)
        taken = statistics.median(_seconds(manager, key) for _ in range(REPLAYS))
        seconds[key.tokens] = max(taken, seconds.get(key.tokens, 0.0))
    return CostTable.of_verify(seconds or {1: 1.0}, captured=max(seconds, default=1))


def _seconds(manager: CaptureManager, key: CaptureKey) -> float:
    begun = time.perf_counter()
    (first, *_) = manager.replay(key)
    if first.is_cuda:
        # A replay is only queued.
        torch.cuda.synchronize(first.device)
    return time.perf_counter() - begun


def _numbers(values: Sequence[float] | None, proposal: Proposal, name: str) -> list[float]:
    found = None if values is None else len(values)
    if values is None or found != len(proposal.tokens):
        raise SpecError(
            Problem(
                where="speculative.enable_adaptive_verification",
                found=f"a drafter that gives {len(proposal.tokens)} drafts and {found or 'no'} {name}",
                wanted=f"{name} for each draft",
                hint="drop it: drafts are then verified whole",
            )
        )
    return [0.0 if math.isnan(value) else value for value in values]
