"""Sections 1.6 to 1.10 of shared/reference/speculative.md: verification, options of one method, and the checks."""

import pytest

from graphspec.fields import evolve
from graphspec.resolve.verification import rates_of_length
from support.peer_cases import folder
from support.speculative import (
    CASES,
    keys_of,
    notes_of,
    refused,
    refused_case,
    resolved_case,
    variant,
)

SYNTHETIC = {"rejection_sample_method": "synthetic"}
FLY = {"rejection_sample_method": "fly"}
KERNELS = {"kernels": {"attention_backend": "TRITON_ATTN", "moe_backend": "cutlass"}}


def verification(section=None, name="ngram"):
    return resolved_case(name, section).speculative.verification


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("name", CASES)
def test_1_6_lossless_rejection(name, method):
    """standard, the default, and block go with every method and have no options."""
    made = verification({"rejection_sample_method": method}, name)
    assert made.rejection_sample_method.value == method
    assert (made.synthetic_acceptance_rates, made.fly_window_size) == (None, None)
    assert verification(None, name).rejection_sample_method.value == "standard"


def test_1_6_synthetic_rates_are_kept():
    """Rates in [0, 1], one for each of k drafts, never rising."""
    made = verification({**SYNTHETIC, "synthetic_acceptance_rates": [1, 0.5, 0.5, 0]})
    assert made.synthetic_acceptance_rates == (1.0, 0.5, 0.5, 0.0)


RATES = {
    "too few": ([0.9, 0.5], "synthetic_acceptance_rates"),
    "too many": ([0.9] * 5, "synthetic_acceptance_rates"),
    "none": ([], "synthetic_acceptance_rates"),
    "above 1": ([1.1, 0.5, 0.5, 0], "synthetic_acceptance_rates[0]"),
    "below 0": ([1, 0.5, 0.5, -0.1], "synthetic_acceptance_rates[3]"),
    "rising": ([0.5, 0.6, 0.2, 0.1], "synthetic_acceptance_rates[1]"),
}


@pytest.mark.parametrize("name", RATES)
def test_1_6_synthetic_rates_that_are(name):
    """Each broken rule is named at the rate that breaks it."""
    rates, where = RATES[name]
    found = refused_case("ngram", {**SYNTHETIC, "synthetic_acceptance_rates": rates})
    assert f"speculative.{where}" in found


LENGTHS = [
    (1, 3, (0, 0, 0)),
    (2.5, 4, (1, 0.5, 0, 0)),
    (3, 4, (1, 1, 0, 0)),
    (3.4, 5, (1, 1, 0.3999999999999999, 0, 0)),
    (5, 4, (1, 1, 1, 1)),
]


@pytest.mark.parametrize(("length", "k", "rates"), LENGTHS)
def test_1_6_synthetic_length_becomes_rates(length, k, rates):
    """The examples of 9.3: the contract has rates alone, with the least variance, and their sum is length - 1."""
    section = {
        **SYNTHETIC,
        "synthetic_acceptance_length": length,
        "num_speculative_tokens": k,
    }
    made = verification(section).synthetic_acceptance_rates
    assert made == rates == rates_of_length(length, k)
    assert 1 + sum(made) == pytest.approx(length)


@pytest.mark.parametrize("length", [0, 0.99, -1, 5.01])
def test_1_6_synthetic_length_outside_1_to_k_plus_1(length):
    """The range check is against k + 1: all drafts and the target's token."""
    found = refused_case("ngram", {**SYNTHETIC, "synthetic_acceptance_length": length})
    assert "from 1 to 5" in found["speculative.synthetic_acceptance_length"].wanted


@pytest.mark.parametrize("other", ["standard", "block", "fly"])
@pytest.mark.parametrize(
    "option", [{"synthetic_acceptance_rates": [0, 0, 0, 0]}, {"synthetic_acceptance_length": 1}]
)
def test_1_6_synthetic_options_need_synthetic(other, option):
    """Zeros and the smallest length count as set."""
    found = refused_case("ngram", {"rejection_sample_method": other, **option})
    assert f"speculative.{next(iter(option))}" in found


