"""What a plan holds beside the target's decode graphs: draft phases, pieces, adapters, neighbours; and what it leaves out."""

import attrs
import pytest

from graphspec.capture.dispatch import Fallthrough, Step, dispatch
from graphspec.capture.keys import EVERY_KIND, FULL_VERIFY, CaptureKey, GraphMode, Phase
from graphspec.capture.left_out import left_out_of
from graphspec.capture.limits import Limits
from graphspec.capture.plan import DRAFT, PIECES, VERIFY, plan_capture
from graphspec.capture.program import captures_of
from graphspec.capture.routes import Routes
from graphspec.capture.traffic import Traffic
from graphspec.capture.traffic_plan import plan_for_traffic
from graphspec.config.engine import EngineConfig
from graphspec.config.extras import LoRAConfig
from graphspec.errors import CaptureError
from graphspec.fields import Stage
from support.plans import spec_for
from support.speculative import resolved_case

COMPILE, CAPTURE = Stage.COMPILE, Stage.CAPTURE
TABLE = [(1, 8, 4), (9, 16, 2), (17, 20, 0)]
DYNAMIC = {"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": TABLE}
SMALL = {"max_num_seqs": 20, "max_num_batched_tokens": 256}


def plan_of(method, captures=EVERY_KIND, section=None, **sections):
    spec = resolved_case(method, {**DYNAMIC, **(section or {})}, scheduler=SMALL, **sections)
    return plan_capture(spec, captures=captures)


def of_kind(plan, kind):
    return [key for key in plan.keys if key.kind == kind]


def piece(tokens):
    return CaptureKey(Phase.TARGET_VERIFY, 0, tokens, mode=GraphMode.PIECEWISE)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
def test_a_loop_drafts_one_token_a_request_in_the_buckets_of_its_tiers(method):
    """One graph a bucket holds the passes of its tier after the first; where k is 0, nothing is drafted."""
    drafts = of_kind(plan_of(method), DRAFT)
    assert {(key.k, key.bucket) for key in drafts} == {
        *((4, size) for size in range(1, 9)),
        *((2, size) for size in (10, 12, 14, 16)),
    }
    assert all(key.tokens == key.bucket for key in drafts)


@pytest.mark.parametrize(("method", "width"), [("dflash", 5), ("dspark", 4)])
def test_a_block_is_drafted_at_once(method, width):
    """The block's tokens are in the graph: k of them, or k + 1 with the bonus query."""
    spec = resolved_case(method, {"num_speculative_tokens": 4}, scheduler=SMALL)
    drafts = of_kind(plan_capture(spec, captures=EVERY_KIND), DRAFT)
    assert drafts
    assert {key.tokens / key.bucket for key in drafts} == {width}


@pytest.mark.parametrize(
    ("method", "first"), [("eagle", 1), ("draft_model", 1), ("mtp multi-module", 2)]
)
def test_a_loop_without_a_pass_after_the_first_has_no_graph_and_says_so(method, first):
    """What the target kept has another number of rows each time: the pass over it is in no graph, and where all drafts come
    from there nothing is left to capture. With several modules each has such a pass."""
    tiers = [(1, 8, 4), (9, 16, first), (17, 20, 0)]
    plan = plan_of(method, section={"num_speculative_tokens_per_batch_size": tiers})
    assert {key.k for key in of_kind(plan, DRAFT)} == {4}
    routes = Routes.of(plan, frozenset(plan.keys))
    assert routes.draft(10, first).reason is Fallthrough.FIRST_PASS_ONLY
    assert routes.draft(3, 4).key.bucket == 3
    eager = plan_of(method, section={"enforce_eager": True})
    assert eager.why_no_draft(first, 10) is Fallthrough.NOT_FULL_MODE


def test_a_block_that_exceeds_the_token_budget_is_left_out_and_says_so():
    """A draft pass holds no more tokens than a step of the target may."""
    spec = resolved_case("dflash", {"num_speculative_tokens": 4}, scheduler=SMALL)
    spec = attrs.evolve(spec, scheduler=attrs.evolve(spec.scheduler, max_num_batched_tokens=32))
    plan = plan_capture(spec, captures=EVERY_KIND)
    drafts = of_kind(plan, DRAFT)
    assert max(key.bucket for key in drafts) == spec.max_num_draft_seqs == 6
    assert plan.why_no_draft(4, 7) is Fallthrough.ABOVE_TOKEN_BUDGET


