"""Section 2.8 of shared/reference/speculative.md: how each family's checkpoint becomes a draft, one test a row."""

import pytest

from graphspec.speculators.mtp_families import FAMILIES, as_draft, family_of, is_mtp, num_modules
from support.speculative import checkpoint, refused, resolved, resolved_case, variant

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
NEXTN = {"num_nextn_predict_layers": 2}
MTP_LAYERS = {"mtp_num_hidden_layers": 2}
ROWS = {
    # model type of the target: what it states of modules, the draft's type, its class
    "deepseek_v3": (NEXTN, "deepseek_mtp", "DeepSeekMTPModel"),
    "deepseek_v32": (NEXTN, "deepseek_mtp", "DeepseekV32MTPModel"),
    "glm_moe_dsa": (NEXTN, "deepseek_mtp", "DeepseekV32MTPModel"),
    "deepseek_v4": (NEXTN, "deepseek_mtp", "DeepSeekV4MTPModel"),
    "kimi_k3": ({"text_config": NEXTN}, "kimi_k3_mtp", "KimiK3MTPModel"),
    "glm5_next": ({"text_config": NEXTN}, "glm5_next_mtp", "Glm5NextMTPModel"),
    "mimo": (NEXTN, "mimo_mtp", "MiMoMTPModel"),
    "glm4_moe_lite": (NEXTN, "glm4_moe_lite_mtp", "Glm4MoeLiteMTPModel"),
    "glm_ocr": (NEXTN, "glm_ocr_mtp", "GlmOcrMTPModel"),
    "qwen3_5": (MTP_LAYERS, "qwen3_5_mtp", "Qwen3_5MTP"),
    "qwen3_5_moe": ({"text_config": MTP_LAYERS}, "qwen3_5_mtp", "Qwen3_5MoeMTP"),
    "intern_s2": (MTP_LAYERS, "qwen3_5_mtp", "Qwen3_5MTP"),
    "intern_s2_preview": ({"text_config": MTP_LAYERS}, "qwen3_5_mtp", "Qwen3_5MTP"),
    "qwen3_next": (MTP_LAYERS, "qwen3_next_mtp", "Qwen3NextMTP"),
    "qwen4_exp": (MTP_LAYERS, "qwen4_exp_mtp", "Qwen4ExpMTP"),
    "longcat_flash": (NEXTN, "longcat_flash_mtp", "LongCatFlashMTPModel"),
    "longcat_flash_ngram": (NEXTN, "longcat_flash_mtp", "LongCatFlashMTPModel"),
    "step3p5": (NEXTN, "step3p5_mtp", "Step3p5MTP"),
    "step3p7": (NEXTN, "step3p5_mtp", "Step3p5MTP"),
    "inkling": ({"mtp_config": NEXTN}, "inkling_mtp", "InklingMTPModel"),
    "inkling_mm_model": ({"mtp_config": NEXTN}, "inkling_mtp", "InklingMTPModel"),
    "inkling_model": ({"mtp_config": NEXTN}, "inkling_mtp", "InklingMTPModel"),
    "minimax_m3_vl": ({"text_config": {"num_mtp_modules": 2}}, "minimax_m3_mtp", "MiniMaxM3MTP"),
    "minimax_m3": ({"num_mtp_modules": 2}, "minimax_m3_mtp", "MiniMaxM3MTP"),
    "dots3_note": (NEXTN, "dots3_note_mtp", "Dots3NoteMTPModel"),
    "ernie4_5_moe": (NEXTN, "ernie_mtp", "ErnieMTPModel"),
    "exaone_moe": (NEXTN, "exaone_moe_mtp", "ExaoneMoeMTP"),
    "exaone4_5": (NEXTN, "exaone4_5_mtp", "Exaone4_5_MTP"),
    "hy_v3": (NEXTN, "hy_v3_mtp", "HYV3MTPModel"),
    "hy_v4": (NEXTN, "hy_v4_mtp", "HYV4MTPModel"),
    "pangu_ultra_moe": (NEXTN, "pangu_ultra_moe_mtp", "OpenPanguMTPModel"),
    "nemotron_h": (NEXTN, "nemotron_h_mtp", "NemotronHMTPModel"),
    "nemotron_h_puzzle": (NEXTN, "nemotron_h_mtp", "NemotronHMTPModel"),
    "bailing_hybrid": (NEXTN, "bailing_hybrid_mtp", "BailingMoeV25MTPModel"),
    "bailing_hybrid_v3": (NEXTN, "bailing_hybrid_v3_mtp", "BailingMoeV3MTPModel"),
}
MIMO_V2 = ["mimo_v2", "mimo_v2_flash", "mimo_v2_pro", "mimo_v2_omni"]
GEMMA4 = ["gemma4_assistant", "gemma4_unified_assistant"]
DEFAULT_ONE = """longcat_flash longcat_flash_ngram step3p5 step3p7 minimax_m3 minimax_m3_vl
dots3_note""".split()


def config(kind, **stated):
    return {**BASE, "model_type": kind, "architectures": ["TargetForCausalLM"], **stated}


