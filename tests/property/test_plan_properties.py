"""Plans of random schedules, over all pairs of steps: captured = reachable, and each pair has the smallest graph.

The invariants are those of shared/reference/compile-and-cudagraph.md, section 6.2, as far as they need no device: 13,
14, 21, 24 and 25. What is expected is worked out here by itself, from the captured keys and the schedule alone.
"""

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, FULL_VERIFY, GraphMode, Phase
from graphspec.capture.plan import plan_capture
from graphspec.capture.routes import Routes
from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.extras import LoRAConfig
from graphspec.config.schedule import dense_schedule
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.speculators.registry import BUILT_IN, speculator_config_class
from support.checkpoints import TINY, write_checkpoint

FULL = [m for m in CudagraphMode if m.decode_is_full]
EXAMPLES = sorted(
    (
        example
        for method in BUILT_IN
        for _, example in speculator_config_class(method).examples()
        if not isinstance(example, NgramSpeculatorConfig)
    ),
    key=str,
)
KINDS = [FULL_VERIFY, EVERY_KIND, EVERY_KIND - FULL_VERIFY]
MOST = 1024
SIZES = st.integers(1, 80) | st.integers(81, MOST) | st.just(MOST)
# Examples with 1024 requests and adapters take tens of milliseconds each.
fewer = settings(max_examples=20)


