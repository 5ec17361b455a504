"""The scheduler's rules one by one: who is served, with how many tokens, at which depth, and who has to wait."""

import subprocess
import sys
from functools import partial

import attrs
import pytest

from graphspec.capture.dispatch import Fallthrough, dispatch
from graphspec.capture.plan import plan_capture
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.engine.kv_manager import KVLimits
from graphspec.engine.scheduler import StepLimits
from support.engine_sim import PLAIN, Sim, continuation
from support.plans import spec_for

LIMITS = attrs.evolve(PLAIN, schedule=KSchedule(dense=(0, 3, 3, 1, 1)))
KV = KVLimits(block_size=4, num_blocks=64)
TABLE = [(1, 2, 3), (3, 4, 1)]


def right(request, wanted):
    """Drafts that will all be accepted."""
    return continuation(request.tokens, wanted)


def sim(guess=right, kv=KV, route=None, **limits):
    return Sim(attrs.evolve(LIMITS, **limits), kv, guess, route=route)


def sizes(plan):
    return {part.request: len(part.tokens) for part in plan.requests}


def test_a_prompt_is_computed_in_chunks_of_the_budget():
    """40 tokens in steps of 16: only the last chunk gives a token."""
    s = sim()
    s.arrive([1] * 40, max_tokens=1)
    s.run()
    assert [(p.tokens, p.requests[0].samples) for p in s.plans] == [
        (16, False),
        (16, False),
        (8, True),
    ]


def test_a_step_has_decodes_and_a_chunk_together():
    """Who decodes is served first, with drafts; the rest of the budget goes to prompts."""
    s = sim()
    s.arrive([1, 2], max_tokens=20)
    s.step()
    s.arrive([2] * 30, max_tokens=2)
    s.step()
    assert sizes(s.plans[-1]) == {0: 4, 1: 12}
    assert s.plans[-1].prefill


def test_the_depth_of_a_step_limits_what_is_proposed_after_it():
    """6.2: what was proposed before keeps its length, so that a step of depth 0 verifies three drafts."""
    s = sim(schedule=KSchedule(dense=(0, 0, 3)), max_num_seqs=2)
    for prompt in ([1, 2], [2, 2]):
        s.arrive(prompt, max_tokens=30)
    s.step()
    s.scheduler.abort(1)
    s.step()
    assert (sizes(s.plans[-1]), s.plans[-1].depth) == ({0: 4}, 0)
    assert s.scheduler.running[0].drafts == ()


def test_prompts_count_for_the_depth():
    """6.2: k is that of all requests in the step. Two prompts join one that decodes: depth 1 is proposed, and verified."""
    s = sim()
    s.arrive([1, 2], max_tokens=30)
    s.step()
    assert len(s.scheduler.running[0].drafts) == 3
    for _ in range(2):
        s.arrive([2, 2, 1], max_tokens=30)
    s.step()
    assert (sizes(s.plans[-1])[0], s.plans[-1].depth) == (2, 1)
    assert [len(r.drafts) for r in s.scheduler.running] == [1, 1, 1]


def rule_of(spec):
    """The rule that `CaptureManager.dispatch` answers by, with every graph of the plan."""
    plan = plan_capture(spec)
    return partial(dispatch, plan, frozenset(plan.keys))


def test_a_batch_that_grew_past_its_graphs_has_its_drafts_cut(tiny_config):
    """Graphs of depth 3 hold two requests; a third joins without a prompt to compute, and all verify one draft."""
    spec = spec_for(tiny_config, TABLE, k=3, max_num_seqs=4)
    s = sim(route=rule_of(spec))
    for prompt in ([1, 2], [2, 2]):
        s.arrive(prompt, max_tokens=30)
    s.step()
    assert [len(r.drafts) for r in s.scheduler.running] == [3, 3]
    s.arrive([1], max_tokens=30)
    s.step()
    plan = s.plans[-1]
    assert (plan.route.k, plan.route.key.bucket) == (1, 3)
    assert sizes(plan) == {0: 2, 1: 2, 2: 1}


def test_a_batch_that_shrank_keeps_its_depth(tiny_config):
    """Drafts of depth 1 that were made for three run in depth 1's smallest graph, though one request has depth 3."""
    spec = spec_for(tiny_config, TABLE, k=3, max_num_seqs=4)
    s = sim(route=rule_of(spec))
    for _ in range(3):
        s.arrive([1], max_tokens=30)
    s.step()
    s.scheduler.abort(1)
    s.scheduler.abort(2)
    s.step()
    plan = s.plans[-1]
    assert (plan.route.k, sizes(plan), plan.depth) == (1, {0: 2}, 3)
    s.step()
    assert s.plans[-1].route.k == 3