@pytest.mark.parametrize("kind", ROWS)
def test_2_8_row(kind):
    """Type, class and n_predict of the draft; every other field stays, and so does the given config."""
    stated, becomes, runs_as = ROWS[kind]
    given = config(kind, **stated)
    before = dict(given)
    made = as_draft(given)
    assert made["model_type"] == becomes
    assert made["architectures"] == (runs_as,)
    assert made["n_predict"] == 2
    assert made["hidden_size"] == 64
    assert given == before


@pytest.mark.parametrize("kind", ROWS)
def test_2_8_row_resolved(tmp_path, kind):
    """The same through the whole pipeline: k comes from n_predict, and the draft's model has the new names."""
    stated, becomes, runs_as = ROWS[kind]
    target = checkpoint(tmp_path / "target", config(kind, **stated))
    made = resolved({"method": "mtp"}, target).speculative
    assert made.num_speculative_tokens == 2
    assert made.draft_model.architecture == becomes
    assert made.draft_model.architectures == (runs_as,)
    assert made.draft_model.vocab_size == 256


def test_2_8_every_family_has_a_row():
    """No row of the product is untested; glm4_moe, an alias of 2.1, goes with its family."""
    types = {t for family in FAMILIES for t in family.types}
    assert types == set(ROWS) | {*MIMO_V2, *GEMMA4, "glm4_moe", "kimi_k2"}


@pytest.mark.parametrize("kind", ["mimo", "glm4_moe_lite", "glm_ocr", *MIMO_V2])
def test_2_8_no_layers_of_its_own(kind):
    """num_hidden_layers is forced to 0."""
    assert as_draft(config(kind, **NEXTN))["num_hidden_layers"] == 0


@pytest.mark.parametrize("stated", [1, 3])
@pytest.mark.parametrize("kind", MIMO_V2)
def test_2_8_mimo_v2_runs_its_first_module(kind, stated):
    """n_predict is 1 whatever the checkpoint states, and num_nextn_predict_layers with it."""
    made = as_draft(config(kind, num_nextn_predict_layers=stated))
    assert made["model_type"] == "mimo_v2_mtp"
    assert (made["n_predict"], made["num_nextn_predict_layers"]) == (1, 1)


def test_2_8_mimo_v2_runs_one_module_for_any_k(tmp_path):
    """Several modules in the file do not make it the multi-module class."""
    target = checkpoint(tmp_path / "t", config("mimo_v2", num_nextn_predict_layers=3))
    made = resolved({"method": "mtp", "num_speculative_tokens": 3}, target)
    assert made.speculative.speculator.num_modules == 1
    assert made.num_prefill_lookahead_tokens == 1


def test_2_8_qwen4_exp_counts_and_keeps_its_flags():
    """mtp_num_hidden_layers, else num_nextn_predict_layers; the index-share flag and the rest are copied."""
    given = config("qwen4_exp", **NEXTN, index_share_for_mtp_iteration=True, stream_multiplier=4)
    made = as_draft(given)
    assert made["n_predict"] == 2
    assert made["index_share_for_mtp_iteration"] is True
    assert made["stream_multiplier"] == 4
    assert as_draft({**given, "mtp_num_hidden_layers": 3})["n_predict"] == 3


@pytest.mark.parametrize("kind", DEFAULT_ONE)
def test_2_8_one_module_by_default(kind):
    """Where the checkpoint states no count, it has one."""
    assert as_draft(config(kind))["n_predict"] == 1


@pytest.mark.parametrize("kind", sorted(set(ROWS) - set(DEFAULT_ONE)))
def test_2_8_no_modules_by_default(kind):
    """Elsewhere a target that states no count, or 0, ships no modules and is no MTP checkpoint."""
    for stated in ({}, {"num_nextn_predict_layers": 0}):
        given = config(kind, **stated)
        assert (num_modules(given), is_mtp(given)) == (0, False)
        assert as_draft(given) is given


def test_2_8_step_promotes_its_text_config_and_carries_quantisation(tmp_path):
    """What lies in text_config becomes the draft's own, and the quantisation above it goes along."""
    text = {**BASE, "num_nextn_predict_layers": 3, "hidden_size": 128, "num_attention_heads": 8}
    given = {
        "model_type": "step3p5",
        "architectures": ["Step3p5ForCausalLM"],
        "text_config": text,
        "quantization_config": {"quant_method": "fp8"},
    }
    made = resolved({"method": "mtp"}, checkpoint(tmp_path / "t", given)).speculative
    assert made.num_speculative_tokens == 3
    assert made.draft_model.hidden_size == 128
    assert made.draft_model.quantization == "fp8"


@pytest.mark.parametrize(
    "stated", [{}, {"mtp_config": {}}, {"mtp_config": {"num_nextn_predict_layers": 0}}]
)
def test_2_8_inkling_needs_at_least_one_module(tmp_path, stated):
    """Its count lies in mtp_config and must be 1 or more."""
    target = checkpoint(tmp_path / "t", config("inkling", **stated))
    found = refused({"method": "mtp", "num_speculative_tokens": 1}, target)
    assert "without mtp modules" in found["speculative.model"].found


