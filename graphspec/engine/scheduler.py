"""The scheduler: which tokens of which requests the next step computes, and what a finished step makes of the requests.

One step is one turn: `plan` gives a frozen plan, the engine runs it, `finish` takes what came out, `propose` the drafts
for the next turn. Nothing here knows of tensors.

Priority is arrival. Requests that decode come first, each with one token and as many of its drafts as the budget holds;
then chunks of prompts that have begun; then prompts that wait. Where blocks run out, the request that arrived last loses
all of its own and waits to be computed again. So the first request always goes on, and every request ends.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from graphspec.capture.dispatch import Dispatch, Step
from graphspec.config.schedule import KSchedule
from graphspec.engine.kv_manager import KVManager
from graphspec.engine.request import Delta, Request
from graphspec.engine.sampling import Accepted
from graphspec.engine.stop import Decode, FinishReason, apply_stops
from graphspec.resolve.spec import EngineSpec


class Trim(Protocol):
    """How many drafts of each request a step verifies: see `graphspec.engine.adaptive`."""

    def __call__(
        self,
        scores: Sequence[Sequence[float]],
        *,
        sampling: int,
        size: Callable[[int, int], int],
    ) -> Sequence[int]:
        """`scores` has the chances of each request's drafts, `sampling` counts the requests that come to a new token, and
        `size` gives the tokens of a step, padding included, by its longest drafts and the number of all."""
        ...


@attrs.frozen(kw_only=True)
class StepLimits:
    """What the contract says about a step. `lookahead` counts slots of keys and values that drafting needs beyond a
    step's tokens, `prefill_lookahead` the prompt tokens past a chunk that a drafter reads, `longest` the most slots of a
    request, and `longest_drafted` the most tokens at which drafts are made."""

    max_num_seqs: int
    token_budget: int
    lookahead: int
    prefill_lookahead: int
    longest: int
    longest_drafted: int
    schedule: KSchedule
    drafter_keeps_kv: bool

    @classmethod
    def of(cls, spec: EngineSpec) -> "StepLimits":
        """The limits of a contract, each read from the one place that derives it."""
        seqs = spec.scheduler.max_num_seqs
        slots = spec.max_num_new_slots_for_drafting
        return cls(
            max_num_seqs=seqs,
            # A draft pass over the same requests holds so many tokens more.
            token_budget=spec.scheduler.max_num_batched_tokens - seqs * slots,
            lookahead=spec.num_lookahead_tokens,
            prefill_lookahead=spec.num_prefill_lookahead_tokens,
            # A drafter writes ahead of requests at the length limit too; block tables are this wide.
            longest=spec.model.max_model_len + spec.num_speculative_tokens,
            longest_drafted=spec.max_draft_len,
            schedule=spec.schedule,
            drafter_keeps_kv=spec.uses_draft_kv_cache,
        )


@attrs.frozen(kw_only=True)
class Scheduled:
    """One request's part of a step: its tokens from `position` on, the last `drafts` of which are drafts.

    `samples` says whether the tokens reach the last one that is known, so that new ones come of it; otherwise they are a
    chunk of a prompt. `copy` is a block to copy (from, to) before the step. `parents` are those of drafts that form a tree,
    empty for a chain. `trimmed` drafts were left out, as not worth their time.
    """

    request: int
    position: int
    tokens: tuple[int, ...]
    drafts: int
    samples: bool
    blocks: tuple[int, ...]
    copy: tuple[int, int] | None = None
    parents: tuple[int, ...] = ()
    trimmed: int = 0


@attrs.frozen(kw_only=True)
class StepPlan:
    """A step. `route` is its graph, or why it has none; `depth` is the k to propose at afterwards.

    `preempted` requests lost their blocks while it was planned. `admitted` has for each request that began its tokens, and
    how many of them were found in the cache.
    """

    requests: tuple[Scheduled, ...]
    prefill: bool
    route: Dispatch
    depth: int
    preempted: tuple[int, ...] = ()
    admitted: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all requests, without padding."""
        return sum(len(part.tokens) for part in self.requests)


@attrs.frozen(kw_only=True)
class StepResult:
    """What a step gave: a delta for each request that got tokens or ended, and the requests that ended."""

    deltas: tuple[Delta, ...] = ()
    finished: tuple[Request, ...] = ()


def chunk_of(left: int, budget: int, lookahead: int) -> int:
    """Tokens of a prompt's next chunk: as many as fit, leaving none, or at least the `lookahead` that a drafter reads.

    >>> chunk_of(10, 8, 1), chunk_of(10, 8, 3), chunk_of(8, 8, 3)
    (8, 7, 8)
    """
    taken = min(left, budget)
    rest = left - taken
    return max(0, taken - (lookahead - rest)) if 0 < rest < lookahead else taken


