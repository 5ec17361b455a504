"""Plans for traffic: the best ladder with every graph that a bucket stands for, and plans cut down to a budget."""

import pytest

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, GraphMode
from graphspec.capture.limits import Limits
from graphspec.capture.plan import plan_capture
from graphspec.capture.traffic import Traffic
from graphspec.capture.traffic_plan import cut_down, plan_for_traffic
from graphspec.errors import BudgetError, TrafficError
from support.specs import plain_spec

TRAFFIC = Traffic.of({3: 10, 5: 1, 8: 1, 12: 6, 16: 1})


@pytest.fixture
def make(tmp_path):
    def of(**sections):
        table = {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 16, 2]]}
        return plain_spec(
            tmp_path,
            **{
                "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 128},
                "speculative": {"method": "ngram", "num_speculative_tokens": 4, **table},
                **sections,
            },
        )

    return of


def full(plan):
    return [key for key in plan.keys if key.mode is GraphMode.FULL]


def test_a_plan_has_the_best_ladder(make):
    """Its full graphs are the chosen buckets, each of them is used, and no batch size falls through."""
    found = plan_for_traffic(make(), TRAFFIC, Limits(max_graphs=4))
    assert found.plan.buckets == found.choice.best.buckets == {4: (3, 8), 2: (12, 16)}
    assert len(full(found.plan)) == found.choice.best.graphs == 4
    assert found.plan.reachable() == frozenset(found.plan.keys)
    assert found.plan.fallthrough() == ()


def test_without_limits_a_plan_has_as_many_graphs_as_by_default(make):
    """The default plan is the measure, and the best ladder has no more and pads less."""
    spec = make()
    found = plan_for_traffic(spec, TRAFFIC)
    assert found.choice.default.buckets == plan_capture(spec).buckets
    assert found.choice.default.graphs == len(full(plan_capture(spec)))
    assert len(full(found.plan)) <= found.choice.default.graphs
    assert found.choice.best.padding.padded_tokens == 0


def test_adapter_cases_count_as_graphs(make):
    """A bucket that has a graph for 0, 1 and 2 adapters takes three of a limit."""
    spec = make(lora={"max_loras": 2, "max_lora_rank": 8})
    found = plan_for_traffic(spec, TRAFFIC, Limits(max_graphs=9), captures=EVERY_KIND)
    assert found.choice.best.graphs == len(full(found.plan)) == 9
    assert found.plan.buckets == {4: (3, 8), 2: (16,)}


def test_without_full_graphs_there_is_no_ladder_to_choose(make):
    """The problem names the field and the granted mode."""
    spec = make(compilation={"cudagraph_mode": "PIECEWISE"})
    with pytest.raises(BudgetError) as caught:
        plan_for_traffic(spec, TRAFFIC)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == ("compilation.cudagraph_mode", "PIECEWISE")


def test_traffic_beyond_the_engine_is_refused(make):
    """A batch that the engine never has would make the ladder of the others look better."""
    with pytest.raises(TrafficError, match="17 requests"):
        plan_for_traffic(make(), Traffic.of({1: 1, 17: 1}))


def test_a_plan_that_was_cut_down_pads_up_and_says_why_not(make):
    """Dropped graphs are left out with their reason; their batches run in the next larger one, or fall through by name."""
    plan = plan_capture(make(), buckets={4: (3, 5, 8), 2: (12, 16)})
    cut, found = cut_down(plan, TRAFFIC, Limits(max_graphs=1))
    assert [(d.k, d.bucket) for d in found.dropped] == [(4, 5), (2, 12), (4, 3), (4, 8)]
    assert len(full(cut)) == 1
    dropped = [key for key in cut.left_out if key.mode is GraphMode.FULL]
    assert {cut.left_out[key] for key in dropped} == {Fallthrough.DROPPED_BY_BUDGET}
    assert len(dropped) == 4
    assert cut.fallthrough() == tuple(range(1, 9))

    def route(requests, proposed_k):
        step = Step(requests=requests, proposed_k=proposed_k, prefill=False)
        return dispatch(cut, frozenset(cut.keys), step)

    assert route(9, 2).key.bucket == 16
    assert (route(3, 4).key, route(3, 4).reason) == (None, Fallthrough.DROPPED_BY_BUDGET)
