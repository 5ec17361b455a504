"""A scheduler and its blocks in front of a model that is a function of the prefix, with a shadow of every slot."""

import zlib

from graphspec.capture.dispatch import Dispatch, depth_to_verify
from graphspec.config.schedule import KSchedule
from graphspec.engine.block_hashes import block_digest
from graphspec.engine.kv_manager import KVManager
from graphspec.engine.request import Request
from graphspec.engine.sampling import SamplingParams, accept_greedy, accept_greedy_tree
from graphspec.engine.scheduler import Scheduler, StepLimits
from graphspec.kernels.adaptive import survival
from support.shadow_kv import ShadowCache, check_ownership

VOCABULARY = 3
PLAIN = StepLimits(
    max_num_seqs=4,
    token_budget=16,
    lookahead=0,
    prefill_lookahead=0,
    longest=64,
    longest_drafted=64,
    schedule=KSchedule(dense=(0, 3, 3, 3, 3)),
    drafter_keeps_kv=False,
)
"""Four requests, a depth of three, and a drafter that needs nothing."""


def next_token(tokens):
    """What the model says after these tokens."""
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def continuation(tokens, count):
    """The `count` tokens that the model says after these."""
    made = list(tokens)
    for _ in range(count):
        made.append(next_token(made))
    return made[len(tokens) :]


def ways_to(parents, drafts):
    """The tokens on the way to each row of a tree: none for row 0, and the draft itself last."""
    ways = [[]]
    for parent, draft in zip(parents, drafts, strict=True):
        ways.append([*ways[parent + 1], draft])
    return ways


def tree_around(made, tokens, size, after=next_token, vocabulary=VOCABULARY):
    """A random tree of `size` drafts behind `tokens`: more often than not a draft is what the model says there."""
    drafts, parents = [], []
    for at in range(size):
        parents.append(made.randint(-1, at - 1))
        way = ways_to(parents[:-1], drafts)[parents[-1] + 1]
        right = after([*tokens, *way])
        drafts.append(right if made.random() < 0.6 else made.randrange(vocabulary))
    return drafts, parents


def rule_of(schedule):
    """Dispatch for an engine whose graphs hold each tier's largest batch, as `CapturePlan` has it."""
    holds = {k: last for _, last, k in schedule.tiers}

    def route(step):
        k = depth_to_verify(
            step.requests,
            step.proposed_k,
            holds=holds.get(step.proposed_k, 0),
            scheduled_k=schedule.k_for(step.requests),
        )
        return Dispatch(k=k)

    return route


