"""Section 1 of shared/reference/speculative.md: every field of the speculative section, row by row.

Where a row describes what vLLM overwrites or ignores, the rule here is the issue's: what a method does not read is
refused, and nothing is coerced.
"""

import pytest

from graphspec.config.compilation import CudagraphMode
from graphspec.config.kernels import KernelConfig, MoeBackend
from graphspec.config.kv_cache import KVCacheDtype
from graphspec.config.speculative import SpeculativeConfig
from graphspec.config.structure import structure
from graphspec.errors import SpecError
from graphspec.fields import config_class, policies
from graphspec.frozen import freeze
from graphspec.resolve.draft import draft_kernels
from graphspec.speculators.ngram import NgramSpeculatorConfig
from support.speculative import (
    CASES,
    METHODS,
    keys_of,
    notes_of,
    refused,
    refused_case,
    registered,
    resolved,
    resolved_case,
    variant,
)

DEFAULTS = {
    "method": None,
    "model": None,
    "num_speculative_tokens": None,
    "draft_tensor_parallel_size": None,
    "tensor_parallel_size": None,
    "enforce_eager": None,
    "revision": None,
    "code_revision": None,
    "quantization": None,
    "draft_load_config": None,
    "max_model_len": None,
    "num_speculative_tokens_per_batch_size": None,
    "parallel_drafting": None,
    "disable_padded_drafter_batch": False,
    "moe_backend": None,
    "attention_backend": None,
    "kv_cache_dtype": None,
    "draft_lm_head_quantization": None,
    "use_local_argmax_reduction": False,
    "index_share_for_mtp_iteration": None,
    "disable_eagle_block_drop": False,
    "disable_lookahead_block_hashes": False,
    "prompt_lookup_max": None,
    "prompt_lookup_min": None,
    "suffix_decoding_max_tree_depth": None,
    "suffix_decoding_max_cached_requests": None,
    "suffix_decoding_max_spec_factor": None,
    "suffix_decoding_min_token_prob": None,
    "rejection_sample_method": "standard",
    "synthetic_acceptance_rates": None,
    "synthetic_acceptance_length": None,
    "fly_window_size": None,
    "fly_entropy_threshold": None,
    "fly_entropy_top_k": None,
    "draft_sample_method": "greedy",
    "enable_adaptive_verification": False,
    "use_heterogeneous_vocab": False,
    "dspark_draft_topk": None,
    "xpress_topc": None,
    "speculator_options": None,
}
"""Every field. None where the reference gives a number: the number comes when the section is resolved, so that a value
which the user wrote is told from one that nobody did."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_1_default_of(name):
    """Each field that the reference lists exists, with its default."""
    value = getattr(SpeculativeConfig(), name)
    assert getattr(value, "value", value) == DEFAULTS[name]


def test_1_no_other_fields_and_five_groups():
    """The section has the fields of the reference and no more, in the five groups of the issue."""
    assert set(policies(SpeculativeConfig)) == set(DEFAULTS)
    assert [*dict.fromkeys(p.group for p in policies(SpeculativeConfig).values())] == [
        "source and parallelism",
        "budget and dynamic k",
        "draft overrides",
        "n-gram and suffix",
        "verification",
    ]


SYNTHETIC = {"rejection_sample_method": "synthetic"}
FLY = {"rejection_sample_method": "fly"}
BOUNDS = {
    "num_speculative_tokens": ({}, [1, 1024], [0, -1, 4.0, True, "4"]),
    "draft_tensor_parallel_size": ({}, [1, 8], [0, -1, "1", 1.0, True]),
    "enforce_eager": ({}, [True, False], ["false", 0, 1]),
    "max_model_len": ({}, [1, 4096], [0, "4096", 4096.0]),
    "quantization": ({}, ["fp8", "anything"], [8, True]),
    "revision": ({}, ["main"], [1]),
    "code_revision": ({}, ["main"], [1]),
    "draft_load_config": ({}, [{}, {"load_format": "dummy"}], ["dummy", []]),
    "parallel_drafting": ({}, [True, False], [1, "true"]),
    "disable_padded_drafter_batch": ({}, [True], [None, 1]),
    "moe_backend": ({}, ["triton"], ["trito", 1]),
    "attention_backend": ({}, ["flash_attn", "FLASH_ATTN", "auto", "AUTO"], ["NOPE", 1]),
    "kv_cache_dtype": ({}, ["fp8", "auto"], ["fp9"]),
    "draft_lm_head_quantization": ({}, ["fp8", "nvfp4"], ["int4", True]),
    "use_local_argmax_reduction": ({}, [True], [None, 1]),
    "index_share_for_mtp_iteration": ({}, [True, False], [0, "true"]),
    "disable_eagle_block_drop": ({}, [True], [1, None]),
    "disable_lookahead_block_hashes": ({}, [True], [1, None]),
    "prompt_lookup_max": ({}, [1], [0, True, 1.5]),
    "prompt_lookup_min": ({}, [1], [0, True, 1.5]),
    "suffix_decoding_max_tree_depth": ({}, [1, 24], [0, 2.0]),
    "suffix_decoding_max_cached_requests": ({}, [0, 10000], [-1, True]),
    "suffix_decoding_max_spec_factor": ({}, [0, 0.0, 2.5], [-0.5, "1", True]),
    "suffix_decoding_min_token_prob": ({}, [0, 0.1, 1], [-0.1, 1.1, float("nan")]),
    "rejection_sample_method": ({}, ["standard", "block"], ["strict", "probabilistic", None]),
    "synthetic_acceptance_rates": (SYNTHETIC, [[1, 0.5, 0]], [["1", 0.5], 0.5, {"0": 1.0}]),
    "synthetic_acceptance_length": (SYNTHETIC, [1, 2.5], ["2.5", True, float("inf")]),
    "fly_window_size": (FLY, [1], [0, -1, 2.5]),
    "fly_entropy_threshold": (FLY, [0, 0.3, 10], [-0.1, "0.3"]),
    "fly_entropy_top_k": (FLY, [1, 3], [0, 2.0]),
    "draft_sample_method": ({}, ["greedy", "probabilistic"], ["random", None]),
    "enable_adaptive_verification": ({}, [True], [1, None]),
    "use_heterogeneous_vocab": ({}, [True], [1, None]),
    "dspark_draft_topk": ({}, [1], [0, True]),
    "xpress_topc": ({}, [0, 512], [-1, False]),
    "speculator_options": ({}, [{}, {"a": [1, {"b": None}]}], [[1], {"a": float("nan")}, {1: 2}]),
}
"""Field -> what else must be set, values that are taken, values that are refused."""


def values(at):
    return [
        pytest.param(name, value, id=f"{name}={value!r}")
        for name, row in BOUNDS.items()
        for value in row[at]
    ]


@pytest.mark.parametrize(("name", "value"), values(1))
def test_1_takes(name, value):
    """A value of the row's type within its bounds is taken as it is."""
    made = structure({**BOUNDS[name][0], name: value}, SpeculativeConfig)
    kept = getattr(made, name)
    assert getattr(kept, "value", kept) == freeze(value)


