"""Greedy generation: continuous batching, chunked prefill, drafts verified by captured steps."""

import importlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

import attrs

from graphspec.capture.dispatch import Step
from graphspec.capture.manager import CaptureManager
from graphspec.engine.blocks import BlockPool
from graphspec.engine.buffers import RequestRows
from graphspec.engine.executor import Executor
from graphspec.errors import EnvironmentProblem, Problem, SpecError


@attrs.frozen(kw_only=True)
class Generation:
    """What one prompt gave. `margins` has, for each token, how far its logit lay above the second best."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    drafted: int
    accepted: int
    steps: int


@attrs.define(eq=False)
class _Request:
    """A request in flight: the one object of a run that changes."""

    index: int
    tokens: list[int]
    prompt: int
    limit: int
    blocks: list[int] = attrs.field(factory=list)
    computed: int = 0
    drafts: list[int] = attrs.field(factory=list)
    margins: list[float] = attrs.field(factory=list)
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def prefilling(self) -> bool:
        # The last token is computed by the decode step that samples what follows it.
        return self.computed < len(self.tokens) - 1


class Generator:
    """Runs prompts through an executor whose decode steps are captured and sealed.

    `routes` counts the steps of its life by how they ran: a graph's key, or the reason why there was none.
    """

    def __init__(self, executor: Executor, manager: CaptureManager) -> None:
        self._executor = executor
        self._manager = manager
        self._spec = executor.spec
        self.routes: Counter[str] = Counter()
        self._drafter = _drafter(executor)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: frozenset[int] = frozenset()
    ) -> list[Generation]:
        """Greedy continuations of token prompts, at most `max_tokens` each, ending after a token of `stop`.

        Raises `SpecError` for a prompt that is empty or does not leave room for one token.
        """
        spec = self._spec
        self._check(prompts)
        pool = BlockPool(spec.kv_cache.num_blocks, spec.kv_cache.block_size)
        waiting = deque(
            _Request(i, list(p), len(p), min(len(p) + max_tokens, spec.model.max_model_len))
            for i, p in enumerate(prompts)
        )
        done: dict[int, Generation] = {}
        running: list[_Request] = []
        proposed_k = 0
        while waiting or running:
            self._admit(waiting, running, pool)
            self._prefill(running)
            ready = [r for r in running if not r.prefilling]
            if ready:
                proposed_k = self._decode(ready, proposed_k, stop)
            for request in [r for r in running if _finished(r, stop)]:
                running.remove(request)
                pool.give_back(request.blocks)
                done[request.index] = _result(request)
        return [done[i] for i in range(len(prompts))]

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        longest = self._spec.model.max_model_len - 1
        problems = [
            Problem(
                where=f"prompt {i}",
                found=f"{len(p)} tokens",
                wanted=f"1 to {longest} tokens, one below model.max_model_len",
            )
            for i, p in enumerate(prompts)
            if not 1 <= len(p) <= longest
        ]
        if problems:
            raise SpecError(problems)

    def _admit(self, waiting: "deque[_Request]", running: list[_Request], pool: BlockPool) -> None:
        """Starts requests while there is room for all their blocks, so that none ever has to be preempted."""
        while waiting and len(running) < self._spec.scheduler.max_num_seqs:
            need = pool.blocks_for(waiting[0].limit)
            if need > pool.free:
                return
            request = waiting.popleft()
            request.blocks = pool.take(need)
            running.append(request)

    def _prefill(self, running: Sequence[_Request]) -> None:
        """Computes prompt tokens in chunks that fill the step's token budget, all but the last token of each prompt."""
        while any(r.prefilling for r in running):
            budget = self._spec.scheduler.max_num_batched_tokens
            rows, chunks = [], []
            for r in running:
                take = min(budget, len(r.tokens) - 1 - r.computed)
                if take > 0:
                    tokens = r.tokens[r.computed : r.computed + take]
                    rows.append(RequestRows(tokens=tokens, position=r.computed, blocks=r.blocks))
                    chunks.append((r, take))
                    budget -= take
            step = Step(requests=len(rows), proposed_k=0, prefill=True)
            route = self._manager.dispatch(step)
            self._count(route.reason.value if route.reason else str(route.key))
            self._executor.run(rows, [0])
            for r, take in chunks:
                r.computed += take

    def _decode(self, ready: Sequence[_Request], proposed_k: int, stop: frozenset[int]) -> int:
        """One verify step of all requests, then drafts for the next; returns the depth these were proposed at."""
        route = self._manager.dispatch(
            Step(requests=len(ready), proposed_k=proposed_k, prefill=False)
        )
        rows = [self._verify_rows(r, route.k) for r in ready]
        if route.key is not None:
            self._count(str(route.key))
            padding = [self._executor.padding_request(route.k)] * (route.key.bucket - len(ready))
            self._executor.buffers.write([*rows, *padding])
            ids, _, margins = self._manager.replay(route.key)
        else:
            self._count(route.reason.value if route.reason else "no graph")
            ids, _, margins = self._executor.run(rows, range(len(ready) * (1 + route.k)))
        best, margin = ids.tolist(), margins.tolist()
        width = 1 + route.k
        for i, r in enumerate(ready):
            part = slice(i * width, (i + 1) * width)
            _accept(r, best[part], margin[part], stop)
        k = self._spec.schedule.k_for(len(ready))
        self._propose(ready, k)
        return k

    def _verify_rows(self, r: _Request, k: int) -> RequestRows:
        r.drafts = r.drafts[:k]
        tokens = [r.tokens[-1], *r.drafts]
        return RequestRows(
            tokens=tokens, position=len(r.tokens) - 1, blocks=r.blocks, padding=1 + k - len(tokens)
        )

    def _propose(self, ready: Sequence[_Request], k: int) -> None:
        drafts = self._drafter.propose([r.tokens for r in ready], k) if self._drafter else []
        for r, proposal in zip(ready, drafts, strict=False):
            # A draft in the last place could never be followed by the token that verifying it gives.
            r.drafts = proposal[: max(0, r.limit - len(r.tokens) - 1)]

    def _count(self, route: str) -> None:
        self.routes[route] += 1


