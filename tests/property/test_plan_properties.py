"""Plans of random schedules: captured = reachable, and dispatch picks the smallest graph of the right depth."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.plan import plan_capture
from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import dense_schedule
from support.checkpoints import TINY, write_checkpoint

MOST = 256
FULL = [m for m in CudagraphMode if m.decode_is_full]


@st.composite
def schedules(draw):
    """1 to 12 tiers with gaps, depth 0, depths that rise again or return, thresholds off the ladder."""
    most = draw(st.integers(1, MOST))
    table, first = [], 1
    for _ in range(draw(st.integers(1, 12))):
        last = first + draw(st.integers(0, 40))
        table.append((first, last, draw(st.integers(0, 9))))
        first = last + 1 + draw(st.integers(0, 5))
    return dense_schedule(table, draw(st.integers(1, 9)), most)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("plans"), TINY)
    config = {
        "model": {"source": str(folder), "max_model_len": 128},
        "speculative": {"method": "ngram", "num_speculative_tokens": 9},
    }
    return EngineConfig.from_dict(config).resolve()


def plan_of(base, schedule, mode=CudagraphMode.FULL_AND_PIECEWISE):
    return plan_capture(
        attrs.evolve(
            base,
            scheduler=attrs.evolve(base.scheduler, max_num_seqs=schedule.max_num_seqs),
            speculative=attrs.evolve(
                base.speculative,
                schedule=attrs.evolve(base.speculative.schedule, granted=schedule),
            ),
            mode=attrs.evolve(base.mode, asked=mode, granted=mode),
        )
    )


def step(requests, proposed, prefill=False):
    return Step(requests=requests, proposed_k=proposed, prefill=prefill)


@given(schedule=schedules(), mode=st.sampled_from(FULL))
def test_captured_is_reachable(base, schedule, mode):
    """Every graph is used by some pair of consecutive steps, and every pair finds its graph: none falls through."""
    plan = plan_of(base, schedule, mode)
    captured = frozenset(plan.keys)
    used = set()
    # Every batch size may follow every other, so what a step was proposed at is any depth of the schedule.
    for requests in range(1, schedule.max_num_seqs + 1):
        for proposed in set(schedule.dense[1:]):
            found = dispatch(plan, captured, step(requests, proposed))
            assert found.reason is None
            used.add(found.key)
    assert used == captured == plan.reachable()
    assert len(plan.keys) == len(captured)
    assert plan.fallthrough() == ()


@given(schedule=schedules(), data=st.data())
def test_each_pair_of_steps_gets_the_smallest_graph_of_its_depth(base, schedule, data):
    """The graph holds the batch, has the depth that is verified, and no captured one of that depth is closer."""
    plan = plan_of(base, schedule)
    captured = frozenset(plan.keys)
    sizes = st.integers(1, schedule.max_num_seqs)
    for before, now in data.draw(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=40)):
        proposed = schedule.k_for(before)
        found = dispatch(plan, captured, step(now, proposed))
        assert found.key.bucket >= now
        assert found.k == found.key.k
        assert found.key.k in (proposed, schedule.k_for(now))
        fitting = [k.bucket for k in captured if k.k == found.key.k and k.bucket >= now]
        assert found.key.bucket == min(fitting)
        if any(k.k == proposed and k.bucket >= now for k in captured):
            assert found.key.k == proposed


@given(schedule=schedules())
def test_steady_decoding_runs_at_the_depth_of_the_table(base, schedule):
    """A batch that keeps its size is verified at exactly the depth its size is given."""
    plan = plan_of(base, schedule)
    for requests in range(1, schedule.max_num_seqs + 1):
        depth = schedule.k_for(requests)
        assert plan.key_for(requests, depth).k == depth


@given(schedule=schedules())
def test_order_is_largest_first(base, schedule):
    """Tokens never rise along the order of capture: the first graph sets the size of the pool."""
    tokens = [key.tokens for key in plan_of(base, schedule).keys]
    assert tokens == sorted(tokens, reverse=True)


@given(schedule=schedules(), mode=st.sampled_from(CudagraphMode))
def test_plan_is_a_function_of_the_spec(base, schedule, mode):
    """Equal specs give equal plans with keys in equal order."""
    first, second = plan_of(base, schedule, mode), plan_of(base, schedule, mode)
    assert first == second
    assert first.keys == second.keys


@given(schedule=schedules(), data=st.data())
def test_a_step_with_a_prefill_never_gets_a_graph(base, schedule, data):
    """However few tokens the prompt has, such a step runs without a graph and says why."""
    plan = plan_of(base, schedule)
    requests = data.draw(st.integers(1, schedule.max_num_seqs))
    proposed = data.draw(st.sampled_from(schedule.depths))
    found = dispatch(plan, frozenset(plan.keys), step(requests, proposed, prefill=True))
    assert (found.key, found.reason) == (None, Fallthrough.PREFILL_PRESENT)


@given(schedule=schedules(), above=st.integers(1, 1000), prefill=st.booleans())
def test_more_requests_than_the_maximum_never_get_a_graph(base, schedule, above, prefill):
    """A batch above the maximum falls through as ABOVE_MAX."""
    plan = plan_of(base, schedule)
    requests = schedule.max_num_seqs + above
    found = dispatch(plan, frozenset(plan.keys), step(requests, schedule.depths[0], prefill))
    assert (found.key, found.reason) == (None, Fallthrough.ABOVE_MAX)


@given(schedule=schedules(), mode=st.sampled_from([CudagraphMode.NONE, CudagraphMode.PIECEWISE]))
def test_modes_without_full_graphs_plan_nothing(base, schedule, mode):
    """Without full decode graphs the plan is empty and every size falls through."""
    plan = plan_of(base, schedule, mode)
    assert plan.keys == ()
    assert plan.fallthrough() == tuple(range(1, schedule.max_num_seqs + 1))
    found = dispatch(plan, frozenset(), step(1, schedule.k_for(1)))
    assert found.reason is Fallthrough.NOT_FULL_MODE


@given(schedule=schedules(), data=st.data())
def test_a_hole_in_the_captured_set_is_reported(base, schedule, data):
    """A planned graph that is not captured is NOT_CAPTURED, never another graph."""
    plan = plan_of(base, schedule)
    hole = data.draw(st.sampled_from(plan.keys))
    found = dispatch(plan, frozenset(plan.keys) - {hole}, step(hole.bucket, hole.k))
    assert (found.key, found.reason, found.k) == (None, Fallthrough.NOT_CAPTURED, hole.k)