@st.composite
def schedules(draw, most=SIZES):
    """1 to 12 tiers with gaps, depth 0, depths that rise again or return, thresholds on and off the ladder."""
    limit = draw(most)
    width = draw(st.sampled_from([3, 40, max(3, limit // 8)]))
    table, first = [], 1
    for _ in range(draw(st.integers(1, 12))):
        last = first + draw(st.integers(0, width) | st.sampled_from([7, 8, 15, 16, 31, 32]))
        table.append((first, last, draw(st.integers(0, 9))))
        first = last + 1 + draw(st.integers(0, 5))
    return dense_schedule(table, draw(st.integers(1, 9)), limit)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("plans"), TINY)
    config = {
        "model": {"source": str(folder), "max_model_len": 128},
        "speculative": {"method": "ngram", "num_speculative_tokens": 9},
    }
    return EngineConfig.from_dict(config).resolve()


def spec_of(base, schedule, mode=CudagraphMode.FULL_AND_PIECEWISE, speculator=None, loras=0):
    """A spec with this schedule, whose token budget holds every step of it and little more."""
    widest = max(b * (1 + k) for b, k in enumerate(schedule.dense))
    drafting = attrs.evolve(
        base.speculative,
        schedule=attrs.evolve(base.speculative.schedule, granted=schedule),
        speculator=speculator or base.speculative.speculator,
        draft_cudagraph_mode=mode,
    )
    most = schedule.max_num_seqs
    return attrs.evolve(
        base,
        scheduler=attrs.evolve(
            base.scheduler, max_num_seqs=most, max_num_batched_tokens=widest + 7
        ),
        speculative=drafting,
        lora=LoRAConfig(max_loras=loras) if loras else None,
        mode=attrs.evolve(base.mode, asked=mode, granted=mode),
    )


@st.composite
def specs(draw, modes=tuple(CudagraphMode)):
    """How to make a spec of the fixture: any schedule, mode, method, with and without adapters."""
    schedule, mode = draw(schedules()), draw(st.sampled_from(modes))
    speculator = draw(st.sampled_from([None, *EXAMPLES]))
    adapters = draw(st.sampled_from([0, 0, 1, 2, 5]))
    return lambda base: spec_of(base, schedule, mode, speculator, adapters)


def step(requests, proposed, prefill=False, **more):
    return Step(requests=requests, proposed_k=proposed, prefill=prefill, **more)


def smallest_by_depth(plan):
    """For each depth, the smallest captured bucket for each batch size, by walking down; 0 where there is none."""
    most, found = plan.schedule.max_num_seqs, {}
    verify = [k for k in plan.keys if (k.phase, k.mode) == (Phase.TARGET_VERIFY, GraphMode.FULL)]
    for k in {key.k for key in verify}:
        sizes = {key.bucket for key in verify if key.k == k}
        row = [0] * (most + 2)
        for requests in range(most, 0, -1):
            row[requests] = requests if requests in sizes else row[requests + 1]
        found[k] = row
    return found


@fewer
@given(schedule=schedules(), mode=st.sampled_from(FULL), hysteresis=st.booleans())
def test_all_pairs_of_steps_find_the_smallest_graph_and_use_every_graph(
    base, schedule, mode, hysteresis
):
    """13, 14: over all (batch t, batch t+1), none falls through, each runs the smallest graph of the right depth, and
    the graphs that the pairs run are those that are captured, no more and no fewer."""
    plan = plan_capture(attrs.evolve(spec_of(base, schedule, mode), hysteresis=hysteresis))
    captured = frozenset(plan.keys)
    routes = Routes.of(plan, captured)
    rows, used = smallest_by_depth(plan), set()
    # Step t+1 sees of step t only the depth at which it proposed: one row a depth is all pairs.
    for proposed in {schedule.k_for(before) for before in range(1, schedule.max_num_seqs + 1)}:
        for now in range(1, schedule.max_num_seqs + 1):
            found = routes.decode(now, proposed)
            wanted = proposed if rows[proposed][now] else schedule.k_for(now)
            assert found.reason is None
            assert found.k == found.key.k == wanted
            assert found.key.bucket == rows[wanted][now]
            used.add(found.key)
    assert used == captured == plan.reachable()
    assert len(plan.keys) == len(captured)
    assert plan.fallthrough() == ()


@given(schedule=schedules(most=st.integers(1, 24)))
def test_literally_all_pairs_of_small_schedules(base, schedule):
    """13, 14 again with two loops over batch sizes and the function that states the rule."""
    plan = plan_capture(spec_of(base, schedule))
    captured, used = frozenset(plan.keys), set()
    sizes = range(1, schedule.max_num_seqs + 1)
    for before, now in itertools.product(sizes, sizes):
        found = dispatch(plan, captured, step(now, schedule.k_for(before)))
        assert found.reason is None
        used.add(found.key)
    assert used == captured


@fewer
@given(make=specs(), captures=st.sampled_from(KINDS), hysteresis=st.booleans(), data=st.data())
def test_what_is_captured_is_what_steps_reach(base, make, captures, hysteresis, data):
    """14: in every mode, with every method, with adapters, whatever a source captures and a budget drops."""
    plan = plan_capture(attrs.evolve(make(base), hysteresis=hysteresis), captures=captures)
    assert frozenset(plan.keys) == plan.reachable()
    if plan.keys:
        dropped = data.draw(st.sets(st.sampled_from(plan.keys), max_size=20))
        plan = plan.without(dropped, Fallthrough.DROPPED_BY_BUDGET)
        assert frozenset(plan.keys) == plan.reachable()
    assert {key.kind for key in plan.keys} <= captures
    assert set(plan.planned) == {*plan.keys, *plan.left_out}


@fewer
@given(make=specs(), captures=st.sampled_from(KINDS), data=st.data())
def test_every_batch_has_a_graph_or_a_named_reason(base, make, captures, data):
    """Every batch size 1..max, at every depth, with any number of adapters, in both phases; and what is captured of it
    never changes a graph into another."""
    plan = plan_capture(make(base), captures=captures)
    kept = data.draw(st.sets(st.sampled_from(plan.keys))) if plan.keys else set()
    captured = frozenset(kept)
    routes = Routes.of(plan, captured)
    for requests in range(1, plan.schedule.max_num_seqs + 1):
        for k in plan.schedule.depths:
            for found in (routes.decode(requests, k), routes.draft(requests, k)):
                assert isinstance(found.reason, Fallthrough) is (
                    found.key is None or found.key.mode is not GraphMode.FULL
                )
                assert found.key is None or found.key in captured


@fewer
@given(make=specs(), captures=st.sampled_from(KINDS), data=st.data())
def test_routes_answer_as_the_rule_does(base, make, captures, data):
    """The table is nothing but the function's answers, for decodes, mixed steps, adapters and drafts."""
    plan = plan_capture(make(base), captures=captures)
    captured = frozenset(plan.keys[:: data.draw(st.integers(1, 3))])
    missing = dict.fromkeys(plan.keys[1::4], Fallthrough.RANK_DISAGREEMENT)
    routes = Routes.of(plan, captured, missing=missing)
    most = plan.schedule.max_num_seqs
    for _ in range(8):
        one = step(
            data.draw(st.integers(-1, most + 2)),
            data.draw(st.integers(0, 10)),
            data.draw(st.booleans()),
            tokens=data.draw(st.none() | st.integers(1, 2 * most)),
            uniform=data.draw(st.booleans()),
            lora=data.draw(st.integers(0, 7)),
        )
        assert routes.route(one) == dispatch(plan, captured, one, missing)
        plain = step(one.requests, one.proposed_k)
        assert routes.decode(one.requests, one.proposed_k) == dispatch(
            plan, captured, plain, missing
        )


@given(make=specs(modes=FULL))
def test_steady_decoding_runs_at_the_depth_of_the_table(base, make):
    """13: a batch that keeps its size is verified at exactly the depth its size is given."""
    plan = plan_capture(make(base))
    for requests in range(1, plan.schedule.max_num_seqs + 1):
        depth = plan.schedule.k_for(requests)
        assert plan.key_for(requests, depth).k == depth


@given(make=specs())
def test_order_is_by_phase_then_mode_then_tokens(base, make):
    """14: the target before the draft, pieces before whole steps, and within each the largest first."""
    keys = plan_capture(make(base), captures=EVERY_KIND).keys
    places = [(key.phase is Phase.DRAFT, key.mode is GraphMode.FULL) for key in keys]
    assert places == sorted(places)
    for _, group in itertools.groupby(keys, key=lambda key: key.kind):
        tokens = [key.tokens for key in group]
        assert tokens == sorted(tokens, reverse=True)


@given(make=specs(), captures=st.sampled_from(KINDS))
def test_plan_is_a_function_of_the_spec(base, make, captures):
    """24: equal specs give equal plans with keys in equal order, and planning twice changes nothing."""
    first, second = (plan_capture(make(base), captures=captures) for _ in range(2))
    assert first == second
    assert first.keys == second.keys
    assert first.planned == second.planned


@given(make=specs(), data=st.data())
def test_a_step_with_a_prefill_never_gets_a_full_graph(base, make, data):
    """However few tokens the prompt has: such a step runs in pieces that hold all its tokens, or in no graph."""
    plan = plan_capture(make(base), captures=EVERY_KIND)
    requests = data.draw(st.integers(1, plan.schedule.max_num_seqs))
    proposed = data.draw(st.sampled_from(plan.schedule.depths))
    alike = requests * (1 + proposed)
    tokens = data.draw(st.none() | st.just(alike) | st.integers(1, alike + 40))
    mixed = step(requests, proposed, prefill=True, tokens=tokens)
    found = dispatch(plan, frozenset(plan.keys), mixed)
    chunk = Fallthrough.PREFILL_CHUNK if tokens == alike else Fallthrough.MIXED_BATCH
    assert found.reason is chunk
    held = tokens is not None and tokens <= max(plan.token_buckets, default=0)
    assert (found.key is not None) is held
    if held:
        assert found.key.mode is GraphMode.PIECEWISE
        assert found.key.tokens == min(size for size in plan.token_buckets if size >= tokens)


@given(make=specs(), above=st.integers(1, 1000), prefill=st.booleans())
def test_more_requests_than_the_maximum_never_get_a_graph(base, make, above, prefill):
    """A batch above the maximum falls through as ABOVE_MAX."""
    plan = plan_capture(make(base), captures=EVERY_KIND)
    one = step(plan.schedule.max_num_seqs + above, plan.schedule.depths[0], prefill)
    found = dispatch(plan, frozenset(plan.keys), one)
    assert (found.key, found.reason) == (None, Fallthrough.ABOVE_MAX)


@given(schedule=schedules(), asked=st.sampled_from(CudagraphMode), data=st.data())
def test_without_full_graphs_the_reason_says_whether_they_were_asked_for(
    base, schedule, asked, data
):
    """21: a mode that was lowered is DOWNGRADED, one that never had full graphs is NOT_FULL_MODE."""
    granted = data.draw(st.sampled_from([CudagraphMode.NONE, CudagraphMode.PIECEWISE]))
    spec = spec_of(base, schedule, granted)
    plan = plan_capture(attrs.evolve(spec, mode=attrs.evolve(spec.mode, asked=asked)))
    assert plan.keys == ()
    assert plan.fallthrough() == tuple(range(1, schedule.max_num_seqs + 1))
    found = dispatch(plan, frozenset(), step(1, schedule.k_for(1)))
    lowered = asked.decode_is_full
    assert found.reason is (Fallthrough.DOWNGRADED if lowered else Fallthrough.NOT_FULL_MODE)


@given(schedule=schedules(), data=st.data())
def test_a_hole_in_the_captured_set_is_reported(base, schedule, data):
    """A planned graph that is not captured is NOT_CAPTURED, never another graph."""
    plan = plan_capture(spec_of(base, schedule))
    hole = data.draw(st.sampled_from(plan.keys))
    found = dispatch(plan, frozenset(plan.keys) - {hole}, step(hole.bucket, hole.k))
    assert (found.key, found.reason, found.k) == (None, Fallthrough.NOT_CAPTURED, hole.k)


@given(schedule=schedules(), speculator=st.sampled_from([None, *EXAMPLES]), data=st.data())
def test_sizes_of_ones_own_are_taken_as_they_are(base, schedule, speculator, data):
    """Any sizes that hold each depth's last batch make a plan that is as exact as the ladder's, drafts included; where
    hysteresis is asked for, too."""
    own = {}
    for k in data.draw(st.sets(st.sampled_from(schedule.depths))):
        last = max(tier[1] for tier in schedule.tiers if tier[2] == k)
        most = data.draw(st.sampled_from([last, schedule.max_num_seqs]))
        own[k] = [last, *data.draw(st.lists(st.integers(1, most), max_size=6))]
    spec = spec_of(base, schedule, speculator=speculator)
    spec = attrs.evolve(spec, hysteresis=data.draw(st.booleans()))
    plan = plan_capture(spec, buckets=own, captures=EVERY_KIND)
    assert frozenset(plan.keys) == plan.reachable()
    assert plan.fallthrough() == ()
    assert all(plan.buckets[k] == tuple(sorted(set(sizes))) for k, sizes in own.items())