@pytest.mark.parametrize(
    "given", [{}, {"synthetic_acceptance_rates": [1] * 4, "synthetic_acceptance_length": 5}]
)
def test_1_6_synthetic_wants_exactly_one_of_two(given):
    """Neither and both are refused."""
    found = refused_case("ngram", {**SYNTHETIC, **given})
    assert "exactly one of" in found["speculative.rejection_sample_method"].wanted


@pytest.mark.parametrize(("k", "window"), [(2, 1), (4, 3), (7, 6), (8, 6), (20, 6)])
def test_1_6_fly_window_is_6_or_k_minus_1(k, window):
    """The default window; threshold and top-k default to 0.3 and 3."""
    made = verification({**FLY, "num_speculative_tokens": k})
    assert made.fly_window_size == window
    assert (made.fly_entropy_threshold, made.fly_entropy_top_k) == (0.3, 3)


def test_1_6_fly_values_are_kept():
    """Given values replace the defaults, a threshold of 0 too."""
    given = {"fly_window_size": 2, "fly_entropy_threshold": 0, "fly_entropy_top_k": 9}
    made = verification({**FLY, **given})
    assert (made.fly_window_size, made.fly_entropy_threshold, made.fly_entropy_top_k) == (2, 0.0, 9)


@pytest.mark.parametrize("window", [4, 5])
def test_1_6_fly_window_is_below_k(window):
    """An explicit window of k or more is refused."""
    found = refused_case("ngram", {**FLY, "fly_window_size": window})
    assert "(4)" in found["speculative.fly_window_size"].wanted


def test_1_6_fly_is_lossy_and_says_so():
    """One note: the output distribution changes."""
    assert "distribution" in notes_of(resolved_case("ngram", FLY))["fly_lossy"]


ADAPTIVE = {"enable_adaptive_verification": True}


@pytest.mark.parametrize("name", CASES)
def test_1_6_adaptive_verification_and_drawn_drafts_need_a_draft_model(name):
    """Every model-based drafter takes both; the others, which have no confidence and no probabilities, neither."""
    drawn = {"draft_sample_method": "probabilistic"}
    if not resolved_case(name).speculative.speculator.has_draft_model:
        assert list(refused_case(name, ADAPTIVE)) == ["speculative.enable_adaptive_verification"]
        assert list(refused_case(name, drawn)) == ["speculative.draft_sample_method"]
        return
    assert verification(drawn, name).draft_sample_method.value == "probabilistic"
    if "parallel" not in name:  # parallel drafting is in v1 alone, and adaptive verification is not
        assert verification(ADAPTIVE, name).enable_adaptive_verification


@pytest.mark.parametrize("name", CASES)
def test_1_6_heterogeneous_vocabulary_is_for_draft_model(name):
    """No other method maps between vocabularies."""
    mapped = {"use_heterogeneous_vocab": True}
    if name == "draft_model":
        assert verification(mapped, name).use_heterogeneous_vocab
    elif name.split()[0] != "draft_model":
        assert list(refused_case(name, mapped)) == ["speculative.use_heterogeneous_vocab"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("draft_sample_method", "probabilistic"), ("use_local_argmax_reduction", True)],
)
def test_1_6_heterogeneous_vocabulary_wants_greedy_drafts_from_full_logits(option, value):
    """Three restrictions [S]: the method, greedy drafts, no local argmax."""
    given = {"use_heterogeneous_vocab": True, option: value, "model": folder("draft-llama-vocab")}
    assert f"speculative.{option}" in refused_case("draft_model", given)


@pytest.mark.parametrize(("asked", "made"), [(None, 128), (64, 64)])
def test_1_7_dspark_draft_topk_falls_back_to_the_checkpoint(asked, made):
    """As asked, else the checkpoint's; a checkpoint without one has none."""
    section = {"dspark_draft_topk": asked, "model": folder("dspark-qwen3-topk")}
    assert resolved_case("dspark", section).speculative.speculator.draft_topk == made
    assert resolved_case("dspark").speculative.speculator.draft_topk is None


