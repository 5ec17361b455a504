"""Draft phases in graphs: a replay gives what the passes give, and a phase without a graph says why.

Whatever no request owns is poisoned: tokens, positions and features of padding rows are unlike real ones, rows behind a
graph are out of range, and the scratch block is full of large numbers.
"""

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.dispatch import Fallthrough
from graphspec.engine.sampling import SamplingParams
from support.draft_graphs import play_by_schedule, sealed_drafts, twins
from support.drafters import HEADS, K, Stage, engine_spec
from support.tiny_engine import tiny_engine

PASSES = ("draft_model", "draft_model parallel", *HEADS)
"""Every method with a pass on the device."""
HOST = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
TABLE = [[1, 2, 4], [3, 4, 3], [5, 6, 2]]
PROMPTS = [[5, 6, 7, 8] * 3, list(range(20, 43)), [9]]


def dynamic(folder, name, **section):
    # Parallel drafting needs a v1 runner, which has full graphs for one depth alone.
    if "parallel" not in name:
        section["num_speculative_tokens_per_batch_size"] = TABLE
    return engine_spec(folder, name, **section)


@pytest.mark.parametrize("name", PASSES)
def test_replayed_drafts_are_those_of_the_passes_to_the_bit(tmp_path, name):
    """Depths and batches up and down, so that other graphs run between: drafts and written keys are equal to the bit, and
    those that a fresh drafter makes of the whole text without padding."""
    check(dynamic(tmp_path, name), steps=14)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("name", PASSES)
def test_the_same_on_longer_scripts(tmp_path, name, seed):
    """The same promise, three scripts of five times the length."""
    check(dynamic(tmp_path, name), steps=120, seed=seed)


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_a_quantised_head_is_in_the_graph_too(tmp_path, kind):
    """The narrow weights are unpacked inside of the graph, from tensors at fixed addresses."""
    check(dynamic(tmp_path, "eagle", draft_lm_head_quantization=kind), steps=8)


def check(spec, steps, seed=1):
    replayed, plain, manager = twins(spec, seed)
    plain._compare = lambda *_: None
    for _ in range(steps):
        play_by_schedule(replayed)
        play_by_schedule(plain)
        assert [a.drafts for a in replayed.actors] == [a.drafts for a in plain.actors]
        found, wanted = (stage.caches(stage.drafter) for stage in (replayed, plain))
        for name, cache in found.items():
            # Padding rows share the scratch block, and write to it in any order.
            assert torch.equal(cache[:, :, 1:], wanted[name][:, :, 1:])
    assert replayed.drafter.taken == plain.drafter.taken
    used = {key for key, _ in replayed.drafter.taken if key is not None}
    assert len(used) >= 3 or used == manager.captured > set()
    assert replayed.compared > steps


QUICK = ("eagle", "dflash", "mtp multi-module")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.deep) for n in PASSES]
)
def test_every_graph_of_a_drafter_is_captured_and_none_later(tmp_path, name, monkeypatch):
    """Captured set = planned set. Once ready, requests are served from the graphs, and the backend is asked for no more."""
    engine = tiny_engine(dynamic(tmp_path, name))
    drafts = {key for key in engine._manager.captured if key.phase.value == "draft"}
    spec = engine._spec
    wanted = {k for k in spec.schedule.depths if spec.speculative.speculator.draft_passes(k)}
    assert {key.k for key in drafts} == wanted > set()
    monkeypatch.setattr(TapeBackend, "capture", lambda *_: pytest.fail("captured after ready"))
    engine.generate(PROMPTS, SamplingParams(max_tokens=12))
    assert engine.counts.draft_modes[("full", "")] > 0
    assert {reason for _, reason in engine.counts.draft_modes} <= {"", "first_pass_only"}


@pytest.mark.parametrize("name", HOST)
def test_drafts_from_the_host_say_so(tmp_path, name):
    """The plan has no draft graph for such a method, and each step that wants drafts counts that reason."""
    engine = tiny_engine(engine_spec(tmp_path, name))
    assert all(key.phase.value != "draft" for key in engine._manager.plan.planned)
    engine.generate(PROMPTS, SamplingParams(max_tokens=6))
    assert set(engine.counts.draft_modes) == {("none", "no_draft_phase")}


def test_where_nobody_wants_drafts_there_is_no_draft_phase(tmp_path):
    """Requests that opted out have none: nothing is counted."""
    drafting = tiny_engine(engine_spec(tmp_path, "eagle"))
    drafting.generate(PROMPTS, SamplingParams(max_tokens=6, speculate=False))
    assert drafting.counts.draft_modes == {}


@pytest.mark.parametrize(
    ("name", "section", "reason"),
    [
        ("eagle", {"enforce_eager": True}, "not_full_mode"),
        ("eagle", {"disable_padded_drafter_batch": True}, "ragged_drafts"),
        ("eagle", {"num_speculative_tokens": 1}, "first_pass_only"),
        ("mtp multi-module", {"num_speculative_tokens": 2}, "first_pass_only"),
    ],
)
def test_a_draft_phase_that_the_contract_keeps_out_of_graphs_says_why(
    tmp_path, name, section, reason
):
    """What the plan says and what the run counts are one reason."""
    spec = engine_spec(tmp_path, name, **section)
    engine = tiny_engine(spec)
    planned = engine._manager.plan.why_no_draft(spec.num_speculative_tokens, 1)
    assert planned is Fallthrough[reason.upper()]
    engine.generate(PROMPTS, SamplingParams(max_tokens=6))
    assert set(engine.counts.draft_modes) == {("none", reason)}


def test_a_loop_that_draws_its_drafts_runs_on_the_host_and_says_so(tmp_path):
    """Drawing takes a number of the request's own between passes. Greedy steps of the same engine run in graphs."""
    engine = tiny_engine(engine_spec(tmp_path, "eagle", draft_sample_method="probabilistic"))
    engine.generate(PROMPTS, SamplingParams(max_tokens=6, temperature=0.8, seed=1))
    assert engine.counts.draft_modes[("none", "drawn_on_host")] > 0
    assert ("full", "") not in engine.counts.draft_modes
    engine.generate(PROMPTS, SamplingParams(max_tokens=6))
    assert engine.counts.draft_modes[("full", "")] > 0


def test_one_pass_is_in_a_graph_whether_drafts_are_drawn_or_not(tmp_path):
    """Drawing comes after the pass, from the logits that it gives."""
    spec = engine_spec(tmp_path, "draft_model parallel", draft_sample_method="probabilistic")
    engine = tiny_engine(spec)
    engine.generate(PROMPTS, SamplingParams(max_tokens=6, temperature=0.8, seed=1))
    assert set(engine.counts.draft_modes) == {("full", "")}


@pytest.mark.parametrize("name", ["eagle", "dflash"])
def test_padding_that_a_pass_reads_is_noticed(tmp_path, name):
    """The proof can fail: rows that are written one short are out of range, and reading one is an error."""
    spec = engine_spec(tmp_path, name)
    stage = Stage(spec, seed=1)
    manager = sealed_drafts(stage.drafter, spec)
    key = manager.plan.draft_key(K, 2)
    stage.drafter.fill_draft_example(key, 0)
    (ids,) = [t for n, t in stage.drafter.static_tensors().items() if n == "draft.token_ids"]
    ids[1] = spec.model.vocab_size
    with pytest.raises(IndexError):
        manager.replay(key)