def test_drafts_from_the_host_have_no_graph_and_say_so():
    """n-gram lookup runs no pass on the device."""
    plan = plan_of("ngram")
    assert of_kind(plan, DRAFT) == []
    found = Routes.of(plan, frozenset(plan.keys)).draft(3, 4)
    assert (found.key, found.reason) == (None, Fallthrough.NO_DRAFT_PHASE)


def test_ragged_drafts_have_no_graph_and_say_so():
    """Without padding the requests of a draft pass have different numbers of tokens."""
    ragged = plan_of("eagle", section={"disable_padded_drafter_batch": True})
    assert of_kind(ragged, DRAFT) == []
    assert ragged.why_no_draft(4, 3) is Fallthrough.RAGGED_DRAFTS
    assert of_kind(plan_of("draft_model", section={}), DRAFT)


def test_an_eager_draft_has_no_graph_and_the_target_keeps_its_own():
    """speculative.enforce_eager is about the draft alone."""
    plan = plan_of("eagle", section={"enforce_eager": True})
    assert of_kind(plan, DRAFT) == []
    assert of_kind(plan, VERIFY)
    assert plan.why_no_draft(4, 3) is Fallthrough.NOT_FULL_MODE


def test_drafts_of_a_step_with_prefill_are_padded_within_their_depth():
    """Fewer requests than the tier has: only those that have a token by now are given drafts."""
    plan = plan_of("eagle")
    routes = Routes.of(plan, frozenset(plan.keys))
    assert routes.draft(3, 2).key.bucket == 10
    assert routes.draft(3, 4).key.bucket == 3
    assert routes.draft(17, 0).reason is Fallthrough.NO_DRAFT_PHASE
    assert routes.draft(21, 2).reason is Fallthrough.ABOVE_MAX


MODES = [
    ("NONE", set()),
    ("PIECEWISE", {PIECES}),
    ("FULL", {VERIFY}),
    ("FULL_DECODE_ONLY", {VERIFY}),
    ("FULL_AND_PIECEWISE", {VERIFY, PIECES}),
]


@pytest.mark.parametrize(("mode", "wanted"), MODES)
def test_each_mode_has_its_kinds_of_graphs(tiny_config, mode, wanted):
    """Whole decode steps, pieces for everything else, both, or neither."""
    spec = spec_for(tiny_config, TABLE, k=4, max_num_seqs=20, mode=mode)
    plan = plan_capture(spec, captures=EVERY_KIND)
    assert {key.kind for key in plan.keys} == wanted
    assert frozenset(plan.keys) == plan.reachable()


def test_pieces_reach_up_to_the_token_budget(tiny_config):
    """A budget off the ladder is a bucket itself: the top batch is never dropped."""
    spec = spec_for(tiny_config, TABLE, k=4, max_num_seqs=20)
    plan = plan_capture(spec, captures=EVERY_KIND)
    assert spec.scheduler.max_num_batched_tokens == 100
    assert plan.token_buckets == (1, 2, 4, *range(8, 97, 8), 100)
    assert plan.piecewise_key(100) == piece(100)
    assert plan.piecewise_key(97) == piece(100)
    assert plan.piecewise_key(101) is None


def test_a_mixed_step_runs_in_pieces_where_they_are_captured(tiny_config):
    """The answer has the reason why there is no full graph, and the pieces that hold the step's tokens."""
    plan = plan_capture(spec_for(tiny_config, TABLE, k=4, max_num_seqs=20), captures=EVERY_KIND)
    step = Step(requests=3, proposed_k=4, prefill=True, tokens=50)
    found = dispatch(plan, frozenset(plan.keys), step)
    assert (found.key, found.reason) == (piece(56), Fallthrough.MIXED_BATCH)
    only_full = frozenset(key for key in plan.keys if key.kind == VERIFY)
    assert dispatch(plan, only_full, step).key is None
    # A decode without its full graph runs in pieces too, at 1 + k tokens a request.
    decode = Step(requests=3, proposed_k=4, prefill=False)
    pieces = frozenset(key for key in plan.keys if key.kind == PIECES)
    found = dispatch(plan, pieces, decode)
    assert (found.key, found.reason) == (piece(16), Fallthrough.NOT_CAPTURED)


