"""Sections 2.1 to 2.4 of shared/reference/speculative.md: methods, the class tree, static flags and dynamic properties."""

import itertools
import subprocess
import sys

import pytest

from graphspec.speculators.base import DraftModelSpeculatorConfig, SpeculatorConfig
from graphspec.speculators.custom import CustomClassSpeculatorConfig
from graphspec.speculators.dflash import DFlashSpeculatorConfig, DSparkSpeculatorConfig
from graphspec.speculators.draft_model import StandaloneARSpeculatorConfig
from graphspec.speculators.eagle import (
    Eagle3SpeculatorConfig,
    EagleSpeculatorConfig,
)
from graphspec.speculators.extract import ExtractHiddenStatesSpeculatorConfig
from graphspec.speculators.mtp import MTPSpeculatorConfig, MultiModuleMTPSpeculatorConfig
from graphspec.speculators.mtp_families import ALIASES
from graphspec.speculators.ngram import NgramGPUSpeculatorConfig, NgramSpeculatorConfig
from graphspec.speculators.registry import (
    BUILT_IN,
    speculator_config_class,
)
from graphspec.speculators.suffix import SuffixSpeculatorConfig
from support.speculative import (
    CASES,
    METHODS,
    notes_of,
    resolution,
    resolved,
    resolved_case,
    variant,
)

NAMES = """ngram ngram_gpu draft_model suffix custom_class eagle eagle3 extract_hidden_states dflash dspark
mtp""".split()
MTP_NAMES = """deepseek_mtp dots3_note_mtp mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp
nemotron_h_mtp exaone_moe_mtp exaone4_5_mtp qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp
bailing_hybrid_v3_mtp bailing_hybrid_mtp minimax_m3_mtp kimi_k3_mtp pangu_ultra_moe_mtp step3p5_mtp hy_v3_mtp hy_v4_mtp
gemma4_mtp inkling_mtp glm5_next_mtp""".split()


def test_2_1_built_in_names():
    """The eleven methods of the reference and no other; tests here have a case for each."""
    assert set(BUILT_IN) == set(NAMES) == set(METHODS)


@pytest.mark.parametrize("name", MTP_NAMES)
def test_2_1_mtp_alias(name):
    """Each alias becomes mtp, with a notice; the same names are the model types of MTP drafts."""
    assert name in ALIASES
    made = resolved_case("mtp", {"method": name})
    assert made.speculative.method == "mtp"
    assert "write mtp" in notes_of(made)["method_deprecated"]
    assert MTPSpeculatorConfig.declares({"model_type": name})


def test_2_1_no_other_alias():
    """The set is the reference's."""
    assert set(MTP_NAMES) == ALIASES


TREE = {
    ExtractHiddenStatesSpeculatorConfig: SpeculatorConfig,
    NgramSpeculatorConfig: SpeculatorConfig,
    NgramGPUSpeculatorConfig: NgramSpeculatorConfig,
    SuffixSpeculatorConfig: SpeculatorConfig,
    CustomClassSpeculatorConfig: SpeculatorConfig,
    DraftModelSpeculatorConfig: SpeculatorConfig,
    StandaloneARSpeculatorConfig: DraftModelSpeculatorConfig,
    EagleSpeculatorConfig: DraftModelSpeculatorConfig,
    Eagle3SpeculatorConfig: EagleSpeculatorConfig,
    MTPSpeculatorConfig: DraftModelSpeculatorConfig,
    MultiModuleMTPSpeculatorConfig: MTPSpeculatorConfig,
    DFlashSpeculatorConfig: DraftModelSpeculatorConfig,
    DSparkSpeculatorConfig: DFlashSpeculatorConfig,
}


@pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
def test_2_2_parent_of(cls):
    """The class tree of the reference."""
    assert cls.__bases__ == (TREE[cls],)


def test_2_2_both_ngram_methods_name_one_family():
    """They point at the same speculator."""
    assert NgramSpeculatorConfig.speculator_class == NgramGPUSpeculatorConfig.speculator_class