def test_a_batch_without_drafts_takes_a_graph_of_depth_zero_where_there_is_one(tiny_config):
    """Nobody has a draft, so nothing was proposed at any depth; without such a graph the batch's own depth is padded."""
    for table, depth in (([(1, 2, 3), (3, 4, 0)], 0), (TABLE, 3)):
        spec = spec_for(tiny_config, table, k=3, max_num_seqs=4)
        s = sim(lambda request, wanted: [], route=rule_of(spec), schedule=spec.schedule)
        s.arrive([1, 2], max_tokens=9)
        s.step()
        s.step()
        assert (s.plans[-1].depth, s.plans[-1].route.k) == (3, depth)


def test_a_prompt_chunk_that_looks_like_a_decode_has_no_full_graph(tiny_config):
    """Issue 49918: a chunk of 1 + k tokens is no decode, and its route says so."""
    s = sim(route=rule_of(spec_for(tiny_config, TABLE, k=3, max_num_seqs=4)))
    s.arrive([1, 2], max_tokens=9)
    s.step()
    s.arrive([1, 2, 0, 1], max_tokens=9)
    s.step()
    assert sizes(s.plans[-1]) == {0: 4, 1: 4}
    assert s.plans[-1].route.reason is Fallthrough.PREFILL_CHUNK


def test_a_chunk_never_ends_inside_the_drafters_window():
    """7.2: with a window of 3, 18 tokens are computed as 15 and 3, and 20 as 16 and 4."""
    for prompt, wanted in ((18, [15, 3]), (20, [16, 4]), (16, [16])):
        s = sim(prefill_lookahead=3)
        s.arrive([1] * prompt, max_tokens=1)
        s.run()
        assert [p.tokens for p in s.plans] == wanted


def test_drafts_are_cut_before_a_request_waits():
    """A budget of 6 for three requests with three drafts each: every one gets its token."""
    s = sim(token_budget=6, schedule=KSchedule(dense=(0, 3, 3, 3)), max_num_seqs=3)
    for _ in range(3):
        s.arrive([1], max_tokens=20)
    s.step()
    s.step()
    assert sizes(s.plans[-1]) == {0: 4, 1: 1, 2: 1}


def test_no_draft_is_proposed_that_could_give_no_token():
    """The last token of a request is that behind its drafts: with three to come, two drafts are enough."""
    s = sim()
    s.arrive([1, 2], max_tokens=4)
    s.step()
    assert len(s.scheduler.running[0].drafts) == 2
    s.step()
    assert s.outputs[0] == tuple(continuation([1, 2], 4))
    assert len(s.plans) == 2


def test_no_draft_is_proposed_past_the_draft_models_length():
    """4.6: beyond the draft's own limit a request goes on without drafts."""
    s = sim(longest_drafted=6)
    s.arrive([1, 2, 0], max_tokens=12)
    s.run()
    assert [p.requests[0].drafts for p in s.plans[:3]] == [0, 2, 0]
    assert max(p.requests[0].position + len(p.requests[0].tokens) for p in s.plans[:2]) == 6


def test_who_arrived_last_is_preempted_and_begins_again():
    """Where blocks run out the oldest goes on; the youngest loses its blocks, keeps its tokens, and comes back first."""
    kv = attrs.evolve(KV, num_blocks=8, prefix_caching=False)
    s = sim(kv=kv, schedule=KSchedule(dense=(0, 0, 0, 0, 0)))
    for prompt in ([1] * 7, [2] * 7):
        s.arrive(prompt, max_tokens=14)
    s.arrive([0] * 16, max_tokens=2)
    while not any(1 in p.preempted for p in s.plans):
        s.step()
    assert s.plans[-1].preempted[-1] == 1
    first, newcomer = s.scheduler.waiting
    assert newcomer.id == 2
    assert (first.id, first.computed, first.counts.preempted) == (1, 0, 1)
    assert len(first.output) > 0
    outputs = s.run()
    assert outputs[1] == tuple(continuation([2] * 7, 14))
    assert len(outputs) == 3