@pytest.mark.parametrize(("name", "value"), values(2))
def test_1_refuses(name, value):
    """A value of another type or outside the bounds is refused by the field's name; nothing is coerced."""
    with pytest.raises(SpecError) as caught:
        structure({**BOUNDS[name][0], name: value}, SpeculativeConfig)
    assert any(p.where.split("[")[0].split(".")[0] == name for p in caught.value.problems)


def test_1_1_an_unknown_method_lists_both_sets_sorted():
    """The validator names the built-in methods and the registered ones, each sorted, and the nearest of all."""
    with registered("aardvark", Registered), registered("zebra", Registered):
        problem = refused({"method": "zebr", "num_speculative_tokens": 1})["speculative.method"]
    built_in, _, others = problem.wanted.partition("; registered: ")
    names = built_in.removeprefix("one of ").replace(" or ", ", ").split(", ")
    assert names == sorted(METHODS)
    assert others.split(", ") == ["aardvark", "medusa", "zebra"]
    assert "'zebra'" in problem.hint


@config_class
class Registered(NgramSpeculatorConfig):
    """A method on top of ngram."""


@pytest.mark.parametrize("given", ["ngram", "[ngram]"])
def test_1_1_special_strings_of_model(given):
    """`ngram` and `[ngram]` as a model are the method, and no path."""
    assert resolved({"model": given, "num_speculative_tokens": 3}).speculative.method == "ngram"


