"""What an engine counts, and under which names Prometheus reads it."""

import math

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from graphspec.capture.dispatch import Dispatch, Fallthrough
from graphspec.capture.keys import CaptureKey, Phase
from graphspec.engine.kv_manager import KVLimits
from graphspec.engine.metrics import EngineCollector, EngineMetrics
from graphspec.engine.request import Delta
from graphspec.engine.sampling import Accepted
from graphspec.engine.scheduler import Scheduled, StepPlan, StepResult
from graphspec.engine.stop import FinishReason
from support.engine_sim import PLAIN, Sim

FULL = Dispatch(k=3, key=CaptureKey(Phase.TARGET_VERIFY, 3, 4))
MIXED = Dispatch(k=3, reason=Fallthrough.MIXED_BATCH)
DRAFTED = Dispatch(k=3, key=CaptureKey(Phase.DRAFT, 3, 4))
DRAWN = Dispatch(k=3, reason=Fallthrough.DRAWN_ON_HOST)


def part(request, drafts, trimmed=0):
    return Scheduled(
        request=request,
        position=5,
        tokens=(1,) * (1 + drafts),
        drafts=drafts,
        samples=True,
        blocks=(1, 2),
        trimmed=trimmed,
    )


def step(parts, route, **more):
    return StepPlan(requests=tuple(parts), prefill=False, route=route, depth=3, **more)


def counted():
    """A full step of three requests with 3, 2 and no drafts, of which 3 and 0 were right and one more was left out, and a mixed
    step."""
    scheduler = Sim(PLAIN, KVLimits(block_size=4, num_blocks=9), lambda r, k: []).scheduler
    metrics = EngineMetrics(scheduler, 3)
    accepted = [Accepted(tokens=(1, 2, 3, 4)), Accepted(tokens=(7,)), Accepted(tokens=(8,))]
    result = StepResult(
        deltas=(
            # A stop rule kept two of four.
            Delta(request=0, tokens=(1, 2), finished=FinishReason.STOP),
            Delta(request=1, tokens=(7,)),
            Delta(request=2, tokens=(8,)),
        )
    )
    plan = step(
        [part(0, 3), part(1, 2, trimmed=1), part(2, 0)], FULL, admitted=((20, 16),), preempted=(9,)
    )
    metrics.count_step(plan, accepted, result, rows=16)
    chunk = attrs.evolve(part(1, 0), tokens=(1,) * 6, samples=False)
    metrics.count_step(step([chunk], MIXED), [None], StepResult(), rows=6)
    metrics.count_drafting([DRAFTED, DRAWN])
    metrics.count_drafting([DRAFTED])
    return metrics


def test_drafts_are_counted_as_they_were_verified():
    """What a stop rule cut off afterwards was right all the same; requests without drafts are no drafts; what was left out
    counts as wrong."""
    counts = counted().snapshot()
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (2, 6, 3)
    assert counts.trimmed_tokens == 1
    assert counts.accepted_at == (1, 1, 1)
    assert counts.acceptance_length == 2.5
    assert counts.generated_tokens == 4


def test_steps_are_counted_by_graph_by_reason_and_by_depth():
    """Each step is in one mode for one reason, and padding is what it computed for nobody."""
    counts = counted().snapshot()
    assert counts.modes == {("full", ""): 1, ("none", "mixed_batch"): 1}
    assert counts.draft_modes == {("full", ""): 2, ("none", "drawn_on_host"): 1}
    assert counts.depths == {3: 2}
    assert (counts.tokens, counts.padding) == (4 + 3 + 1 + 6, 16 - 8)
    assert counts.padding_share == 8 / 22
    assert (counts.prefix_queries, counts.prefix_hits, counts.preemptions) == (20, 16, 1)
    assert counts.finished == {"stop": 1}


def test_a_broken_row_is_no_accepted_token():
    """Where verification broke off there is no token behind the right drafts."""
    metrics = counted()
    before = metrics.snapshot()
    broken = [Accepted(tokens=(1, 2), broken=True)]
    metrics.count_step(step([part(0, 3)], FULL), broken, StepResult(), rows=4)
    assert metrics.snapshot().accepted_tokens - before.accepted_tokens == 2
    # And the snapshot from before did not change.
    assert before.accepted_tokens == 3


def test_before_the_first_draft_there_is_no_acceptance_length():
    """An average of nothing is no number."""
    scheduler = Sim(PLAIN, KVLimits(block_size=4, num_blocks=9), lambda r, k: []).scheduler
    assert math.isnan(EngineMetrics(scheduler, 3).snapshot().acceptance_length)


def scraped(metrics):
    registry = CollectorRegistry()
    registry.register(EngineCollector("tiny", metrics.snapshot))
    return {
        (s.name, *sorted((k, v) for k, v in s.labels.items() if k != "model_name")): s.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for s in family.samples
        if s.labels["model_name"] == "tiny"
    }


def test_prometheus_reads_every_count_under_its_name():
    """Names and labels are those that dashboards of vLLM ask for, and ours for what it lacks."""
    samples = scraped(counted())
    assert samples == {
        ("vllm:spec_decode_num_drafts_total",): 2,
        ("vllm:spec_decode_num_draft_tokens_total",): 6,
        ("graphspec_engine_trimmed_draft_tokens_total",): 1,
        ("vllm:spec_decode_num_accepted_tokens_total",): 3,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", ("position", "0")): 1,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", ("position", "1")): 1,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", ("position", "2")): 1,
        ("vllm:generation_tokens_total",): 4,
        ("vllm:prefix_cache_queries_total",): 20,
        ("vllm:prefix_cache_hits_total",): 16,
        ("vllm:num_preemptions_total",): 1,
        ("vllm:request_success_total", ("finished_reason", "stop")): 1,
        ("graphspec_engine_steps_total", ("mode", "full"), ("reason", "")): 1,
        ("graphspec_engine_steps_total", ("mode", "none"), ("reason", "mixed_batch")): 1,
        ("graphspec_engine_draft_phases_total", ("mode", "full"), ("reason", "")): 2,
        ("graphspec_engine_draft_phases_total", ("mode", "none"), ("reason", "drawn_on_host")): 1,
        ("graphspec_engine_verified_depth_total", ("k", "3")): 2,
        ("graphspec_engine_tokens_total", ("kind", "real")): 14,
        ("graphspec_engine_tokens_total", ("kind", "padding")): 8,
        ("vllm:num_requests_running",): 0,
        ("vllm:num_requests_waiting",): 0,
        ("vllm:kv_cache_usage_perc",): 0,
        ("graphspec_engine_acceptance_length",): 2.5,
    }