@pytest.mark.parametrize(("topk", "fine"), [(151936, True), (151937, False)])
def test_1_7_dspark_draft_topk_is_within_the_drafts_vocabulary(topk, fine):
    """At most the draft's vocabulary."""
    if fine:
        assert resolved_case("dspark", {"dspark_draft_topk": topk})
    else:
        found = refused_case("dspark", {"dspark_draft_topk": topk})
        assert "151936" in found["speculative.dspark_draft_topk"].wanted


def test_1_7_dspark_draft_topk_is_for_qwen3_drafts(tmp_path):
    """Other drafts score the whole vocabulary and would ignore it."""
    target = variant(tmp_path / "v4", "target-deepseek-n1", model_type="deepseek_v4")
    section = {"method": "dspark", "num_speculative_tokens": 3, "dspark_draft_topk": 64}
    found = refused(section, target)
    assert "Qwen3" in found["speculative.dspark_draft_topk"].wanted


@pytest.mark.parametrize(("size", "fine"), [(1, True), (None, False), (2, False)])
def test_1_7_dspark_draft_topk_needs_a_draft_on_one_device(size, fine):
    """Candidates are ranked over the whole vocabulary, so the draft's tensor parallel size is 1."""
    given = {"dspark_draft_topk": 64, "draft_tensor_parallel_size": size}
    parallel = {"tensor_parallel_size": 2}
    if fine:
        assert resolved_case("dspark", given, parallel=parallel)
    else:
        found = refused_case("dspark", given, parallel=parallel)
        assert "draft_tensor_parallel_size" in found["speculative.dspark_draft_topk"].hint


TOPC = [(None, {}, 256), (0, {}, 0), (64, {}, 64), (None, {"without": "xpress_topc"}, 512)]


@pytest.mark.parametrize(("asked", "checkpoint", "made"), TOPC)
def test_1_7_xpress_topc_is_as_asked_else_the_checkpoints_else_512(
    tmp_path, asked, checkpoint, made
):
    """0 is the whole vocabulary and not an absent value."""
    draft = variant(tmp_path / "x", "dflash-xpress", **checkpoint)
    section = {"model": draft, "xpress_topc": asked}
    assert resolved_case("dflash", section).speculative.speculator.xpress_topc == made


@pytest.mark.parametrize("topc", [0, 64])
def test_1_7_xpress_topc_needs_a_refiner(topc):
    """A DFlash checkpoint without an XPress refiner has none, and a given value is refused."""
    assert resolved_case("dflash").speculative.speculator.xpress_topc is None
    assert list(refused_case("dflash", {"xpress_topc": topc})) == ["speculative.xpress_topc"]


def test_1_7_speculator_options_enter_the_hash_sorted():
    """The order in which options are written does not matter; a nested value does."""

    def key(options):
        return keys_of(resolved_case("custom_class", {"speculator_options": options}))[0]

    one = key({"a": 1, "b": {"x": [1, 2], "y": None}})
    assert one == key({"b": {"y": None, "x": [1, 2]}, "a": 1})
    assert len({one, key({"a": 1, "b": {"x": [2, 1], "y": None}}), key({}), key(None)}) == 4


INJECTED = [
    "target_model_config",
    "target_parallel_config",
    "draft_model_config",
    "draft_parallel_config",
    "speculator_config",
]
GONE = [
    "disable_by_batch_size",
    "speculative_token_tree",
    "disable_logprobs",
    "dspark_confidence_threshold",
    "dspark_budget_frac",
    "dspark_sps_curve",
    "dspark_online_sts",
    "synthetic_acceptance_rate",
]


@pytest.mark.parametrize("name", INJECTED)
def test_1_8_derived_objects_are_not_fields(name):
    """What resolution derives cannot be written."""
    assert refused_case("ngram", {name: {}})[f"speculative.{name}"].found == "an unknown key"


