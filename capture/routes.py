"""`Routes`: every answer of dispatch for decode steps, worked out once, so that a step costs one look into a table."""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping

import attrs

from graphspec.capture.dispatch import Dispatch, Fallthrough, Step, dispatch, dispatch_draft
from graphspec.capture.keys import CaptureKey, GraphMode
from graphspec.capture.plan import CapturePlan

_Rows = list[list[Dispatch]]
"""By depth, then by requests; index 0 of a row is the step without requests."""


@attrs.frozen(kw_only=True, eq=False)
class Routes:
    """The answers of `dispatch` and `dispatch_draft` for one plan and one set of captured graphs. Make it with `of`.

    Answers are shared objects, equal to those of the functions. A new set of captured graphs needs new routes.
    """

    plan: CapturePlan
    captured: frozenset[CaptureKey]
    missing: Mapping[CaptureKey, Fallthrough]
    sealed: bool
    _most: int
    _deepest: int
    _verify: _Rows
    """Without adapters: what nearly every engine asks for."""
    _verify_by_case: list[_Rows]
    _draft: _Rows

    @classmethod
    def of(
        cls,
        plan: CapturePlan,
        captured: frozenset[CaptureKey],
        *,
        missing: Mapping[CaptureKey, Fallthrough] | None = None,
        sealed: bool = True,
    ) -> "Routes":
        """The routes of a plan of which `captured` is captured.

        `missing` has the reasons of planned graphs that are not, NOT_CAPTURED for those it does not name. Before the
        manager is sealed every step is NOT_SEALED.
        """
        deepest, most = plan.schedule.depths[0], plan.schedule.max_num_seqs
        missing = missing or {}
        one_answer = Fallthrough.NOT_SEALED if not sealed else None

        in_pieces = any(key.mode is GraphMode.PIECEWISE for key in captured)

        def rows(answer: Callable[[int, int], Dispatch]) -> _Rows:
            made = []
            for k in range(deepest + 1):
                row = [answer(0, k)]
                for start, end in itertools.pairwise((*plan.turning_points, most + 1)):
                    first = answer(start, k)
                    # The pieces that serve a step without a full graph depend on its tokens.
                    varies = in_pieces and first.reason is not None
                    row += (
                        [answer(requests, k) for requests in range(start, end)]
                        if varies
                        else [first] * (end - start)
                    )
                made.append(row)
            return made

        def verify(lora: int) -> Callable[[int, int], Dispatch]:
            def answer(requests: int, k: int) -> Dispatch:
                if one_answer is not None:
                    return Dispatch(k=k, reason=one_answer)
                step = Step(requests=requests, proposed_k=k, prefill=False, lora=lora)
                return dispatch(plan, captured, step, missing)

            return answer

        def draft(requests: int, k: int) -> Dispatch:
            if one_answer is not None:
                return Dispatch(k=k, reason=one_answer)
            return dispatch_draft(plan, captured, requests, k, missing)

        by_case = [rows(verify(lora)) for lora in plan.lora_cases]
        return cls(
            plan=plan,
            captured=captured,
            missing=missing,
            sealed=sealed,
            most=most,
            deepest=deepest,
            verify=by_case[0],
            verify_by_case=by_case,
            draft=rows(draft),
        )

    def decode(self, requests: int, proposed_k: int) -> Dispatch:
        """The graph of a uniform decode step without adapters, or the reason why there is none.

        `proposed_k` is the depth that the drafts of its requests were proposed at. The engine pads each request to
        1 + `Dispatch.k` tokens.
        """
        if 0 <= requests <= self._most and 0 <= proposed_k <= self._deepest:
            return self._verify[proposed_k][requests]
        return self._slow(Step(requests=requests, proposed_k=proposed_k, prefill=False))

    def draft(self, requests: int, k: int) -> Dispatch:
        """The graph that makes `k` drafts for each of `requests` requests, or the reason why there is none."""
        if 0 <= requests <= self._most and 0 <= k <= self._deepest:
            return self._draft[k][requests]
        return dispatch_draft(self.plan, self.captured, requests, k, self.missing)

    def route(self, step: Step) -> Dispatch:
        """The graph of any step, or the reason why it runs no full graph."""
        k, requests = step.proposed_k, step.requests
        if (
            step.prefill
            or not step.uniform
            or (step.tokens is not None and step.tokens != requests * (1 + k))
            or not (0 <= requests <= self._most and 0 <= k <= self._deepest)
        ):
            return self._slow(step)
        if not step.lora:
            return self._verify[k][requests]
        cases = self.plan.lora_cases
        at = bisect_left(cases, step.lora)
        return self._verify_by_case[at][k][requests] if at < len(cases) else self._slow(step)

    def _slow(self, step: Step) -> Dispatch:
        if not self.sealed:
            return Dispatch(k=step.proposed_k, reason=Fallthrough.NOT_SEALED)
        return dispatch(self.plan, self.captured, step, self.missing)
