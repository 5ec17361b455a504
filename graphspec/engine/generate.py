"""The engine's loop. A step is: plan, run the target, verify, draft.

scheduler.plan -> copy blocks -> graph or pieces -> verify_step -> scheduler.finish -> drafter.propose
"""

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch

from graphspec.capture.keys import GraphMode
from graphspec.capture.manager import CaptureManager
from graphspec.config.device import Target
from graphspec.engine.adaptive import AdaptiveVerification
from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.context import DraftContext, Export
from graphspec.engine.drafters.graphs import DraftGraphs
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.protocol import Computed, Proposal, Speculator, TargetStep
from graphspec.engine.executor import Executor
from graphspec.engine.kv_manager import KVLimits, KVManager
from graphspec.engine.metrics import EngineCounts, EngineMetrics
from graphspec.engine.outputs import StepOutputs, unflat
from graphspec.engine.request import Delta, Request
from graphspec.engine.sampling import Accepted, SamplingParams
from graphspec.engine.scheduler import Scheduled, Scheduler, StepLimits, StepPlan, StepResult
from graphspec.engine.stop import Decode, FinishReason
from graphspec.engine.trees import Path, move_kept, rows_in_order
from graphspec.engine.verification import Rows, check_trees, verify_step
from graphspec.errors import Problem, RequestError, SpecError
from graphspec.kernels import warm_verify
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class Generation:
    """What one prompt gave, and what that took.

    `margins` has, for each token of a greedy request, how far its logit lay above the second best. `accepted` counts
    drafts that became tokens, so each of `steps` gave one token more than it accepted. `cached` prompt tokens were found
    in the cache; `preempted` times the request was begun again.
    """

    tokens: tuple[int, ...]
    text: str
    finished: FinishReason
    margins: tuple[float, ...]
    drafted: int
    accepted: int
    steps: int
    cached: int
    preempted: int


@attrs.frozen(kw_only=True, eq=False)
class _Ran:
    """Outputs of a step, and for each part of its plan the first row in all rows and in those with logits."""

    outputs: StepOutputs
    first: Sequence[int]
    scored: Sequence[int]
    rows: int