@attrs.define(eq=False)
class _Packing:
    """A plan in the making: tokens that each request is given, and the budget that is left."""

    budget: int
    given: dict[int, int] = attrs.field(factory=dict)
    copies: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    preempted: list[int] = attrs.field(factory=list)
    admitted: list[tuple[int, int]] = attrs.field(factory=list)

    def give(self, request: int, tokens: int) -> None:
        self.given[request] = tokens
        self.budget -= tokens

    def take_back(self, request: int) -> None:
        self.budget += self.given.pop(request, 0)
        self.copies.pop(request, None)


class Scheduler:
    """The requests of an engine, running and waiting, each in order of arrival; all running ones arrived before all waiting.

    `route` answers how a step runs: `CaptureManager.dispatch`, or the rule behind it on a plan. `end_of_text` ends a
    request, and `decode` gives the text of tokens; without it there are no texts. `trim` says how many drafts of each request
    are worth their time; without it all are verified.
    """

    def __init__(
        self,
        limits: StepLimits,
        kv: KVManager,
        route: Callable[[Step], Dispatch],
        *,
        end_of_text: frozenset[int] = frozenset(),
        decode: Decode | None = None,
        trim: Trim | None = None,
    ) -> None:
        self.limits = limits
        self.kv = kv
        self._route = route
        self._end_of_text = end_of_text
        self._decode = decode
        self._trim = trim
        self._running: dict[int, Request] = {}
        self._waiting: dict[int, Request] = {}
        self._proposed_k = 0

    @property
    def running(self) -> Sequence[Request]:
        """Requests that hold blocks."""
        return list(self._running.values())

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that do not, in the order in which they will be admitted."""
        return list(self._waiting.values())

    def slots_needed(self, request: Request) -> int:
        """The most slots that a request can come to need."""
        return self._slots(request, request.limit - 1)

    def add(self, request: Request) -> None:
        """Takes a new request. Its id is above all others'; the caller has checked `slots_needed` against the pool."""
        assert request.id not in self._running, f"request {request.id} is there already"
        self._waiting[request.id] = request

    def abort(self, request: int) -> StepResult:
        """Ends a request where it stands. Not while a plan is being run. Nothing happens to one that ended before."""
        found = self._running.pop(request, None)
        if found is not None:
            self.kv.release(request)
        found = found or self._waiting.pop(request, None)
        if found is None:
            return StepResult()
        return self._ended(found, FinishReason.ABORT, ())

    def plan(self) -> StepPlan | None:
        """The next step, with its blocks reserved; None when there is no request."""
        packing = _Packing(self.limits.token_budget)
        decoding = [r for r in self._running.values() if not r.prefilling]
        for after, request in zip(range(len(decoding) - 1, -1, -1), decoding, strict=True):
            # One token is left for each request behind this one.
            self._fit(request, min(1 + len(request.drafts), packing.budget - after), packing)
        for request in [r for r in self._running.values() if r.prefilling]:
            self._fit(request, self._chunk(request, packing), packing)
        self._admit(packing)
        if not packing.given:
            assert not self._running, "the first request can always go on"
            assert not self._waiting, "an empty cache has room for any request that was taken"
            return None
        return self._planned(packing)

    def finish(self, plan: StepPlan, accepted: Sequence[Accepted | None]) -> StepResult:
        """The requests after a step. `accepted` has the new tokens of each part that samples, in the plan's order."""
        deltas: list[Delta] = []
        finished: list[Request] = []
        for part, new in zip(plan.requests, accepted, strict=True):
            before = self._running[part.request]
            if new is None:
                self._advance(
                    before, attrs.evolve(before, computed=part.position + len(part.tokens))
                )
                continue
            after, reason = self._extended(before, part, new)
            self._advance(before, after)
            gained = after.tokens[len(before.tokens) :]
            if reason is None:
                shown, text = after.text.shown(after.params.stop, ended=False)
                self._running[after.id] = attrs.evolve(after, text=text)
                deltas.append(Delta(request=after.id, tokens=gained, text=shown))
            else:
                self.kv.release(self._running.pop(after.id).id)
                result = self._ended(after, reason, gained)
                deltas.extend(result.deltas)
                finished.extend(result.finished)
        self._proposed_k = plan.depth
        return StepResult(deltas=tuple(deltas), finished=tuple(finished))

    def wanted(self, request: int, depth: int) -> int:
        """Drafts to propose for a request after a step, when `depth` is the step's.

        None for a prompt, for a request that asked to go without, and where verifying them could give no token that the
        request may still have: the last place is that of the token behind the drafts.
        """
        r = self._running.get(request)
        if r is None or r.prefilling or not r.params.speculate:
            return 0
        room = min(r.limit - 1, self.limits.longest_drafted) - len(r.tokens)
        return max(0, min(depth, room))

    def propose(
        self,
        drafts: Mapping[int, Sequence[int]],
        *,
        parents: Mapping[int, Sequence[int]] | None = None,
        scores: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        """The drafts for the next step, of requests that `wanted` some. Longer ones are cut: of a tree the first nodes stay,
        which are one too, since parents come before children.

        `parents` are those of drafts that form a tree; `scores` the chances that drafts are reached and kept, which never
        rise along a request: all that drafts have one where the scheduler was given a `trim`.
        """
        for id_, tokens in drafts.items():
            request, most = self._running[id_], self.wanted(id_, self._proposed_k)
            self._running[id_] = attrs.evolve(
                request,
                drafts=tuple(tokens[:most]),
                parents=tuple((parents or {}).get(id_, ())[:most]),
                scores=tuple((scores or {}).get(id_, ())[:most]),
            )

    def _slots(self, request: Request, tokens: int) -> int:
        lookahead = self.limits.lookahead if request.params.speculate else 0
        return min(tokens + lookahead, self.limits.longest)

    def _chunk(self, request: Request, packing: _Packing) -> int:
        left = len(request.tokens) - request.computed
        return chunk_of(left, packing.budget, self.limits.prefill_lookahead)

    def _fit(self, request: Request, tokens: int, packing: _Packing) -> None:
        """Gives a running request its tokens and their slots, at the cost of requests that arrived after it."""
        if tokens <= 0 or request.id not in self._running:
            return
        while not self.kv.reserve(request.id, self._slots(request, request.computed + tokens)):
            last = next(reversed(self._running.values()))
            self._preempt(last, packing)
            if last.id == request.id:
                return
        packing.give(request.id, tokens)

    def _preempt(self, request: Request, packing: _Packing) -> None:
        packing.take_back(request.id)
        packing.preempted.append(request.id)
        self.kv.release(request.id)
        del self._running[request.id]
        counts = attrs.evolve(request.counts, preempted=request.counts.preempted + 1)
        again = attrs.evolve(request, computed=0, drafts=(), parents=(), scores=(), counts=counts)
        # It arrived before all that wait.
        self._waiting = {request.id: again, **self._waiting}

    def _admit(self, packing: _Packing) -> None:
        if packing.preempted:
            # Whoever were admitted now would soon be preempted.
            return
        while self._waiting and packing.budget > 0:
            if len(self._running) >= self.limits.max_num_seqs:
                return
            request = next(iter(self._waiting.values()))
            started = self.kv.start(request.id, request.tokens, self._salt(request))
            counts = attrs.evolve(request.counts, cached=request.counts.cached + started.cached)
            request = attrs.evolve(request, computed=started.cached, counts=counts)
            tokens = self._chunk(request, packing)
            slots = self._slots(request, request.computed + tokens)
            if tokens == 0 or not self.kv.reserve(request.id, slots):
                self.kv.release(request.id)
                return
            del self._waiting[request.id]
            self._running[request.id] = request
            packing.give(request.id, tokens)
            packing.admitted.append((len(request.tokens), started.cached))
            if started.copy is not None:
                packing.copies[request.id] = started.copy

    def _salt(self, request: Request) -> str:
        # Blocks that a drafter did not see lack its keys and values.
        seen = request.params.speculate or not self.limits.drafter_keeps_kv
        return f"{'seen' if seen else 'unseen'} {request.params.cache_salt}"

    def _planned(self, packing: _Packing) -> StepPlan:
        requests = [self._running[id_] for id_ in packing.given]
        prefill = any(r.prefilling for r in requests)
        # Without drafts nothing was proposed at any depth, and the step need not be as wide as if it were.
        proposed_k = self._proposed_k if any(r.drafts for r in requests) else 0
        route = self._route(Step(requests=len(requests), proposed_k=proposed_k, prefill=False))
        parts = tuple(self._part(r, packing, route.k) for r in requests)
        if self._trim is not None and any(part.drafts for part in parts):
            parts, route = self._trimmed(self._trim, parts, route, prefill=prefill)
        if prefill:
            sizes = {len(part.tokens) for part in parts}
            route = self._route(
                Step(
                    requests=len(parts),
                    proposed_k=proposed_k,
                    prefill=True,
                    tokens=sum(len(part.tokens) for part in parts),
                    uniform=len(sizes) == 1,
                )
            )
        return StepPlan(
            requests=parts,
            prefill=prefill,
            route=route,
            depth=self.limits.schedule.k_for(len(parts)),
            preempted=tuple(packing.preempted),
            admitted=tuple(packing.admitted),
        )

    def _part(self, request: Request, packing: _Packing, k: int) -> Scheduled:
        given, start = packing.given[request.id], request.computed
        known = request.tokens[start : start + given]
        drafts = request.drafts[: min(k, given - len(known))]
        return Scheduled(
            request=request.id,
            position=start,
            tokens=known + drafts,
            drafts=len(drafts),
            samples=start + len(known) == len(request.tokens),
            blocks=self.kv.blocks(request.id),
            copy=packing.copies.get(request.id),
            parents=request.parents[: len(drafts)],
        )

    def _trimmed(
        self, trim: Trim, parts: Sequence[Scheduled], route: Dispatch, *, prefill: bool
    ) -> tuple[tuple[Scheduled, ...], Dispatch]:
        """The parts with the drafts that are worth their time, and the smallest graph for what is left."""
        deepest = max(part.drafts for part in parts)
        graphs = {}
        if not prefill:
            graphs = {n: self._smallest(len(parts), n, route.k) for n in range(deepest + 1)}
        others = sum(len(part.tokens) - part.drafts for part in parts)

        def size(longest: int, drafts: int) -> int:
            graph = graphs.get(longest)
            return others + drafts if graph is None or graph.key is None else graph.key.tokens

        lengths = trim(
            [self._running[part.request].scores[: part.drafts] for part in parts],
            sampling=sum(part.samples for part in parts),
            size=size,
        )
        kept = tuple(
            attrs.evolve(
                part,
                tokens=part.tokens[: len(part.tokens) - part.drafts + length],
                drafts=length,
                parents=part.parents[:length],
                trimmed=part.drafts - length,
            )
            for part, length in zip(parts, lengths, strict=True)
        )
        return kept, graphs.get(max(lengths)) or route

    def _smallest(self, requests: int, longest: int, deepest: int) -> Dispatch | None:
        """The way to the graph of fewest tokens, of those whose depth holds `longest` drafts and is at most `deepest`."""
        depths = {k for k in self.limits.schedule.depths if longest <= k <= deepest}
        ways = [
            self._route(Step(requests=requests, proposed_k=k, prefill=False))
            for k in sorted(depths)
        ]
        full = [w for w in ways if w.reason is None and w.key is not None and w.k in depths]
        return min(full, key=lambda way: way.key.tokens if way.key else 0, default=None)

    def _extended(
        self, before: Request, part: Scheduled, new: Accepted
    ) -> tuple[Request, FinishReason | None]:
        ending = apply_stops(
            new.tokens,
            room=before.limit - len(before.tokens),
            params=before.params,
            end_of_text=self._end_of_text,
            text=before.text,
            decode=self._decode,
        )
        kept, counts = ending.kept, before.counts
        tokens = before.tokens + new.tokens[:kept]
        after = attrs.evolve(
            before,
            tokens=tokens,
            margins=before.margins + new.margins[:kept],
            # What was accepted last was sampled, and is not computed yet.
            computed=len(tokens) - 1,
            drafts=(),
            parents=(),
            scores=(),
            text=ending.text,
            counts=attrs.evolve(
                counts,
                steps=counts.steps + 1,
                drafted=counts.drafted + part.drafts + part.trimmed,
                accepted=counts.accepted + max(0, kept - 1),
            ),
        )
        broken = FinishReason.ERROR if new.broken else None
        return after, ending.reason or broken

    def _advance(self, before: Request, after: Request) -> None:
        """Replaces a request, and publishes blocks. A drafter that keeps keys and values computes a step's after the step:
        by then those of the step before are there."""
        settled = before if self.limits.drafter_keeps_kv else after
        self.kv.settle(settled.id, settled.tokens, settled.computed)
        self._running[after.id] = after

    def _ended(self, request: Request, reason: FinishReason, gained: Iterable[int]) -> StepResult:
        shown, text = request.text.shown(request.params.stop, ended=True)
        delta = Delta(request=request.id, tokens=tuple(gained), text=shown, finished=reason)
        return StepResult(deltas=(delta,), finished=(attrs.evolve(request, text=text),))
