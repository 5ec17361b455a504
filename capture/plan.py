"""`CapturePlan`: the graphs that a schedule can reach, and no other, worked out before any device is touched."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import attrs

from graphspec.capture.dispatch import Fallthrough, depth_to_verify
from graphspec.capture.keys import FULL_VERIFY, CaptureKey, GraphKind, GraphMode, Phase
from graphspec.capture.ladder import adapter_cases, token_ladder
from graphspec.capture.sizes import (
    Buckets,
    draft_buckets,
    neighbours,
    shallower,
    tier_buckets,
)
from graphspec.config.schedule import KSchedule
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.base import DraftPhase, SpeculatorConfig

VERIFY: GraphKind = (Phase.TARGET_VERIFY, GraphMode.FULL)
PIECES: GraphKind = (Phase.TARGET_VERIFY, GraphMode.PIECEWISE)
DRAFT: GraphKind = (Phase.DRAFT, GraphMode.FULL)

Place: TypeAlias = tuple[int, int]
"""Place of a key in the order of capture: the phase and the mode."""

# The target before its drafter. Pieces before whole steps: theirs are the larger intermediate results, and what they
# leave free in the pool holds those of the graphs that follow.
_PLACES: Mapping[GraphKind, Place] = {PIECES: (0, 0), VERIFY: (0, 1), DRAFT: (1, 0)}


@attrs.frozen
class _Ladder:
    """The graphs that serve one phase, mode, depth and number of adapters: one a bucket, ascending."""

    buckets: tuple[int, ...]
    keys: tuple[CaptureKey, ...]

    def smallest(self, size: int) -> CaptureKey | None:
        at = bisect_left(self.buckets, size)
        return self.keys[at] if at < len(self.keys) else None


_NO_LADDER = _Ladder((), ())
_Ladders: TypeAlias = Mapping[tuple[int, int], _Ladder]
"""By depth and number of adapters."""


@attrs.frozen(kw_only=True)
class CapturePlan:
    """What to capture, with the schedule it serves.

    `buckets` has the sizes of each depth in requests, ascending, and `draft_buckets` those of the draft phase, whose
    requests have `draft_widths` tokens each. `token_buckets` are the sizes of piecewise graphs. `lora_cases` are the
    numbers of active adapters, 0 among them, ascending. `left_out` has the planned graphs that are not captured, each
    with the reason; `no_verify` and `no_draft` say why there are no full graphs at all, where there are none. Depths of
    `first_pass_only` draft, and have no pass of a fixed shape.
    """

    schedule: KSchedule
    buckets: Buckets
    draft_buckets: Buckets = attrs.field(factory=dict)
    draft_widths: Mapping[int, int] = attrs.field(factory=dict)
    token_buckets: tuple[int, ...] = ()
    lora_cases: tuple[int, ...] = (0,)
    left_out: Mapping[CaptureKey, Fallthrough] = attrs.field(factory=dict)
    no_verify: Fallthrough = Fallthrough.NOT_FULL_MODE
    no_draft: Fallthrough = Fallthrough.NO_DRAFT_PHASE
    first_pass_only: frozenset[int] = frozenset()

    @cached_property
    def planned(self) -> tuple[CaptureKey, ...]:
        """Every graph that steps can use, also those that are left out, in the order of `keys`."""
        most = self.schedule.max_num_seqs
        made = [
            CaptureKey(Phase.TARGET_VERIFY, k, size, lora=lora)
            for k, sizes in self.buckets.items()
            for size in sizes
            for lora in self._cases_of(size)
        ]
        made += [
            CaptureKey(Phase.TARGET_VERIFY, 0, tokens, mode=GraphMode.PIECEWISE, lora=lora)
            for tokens in self.token_buckets
            for lora in self._cases_of(min(tokens, most))
        ]
        made += [
            CaptureKey(Phase.DRAFT, k, size, width=self.draft_widths[k])
            for k, sizes in self.draft_buckets.items()
            for size in sizes
        ]
        return tuple(sorted(made, key=_order))

    @cached_property
    def keys(self) -> tuple[CaptureKey, ...]:
        """The graphs to capture: the target's before the draft's, pieces before whole steps, then most tokens first.

        The largest graph of a kind sets the size of the memory that the others of the pool share.
        """
        return tuple(key for key in self.planned if key not in self.left_out)

    def depth_to_verify(self, requests: int, proposed_k: int, lora: int = 0) -> int:
        """The depth at which a step of `requests` requests is verified when its drafts were proposed at `proposed_k`:
        the rule of `graphspec.capture.dispatch`. IndexError outside 1..max_num_seqs."""
        buckets = self._ladder(self._verify, proposed_k, lora).buckets
        return depth_to_verify(
            requests,
            proposed_k,
            holds=buckets[-1] if buckets else 0,
            scheduled_k=self.schedule.k_for(requests),
        )

    def key_for(self, requests: int, proposed_k: int, lora: int = 0) -> CaptureKey | None:
        """The smallest graph for such a step, or None when the plan has none."""
        k = self.depth_to_verify(requests, proposed_k, lora)
        return self.verify_key(k, requests, lora)

    def verify_key(self, k: int, requests: int, lora: int = 0) -> CaptureKey | None:
        """The smallest full graph of exactly depth `k` for the target's step of `requests`, or None."""
        return self._ladder(self._verify, k, lora).smallest(requests)

    def draft_key(self, k: int, requests: int) -> CaptureKey | None:
        """The smallest graph that makes `k` drafts for `requests` requests, or None. Drafts use no adapters."""
        return self._ladder(self._draft, k, 0).smallest(requests)

    def piecewise_key(self, tokens: int, lora: int = 0) -> CaptureKey | None:
        """The smallest piecewise graph for a step of `tokens` tokens of any requests, or None."""
        return self._ladder(self._pieces, 0, lora).smallest(tokens)

    def why_no_verify(self, k: int, requests: int, lora: int = 0) -> Fallthrough:
        """Why `verify_key` has none."""
        if lora > self.lora_cases[-1]:
            return Fallthrough.ABOVE_MAX_ADAPTERS
        otherwise = Fallthrough.NOT_PLANNED if self.buckets else self.no_verify
        return self._why_left_out(VERIFY, k, requests, lora) or otherwise

    def why_no_draft(self, k: int, requests: int) -> Fallthrough:
        """Why `draft_key` has none."""
        if k == 0:
            return Fallthrough.NO_DRAFT_PHASE
        if k in self.first_pass_only:
            return Fallthrough.FIRST_PASS_ONLY
        otherwise = Fallthrough.NOT_PLANNED if self.draft_buckets else self.no_draft
        return self._why_left_out(DRAFT, k, requests, 0) or otherwise

    @cached_property
    def turning_points(self) -> tuple[int, ...]:
        """Batch sizes, ascending from 1, between which no answer of dispatch changes: whatever holds for one of them
        holds for all sizes up to the next."""
        ends = {
            size
            for sizes in (self.buckets, self.draft_buckets)
            for each in sizes.values()
            for size in each
        }
        firsts = {first for first, _, _ in self.schedule.tiers}
        found = {1, *firsts, *(end + 1 for end in ends)}
        return tuple(sorted(size for size in found if size <= self.schedule.max_num_seqs))

    def reachable(self) -> frozenset[CaptureKey]:
        """Every graph to capture that some step uses: any batch size after a step of any other, any number of tokens.

        A step of b requests has at most b adapters, and every size of a plan is the size of some step.
        """
        most, depths, before = self.schedule.max_num_seqs, self.schedule.depths, 0
        found: set[CaptureKey | None] = set()
        for lora in self.lora_cases:
            # The fewest adapters, and so the fewest requests, that this case is taken for.
            fewest, before = min(before + 1, lora), lora
            for requests in {max(fewest, start) for start in self.turning_points}:
                found.update(self.key_for(requests, k, lora) for k in depths)
            found.update(
                self.piecewise_key(tokens, lora)
                for tokens in self.token_buckets
                if min(tokens, most) >= fewest
            )
        found.update(self.draft_key(self.schedule.k_for(b), b) for b in self.turning_points)
        return frozenset(key for key in found if key is not None)

    def fallthrough(self) -> tuple[int, ...]:
        """Batch sizes that steady decoding would run without a full graph."""
        ends = (*self.turning_points[1:], self.schedule.max_num_seqs + 1)
        return tuple(
            requests
            for start, end in zip(self.turning_points, ends, strict=True)
            if self.key_for(start, self.schedule.k_for(start)) is None
            for requests in range(start, end)
        )

    def without(self, dropped: Iterable[CaptureKey], reason: Fallthrough) -> "CapturePlan":
        """The plan that does without these graphs: the next larger one of the same depth serves their batches, and a
        batch that none is left for falls through for `reason`."""
        return attrs.evolve(self, left_out={**self.left_out, **dict.fromkeys(dropped, reason)})

    def _cases_of(self, requests: int) -> Iterator[int]:
        """Cases that so many requests can need: more adapters than the case before, and not more than requests."""
        before = -1
        for lora in self.lora_cases:
            if before < requests:
                yield lora
            before = lora

    @cached_property
    def _verify(self) -> _Ladders:
        return self._ladders_of(VERIFY)

    @cached_property
    def _pieces(self) -> _Ladders:
        return self._ladders_of(PIECES)

    @cached_property
    def _draft(self) -> _Ladders:
        return self._ladders_of(DRAFT)

    def _ladders_of(self, kind: GraphKind) -> _Ladders:
        at_least: dict[tuple[int, int], dict[int, CaptureKey]] = {}
        # Fewer adapters last: of several graphs of one size, the one with the fewest is taken.
        keys = sorted((key for key in self.keys if key.kind == kind), key=lambda key: -key.lora)
        for key in keys:
            for lora in self.lora_cases[: bisect_left(self.lora_cases, key.lora) + 1]:
                at_least.setdefault((key.k, lora), {})[key.bucket] = key
        return {
            place: _Ladder(tuple(sorted(by_size)), tuple(by_size[size] for size in sorted(by_size)))
            for place, by_size in at_least.items()
        }

    def _ladder(self, ladders: _Ladders, k: int, lora: int) -> _Ladder:
        if lora:
            at = bisect_left(self.lora_cases, lora)
            if at == len(self.lora_cases):
                return _NO_LADDER
            lora = self.lora_cases[at]
        return ladders.get((k, lora), _NO_LADDER)

    def _why_left_out(
        self, kind: GraphKind, k: int, requests: int, lora: int
    ) -> Fallthrough | None:
        fitting = (
            key
            for key in self._left_out_by_depth.get((kind, k), ())
            if key.bucket >= requests and key.lora >= lora
        )
        nearest = next(fitting, None)
        return None if nearest is None else self.left_out[nearest]

    @cached_property
    def _left_out_by_depth(self) -> Mapping[tuple[GraphKind, int], list[CaptureKey]]:
        found: dict[tuple[GraphKind, int], list[CaptureKey]] = {}
        for key in sorted(self.left_out, key=lambda key: (key.bucket, key.lora)):
            found.setdefault((key.kind, key.k), []).append(key)
        return found


