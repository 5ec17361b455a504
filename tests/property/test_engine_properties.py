"""Whatever arrives, is preempted or aborted: every slot is read as it was written, and every block comes back."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from graphspec.config.schedule import KSchedule
from graphspec.engine.kv_manager import KVLimits
from graphspec.engine.scheduler import StepLimits, chunk_of
from support.engine_sim import VOCABULARY, Sim, continuation, tree_around
from support.shadow_kv import ShadowCache, WrongRead, check_ownership

TOKENS = st.integers(0, VOCABULARY - 1)


@attrs.frozen(kw_only=True)
class Drafter:
    """What a method declares, in the numbers that scheduler and blocks read."""

    keeps_kv: bool = False
    lookahead: int = 0
    prefill_lookahead: int = 0
    hashes: bool = False
    drops: bool = False


NGRAM = Drafter()
DRAFT_MODEL = Drafter(keeps_kv=True, lookahead=3)
EAGLE_HASHED = Drafter(keeps_kv=True, lookahead=3, prefill_lookahead=1, hashes=True)
EAGLE_DROPPED = Drafter(keeps_kv=True, lookahead=3, prefill_lookahead=1, drops=True)
MTP_MODULES = Drafter(keeps_kv=True, lookahead=3, prefill_lookahead=3, hashes=True)
MTP_DROPPED = Drafter(keeps_kv=True, lookahead=3, prefill_lookahead=3, drops=True)
DRAFTERS = (NGRAM, DRAFT_MODEL, EAGLE_HASHED, EAGLE_DROPPED, MTP_MODULES, MTP_DROPPED)

SCHEDULES = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(
    lambda ks: KSchedule(dense=(0, *ks))
)


def engine(drafter, schedule, block_size, blocks, budget, guess, **more):
    seqs = schedule.max_num_seqs
    limits = StepLimits(
        max_num_seqs=seqs,
        # What resolution grants: a budget holds every batch with its drafts.
        token_budget=max(budget, *(b * (1 + schedule.k_for(b)) for b in range(1, seqs + 1)), 4),
        lookahead=drafter.lookahead,
        prefill_lookahead=drafter.prefill_lookahead,
        longest=60,
        longest_drafted=57,
        schedule=schedule,
        drafter_keeps_kv=drafter.keeps_kv,
    )
    ahead = drafter.prefill_lookahead
    kv = KVLimits(
        block_size=block_size,
        num_blocks=blocks,
        hash_lookahead=ahead if drafter.hashes else 0,
        unproven_blocks=-(-ahead // block_size) if drafter.drops else 0,
        unsettled=max(0, ahead - 1),
        copy_on_write=not drafter.keeps_kv,
    )
    return Sim(limits, kv, guess, **more)


class EngineMachine(RuleBasedStateMachine):
    """Requests arrive, alone and as answers to earlier ones; steps run with drafts that are right for a while; some are aborted."""

    @initialize(
        drafter=st.sampled_from(DRAFTERS),
        schedule=SCHEDULES,
        block_size=st.integers(1, 4),
        blocks=st.integers(3, 40),
        budget=st.integers(1, 24),
        trees=st.booleans(),
        seed=st.randoms(use_true_random=False),
    )
    def start(self, drafter, schedule, block_size, blocks, budget, trees, seed):
        def guess(request, wanted):
            if trees:
                return tree_around(seed, request.tokens, seed.randint(0, wanted))
            drafts = continuation(request.tokens, wanted)
            if seed.random() < 0.5:
                at = seed.randrange(wanted)
                drafts[at] = (drafts[at] + 1) % VOCABULARY
            return drafts[: seed.randint(0, wanted)]

        self.sim = engine(drafter, schedule, block_size, blocks, budget, guess)

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=14),
        again=st.integers(1, 3),
        max_tokens=st.integers(1, 12),
        speculate=st.booleans(),
        salt=st.sampled_from(["", "x"]),
    )
    def arrive(self, prompt, again, max_tokens, speculate, salt):
        # Repeated prompts share prefixes.
        self.sim.arrive(
            (prompt * again)[:20], max_tokens=max_tokens, speculate=speculate, cache_salt=salt
        )

    @rule(which=st.integers(0, 9), more=st.lists(TOKENS, max_size=4), max_tokens=st.integers(1, 8))
    def follow_up(self, which, more, max_tokens):
        # The next turn of a conversation: what was generated is now part of a prompt.
        if self.sim.texts:
            text = self.sim.texts[which % len(self.sim.texts)]
            self.sim.arrive([*text, *more][:30], max_tokens=max_tokens)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.sim.step()

    @precondition(lambda self: self.sim.scheduler.running or self.sim.scheduler.waiting)
    @rule(data=st.data())
    def abort(self, data):
        scheduler = self.sim.scheduler
        there = [r.id for r in (*scheduler.running, *scheduler.waiting)]
        self.sim.scheduler.abort(data.draw(st.sampled_from(there)))
        check_ownership(self.sim.kv)

    def teardown(self):
        if hasattr(self, "sim"):
            self.sim.run()


TestEngineMachine = EngineMachine.TestCase


def perfect(request, wanted):
    return continuation(request.tokens, wanted)


FULL_DEPTH = KSchedule(dense=(0, 3, 3, 3))


def two_of_one_prefix(drafter, **changes):
    """Two prompts that part right behind two blocks, one after the other."""
    sim = engine(drafter, FULL_DEPTH, 4, 30, 64, perfect)
    limits = attrs.evolve(sim.kv.limits, **changes)
    sim = Sim(sim.limits, limits, perfect)
    common = [0, 1, 2, 0, 2, 1, 1, 0]
    sim.arrive([*common, 1, 1, 1, 2], max_tokens=3)
    sim.run()
    sim.arrive([*common, 2], max_tokens=3)
    sim.run()
    return sim


@pytest.mark.parametrize(
    ("drafter", "change"),
    [(EAGLE_HASHED, {"hash_lookahead": 0}), (EAGLE_DROPPED, {"unproven_blocks": 0})],
    ids=["without lookahead hashes", "without the block drop"],
)
def test_the_shadow_notices_what_the_rules_prevent(drafter, change):
    """Each rule is needed: without it a drafter reads what was computed for another token. With it, it does not."""
    two_of_one_prefix(drafter)
    with pytest.raises(WrongRead):
        two_of_one_prefix(drafter, **change)


def test_the_shadow_notices_blocks_of_another_tenant():
    """The salt is needed: without it one tenant would be served from another's blocks."""
    sim = engine(NGRAM, FULL_DEPTH, 4, 30, 64, perfect)
    start = sim.kv.start
    sim.kv.start = lambda request, tokens, salt: start(request, tokens)
    prompt = [0, 1, 2, 0, 2, 1, 1, 0, 2]
    sim.arrive(prompt, max_tokens=2, cache_salt="one")
    sim.run()
    sim.arrive(prompt, max_tokens=2, cache_salt="another")
    with pytest.raises(WrongRead):
        sim.run()