def test_1_1_custom_method_is_filled_in_and_never_a_users():
    """A registered name ends up in custom_method; a user who writes the field is refused."""
    with registered("mine", Registered):
        made = resolved({"method": "mine", "num_speculative_tokens": 3}).speculative
    assert (made.method, made.custom_method) == ("ngram", "mine")
    found = refused_case("ngram", {"custom_method": "mine"})
    assert found["speculative.custom_method"].found == "an unknown key"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("value", [1, 2])
def test_1_1_tensor_parallel_size_is_a_trap(name, value):
    """Any value is an error that names draft_tensor_parallel_size, with every method."""
    problem = refused_case(name, {"tensor_parallel_size": value})[
        "speculative.tensor_parallel_size"
    ]
    assert "draft_tensor_parallel_size" in problem.hint


def test_1_1_enforce_eager_is_the_draft_phase_alone():
    """None follows the target; True takes the graphs of drafting away and leaves the target's mode."""
    follows = resolved_case("eagle3")
    eager = resolved_case("eagle3", {"enforce_eager": True})
    assert follows.speculative.draft_cudagraph_mode is follows.mode.granted
    assert eager.speculative.draft_cudagraph_mode is CudagraphMode.NONE
    assert eager.mode.granted is follows.mode.granted is CudagraphMode.FULL_AND_PIECEWISE
    both = resolved_case("eagle3", compilation={"enforce_eager": True})
    assert both.speculative.draft_cudagraph_mode is CudagraphMode.NONE


def test_1_1_a_separate_draft_does_not_inherit_the_targets_quantization():
    """None is what the draft's checkpoint says; a given name wins."""
    model = {"quantization": "fp8"}
    assert resolved_case("draft_model", model=model).speculative.draft_model.quantization is None
    given = resolved_case("draft_model", {"quantization": "awq"}, model=model)
    assert given.speculative.draft_model.quantization == "awq"
    assert given.model.quantization == "fp8"


def test_1_1_a_draft_inside_the_target_inherits_its_quantization(tmp_path):
    """MTP modules, and DSpark's inside a DeepSeek V4 checkpoint, are quantised as the target is."""
    model = {"quantization": "fp8"}
    assert resolved_case("mtp", model=model).speculative.draft_model.quantization == "fp8"
    target = variant(tmp_path / "v4", "target-deepseek-n1", model_type="deepseek_v4")
    dspark = {"method": "dspark", "num_speculative_tokens": 3}
    made = resolved(dspark, target, model=model).speculative
    assert made.draft_model.quantization == "fp8"


def test_1_1_draft_load_config_is_passed_on():
    """None means the target's; a given one reaches the contract and no key."""
    plain, given = resolved_case("eagle"), resolved_case("eagle", {"draft_load_config": {"a": 1}})
    assert plain.speculative.draft_load_config is None
    assert given.speculative.draft_load_config == {"a": 1}
    assert keys_of(plain) == keys_of(given)


DRAFT_ONLY = {
    "revision": "main",
    "code_revision": "main",
    "quantization": "fp8",
    "draft_load_config": {},
    "max_model_len": 64,
    "moe_backend": "triton",
    "attention_backend": "flash_attn",
    "kv_cache_dtype": "fp8",
}
DRAFTS = {"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"}


@pytest.mark.parametrize("option", DRAFT_ONLY)
@pytest.mark.parametrize("name", METHODS)
def test_1_1_who_reads_the_options_of_a_draft_model(name, option):
    """The column `applies to`: methods with a draft model take it, the others refuse it by name."""
    given = {option: DRAFT_ONLY[option]}
    if name in DRAFTS:
        assert resolved_case(name, given)
    else:
        assert list(refused_case(name, given)) == [f"speculative.{option}"]


def test_1_2_parallel_drafting_is_for_the_first_runner():
    """PARD and P-EAGLE run on v1: auto takes it and says why, and v2 is refused."""
    for name in ("draft_model parallel", "eagle3 parallel"):
        made = resolved_case(name)
        assert made.runner.granted == "v1"
        assert "parallel_drafting" in made.runner.reasons[0]
        found = refused_case(name, compilation={"runner": "v2"})
        assert "v1" in found["compilation.runner"].hint


@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_1_2_block_drafters_always_draft_in_parallel(name, asked):
    """[R] forces the flag on: whatever is asked, k is in the shapes, and the second runner has them."""
    made = resolved_case(name, {"parallel_drafting": asked})
    assert made.speculative.speculator.bakes_k_into_graphs
    assert made.runner.granted == "v2"


