"""The peer's measured capture plans, case by case: what it captures of its own, and what graphspec plans for the same.

`tests/data/capture-cases.json` is data: full graphs, batch sizes without one, and padding of an engine's own planning.
"""

import json
from pathlib import Path

import pytest

from graphspec.capture.keys import GraphMode
from graphspec.capture.routes import Routes
from graphspec.config.schedule import dense_schedule
from support.plans import plan_for

CASES = json.loads((Path(__file__).parent.parent / "data" / "capture-cases.json").read_text())[
    "cases"
]
TOKENS_OF_PEER = 512
"""Beyond so many tokens a step the peer captures nothing, unless told to."""

OURS = {
    "64, two tiers 4/3": (36, 1.812),
    "64, six tiers 7/5/4/3/2/1": (36, 1.125),
    "256, four tiers 7/3/2/1": (68, 4.688),
    "512, one tier 3": (84, 19.469),
    "64, six tiers, later steps": (36, 1.438),
    "64, three tiers 7/3/1": (36, 1.5),
    "128, three tiers 4/3/2": (52, 3.0),
    "256, two tiers 5/2": (68, 7.031),
    "16, two tiers 6/2": (12, 0.75),
    "256, no table, K 3": (68, 8.938),
}
"""Graphs, and padded tokens a step as the mean over batch sizes: pinned, so that a change of the ladder shows here."""

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


def schedule_of(case):
    table = [tuple(entry) for entry in case["table"]] if case["table"] else None
    return dense_schedule(table, case["num_speculative_tokens"], case["max_num_seqs"])


def plan_of(make, case):
    table = [tuple(entry) for entry in case["table"]] if case["table"] else None
    return plan_for(
        make,
        table,
        k=case["num_speculative_tokens"],
        max_num_seqs=case["max_num_seqs"],
        mode=case["cudagraph_mode"],
    )


def mean_padding(plan):
    """Padded tokens of steady decoding, as a mean over batch sizes, from what dispatch answers."""
    routes = Routes.of(plan, frozenset(plan.keys))
    sizes = range(1, plan.schedule.max_num_seqs + 1)
    found = [(b, routes.decode(b, plan.schedule.k_for(b)).key) for b in sizes]
    return sum((key.bucket - b) * (1 + key.k) for b, key in found) / len(found)


@each_case
def test_captured_is_reachable_and_no_batch_falls_through(tiny_config, case):
    """Every graph is used by some pair of steps, and every batch size decodes in a graph of exactly its depth."""
    plan, schedule = plan_of(tiny_config, case), schedule_of(case)
    assert frozenset(plan.keys) == plan.reachable()
    assert plan.fallthrough() == ()
    routes = Routes.of(plan, frozenset(plan.keys))
    for requests in range(1, case["max_num_seqs"] + 1):
        found = routes.decode(requests, schedule.k_for(requests))
        assert found.reason is None
        assert (found.key.k, found.key.mode) == (schedule.k_for(requests), GraphMode.FULL)
        assert found.key.bucket >= requests


def compared(case):
    """Cases of two tiers or more that lie within the peer's limit of tokens."""
    schedule = schedule_of(case)
    widest = max(b * (1 + schedule.k_for(b)) for b in range(1, case["max_num_seqs"] + 1))
    return len(schedule.tiers) > 1 and widest <= TOKENS_OF_PEER


@pytest.mark.parametrize("case", filter(compared, CASES), ids=lambda case: case["name"])
def test_half_the_peers_graphs_pad_no_more_than_its_best(tiny_config, case):
    """At most half as many graphs, and less padding than any dispatch over the peer's own graphs could have."""
    plan = plan_of(tiny_config, case)
    assert 2 * len(plan.keys) <= case["full_graphs"]
    best = case["padded_tokens_per_step"]["best_possible_with_captured"]
    # The peer's number is rounded to three places.
    assert round(mean_padding(plan), 3) <= best


def test_enough_cases_are_compared():
    """All but one of the cases with several tiers are within the peer's limit."""
    assert [len(case["table"] or ()) > 1 for case in CASES].count(True) == 8
    assert len(list(filter(compared, CASES))) == 7


@each_case
def test_graphs_and_padding_are_pinned(tiny_config, case):
    """A change of the ladder is a change of these numbers, made on purpose."""
    plan = plan_of(tiny_config, case)
    assert (len(plan.keys), round(mean_padding(plan), 3)) == OURS[case["name"]]