def test_the_shadow_notices_a_branch_that_was_not_moved(monkeypatch):
    """What was kept of a tree lies between what was not: without the move the next step, or who finds the block, reads that."""

    def second_branch(request, wanted):
        right = continuation(request.tokens, 1)
        return [(right[0] + 1) % VOCABULARY, *right], [-1, -1]

    def run():
        sim = engine(NGRAM, FULL_DEPTH, 4, 30, 64, second_branch)
        sim.arrive([0, 1, 2], max_tokens=9)
        sim.run()
        assert set(sim.kept) >= {(1,)}

    run()
    monkeypatch.setattr(ShadowCache, "move", lambda *given: None)
    with pytest.raises(WrongRead):
        run()


@given(
    prompts=st.lists(st.lists(TOKENS, min_size=1, max_size=12), min_size=1, max_size=6),
    drafter=st.sampled_from(DRAFTERS),
    blocks=st.integers(8, 20),
)
def test_digests_that_collide_share_no_block_wrongly(prompts, drafter, blocks):
    """With digests of one bit everything collides, and still no request reads another's tokens."""

    def digest(parent, covers):
        return bytes([(sum(parent) + sum(covers)) % 2])

    sim = engine(drafter, FULL_DEPTH, 2, blocks, 16, perfect, digest=digest)
    for prompt in prompts:
        sim.arrive(prompt, max_tokens=5)
        sim.step()
    sim.run()


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 6))
def test_a_chunk_leaves_nothing_or_what_the_drafter_reads(left, budget, lookahead):
    """7.2: no chunk ends inside the drafter's window, none is larger than the budget, and a step that is wide enough
    always computes something."""
    taken = chunk_of(left, budget, lookahead)
    assert 0 <= taken <= min(left, budget)
    assert left - taken == 0 or taken == 0 or left - taken >= lookahead
    assert taken > 0 or budget < max(1, lookahead)