@pytest.mark.parametrize("name", CASES)
def test_1_2_ragged_batches_are_for_the_eagle_family(name):
    """Elsewhere, and with async scheduling, a note says that the option has no effect."""
    ragged = {"disable_padded_drafter_batch": True}
    family = name.split()[0] in ("eagle", "eagle3", "mtp")
    assert ("padded_drafter_kept" in notes_of(resolved_case(name, ragged))) is not family
    waiting = resolved_case(name, ragged, scheduler={"async_scheduling": True})
    assert "padded_drafter_kept" in notes_of(waiting)


KERNELS = {"kernels": {"attention_backend": "TRITON_ATTN", "moe_backend": "cutlass"}}
OVERRIDES = [
    ({}, ("TRITON_ATTN", "cutlass", "fp8")),
    ({"moe_backend": "triton"}, ("TRITON_ATTN", "triton", "fp8")),
    ({"attention_backend": "flash_attn"}, ("FLASH_ATTN", "cutlass", "fp8")),
    ({"attention_backend": "auto"}, (None, "cutlass", "fp8")),
    ({"attention_backend": "AuTo"}, (None, "cutlass", "fp8")),
    ({"kv_cache_dtype": "bfloat16"}, ("TRITON_ATTN", "cutlass", "bfloat16")),
]


@pytest.mark.parametrize(("given", "wanted"), OVERRIDES, ids=[str(g) for g, _ in OVERRIDES])
def test_1_3_draft_overrides(given, wanted):
    """None inherits the target's; a value replaces it for the draft alone; the target's sections stay."""
    spec = resolved_case("eagle3", given, kv_cache={"dtype": "fp8"}, **KERNELS)
    kernels, dtype = spec.speculative.draft_kernels, spec.speculative.draft_kv_cache_dtype
    assert (kernels.attention_backend, kernels.moe_backend.value, dtype.value) == wanted
    assert spec.kernels == KernelConfig(
        attention_backend="TRITON_ATTN", moe_backend=MoeBackend.CUTLASS
    )
    assert spec.kv_cache.dtype is KVCacheDtype.FP8


def test_1_3_overrides_make_a_new_section():
    """Neither the target's section nor the user's is changed by deriving the draft's."""
    target = KernelConfig(attention_backend="FLASHINFER")
    section = SpeculativeConfig(attention_backend="flash_attn")
    made = draft_kernels(target, section)
    assert made is not target
    assert made.attention_backend == "FLASH_ATTN"
    assert target == KernelConfig(attention_backend="FLASHINFER")
    assert section == SpeculativeConfig(attention_backend="flash_attn")


def test_1_3_an_unknown_backend_is_refused_with_the_nearest():
    """No key error: the field, the name, and what was meant."""
    problem = refused_case("eagle3", {"attention_backend": "flash_atn"})
    assert "'FLASH_ATTN'" in problem["speculative.attention_backend"].hint


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp", "mtp multi-module"])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_1_4_a_draft_head_can_be_quantised(name, kind):
    """eagle, eagle3 and mtp take both kinds, on the second runner only."""
    given = {"draft_lm_head_quantization": kind}
    made = resolved_case(name, given)
    assert made.speculative.draft_lm_head_quantization.value == kind
    assert made.runner.granted == "v2"
    assert list(refused_case(name, given, compilation={"runner": "v1"})) == ["compilation.runner"]


def test_1_4_gemma_4_has_no_head_to_quantise(tmp_path):
    """Its draft scores rows of the tied embedding."""
    target = variant(tmp_path / "g", "target-llama", model_type="gemma4_assistant")
    mtp = {"method": "mtp", "num_speculative_tokens": 1}
    assert resolved(mtp, target).speculative.draft_model.architecture == "gemma4_mtp"
    found = refused({**mtp, "draft_lm_head_quantization": "fp8"}, target)
    assert "tied embedding" in found["speculative.draft_lm_head_quantization"].wanted


@pytest.mark.parametrize(("head", "fine"), [("bfloat16", True), (None, True), ("float32", False)])
def test_1_4_a_quantised_head_has_the_drafts_type(tmp_path, head, fine):
    """head_dtype other than dtype is an error that names both."""
    draft = variant(tmp_path / "eagle3", "eagle3-head", head_dtype=head)
    given = {"model": draft, "draft_lm_head_quantization": "fp8"}
    if fine:
        assert resolved_case("eagle3", given)
        return
    problem = refused_case("eagle3", given)["speculative.draft_lm_head_quantization"]
    assert "float32" in problem.found
    assert "bfloat16" in problem.wanted