@pytest.fixture
def with_adapters(tiny_config):
    spec = spec_for(tiny_config, TABLE, k=4, max_num_seqs=20, mode="FULL")
    return plan_capture(attrs.evolve(spec, lora=LoRAConfig(max_loras=6)))


def test_adapter_cases_are_those_that_so_few_requests_can_have(with_adapters):
    """One request has at most one adapter; three can have three, which run in the graph for four."""
    cases = {
        size: {key.lora for key in with_adapters.keys if (key.k, key.bucket) == (4, size)}
        for size in (1, 2, 3, 4, 5, 6)
    }
    assert cases == {
        1: {0, 1},
        2: {0, 1, 2},
        3: {0, 1, 2, 4},
        4: {0, 1, 2, 4},
        5: {0, 1, 2, 4, 6},
        6: {0, 1, 2, 4, 6},
    }
    assert frozenset(with_adapters.keys) == with_adapters.reachable()


@pytest.mark.parametrize(
    ("requests", "adapters", "case"), [(3, 0, 0), (3, 1, 1), (3, 3, 4), (8, 5, 6), (20, 6, 6)]
)
def test_a_step_runs_in_the_graph_of_the_next_number_of_adapters(
    with_adapters, requests, adapters, case
):
    """Fewer adapters than a graph holds are padding; the depth and the bucket stay what they are without."""
    captured, k = frozenset(with_adapters.keys), with_adapters.schedule.k_for(requests)
    step = Step(requests=requests, proposed_k=k, prefill=False, lora=adapters)
    found = dispatch(with_adapters, captured, step)
    assert found.key == CaptureKey(Phase.TARGET_VERIFY, k, found.key.bucket, lora=case)
    plain = dispatch(with_adapters, captured, attrs.evolve(step, lora=0))
    assert (found.key.k, found.key.bucket) == (plain.key.k, plain.key.bucket)


def test_more_adapters_than_the_most_is_a_named_reason(with_adapters):
    """lora.max_loras is a limit of the contract."""
    step = Step(requests=8, proposed_k=4, prefill=False, lora=7)
    found = dispatch(with_adapters, frozenset(with_adapters.keys), step)
    assert (found.key, found.reason) == (None, Fallthrough.ABOVE_MAX_ADAPTERS)


def test_hysteresis_adds_a_bucket_on_either_side_of_a_tier(tiny_config):
    """A batch that just grew keeps its drafts, one that just shrank is padded less, and each bucket is reached."""
    spec = spec_for(tiny_config, TABLE, k=4, max_num_seqs=20)
    plan = plan_capture(attrs.evolve(spec, hysteresis=True))
    assert plan.buckets == {4: (*range(1, 9), 10), 2: (8, 10, 12, 14, 16, 18), 0: (16, 18, 20)}
    assert frozenset(plan.keys) == plan.reachable()
    assert plan.key_for(9, 4) == CaptureKey(Phase.TARGET_VERIFY, 4, 10)
    assert plan.key_for(3, 2) == CaptureKey(Phase.TARGET_VERIFY, 2, 8)


def test_hysteresis_is_asked_for_in_the_config_and_changes_graphs_alone(tiny_config):
    """Off unless asked; code compiled without it serves, and captured graphs are told apart."""
    plain, asked = (
        EngineConfig.from_dict(tiny_config(compilation=section)).resolve()
        for section in ({}, {"hysteresis": True})
    )
    assert not plain.hysteresis
    assert asked.hysteresis
    same, differing = (
        plain.compute_hash(stage) == asked.compute_hash(stage) for stage in (COMPILE, CAPTURE)
    )
    assert (same, differing) == (True, False)


def test_sizes_of_one_s_own_have_no_neighbours(tiny_config):
    """What a budget allows, or a plan wrote, is not exceeded; depths that nobody named have theirs."""
    spec = attrs.evolve(spec_for(tiny_config, TABLE, k=4, max_num_seqs=20), hysteresis=True)
    plan = plan_capture(spec, buckets={2: (16,)})
    assert plan.buckets == {4: (*range(1, 9), 10), 2: (16,), 0: (16, 18, 20)}
    assert frozenset(plan.keys) == plan.reachable()
    limited = plan_for_traffic(spec, Traffic.uniform(20), Limits(max_graphs=5)).plan
    assert len(limited.keys) == 5


