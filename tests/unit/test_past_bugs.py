"""Section 11 of shared/reference/speculative.md: each past bug that this layer could have, as a test with its number.

Left to later issues, with the reason:
21 (the drafter's graph manager: there is none yet; the plan's side is here), 22 (dispatch of prompt chunks: the engine's
step, with capture), 24 (acceptance coefficients of TP ranks: adaptive verification's estimator; depths of DP ranks are
here), 29 (the chunk rule itself: the scheduler; what it reads is here), 30 (masks and unproven blocks: the block
manager; the predicates are here), 31 (a fingerprint of engines that share storage: the connector; what this layer
decides about sharing is here), 32 to 38 (the n-gram kernels), 39 to 41 and 43 to 49 (verification kernels and the
mapping of context); of 42 and 50 the config's part is here.
"""

import copy
import pickle
import re
from pathlib import Path

import pytest

from graphspec.capture.plan import plan_capture
from graphspec.config.compilation import CudagraphMode
from graphspec.config.speculative import SpeculativeConfig
from graphspec.engine.drafters.ngram import NgramSpeculator
from graphspec.engine.drafters.protocol import Computed, TargetStep
from graphspec.fields import policies
from graphspec.kernels import NgramIndex
from graphspec.resolve import check
from graphspec.resolve.spec import SpeculativeSpec
from graphspec.speculators.mtp_families import family_of
from support.peer_cases import folder
from support.speculative import (
    CASES,
    METHODS,
    engine,
    keys_of,
    notes_of,
    peer_config,
    refused_case,
    resolved,
    resolved_case,
    section_of,
    variant,
)

ROOT = Path(__file__).resolve().parents[2]
TABLE = {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]}

GRAPH_CHANGES = {
    "k in static shapes": ("dflash", {"num_speculative_tokens": 5}),
    "parallel flag": ("eagle3", {"parallel_drafting": True}),
    "draft layers": ("eagle3", {"num_hidden_layers": 2}),
    "draft positions": ("eagle3", {"max_position_embeddings": 16384}),
    "attention backend": ("eagle3", {"attention_backend": "flash_attn"}),
    "returned tensors": ("eagle3", {"model": folder("eagle3-head-aux")}),
    "index sharing": ("mtp", {"index_share_for_mtp_iteration": True}),
    "confidence head": ("dspark", {"enable_adaptive_verification": True}),
    "layout": ("dspark", {"model": folder("dspark-qwen3-fill")}),
    "refiner": ("dflash", {"model": folder("dflash-xpress")}),
    "vocabulary map": ("draft_model", {"use_heterogeneous_vocab": True}),
}


@pytest.mark.parametrize("what", GRAPH_CHANGES)
def test_11_01_nothing_that_changes_a_graph_is_missing_from_the_hash(tmp_path, what):
    """Static shapes, layer count, backend and returned tensors each change the COMPILE hash."""
    name, changes = GRAPH_CHANGES[what]
    facts = {k: v for k, v in changes.items() if k not in policies(SpeculativeConfig)}
    if facts:
        changes = {"model": variant(tmp_path / "d", "eagle3-head", **facts)}
    assert keys_of(resolved_case(name, changes))[0] != keys_of(resolved_case(name))[0]


def test_11_01_every_field_of_the_contract_is_keyed_or_says_why_not():
    """No field of the resolved section can be forgotten: a policy is part of its declaration."""
    for policy in policies(SpeculativeSpec).values():
        assert policy.stage is not None or policy.reason


def test_11_02_a_folders_name_does_not_replace_an_explicit_method(tmp_path):
    """draft_model in a folder `my-eagle-draft` stays."""
    draft = variant(tmp_path / "my-eagle-draft", "draft-llama")
    assert resolved_case("draft_model", {"model": draft}).speculative.method == "draft_model"