@pytest.mark.parametrize("name", NAMES)
def test_2_2_shares_target_positions(name):
    """True for every draft-model class but the standalone draft, which keeps its own smaller limit."""
    cls = speculator_config_class(name)
    if issubclass(cls, DraftModelSpeculatorConfig):
        assert cls.shares_target_positions is (name != "draft_model")
    else:
        assert not hasattr(cls, "shares_target_positions")


CLASSES = {**{name: speculator_config_class(name) for name in NAMES}, "base": SpeculatorConfig}
CLASSES["mtp multi-module"] = MultiModuleMTPSpeculatorConfig
MTP = {"mtp", "mtp multi-module"}
NGRAM = {"ngram", "ngram_gpu"}
BLOCK = {"dflash", "dspark"}
EAGLES = {"eagle", "eagle3"}
FLAGS = {
    "uses_target_hidden_states": (False, EAGLES | MTP | BLOCK),
    "uses_separate_workspace_lane": (False, {"dspark"}),
    "prefer_dense_token_history": (False, NGRAM),
    "proposes_draft_tokens": (True, {"extract_hidden_states"}),
    "adaptive_verification_uses_draft_logits": (True, {"dspark"}),
    "draft_has_own_vocab": (False, {"draft_model"}),
    "supports_watermarking": (False, EAGLES | BLOCK),
    "supports_pcp": (False, {"mtp", "dspark"}),
    "uses_aux_hidden_states": (False, {"eagle3", "extract_hidden_states"} | BLOCK),
}
"""Flag -> the base's value, and the classes that have the other one."""


@pytest.mark.parametrize(("flag", "name"), list(itertools.product(FLAGS, CLASSES)))
def test_2_3_flag(flag, name):
    """Every class has every flag as the table says."""
    default, exceptions = FLAGS[flag]
    assert getattr(CLASSES[name], flag) is (default is not (name in exceptions))


@pytest.mark.parametrize("name", CASES)
def test_2_3_the_final_class_decides_about_split_prompts_and_marks(name):
    """prefill context parallelism and watermarks are refused by name where the resolved class lacks them."""
    speculator = type(resolved_case(name).speculative.speculator)
    split = resolution(
        CASES[name].section, CASES[name].target, parallel={"prefill_context_parallel_size": 2}
    )
    assert (split.spec is not None) is speculator.supports_pcp
    marked = resolution(
        CASES[name].section,
        CASES[name].target,
        watermark={"key": 1, "algorithm": "dual_key_gumbel"},
    )
    assert (marked.spec is not None) is speculator.supports_watermarking
    for made in (split, marked):
        assert made.spec or name.split()[0] in made.problems[0].wanted + made.problems[0].found


@pytest.mark.parametrize("name", CLASSES)
def test_2_3_base_method(name):
    """Each class names its method, the base none."""
    wanted = None if name == "base" else name.split()[0]
    assert CLASSES[name].base_method == wanted


@pytest.mark.parametrize("name", CLASSES)
def test_2_3_speculator_class_is_a_dotted_name(name):
    """A text, so that no config imports a drafter; the base and a custom class have none."""
    named = CLASSES[name].speculator_class
    if name in ("base", "custom_class"):
        assert named is None
    else:
        assert all(part.isidentifier() for part in named.split("."))


def test_2_3_no_drafter_is_imported_by_resolving():
    """Reading a class's name loads nothing of the engine."""
    code = (
        "import sys; from graphspec.speculators.registry import *; from graphspec.resolve import check;"
        "[speculator_config_class(n) for n in BUILT_IN];"
        "check({'model': {'source': 'x'}, 'speculative': {'method': 'ngram', 'num_speculative_tokens': 1}});"
        "print([m for m in sys.modules if m.startswith('graphspec.engine')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PROPERTIES = {
    # row: lookahead, prefill lookahead, new slots, block drop
    "extract_hidden_states": (lambda k: 0, lambda k: 0, lambda k: 0, False),
    "ngram": (lambda k: 0, lambda k: 0, lambda k: 0, False),
    "ngram_gpu": (lambda k: 0, lambda k: 0, lambda k: 0, False),
    "suffix": (lambda k: 0, lambda k: 0, lambda k: 0, False),
    "custom_class": (lambda k: 0, lambda k: 0, lambda k: 0, False),
    "draft_model": (lambda k: k, lambda k: 0, lambda k: 1, False),
    "draft_model parallel": (lambda k: k, lambda k: 0, lambda k: k, False),
    "eagle": (lambda k: k, lambda k: 1, lambda k: 0, True),
    "eagle3": (lambda k: k, lambda k: 1, lambda k: 0, True),
    "eagle3 parallel": (lambda k: k, lambda k: 1, lambda k: k - 1, True),
    "mtp": (lambda k: k, lambda k: 1, lambda k: 0, True),
    "mtp multi-module": (lambda k: k, lambda k: k, lambda k: 0, True),
    "dflash": (lambda k: k + 1, lambda k: 1, lambda k: 0, False),
    "dspark": (lambda k: k, lambda k: 1, lambda k: 0, False),
    "dspark fill-in": (lambda k: k + 1, lambda k: 1, lambda k: 0, False),
}