class Drafter(Protocol):
    """What proposes drafts."""

    def propose(self, requests: Sequence[Sequence[int]], k: int) -> list[list[int]]:
        """At most `k` drafts for each request, given all its tokens."""
        ...


def _drafter(executor: Executor) -> Drafter | None:
    speculative = executor.spec.speculative
    if speculative is None:
        return None
    module, _, name = str(speculative.speculator.implementation).rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise EnvironmentProblem(
            Problem(
                where=f"speculative.method {speculative.custom_method or speculative.method}",
                found=f"no drafter {module}.{name} in this engine",
                wanted="a method that the reference engine runs",
                hint="ngram is one; --no-speculation decodes without drafts",
            )
        ) from None
    drafter: Drafter = cls(speculative.speculator, executor.spec.model.max_model_len)
    return drafter


def _accept(
    r: _Request, best: Sequence[int], margins: Sequence[float], stop: frozenset[int]
) -> None:
    """Greedy verification: drafts are right as long as each is the target's best token after those before it."""
    r.steps += 1
    r.drafted += len(r.drafts)
    r.computed = len(r.tokens)
    for at in range(len(r.drafts) + 1):
        r.tokens.append(best[at])
        r.margins.append(margins[at])
        matched = at < len(r.drafts) and r.drafts[at] == best[at]
        if not matched or best[at] in stop or len(r.tokens) >= r.limit:
            break
        r.accepted += 1
        r.computed += 1
    r.drafts = []


def _finished(r: _Request, stop: frozenset[int]) -> bool:
    return len(r.tokens) >= r.limit or (len(r.tokens) > r.prompt and r.tokens[-1] in stop)


def _result(r: _Request) -> Generation:
    return Generation(
        tokens=tuple(r.tokens[r.prompt :]),
        margins=tuple(r.margins),
        drafted=r.drafted,
        accepted=r.accepted,
        steps=r.steps,
    )