@pytest.mark.parametrize("name", ["ngram", "custom_class", "suffix"])
def test_1_8_without_a_draft_model_the_targets_sections_stand(name):
    """n-gram, suffix and custom_class have the target's own sections, and no copy that could differ."""
    spec = resolved_case(name, **KERNELS)
    assert spec.speculative.draft_model is None
    assert spec.speculative.draft_parallel is spec.parallel
    assert spec.speculative.draft_kernels is spec.kernels


def test_1_8_exported_states_come_from_a_copy_of_the_targets_model():
    """extract_hidden_states has the target's facts under a class of its own, and the target keeps its class."""
    spec = resolved_case("extract_hidden_states")
    draft = spec.speculative.draft_model
    assert draft.architectures == ("ExtractHiddenStatesModel",)
    assert spec.model.architectures == ("LlamaForCausalLM",)
    assert evolve(draft, architectures=spec.model.architectures) == spec.model


@pytest.mark.parametrize("name", GONE)
def test_1_9_fields_that_are_gone(name):
    """Older fields are unknown keys."""
    assert refused_case("ngram", {name: 1})[f"speculative.{name}"].found == "an unknown key"


def test_1_9_methods_that_are_gone():
    """mlp_speculator is unknown; medusa is no built-in and comes from a plugin."""
    found = refused({"method": "mlp_speculator", "num_speculative_tokens": 1})
    assert list(found) == ["speculative.method"]
    built_in = found["speculative.method"].wanted.partition(";")[0]
    assert "medusa" not in built_in
    assert "mlp_speculator" not in built_in


CHECKS = {
    1: ("ngram", {"tensor_parallel_size": 2}, "tensor_parallel_size"),
    2: ("ngram", {"num_speculative_tokens": None}, "num_speculative_tokens"),
    3: ("ngram", {"draft_lm_head_quantization": "fp8"}, "draft_lm_head_quantization"),
    4: ("ngram", {"num_speculative_tokens": 0}, "num_speculative_tokens"),
    5: ("ngram", SYNTHETIC, "rejection_sample_method"),
    6: ("draft_model", {"draft_tensor_parallel_size": 8}, "draft_tensor_parallel_size"),
    7: ("eagle", {"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab"),
    8: ("draft_model", {"model": folder("draft-llama-vocab")}, "model"),
    9: ("extract_hidden_states", {**FLY, "num_speculative_tokens": 2}, "rejection_sample_method"),
    10: (
        "eagle3",
        {**ADAPTIVE, "use_local_argmax_reduction": True},
        "use_local_argmax_reduction",
    ),
}


@pytest.mark.parametrize("number", CHECKS)
def test_1_10_check_number(number):
    """Each check of the reference's list refuses its example at its field."""
    name, changes, where = CHECKS[number]
    parallel = {"tensor_parallel_size": 8} if number == 6 else {}
    found = refused_case(name, changes, parallel=parallel)
    assert list(found) == [f"speculative.{where}"]


def test_1_10_item_9_fly_wants_two_drafts():
    """k = 1 leaves no draft after a rejected one."""
    found = refused_case("ngram", {**FLY, "num_speculative_tokens": 1})
    assert "at least 2" in found["speculative.num_speculative_tokens"].wanted


def test_1_10_item_10_dspark_has_its_own_confidence():
    """Adaptive verification with local argmax is fine where no draft logits are needed."""
    assert resolved_case("dspark", {**ADAPTIVE, "use_local_argmax_reduction": True})


def test_1_10_all_checks_come_together():
    """Where the reference stops at the first failure, one report has every one."""
    section = {
        "tensor_parallel_size": 2,
        "num_speculative_tokens": None,
        "draft_lm_head_quantization": "fp8",
        "synthetic_acceptance_length": 2,
        "use_heterogeneous_vocab": True,
        "enable_adaptive_verification": True,
        "fly_window_size": 1,
    }
    assert {f"speculative.{name}" for name in section} == set(refused_case("ngram", section))