def test_11_02_a_block_drafter_under_a_neutral_name_is_known(tmp_path):
    """A DFlash checkpoint is DFlash by its class, and not a draft_model with acceptance near 1."""
    draft = variant(tmp_path / "neutral", "dflash-qwen3")
    section = {"model": draft, "num_speculative_tokens": 7}
    made = resolved(section, "target-qwen3")
    assert made.speculative.method == "dflash"
    assert "declares" in notes_of(made)["method_inferred"]


def test_11_03_k_of_none_is_never_compared():
    """MTP without k: the depth comes first, and everything that depends on it after."""
    made = resolved_case("mtp multi-module", without="num_speculative_tokens")
    assert made.num_speculative_tokens == 2
    assert made.num_prefill_lookahead_tokens == 2


def test_11_04_the_default_model_is_applied_without_k():
    """mtp and dspark set themselves up from the target whether k is given or not."""
    for section in ({"method": "mtp"}, {"method": "mtp", "num_speculative_tokens": 1}):
        draft = resolved(section, "target-deepseek-n1").speculative.draft_model
        assert draft.source == folder("target-deepseek-n1")
        assert draft.architecture == "deepseek_mtp"


def test_11_05_dict_overrides_do_not_reach_the_draft_silently():
    """A mapping that stretches the target's positions is dropped for the draft, and a note says so by name."""
    stretched = {"hf_overrides": {"max_position_embeddings": 32768}}
    spec = resolved_case("draft_model", model=stretched)
    assert spec.model.max_model_len == 32768
    assert spec.max_draft_len == 8192
    notes = notes_of(spec)
    assert "max_position_embeddings" in notes["overrides_not_for_draft"]
    assert "8192" in notes["drafts_stop_early"]


@pytest.mark.parametrize("name", CASES)
def test_11_06_the_contract_and_its_overrides_are_picklable(name):
    """Engines send configs to spawned workers; a closure would not travel. A process of its own: test_4_2."""
    spec = resolved_case(name)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert keys_of(again) == keys_of(spec)


@pytest.mark.parametrize(
    ("method", "draft", "target", "positions"),
    [
        ("eagle3", "eagle3-head-2k-linear", "target-llama-32k", 32768),
        ("eagle3", "eagle3-head-2k-yarn", "target-llama-32k", 2048),
        ("eagle3", "eagle3-head-2k-longrope", "target-llama-32k", 2048),
        ("dflash", "dflash-qwen3-2k", "target-qwen3", 16384),
        ("dflash", "dflash-qwen3-2k-yarn", "target-qwen3", 2048),
        ("draft_model", "draft-llama-2k", "target-llama-32k", 2048),
    ],
)
def test_11_07_the_position_limit_is_raised_for_the_right_kinds_alone(
    method, draft, target, positions
):
    """Not where frequencies follow from it, and for dflash as for eagle."""
    section = {"method": method, "model": folder(draft), "num_speculative_tokens": 3}
    made = resolved(section, target).speculative.draft_model
    assert made.max_position_embeddings == positions


@pytest.mark.parametrize(("draft", "spread"), [("draft-llama", False), ("draft-moe", True)])
def test_11_08_expert_parallelism_follows_the_draft(draft, spread):
    """A dense draft does not inherit it, and a draft with experts does not lose it."""
    section = {"method": "draft_model", "model": folder(draft), "num_speculative_tokens": 3}
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    made = resolved(section, "target-moe", parallel=parallel).speculative
    assert made.draft_parallel.enable_expert_parallel is spread


def test_11_09_parallelism_is_decided_on_the_rewritten_config():
    """The experts of a DeepSeek draft are counted on what runs, whose class is already the draft's."""
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    made = resolved_case("mtp", parallel=parallel).speculative
    assert made.draft_model.architectures == ("DeepSeekMTPModel",)
    assert made.draft_model.num_experts == 16
    assert made.draft_parallel.enable_expert_parallel