def _order(key: CaptureKey) -> tuple[Place, int, int, int]:
    return _PLACES[key.kind], -key.tokens, -key.k, -key.lora


def plan_capture(
    spec: EngineSpec,
    *,
    captures: frozenset[GraphKind] = FULL_VERIFY,
    buckets: Mapping[int, Sequence[int]] | None = None,
) -> CapturePlan:
    """The plan for a spec, as its granted mode has it.

    Full modes have whole decode steps, and draft phases where the method has one that the device runs; PIECEWISE and
    FULL_AND_PIECEWISE have pieces for every number of tokens up to scheduler.max_num_batched_tokens.

    `captures` has the phases and modes that the engine's steps can be captured in: graphs of others are left out, and
    say so. `buckets` gives sizes of one's own by depth, such as `best_ladder` finds, and just these; depths that it does
    not name keep the ladder, with compilation.hysteresis also a bucket on either side of each tier, and with adaptive
    verification the sizes of deeper ones. Raises
    `CaptureError` for buckets that the schedule cannot use.
    """
    schedule, granted, budget = (
        spec.schedule,
        spec.mode.granted,
        spec.scheduler.max_num_batched_tokens,
    )
    in_tiers = tier_buckets(schedule, buckets)
    given = buckets or ()
    beside = neighbours(schedule, without=given) if spec.hysteresis else {}
    trimmed = shallower(in_tiers, without=given) if _trims(spec) else {}
    no_draft = _why_no_draft(spec)
    drafting = {} if no_draft else draft_buckets(schedule, in_tiers)
    drafted = {k: sizes for k, sizes in drafting.items() if _draft_passes(spec, k)}
    plan = CapturePlan(
        schedule=schedule,
        buckets={
            k: tuple(sorted({*sizes, *beside.get(k, ()), *trimmed.get(k, ())}))
            for k, sizes in in_tiers.items()
        }
        if granted.decode_is_full
        else {},
        draft_buckets=drafted,
        draft_widths={k: _draft_width(spec, k) for k in drafted},
        token_buckets=token_ladder(budget) if granted.needs_piecewise else (),
        lora_cases=adapter_cases(spec.lora.max_loras) if spec.lora else (0,),
        no_verify=_no_full(spec),
        no_draft=no_draft or Fallthrough.NO_DRAFT_PHASE,
        first_pass_only=frozenset(drafting) - frozenset(drafted),
    )
    too_large = (key for key in plan.planned if key.tokens > budget)
    beyond_source = (key for key in plan.planned if key.kind not in captures)
    return plan.without(too_large, Fallthrough.ABOVE_TOKEN_BUDGET).without(
        beyond_source, Fallthrough.NOT_CAPTURABLE
    )