class Generator:
    """Runs requests through an executor whose decode steps are captured and sealed.

    `end_of_text` ends a request that does not ignore it; `decode` turns tokens into text, and without it there is none.
    `export` receives hidden states, where the method exports them. `compiled_sampling` compiles verification before the
    engine is ready (20 s of one core on a CPU, or loaded from the cache), for requests that are not greedy; without it they
    are verified by plain torch on a CPU, so that nothing is ever compiled later. `adaptive` takes the place of the choice of drafts that the contract
    asks for.
    """

    def __init__(
        self,
        executor: Executor,
        manager: CaptureManager,
        *,
        end_of_text: frozenset[int] = frozenset(),
        decode: Decode | None = None,
        export: Export | None = None,
        compiled_sampling: bool = False,
        adaptive: AdaptiveVerification | None = None,
    ) -> None:
        self._executor = executor
        self._manager = manager
        self._spec = spec = executor.spec
        check_trees(spec)
        self._adaptive = adaptive or AdaptiveVerification.of(spec, manager, executor)
        self._has_text = decode is not None
        self.scheduler = Scheduler(
            StepLimits.of(spec),
            KVManager(KVLimits.of(spec)),
            manager.dispatch,
            end_of_text=end_of_text,
            decode=decode,
            trim=None if self._adaptive is None else self._adaptive.lengths,
        )
        self._metrics = EngineMetrics(self.scheduler, spec.num_speculative_tokens)
        self._drafter: Speculator | None = None
        if spec.speculative is not None:
            self._drafter = executor.drafter or make_drafter(
                DraftContext(spec=spec, weights=executor.weights, export=export)
            )
        device = spec.device.target
        if compiled_sampling:
            warm_verify(device.value)
        on_host = device is Target.CPU and not compiled_sampling
        self._verifier = "reference" if on_host else "auto"
        self._draft_logits: dict[int, torch.Tensor] = {}
        self._next_id = 0
        self.routes: Counter[str] = Counter()
        """Steps by how they ran: a graph's key, or the reason why there was none."""

    @property
    def counts(self) -> EngineCounts:
        """What the engine did so far, and how it stands."""
        return self._metrics.snapshot()

    def check(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> None:
        """Raises `RequestError` with each prompt that can never be served."""
        problems = [
            p
            for at, (prompt, wishes) in enumerate(zip(prompts, params, strict=True))
            for p in self._problems(at, prompt, wishes)
        ]
        if problems:
            raise RequestError(problems)

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Takes a request; gives its id. Raises `RequestError` for one that can never be served."""
        self.check([prompt], [params])
        request = self._request(prompt, params)
        self._next_id += 1
        self.scheduler.add(request)
        return request.id

    def abort(self, request: int) -> StepResult:
        """Ends a request where it stands; nothing happens to one that ended before."""
        result = self.scheduler.abort(request)
        self._metrics.count_ended(result)
        self._forget([r.id for r in result.finished])
        return result

    def step(self) -> StepResult | None:
        """One step of all requests that fit; None when there is no request."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self._forget(plan.preempted)
        self._copy_blocks(plan)
        before = {r.id: r for r in self.scheduler.running}
        ran = self._run(plan)
        accepted = self._verify(plan, before, ran)
        # Before blocks are published: a later request may find these, and reads them by position.
        self._move_kept(plan, accepted)
        result = self.scheduler.finish(plan, accepted)
        if self._adaptive is not None:
            self._adaptive.observe(plan, accepted)
        # The drafter sees the last step of a request too: its blocks may serve another one, with draft keys and states.
        self._draft(plan, ran, accepted, result.finished)
        self._forget([r.id for r in result.finished])
        self._metrics.count_step(plan, accepted, result, ran.rows)
        return result

    def stream(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> Iterator[tuple[Delta, Request | None]]:
        """Deltas of all prompts as they come, numbered like the prompts, each with the request that it ended, if any.

        Whoever stops listening aborts the rest. Only one caller may step an engine at a time.
        """
        self.check(prompts, params)
        ids = {
            self.add(p, wishes): at
            for at, (p, wishes) in enumerate(zip(prompts, params, strict=True))
        }
        open_ = set(ids)
        try:
            while open_:
                result = self.step()
                assert result is not None, "a request that has not ended is scheduled"
                ended = {r.id: r for r in result.finished}
                open_.difference_update(ended)
                for delta in result.deltas:
                    if delta.request in ids:
                        at = ids[delta.request]
                        yield attrs.evolve(delta, request=at), ended.get(delta.request)
        finally:
            for request in open_:
                self.abort(request)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generation]:
        """The continuation of each prompt, under wishes for all or one each."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        done: dict[int, Generation] = {}
        for delta, request in self.stream(prompts, each):
            if request is not None and delta.finished is not None:
                done[delta.request] = generation_of(request, delta.finished)
        return [done[at] for at in range(len(prompts))]

    def _request(self, prompt: Sequence[int], params: SamplingParams) -> Request:
        return Request(
            id=self._next_id,
            prompt_length=len(prompt),
            tokens=tuple(prompt),
            params=params,
            limit=min(len(prompt) + params.max_tokens, self._spec.model.max_model_len),
            seed=secrets.randbits(63) if params.seed is None else params.seed,
        )

    def _problems(
        self, at: int, prompt: Sequence[int], params: SamplingParams
    ) -> Iterator[Problem]:
        model = self._spec.model
        if not 1 <= len(prompt) < model.max_model_len:
            yield Problem(
                where=f"prompt {at}",
                found=f"{len(prompt)} tokens",
                wanted=f"1 to {model.max_model_len - 1} tokens, one below model.max_model_len",
            )
            return
        strange = [token for token in prompt if not 0 <= token < model.vocab_size]
        if strange:
            yield Problem(
                where=f"prompt {at}",
                found=f"token {strange[0]}",
                wanted=f"ids from 0 to {model.vocab_size - 1}",
            )
        if params.stop and not self._has_text:
            yield Problem(
                where=f"prompt {at}",
                found=f"stop texts {list(params.stop)}",
                wanted="stop_token_ids: this engine was given no tokenizer to find texts with",
            )
        scheduler = self.scheduler
        slots = scheduler.slots_needed(self._request(prompt, params))
        blocks, there = scheduler.kv.limits.blocks_for(slots), scheduler.kv.pool.size
        if blocks > there:
            yield Problem(
                where=f"prompt {at}",
                found=f"{blocks} blocks for {slots} slots: the prompt, max_tokens and the drafts' lookahead",
                wanted=f"at most the {there} blocks of the cache",
                hint="lower max_tokens, or raise kv_cache.num_blocks",
            )

    def _copy_blocks(self, plan: StepPlan) -> None:
        cache = self._executor.cache
        for part in plan.requests:
            if part.copy is not None:
                source, target = part.copy
                cache[:, :, target].copy_(cache[:, :, source])

    def _run(self, plan: StepPlan) -> _Ran:
        """The target's step: a replay over requests padded to one width, pieces over rows padded to a bucket of tokens, or no
        graph over just the rows there are."""
        key, executor = plan.route.key, self._executor
        if key is not None and key.mode is GraphMode.FULL:
            rows = [_rows(part, 1 + plan.route.k - len(part.tokens)) for part in plan.requests]
            padding = executor.padding_request(plan.route.k)
            executor.buffers.write([*rows, *[padding] * (key.bucket - len(rows))])
            outputs = unflat(self._spec, self._manager.replay(key))
            self.routes[str(key)] += 1
            starts = range(0, len(rows) * (1 + plan.route.k), 1 + plan.route.k)
            return _Ran(outputs=outputs, first=starts, scored=starts, rows=key.tokens)
        reason = plan.route.reason
        self.routes[str(key or (reason.value if reason else "no graph"))] += 1
        first: list[int] = []
        scored: list[int] = []
        asked: list[int] = []
        at = 0
        for part in plan.requests:
            first.append(at)
            scored.append(len(asked))
            at += len(part.tokens)
            if part.samples:
                asked.extend(range(at - 1 - part.drafts, at))
        # A unit is compiled for one row at least.
        rows, wanted = [_rows(part, 0) for part in plan.requests], asked or [0]
        if key is None:
            outputs = executor.run(rows, wanted)
            return _Ran(outputs=outputs, first=first, scored=scored, rows=at)
        executor.write_pieces(key, rows)
        outputs = executor.scored(self._manager.replay(key), wanted)
        return _Ran(outputs=outputs, first=first, scored=scored, rows=key.tokens)

    def _verify(
        self, plan: StepPlan, before: Mapping[int, Request], ran: _Ran
    ) -> list[Accepted | None]:
        rows = [
            Rows(part=part, request=before[part.request], first=first)
            for part, first in zip(plan.requests, ran.scored, strict=True)
            if part.samples
        ]
        made = iter(
            verify_step(self._spec, rows, ran.outputs, self._draft_logits, self._verifier)
            if rows
            else ()
        )
        return [next(made) if part.samples else None for part in plan.requests]

    def _move_kept(self, plan: StepPlan, accepted: Sequence[Accepted | None]) -> None:
        """Keys and values of a tree's kept drafts lie between those of others, and go to the slots of their positions."""
        paths = [
            Path(
                position=part.position + len(part.tokens) - 1 - part.drafts,
                blocks=part.blocks,
                kept=new.kept,
            )
            for part, new in zip(plan.requests, accepted, strict=True)
            if new is not None and new.kept
        ]
        if paths:
            move_kept(self._executor.cache, paths)

    def _draft(
        self,
        plan: StepPlan,
        ran: _Ran,
        accepted: Sequence[Accepted | None],
        finished: Sequence[Request],
    ) -> None:
        """Shows the drafter what the step computed, and takes its drafts. At a depth of 0 it is shown too: a hole in its
        keys and values would stay when the depth rises again."""
        for part in plan.requests:
            self._draft_logits.pop(part.request, None)
        if self._drafter is None:
            return
        now = {r.id: r for r in (*self.scheduler.running, *finished)}
        seen = [
            self._computed(part, now[part.request], row, plan.depth)
            for part, row in zip(plan.requests, ran.first, strict=True)
            if part.request in now and now[part.request].params.speculate
        ]
        if not seen:
            return
        kept = {
            p.request: a.kept for p, a in zip(plan.requests, accepted, strict=True) if a is not None
        }
        begun = time.perf_counter()
        graphs = DraftGraphs(
            depth=plan.depth,
            dispatch=self._manager.dispatch_draft,
            replay=self._manager.replay,
        )
        shown = attrs.evolve(_shown(seen, kept, ran.outputs), graphs=graphs)
        drafts = self._drafter.propose(shown)
        self._metrics.count_drafting(graphs.ran(sum(c.wanted > 0 for c in seen)))
        proposed = {c.request: d for c, d in zip(seen, drafts, strict=True) if d.tokens}
        scores = {}
        if self._adaptive is not None and proposed:
            self._adaptive.drafted(len(seen), time.perf_counter() - begun)
            scores = {id_: self._adaptive.scores(id_, d) for id_, d in proposed.items()}
        parents = {id_: _tree_of(self._spec, d) for id_, d in proposed.items()}
        self.scheduler.propose(
            {id_: d.tokens for id_, d in proposed.items()}, parents=parents, scores=scores
        )
        for id_, d in proposed.items():
            # A tree is verified without: the target's own tokens decide.
            if d.logits is not None and not parents[id_]:
                self._draft_logits[id_] = d.logits

    def _computed(self, part: Scheduled, request: Request, row: int, depth: int) -> Computed:
        return Computed(
            request=request.id,
            tokens=request.tokens,
            first=part.position,
            count=request.computed - part.position,
            row=row,
            blocks=part.blocks,
            wanted=self.scheduler.wanted(request.id, depth),
            temperature=request.params.temperature,
            seed=request.seed,
        )

    def _forget(self, requests: Sequence[int]) -> None:
        for request in requests:
            self._draft_logits.pop(request, None)
            if self._adaptive is not None:
                self._adaptive.forget(request)
            if self._drafter is not None:
                self._drafter.forget(request)


def generation_of(request: Request, finished: FinishReason) -> Generation:
    """What a request that ended gave."""
    counts = request.counts
    return Generation(
        tokens=request.output,
        text=request.text.text,
        finished=finished,
        margins=request.margins,
        drafted=counts.drafted,
        accepted=counts.accepted,
        steps=counts.steps,
        cached=counts.cached,
        preempted=counts.preempted,
    )


def _tree_of(spec: EngineSpec, proposal: Proposal) -> Sequence[int]:
    """The parents of drafts that form a tree, and nothing for a chain. Raises `SpecError` for a tree where the contract has
    none: buffers and graphs are without a mask then."""
    parents = proposal.parents or ()
    if not spec.drafts_in_trees:
        if list(parents) == list(range(-1, len(parents) - 1)):
            return ()
        raise SpecError(
            Problem(
                where="speculative.method",
                found="drafts that form a tree",
                wanted="a chain: the contract says of the method that drafts_in_trees is False",
                hint="a method whose drafts may form trees says so in its SpeculatorConfig",
            )
        )
    return parents


def _shown(
    seen: Sequence[Computed], kept: Mapping[int, Sequence[int] | None], outputs: StepOutputs
) -> TargetStep:
    """What a drafter sees of a step: rows of a tree's kept drafts come behind one another, as those of a chain do."""
    rows = rows_in_order([(c.row, c.count, kept.get(c.request)) for c in seen])
    if rows is None:
        return TargetStep(requests=seen, hidden=outputs.hidden, aux=outputs.aux)
    at = torch.tensor(rows, device=outputs.logits.device)
    firsts = itertools.accumulate((c.count for c in seen), initial=0)
    return TargetStep(
        requests=[attrs.evolve(c, row=first) for c, first in zip(seen, firsts, strict=False)],
        hidden=None if outputs.hidden is None else outputs.hidden.index_select(0, at),
        aux=None if outputs.aux is None else outputs.aux.index_select(0, at),
    )


def _rows(part: Scheduled, padding: int) -> RequestRows:
    return RequestRows(
        tokens=part.tokens,
        position=part.position,
        blocks=part.blocks,
        padding=padding,
        parents=part.parents,
    )