class Sim:
    """Steps a scheduler. Each run checks reads, ownership, the token budget and the reserved slots.

    `guess(request, wanted)` gives drafts, or a tuple: drafts, the parents that make them a tree or None, and if wanted the
    chances of each. A drafter that keeps keys and values has a shadow of its own, whose slots depend on `prefill_lookahead`
    tokens more.
    """

    def __init__(self, limits, kv_limits, guess, *, digest=block_digest, route=None, trim=None):
        self.limits, self.kv = limits, KVManager(kv_limits, digest)
        self.scheduler = Scheduler(limits, self.kv, route or rule_of(limits.schedule), trim=trim)
        self.guess = guess
        shape = kv_limits.block_size, kv_limits.num_blocks
        self.target = ShadowCache(*shape)
        self.drafter = ShadowCache(*shape, reach=limits.prefill_lookahead)
        self.outputs, self.texts = {}, []
        self.plans, self.kept, self.most_lookahead = [], [], 0
        self._ids, self._begun = 0, {}

    def arrive(self, prompt, **params):
        params = SamplingParams(**params)
        request = Request(
            id=self._ids,
            prompt_length=len(prompt),
            tokens=tuple(prompt),
            params=params,
            limit=len(prompt) + params.max_tokens,
        )
        if self.kv.limits.blocks_for(self.scheduler.slots_needed(request)) > self.kv.pool.size:
            return None
        self._ids += 1
        self.scheduler.add(request)
        return request.id

    def step(self):
        """One turn; None when there was nothing to do."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.plans.append(plan)
        for preempted in plan.preempted:
            self._begun.pop(preempted, None)
        for part in plan.requests:
            self._begun.setdefault(part.request, part.position)
        before = {r.id: r for r in self.scheduler.running}
        self._check(plan, before)
        result = self.scheduler.finish(plan, [self._verified(p, before) for p in plan.requests])
        self._draft(plan, before)
        for request in result.finished:
            self.outputs[request.id] = request.output
            self.texts.append(list(request.tokens))
            wanted = continuation(request.tokens[: request.prompt_length], len(request.output))
            assert list(request.output) == wanted
        check_ownership(self.kv)
        return result

    def run(self):
        """Steps until every request has ended."""
        while self.step() is not None:
            pass
        assert self.kv.pool.free == self.kv.pool.size
        return self.outputs

    def _check(self, plan, before):
        assert plan.tokens <= self.limits.token_budget
        assert len(plan.requests) <= self.limits.max_num_seqs
        assert len({part.request for part in plan.requests}) == len(plan.requests)
        for part in plan.requests:
            if part.copy is not None:
                self.target.copy(*part.copy)
        for part in plan.requests:
            request, tokens = before[part.request], self._tokens(part, before)
            assert part.drafts <= plan.route.k
            assert part.position + len(part.tokens) - part.drafts <= len(request.tokens)
            rows = range(part.position, part.position + len(part.tokens))
            if part.parents:
                self._write_tree(part, request)
                continue
            self.target.write(request.params.cache_salt, tokens, part.blocks, rows)
        for part in plan.requests:
            request, tokens = before[part.request], self._tokens(part, before)
            read = len(tokens) - len(part.parents)
            self.target.read(request.params.cache_salt, tokens, part.blocks, read)
            left = len(request.tokens) - len(tokens) if not part.samples else 0
            assert left == 0 or left >= self.limits.prefill_lookahead

    def _write_tree(self, part, request):
        assert part.tokens[:1] == request.tokens[-1:]
        assert len(part.tokens) == 1 + len(part.parents)
        for row, way in enumerate(ways_to(part.parents, part.tokens[1:])):
            salt, text = request.params.cache_salt, [*request.tokens, *way]
            self.target.write_as(salt, text, part.blocks, part.position + row)

    def _tokens(self, part, before):
        return before[part.request].tokens[: part.position] + part.tokens

    def _verified(self, part, before):
        if not part.samples:
            return None
        if part.parents:
            return self._verified_tree(part, before[part.request])
        tokens = self._tokens(part, before)
        start = len(tokens) - part.drafts
        best = [next_token(tokens[:end]) for end in range(start, len(tokens) + 1)]
        return accept_greedy(tokens[start:], best, [1.0] * len(best))

    def _verified_tree(self, part, request):
        ways = ways_to(part.parents, part.tokens[1:])
        best = [next_token([*request.tokens, *way]) for way in ways]
        made = accept_greedy_tree(part.tokens[1:], part.parents, best, [1.0] * len(best))
        self.kept.append(made.kept)
        for at, draft in enumerate(made.kept):
            self.target.move(part.blocks, part.position + 1 + draft, part.position + 1 + at)
        return made

    def _draft(self, plan, before):
        now = {r.id: r for r in self.scheduler.running}
        drafts, parents, scores = {}, {}, {}
        for part in plan.requests:
            request = now.get(part.request)
            if request is None:
                continue
            if self.limits.drafter_keeps_kv and request.params.speculate:
                self._drafter_pass(part, request)
            wanted = self.scheduler.wanted(request.id, plan.depth)
            if wanted:
                drafts[request.id] = guessed = self.guess(request, wanted)
                if isinstance(guessed, tuple):
                    drafts[request.id], tree, *chances = guessed
                    parents[request.id] = tree or ()
                    scores[request.id] = survival(*chances) if chances else ()
        self.scheduler.propose(drafts, parents=parents, scores=scores)

    def _drafter_pass(self, part, request):
        """The drafter computes what the step computed, where the tokens that it reads ahead are known, and again what it
        could not before; then it drafts into the lookahead slots."""
        ahead, salt = self.limits.prefill_lookahead, request.params.cache_salt
        known = min(request.computed, len(request.tokens) - ahead)
        first = max(part.position - max(0, ahead - 1), self._begun[request.id])
        self.drafter.write(salt, request.tokens, part.blocks, range(first, known))
        self.drafter.read(salt, request.tokens, part.blocks, known)
        if self.scheduler.wanted(request.id, 1):
            guessed = range(
                len(request.tokens) - 1, len(request.tokens) - 1 + self.limits.lookahead
            )
            self.drafter.write("guessed", request.tokens, part.blocks, guessed)
            reserved = len(part.blocks) * self.kv.limits.block_size
            assert guessed.stop <= reserved
            self.most_lookahead = max(self.most_lookahead, guessed.stop - request.computed)