def _no_full(spec: EngineSpec) -> Fallthrough:
    lowered = spec.mode.asked.decode_is_full and not spec.mode.granted.decode_is_full
    return Fallthrough.DOWNGRADED if lowered else Fallthrough.NOT_FULL_MODE


def _trims(spec: EngineSpec) -> bool:
    rule = spec.speculative.verification if spec.speculative else None
    return rule is not None and rule.enable_adaptive_verification


def _why_no_draft(spec: EngineSpec) -> Fallthrough | None:
    """Why the draft phase has no graphs; None when it has."""
    drafting = spec.speculative
    if drafting is None or drafting.speculator.draft_phase is DraftPhase.NONE:
        return Fallthrough.NO_DRAFT_PHASE
    if drafting.disable_padded_drafter_batch and _may_be_ragged(spec, drafting.speculator):
        return Fallthrough.RAGGED_DRAFTS
    return None if drafting.draft_cudagraph_mode.decode_is_full else _no_full(spec)


def _may_be_ragged(spec: EngineSpec, speculator: SpeculatorConfig) -> bool:
    """Loops on the target's hidden states can leave padding out, unless the next step is scheduled meanwhile."""
    looped = speculator.draft_phase is DraftPhase.AUTOREGRESSIVE
    on_target = speculator.uses_target_hidden_states
    return looped and on_target and not spec.scheduler.async_scheduling


def _draft_width(spec: EngineSpec, k: int) -> int:
    return spec.speculative.speculator.draft_tokens_per_request(k) if spec.speculative else 0


def _draft_passes(spec: EngineSpec, k: int) -> int:
    return spec.speculative.speculator.draft_passes(k) if spec.speculative else 0