def test_11_10_every_fact_of_the_draft_is_of_the_rewritten_config(tmp_path):
    """Type, class, text facts and typed fields come from one config, nested parts among them."""
    made = resolved_case("eagle3", {"model": folder("speculators-peagle")}).speculative.draft_model
    inner = peer_config("speculators-peagle")["transformer_layer_config"]
    assert made.architecture == "speculators"
    assert made.architectures == ("PeagleLlamaForCausalLM",)
    assert (made.hidden_size, made.vocab_size) == (inner["hidden_size"], inner["vocab_size"])
    head = resolved_case("eagle").speculative.draft_model
    assert (head.architecture, head.architectures) == ("eagle", ("EagleLlamaForCausalLM",))


@pytest.mark.parametrize("name", CASES)
def test_11_11_nothing_of_drafting_leaks_into_the_target(name):
    """The target's model is the same with and without drafting, for methods that copy or alias it too."""
    alone = resolved(None, CASES[name].target)
    assert resolved_case(name).model == alone.model


def test_11_12_the_callers_mapping_is_not_changed():
    """Neither top level nor section."""
    data = engine(section_of("dspark"), "target-qwen3", model={"hf_overrides": {"hidden_act": "x"}})
    before = copy.deepcopy(data)
    assert check(data).spec
    assert data == before


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"ngram", "ngram_gpu"}))
@pytest.mark.parametrize("option", ["prompt_lookup_min", "prompt_lookup_max"])
def test_11_13_prompt_lookup_of_another_method_is_refused(name, option):
    """vLLM silently sets it to 0."""
    assert list(refused_case(name, {option: 3})) == [f"speculative.{option}"]


def test_11_14_both_spellings_of_ngram_are_one():
    """The bracketed spelling of a model is the same contract."""
    k = {"num_speculative_tokens": 3}
    made = [resolved({"model": spelling, **k}) for spelling in ("ngram", "[ngram]")]
    assert made[0] == made[1] == resolved({"method": "ngram", **k})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("dflash", "xpress_topc", 0),
        ("eagle", "index_share_for_mtp_iteration", False),
        ("ngram", "speculator_options", {}),
        ("ngram", "fly_entropy_threshold", 0),
        ("ngram", "suffix_decoding_max_cached_requests", 0),
        ("ngram", "suffix_decoding_max_spec_factor", 0),
    ],
)
def test_11_14_zero_and_false_count_as_set(name, option, value):
    """Each is refused where it is not read, exactly as another value would be."""
    assert list(refused_case(name, {option: value})) == [f"speculative.{option}"]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_speculative_tokens": "4", "rejection_sample_method": "fly", "fly_window_size": 9},
        {
            "num_speculative_tokens": 0,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [1.0],
        },
        {"num_speculative_tokens": True, **TABLE},
    ],
)
def test_11_15_a_simple_error_is_not_hidden_behind_what_follows_from_it(changes):
    """A wrong k is reported, and no rule that would need it."""
    assert list(refused_case("ngram", changes)) == ["speculative.num_speculative_tokens"]


@pytest.mark.parametrize("kind", ["pangu", "ultra", "moe", "pangu_ultra", "", "u"])
def test_11_16_a_part_of_a_model_type_is_another_type(kind):
    """The substring test of one family claimed all of these."""
    assert family_of({"model_type": kind}) is None


@pytest.mark.parametrize("name", CASES)
def test_11_17_every_contract_can_be_printed(name):
    """Methods without a draft model too, ngram_gpu among them; method, k and schedule stand in the text."""
    text = repr(resolved_case(name))
    assert f"method='{name.split()[0]}'" in text
    assert "num_speculative_tokens=4" in text
    assert "schedule=" in text


def test_11_18_documentation_says_what_happens():
    """Defaults that a field's text states are those of the contract, and names in it exist."""
    docs = {name: policy.doc for name, policy in policies(SpeculativeConfig).items()}
    assert "1" not in docs["prompt_lookup_min"]
    assert "DSpark" not in docs["enable_adaptive_verification"]
    suffix = resolved_case("suffix").speculative.speculator
    for short in ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob"):
        assert f"none: {getattr(suffix, short)}" in docs[f"suffix_decoding_{short}"]
    made = resolved_case("ngram", {"rejection_sample_method": "fly"}).speculative.verification
    assert f"none: {made.fly_entropy_threshold}" in docs["fly_entropy_threshold"]
    assert f"none: {made.fly_entropy_top_k}" in docs["fly_entropy_top_k"]
    known = {*docs, "tensor_parallel_size"}
    for text in docs.values():
        named = re.findall(r"\b(?:synthetic|fly|prompt_lookup|draft)_\w+", text)
        assert set(named) <= known | {"draft_model"}