def test_a_preempted_request_finds_its_own_blocks_again():
    """What it had computed is still in the cache, unless someone needed the blocks."""
    s = sim(kv=attrs.evolve(KV, num_blocks=8), schedule=KSchedule(dense=(0, 0, 0, 0, 0)))
    for prompt in ([1] * 7, [2] * 7):
        s.arrive(prompt, max_tokens=14)
    s.run()
    hits = [hit for p in s.plans for _, hit in p.admitted]
    assert len(hits) > 2
    assert max(hits) > 0


def test_nobody_is_admitted_in_a_step_that_preempted():
    """A newcomer would take the blocks that a running request just gave up, and lose them again."""
    s = sim(kv=attrs.evolve(KV, num_blocks=8), schedule=KSchedule(dense=(0, 0, 0, 0, 0)))
    for prompt in ([1] * 7, [2] * 7, [0] * 3):
        s.arrive(prompt, max_tokens=14)
    s.run()
    assert any(p.preempted for p in s.plans)
    assert all(not p.admitted for p in s.plans if p.preempted)


def test_a_request_without_speculation_reserves_no_lookahead_and_gets_no_drafts():
    """The opt-out is read wherever drafting costs something."""
    s = sim(lookahead=8)
    s.arrive([1, 2], max_tokens=9, speculate=False)
    s.arrive([1, 2], max_tokens=9)
    s.step()
    plain, drafting = s.plans[0].requests
    assert (len(plain.blocks), len(drafting.blocks)) == (1, 3)
    s.run()
    assert all(part.drafts == 0 for p in s.plans for part in p.requests if part.request == 0)


def test_a_request_without_speculation_shares_no_blocks_with_a_drafters():
    """Blocks that a drafter never saw lack its keys; without a drafter's keys there is nothing to keep apart."""
    for keeps, hits in ((True, [0, 0, 8]), (False, [0, 8, 8])):
        s = sim(drafter_keeps_kv=keeps, kv=attrs.evolve(KV, copy_on_write=False))
        for speculate in (True, False, False):
            s.arrive([1, 2, 0, 1, 2, 0, 0, 1, 1], max_tokens=4, speculate=speculate)
            s.run()
        assert [hit for p in s.plans for _, hit in p.admitted] == hits


def test_at_depth_zero_the_drafter_is_still_shown_every_step():
    """6.2: a k of 0 for two requests leaves no hole in the drafter's keys, which the shadow would find when k rises."""
    s = sim(
        schedule=KSchedule(dense=(0, 3, 0)),
        max_num_seqs=2,
        drafter_keeps_kv=True,
        prefill_lookahead=1,
        lookahead=3,
        kv=attrs.evolve(KV, hash_lookahead=1, copy_on_write=False),
    )
    s.arrive([1, 2, 1], max_tokens=30)
    s.arrive([2, 2, 1], max_tokens=5)
    s.run()
    assert {p.depth for p in s.plans} == {0, 3}
    assert s.most_lookahead == 3


def test_an_aborted_request_gives_its_blocks_back_at_once():
    """Running or waiting, known or not: the pool is whole again, and the delta says why."""
    s = sim()
    running = s.arrive([1] * 9, max_tokens=9)
    s.step()
    waiting = s.arrive([1] * 9, max_tokens=9)
    for request in (waiting, running):
        (delta,) = s.scheduler.abort(request).deltas
        assert delta.finished.value == "abort"
    assert s.scheduler.abort(running).deltas == ()
    assert s.kv.pool.free == s.kv.pool.size
    assert s.step() is None


@pytest.mark.parametrize(
    ("method", "wanted"),
    [("eagle", (2, 1, 32)), ("draft_model", (2, 0, 28)), ("ngram", (0, 0, 32))],
)
def test_limits_are_those_of_the_contract(tiny_config, method, wanted):
    """Lookahead, window and token budget come from the spec's own properties."""
    section = {"method": method, "num_speculative_tokens": 2}
    if method != "ngram":
        section["model"] = tiny_config()["model"]["source"]
    spec = EngineConfig.from_dict(tiny_config(speculative=section)).resolve()
    limits = StepLimits.of(spec)
    assert (limits.lookahead, limits.prefill_lookahead, limits.token_budget) == wanted
    assert limits.schedule == spec.schedule


def test_the_scheduler_loads_no_torch():
    """What decides about requests runs where there is no device."""
    code = "import sys, graphspec.engine.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_a_step_of_nothing_is_none():
    """Without requests there is no plan, and no table is asked."""
    assert sim().scheduler.plan() is None