@pytest.mark.parametrize("kind", GEMMA4)
def test_2_8_gemma4_assistant(kind):
    """One module, and no layers that share keys and values."""
    made = as_draft(config(kind, num_kv_shared_layers=10))
    assert made["model_type"] == "gemma4_mtp"
    assert (made["n_predict"], made["num_kv_shared_layers"]) == (1, 0)


def test_2_8_qwen3_5_and_intern_s2_run_experts_by_another_class():
    """The MoE variant of either family picks its own class."""
    for kind in ("qwen3_5", "intern_s2", "intern_s2_preview"):
        made = as_draft(config(kind, num_experts=8, **MTP_LAYERS))
        assert made["architectures"] == ("Qwen3_5MoeMTP",)


BY_CLASS = {
    "MiMoForCausalLM": "mimo_mtp",
    "MiMoV2ForCausalLM": "mimo_v2_mtp",
    "MiMoV2OmniForCausalLM": "mimo_v2_mtp",
    "MiMoV2FlashForCausalLM": "mimo_v2_mtp",
    "Glm4MoeForCausalLM": "glm4_moe_mtp",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite_mtp",
    "GlmOcrForConditionalGeneration": "glm_ocr_mtp",
    "Step3p5ForCausalLM": "step3p5_mtp",
    "Step3p7ForConditionalGeneration": "step3p5_mtp",
    "BailingMoeV2_5ForCausalLM": "bailing_hybrid_mtp",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_mtp",
}


@pytest.mark.parametrize("name", BY_CLASS)
def test_2_8_a_family_is_known_by_its_class(name):
    """Where the reference's row names an architecture, the model type does not matter."""
    given = {**config("some_type", **NEXTN), "architectures": [name]}
    assert as_draft(given)["model_type"] == BY_CLASS[name]


def test_2_8_bailing_v3_has_the_type_of_v2_5():
    """The class name tells the third generation."""
    given = config("bailing_hybrid", **NEXTN)
    given["architectures"] = ["BailingMoeV3ForCausalLM"]
    assert as_draft(given)["model_type"] == "bailing_hybrid_v3_mtp"


def test_2_8_dots3_note_has_a_layer_type_for_each_module(tmp_path):
    """A list of another length than n_predict is refused."""
    mtp = {"method": "mtp", "num_speculative_tokens": 2}
    fine = checkpoint(tmp_path / "a", config("dots3_note", **NEXTN, mtp_layer_types=["x", "x"]))
    assert resolved(mtp, fine).speculative.draft_model.architecture == "dots3_note_mtp"
    wrong = checkpoint(tmp_path / "b", config("dots3_note", **NEXTN, mtp_layer_types=["x"]))
    assert "1 mtp_layer_types for 2 modules" in refused(mtp, wrong)["speculative.model"].found


def test_2_8_inkling_states_its_modules_as_steps(tmp_path):
    """Every module is a step of its own, so it runs as the multi-module class."""
    target = checkpoint(tmp_path / "t", config("inkling_mm_model", mtp_config=NEXTN))
    assert resolved({"method": "mtp"}, target).num_prefill_lookahead_tokens == 2
    layers = checkpoint(tmp_path / "q", config("qwen3_5", **MTP_LAYERS))
    assert resolved({"method": "mtp"}, layers).num_prefill_lookahead_tokens == 1


@pytest.mark.parametrize(
    "name", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"]
)
def test_2_8_a_draft_with_an_mtp_type_is_counted_too(name):
    """A checkpoint of the draft alone states its modules by its family's name; n_predict follows."""
    given = {"model_type": "minimax_m3_mtp", name: 3}
    assert as_draft(given)["n_predict"] == 3
    assert as_draft({**given, "n_predict": 2})["n_predict"] == 2


def test_2_8_deepseek_v41_has_no_mtp(tmp_path):
    """mtp on it is an error that says to use dspark, and dspark runs."""
    target = variant(tmp_path / "t", "target-deepseek-n1", model_type="deepseek_v41")
    found = refused({"method": "mtp", "num_speculative_tokens": 1}, target)
    assert "set speculative.method to dspark" in found["speculative.method"].hint
    made = resolved({"method": "dspark", "num_speculative_tokens": 1}, target).speculative
    assert made.draft_model.architectures == ("DSparkDraftModel",)


@pytest.mark.parametrize("kind", ["pangu", "ultra_moe", "pangu_ultra_moe_v2", "deepseek", "v3"])
def test_2_8_types_are_compared_whole(kind):
    """The trap of a substring test: a part of a family's name is another family."""
    assert family_of({"model_type": kind}) is None


def test_2_8_a_drafts_own_config_stays():
    """What was rewritten before is not rewritten again."""
    made = as_draft(config("deepseek_v3", **NEXTN))
    assert as_draft(made) is made


def test_2_8_rewriting_is_for_the_draft_alone():
    """The target keeps its own type and class."""
    spec = resolved_case("mtp")
    assert spec.model.architecture == "deepseek_v3"
    assert spec.model.architectures == ("DeepseekV3ForCausalLM",)
    assert "n_predict" not in spec.model.extra