@pytest.mark.parametrize("name", ["custom_class", "suffix", "ngram_gpu", "extract_hidden_states"])
def test_11_19_a_fixed_depth_proposer_loses_the_table_loudly(name):
    """No assertion inside generation, and no table that is silently ignored."""
    made = resolved_case(name, TABLE, compilation={"runner": "v1"}).speculative.schedule
    assert made.granted.depths == (4,)
    assert made.asked is not None
    assert name in made.reasons[0]


@pytest.mark.parametrize("k", [0, 1, 3])
def test_11_20_ngram_follows_the_depth_that_it_is_given(k):
    """The drafter takes the step's k as an argument and keeps none of its own."""
    index = NgramIndex(min_n=1, max_n=2, k=3, max_model_len=100, backend="python")
    drafter, text = NgramSpeculator(index), [1, 2, 3, 4, 5, 1, 2]
    for wanted in (3, k):
        asked = Computed(request=1, tokens=text, first=0, count=7, row=0, blocks=(), wanted=wanted)
        (proposal,) = drafter.propose(TargetStep(requests=[asked]))
        assert proposal.tokens == [3, 4, 5][:wanted]


def plan(table, k=4, requests=64, **compilation):
    section = {"num_speculative_tokens": k, "num_speculative_tokens_per_batch_size": table}
    return plan_capture(
        resolved_case(
            "ngram", section, scheduler={"max_num_seqs": requests}, compilation=compilation
        )
    )


def test_11_21_a_depth_of_zero_never_matches_a_graph_of_another_depth():
    """Graphs are found by depth and requests: 8 tokens of 8 requests are not those of 2 requests with 3 drafts."""
    made = plan([[1, 4, 3], [5, 64, 0]])
    for requests in range(1, 65):
        for proposed in (0, 3):
            key = made.key_for(requests, proposed)
            assert key.k == made.depth_to_verify(requests, proposed)
            assert key.bucket >= requests
            assert key.tokens == key.bucket * (1 + key.k) > 0


@pytest.mark.parametrize("table", [[[1, 16, 3], [17, 64, 2]], [[1, 2, 4], [5, 8, 1]], [[1, 64, 0]]])
def test_11_23_every_depth_of_the_schedule_has_its_graphs(table):
    """No batch size of steady decoding falls to a slow path, and what is captured is what can be reached."""
    made = plan(table)
    assert made.fallthrough() == ()
    assert set(made.keys) == made.reachable()


def test_11_23_a_batch_that_does_not_fit_the_budget_is_lowered_and_told():
    """batch x (k + 1) above the budget lowers max_num_seqs with a note that has the numbers."""
    scheduler = {"max_num_seqs": 64, "max_num_batched_tokens": 100}
    spec = resolved_case("eagle", scheduler=scheduler)
    assert spec.scheduler.max_num_seqs == 20
    assert "105 tokens" in notes_of(spec)["max_num_seqs_lowered"]
    assert plan_capture(spec).fallthrough() == ()


@pytest.mark.parametrize("name", ["ngram", "eagle3", "mtp"])
def test_11_24_ranks_cannot_choose_different_depths(name):
    """With data parallelism the table is cleared, for each method that could follow it."""
    spec = resolved_case(name, TABLE, parallel={"data_parallel_size": 2})
    assert spec.schedule.depths == (4,)
    assert spec.speculative.schedule.reasons[0].startswith("data_parallel: ")