def test_1_4_local_argmax_is_for_greedy_drafts():
    """With drawn drafts it is refused."""
    local = {"use_local_argmax_reduction": True}
    assert resolved_case("eagle3", local).speculative.use_local_argmax_reduction
    found = refused_case("eagle3", {**local, "draft_sample_method": "probabilistic"})
    assert list(found) == ["speculative.use_local_argmax_reduction"]


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_1_4_index_share_is_as_asked_else_the_checkpoints(tmp_path, stated, asked):
    """None takes the checkpoint's value, by default False; a given value is written into the draft's config."""
    changes = {} if stated is None else {"index_share_for_mtp_iteration": stated}
    target = variant(tmp_path / "t", "target-deepseek-n1", **changes)
    section = {
        "method": "mtp",
        "num_speculative_tokens": 2,
        "index_share_for_mtp_iteration": asked,
    }
    made = resolved(section, target).speculative
    wanted = bool(stated) if asked is None else asked
    assert made.speculator.index_share_for_mtp_iteration is wanted
    written = stated if asked is None else asked
    assert made.draft_model.extra.get("index_share_for_mtp_iteration") is written


WINDOWS = [
    ({}, (5, 5)),
    ({"prompt_lookup_min": 3}, (3, 3)),
    ({"prompt_lookup_max": 7}, (7, 7)),
    ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ({"prompt_lookup_min": 4, "prompt_lookup_max": 4}, (4, 4)),
]


@pytest.mark.parametrize(("given", "window"), WINDOWS, ids=[str(g) for g, _ in WINDOWS])
@pytest.mark.parametrize("name", ["ngram", "ngram_gpu"])
def test_1_5_prompt_lookup_window(name, given, window):
    """Both absent give 5 and 5, one absent mirrors the other."""
    speculator = resolved_case(name, given).speculative.speculator
    assert (speculator.prompt_lookup_min, speculator.prompt_lookup_max) == window


@pytest.mark.parametrize("name", ["ngram", "ngram_gpu"])
def test_1_5_a_window_must_not_be_empty(name):
    """min above max is an error at min, with max in the text."""
    found = refused_case(name, {"prompt_lookup_min": 5, "prompt_lookup_max": 2})
    assert "(2)" in found["speculative.prompt_lookup_min"].wanted


SUFFIX = {
    "max_tree_depth": (24, 7),
    "max_cached_requests": (10000, 0),
    "max_spec_factor": (1.0, 2.5),
    "min_token_prob": (0.1, 0),
}


@pytest.mark.parametrize("name", SUFFIX)
def test_1_5_suffix_option(name):
    """Each has the reference's default, and a given value, 0 among them, replaces it."""
    default, other = SUFFIX[name]
    assert getattr(resolved_case("suffix").speculative.speculator, name) == default
    given = resolved_case("suffix", {f"suffix_decoding_{name}": other}).speculative
    assert getattr(given.speculator, name) == other


@pytest.mark.parametrize("option", SUFFIX)
@pytest.mark.parametrize("name", ["ngram", "eagle", "draft_model"])
def test_1_5_suffix_options_are_for_suffix(name, option):
    """Other methods refuse each, smallest values among them."""
    value = {"max_tree_depth": 1}.get(option, 0)
    found = refused_case(name, {f"suffix_decoding_{option}": value})
    assert list(found) == [f"speculative.suffix_decoding_{option}"]


def test_1_5_suffix_takes_its_depth_from_the_tree():
    """Without k it is the depth of the tree, with a note; k is otherwise free."""
    default = resolved_case("suffix", without="num_speculative_tokens")
    assert default.num_speculative_tokens == 24
    assert "depth_defaulted" in notes_of(default)
    tree = {"suffix_decoding_max_tree_depth": 10}
    given = resolved_case("suffix", tree, without="num_speculative_tokens")
    assert given.num_speculative_tokens == 10
    assert resolved_case("suffix", tree).num_speculative_tokens == 4


def test_1_5_suffix_is_for_the_first_runner():
    """[S]: v1 only. auto takes it with a reason, v2 is refused."""
    made = resolved_case("suffix")
    assert made.runner.granted == "v1"
    assert "suffix" in made.runner.reasons[0]
    found = refused_case("suffix", compilation={"runner": "v2"})
    assert "suffix" in found["compilation.runner"].found