def test_a_neighbour_beyond_the_token_budget_is_left_out_and_says_so(tiny_config):
    """The schedule's own batches fit into the budget; a bucket that is only for hysteresis need not."""
    spec = spec_for(tiny_config, [(1, 4, 9), (5, 9, 1)], k=9, max_num_seqs=9)
    spec = attrs.evolve(spec, scheduler=attrs.evolve(spec.scheduler, max_num_batched_tokens=40))
    plan = plan_capture(attrs.evolve(spec, hysteresis=True))
    five = CaptureKey(Phase.TARGET_VERIFY, 9, 5)
    assert plan.left_out[five] is Fallthrough.ABOVE_TOKEN_BUDGET
    assert plan.key_for(5, 9) == CaptureKey(Phase.TARGET_VERIFY, 1, 5)
    assert frozenset(plan.keys) == plan.reachable()


def test_what_a_source_cannot_capture_is_left_out_for_a_reason():
    """Nothing that a step could use is dropped without a word, and the rest is as exact as before."""
    whole, plan = plan_of("eagle"), plan_of("eagle", captures=FULL_VERIFY)
    assert set(plan.keys) | set(plan.left_out) == set(whole.keys) == set(plan.planned)
    assert set(plan.left_out.values()) == {Fallthrough.NOT_CAPTURABLE}
    assert frozenset(plan.keys) == plan.reachable()
    draft = Routes.of(plan, frozenset(plan.keys)).draft(3, 4)
    assert (draft.key, draft.reason) == (None, Fallthrough.NOT_CAPTURABLE)
    told = left_out_of(plan)
    assert [(part.phase, part.mode, part.graphs) for part in told] == [
        (Phase.TARGET_VERIFY, GraphMode.PIECEWISE, len(of_kind(whole, PIECES))),
        (Phase.DRAFT, GraphMode.FULL, len(of_kind(whole, DRAFT))),
    ]
    assert str(told[1]) == (
        "12 graphs of draft full left out: the program's steps cannot be captured in this phase and mode"
    )


def test_a_program_states_what_its_steps_can_be_captured_in():
    """Without a statement it is the target's full decode steps."""

    class Silent:
        pass

    class Drafting:
        captures = frozenset({VERIFY, DRAFT})

    assert captures_of(Silent()) == FULL_VERIFY
    assert captures_of(Drafting()) == {VERIFY, DRAFT}


@pytest.mark.parametrize(
    ("buckets", "where", "found"),
    [
        ({3: (1, 2)}, "buckets of k = 3", "1, 2"),
        ({4: (0, 8)}, "buckets of k = 4", "0"),
        ({0: (20, 24)}, "buckets of k = 0", "24"),
        ({4: (1, 6)}, "buckets of k = 4", "6 requests as the largest"),
        ({2: ()}, "buckets of k = 2", "0 requests as the largest"),
    ],
)
def test_sizes_that_no_step_could_use_are_refused(tiny_config, buckets, where, found):
    """A depth that the schedule lacks, sizes outside of it, and a ladder that ends below its depth's last batch."""
    spec = spec_for(tiny_config, TABLE, k=4, max_num_seqs=20)
    with pytest.raises(CaptureError) as caught:
        plan_capture(spec, buckets=buckets)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == (where, found)


def test_before_the_seal_no_step_has_a_graph(tiny_config):
    """Decodes, drafts and mixed steps alike: what is still being captured is not replayed."""
    plan = plan_capture(spec_for(tiny_config, TABLE, k=4, max_num_seqs=20))
    routes = Routes.of(plan, frozenset(plan.keys), sealed=False)
    mixed = Step(requests=3, proposed_k=4, prefill=True)
    answers = (routes.decode(3, 4), routes.decode(99, 4), routes.draft(3, 4), routes.route(mixed))
    assert {(found.key, found.reason) for found in answers} == {(None, Fallthrough.NOT_SEALED)}


def test_keys_read_as_what_they_hold():
    """In logs and reports a key names its phase, its size in the unit of its kind, and its adapters."""
    assert str(CaptureKey(Phase.DRAFT, 4, 8)) == "draft k=4 requests=8"
    assert str(piece(56)) == "target_verify piecewise tokens=56"
    assert str(CaptureKey(Phase.TARGET_VERIFY, 2, 10, lora=4)) == (
        "target_verify k=2 requests=10 adapters=4"
    )
    assert CaptureKey(Phase.DRAFT, 4, 8, width=5).tokens == 40
    assert piece(56).tokens == 56