def test_11_25_every_depth_is_captured_or_the_mode_says_why_not():
    """v2 captures each depth; v1, which knows one length, is lowered to PIECEWISE with the reason and the way out."""
    assert {key.k for key in plan(TABLE["num_speculative_tokens_per_batch_size"]).keys} == {4, 1}
    spec = resolved_case("ngram", TABLE, compilation={"runner": "v1"})
    assert spec.mode.granted is CudagraphMode.PIECEWISE
    assert "set compilation.runner to v2" in spec.mode.reasons[0]


@pytest.mark.parametrize("value", [3.9, 4.0, True, False, "4"])
def test_11_26_no_number_of_a_table_is_converted(value):
    """Floats, booleans and text are refused at their place in the table."""
    section = {"num_speculative_tokens_per_batch_size": [[1, 64, value]]}
    where = "speculative.num_speculative_tokens_per_batch_size[0][2]"
    assert list(refused_case("ngram", section)) == [where]


def test_11_27_the_lookahead_is_read_in_one_place():
    """Scheduler, warmup and engine read the contract; the method's own answer is asked by resolution alone."""
    asked = re.compile(r"\.(num_(prefill_|hash_)?lookahead_tokens|max_num_new_slots\w+)\(")
    outside = [
        path
        for part in ("graphspec", "capture", "cache", "kernels")
        for path in (ROOT / part).rglob("*.py")
        if asked.search(path.read_text())
    ]
    places = {path.relative_to(ROOT).parts[:2] for path in outside}
    assert places == {("graphspec", "resolve"), ("graphspec", "speculators")}


@pytest.mark.parametrize("name", ["dflash", "dspark fill-in", "eagle3", "ngram"])
def test_11_28_the_query_length_is_not_the_lookahead(name):
    """DFlash reserves k + 1 and verifies 1 + k, EAGLE k, n-gram nothing; all verify 5 tokens for k = 4."""
    spec = resolved_case(name)
    assert spec.uniform_decode_query_len == 5
    reserved = {"eagle3": 4, "ngram": 0}.get(name, 5)
    assert spec.num_lookahead_tokens == reserved


def test_11_29_the_drafters_read_window_is_known_before_chunks_are_cut():
    """The contract has it for every method, so that one rule can cut all prompts."""
    assert {name: resolved_case(name).num_prefill_lookahead_tokens for name in METHODS} == {
        "ngram": 0,
        "ngram_gpu": 0,
        "suffix": 0,
        "draft_model": 0,
        "eagle": 1,
        "eagle3": 1,
        "mtp": 1,
        "dflash": 1,
        "dspark": 1,
        "extract_hidden_states": 0,
        "custom_class": 0,
    }


@pytest.mark.parametrize("off", [False, True])
def test_11_30_a_drop_that_is_off_leaves_nothing_behind(off):
    """No drop, no lookahead hashes that would only pay for it, and no note about either."""
    spec = resolved_case("eagle3", {"disable_eagle_block_drop": off})
    assert spec.use_eagle_block_drop is not off
    assert spec.num_hash_lookahead_tokens == (0 if off else 1)
    assert not any("block" in text for text in notes_of(spec).values())


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].target == "target-llama"])
def test_11_31_engines_on_shared_storage_keep_the_hashes_that_all_know(name):
    """With a connector no drafter changes what a block hash covers."""
    spec = resolved_case(name, kv_cache={"connector": {"name": "shared"}})
    assert spec.num_hash_lookahead_tokens == 0


def test_11_42_vocabularies_that_differ_by_padding_need_a_word():
    """Other sizes are refused with both numbers, and mapped when that is asked for."""
    section = {"model": folder("draft-llama-vocab")}
    problem = refused_case("draft_model", section)["speculative.model"]
    assert "32064" in problem.found
    assert "32000" in problem.wanted
    mapped = resolved_case("draft_model", {**section, "use_heterogeneous_vocab": True})
    assert mapped.speculative.verification.use_heterogeneous_vocab


def test_11_50_synthetic_acceptance_says_what_it_is():
    """A note on every contract that has it, in no other."""
    section = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2}
    assert "never for serving" in notes_of(resolved_case("ngram", section))["synthetic_lossy"]
    assert "synthetic_lossy" not in notes_of(resolved_case("ngram"))