ROWS = [(row, k) for row, k in itertools.product(PROPERTIES, (1, 2, 4, 8))]
ROWS.remove(("mtp multi-module", 1))  # one draft uses one module


@pytest.mark.parametrize(("row", "k"), ROWS)
def test_2_4_row(row, k):
    """Lookahead, prefill lookahead, new slots and block drop, through the contract of a config of the row."""
    lookahead, prefill, slots, drop = PROPERTIES[row]
    spec = resolved_case(row, {"num_speculative_tokens": k})
    assert spec.num_lookahead_tokens == lookahead(k)
    assert spec.num_prefill_lookahead_tokens == prefill(k)
    assert spec.max_num_new_slots_for_drafting == slots(k)
    assert spec.needs_eagle_block_drop is drop


def test_2_4_every_case_has_a_row():
    """No variant is left out of the table."""
    assert set(PROPERTIES) == set(CASES)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_2_4_eagle3_parallel_adds_k_minus_1_slots(k):
    """P-EAGLE reuses the query that is there and adds the masked ones."""
    made = Eagle3SpeculatorConfig(parallel_drafting=True)
    assert made.max_num_new_slots_for_drafting(k) == k - 1


@pytest.mark.parametrize(("stated", "lookahead"), [({}, 4), ("true", 4), ("false", 5)])
def test_2_4_sample_from_anchor_counts_as_true_when_absent(tmp_path, stated, lookahead):
    """DSpark's lookahead is k + 1 only when the checkpoint says False."""
    changes = {"sample_from_anchor": stated == "true"} if stated else {}
    draft = variant(tmp_path / "d", "dspark-qwen3", **changes)
    assert resolved_case("dspark", {"model": draft}).num_lookahead_tokens == lookahead


@pytest.mark.parametrize(("budget", "held"), [(8192, 1638), (10, 2), (9, 1), (5, 1), (4, 0)])
def test_2_4_dflash_holds_budget_over_lookahead_requests(budget, held):
    """max_num_draft_seqs = max_num_batched_tokens // (k + 1) for k 4; below k + 1 it is 0."""
    assert DFlashSpeculatorConfig().max_num_draft_seqs(budget, 4) == held


@pytest.mark.parametrize("name", ["base", *NAMES])
def test_2_4_only_block_drafters_limit_their_pass(name):
    """Other drafters hold as many requests as the target's step."""
    for _, example in CLASSES[name].examples() if name != "base" else [("", SpeculatorConfig())]:
        assert (example.max_num_draft_seqs(100, 4) is None) is (name not in BLOCK)


@pytest.mark.parametrize(
    ("modules", "k", "several"),
    [(1, 1, False), (1, 4, False), (2, 1, False), (2, 2, True), (3, 2, True), (3, 6, True)],
)
def test_2_4_multi_module_is_min_of_modules_and_k_above_1(modules, k, several):
    """min(num_nextn_predict_layers, k) > 1, and by default one module."""
    section = {"method": "mtp", "num_speculative_tokens": k}
    made = resolved(section, f"target-deepseek-n{modules}").speculative.speculator
    assert isinstance(made, MultiModuleMTPSpeculatorConfig) is several
    assert made.num_modules == modules
