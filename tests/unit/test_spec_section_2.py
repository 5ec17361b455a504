"""Sections 2.1 to 2.7 of shared/reference/speculative.md: methods, what their classes declare, and the registry."""

import itertools
import subprocess
import sys

import pytest

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, config_class
from graphspec.resolve.options import GUARDED
from graphspec.speculators.base import DraftModelSpeculatorConfig, SpeculatorConfig
from graphspec.speculators.custom import CustomClassSpeculatorConfig
from graphspec.speculators.dflash import DFlashSpeculatorConfig, DSparkSpeculatorConfig
from graphspec.speculators.draft_model import StandaloneARSpeculatorConfig
from graphspec.speculators.eagle import (
    Eagle3SpeculatorConfig,
    EagleSpeculatorConfig,
    is_parallel_head,
    wrap_head,
)
from graphspec.speculators.extract import ExtractHiddenStatesSpeculatorConfig
from graphspec.speculators.medusa import MedusaSpeculatorConfig
from graphspec.speculators.mtp import MTPSpeculatorConfig, MultiModuleMTPSpeculatorConfig
from graphspec.speculators.mtp_families import ALIASES
from graphspec.speculators.ngram import NgramGPUSpeculatorConfig, NgramSpeculatorConfig
from graphspec.speculators.registry import (
    BUILT_IN,
    DETECTION_ORDER,
    register_speculative_method,
    registered_speculative_methods,
    speculator_config_class,
)
from graphspec.speculators.suffix import SuffixSpeculatorConfig
from support.peer_cases import folder
from support.speculative import (
    CASES,
    METHODS,
    notes_of,
    peer_config,
    refused,
    refused_case,
    registered,
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


def test_2_5_default_model_of_mtp_and_dspark():
    """The target's weights, else its model; given or not, k plays no part."""
    section = SpeculativeConfig()
    for cls in (MTPSpeculatorConfig, DSparkSpeculatorConfig):
        assert cls.default_model(section, ModelConfig(source="a")) == "a"
        assert cls.default_model(section, ModelConfig(source="a", weights="b")) == "b"


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"mtp", "dspark"}))
def test_2_5_no_default_model(name):
    """The user must give one, or there is none."""
    cls = speculator_config_class(name)
    assert cls.default_model(SpeculativeConfig(), ModelConfig(source="a")) is None


@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3", "dflash"])
def test_2_5_without_a_default_the_model_must_be_given(name):
    """The problem names method and field."""
    found = refused_case(name, without="model")
    assert name in found["speculative.model"].found


MATCHES = [
    ("eagle", "org/eagle-llama3", True),
    ("eagle", "org/eagle3-llama3", False),
    ("eagle", "org/eagle_llama3", False),
    ("eagle", "org/eagle-eagle3", True),
    ("eagle3", "org/eagle3-llama3", True),
    ("eagle3", "org/eagle-llama3", False),
    ("dflash", "org/qwen3-dflash-b16", True),
    ("dflash", "org/flash", False),
    ("dspark", "org/dspark_qwen3", True),
    ("dspark", "org/spark", False),
    ("mtp", "org/mtp", False),
    ("ngram", "org/ngram-model", False),
    ("draft_model", "org/draft", False),
]


@pytest.mark.parametrize(("name", "path", "wanted"), MATCHES)
def test_2_5_matches(name, path, wanted):
    """By a part of the lower-case path; n-gram, standalone drafts and MTP look at no path."""
    assert speculator_config_class(name).matches(path, {}) is wanted


DECLARED = [
    ("mtp", {"model_type": "deepseek_mtp"}),
    ("mtp", {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}),
    ("dflash", {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}),
    ("dspark", {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}),
    ("dspark", {"architectures": ["DSparkDraftModel"], "model_type": "qwen3"}),
    ("eagle3", {"architectures": ["LlamaForCausalLMEagle3"]}),
    ("eagle3", {"speculators_config": {"algorithm": "peagle"}}),
    ("eagle", {"architectures": ["EagleLlamaForCausalLM"]}),
]


@pytest.mark.parametrize(("name", "config"), DECLARED)
def test_2_5_a_known_architecture_or_type_declares_its_method(name, config):
    """Structural facts are read without the path, and only one method claims them."""
    assert [n for n in DETECTION_ORDER if speculator_config_class(n).declares(config)] == [name]


def test_2_5_plain_models_declare_nothing():
    """A complete Llama is no head of any kind."""
    config = peer_config("target-llama")
    assert not any(speculator_config_class(n).declares(config) for n in DETECTION_ORDER)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"mtp"}))
def test_2_5_specialize_is_the_class_itself(name):
    """Only MTP has a more special class, whatever the checkpoint counts."""
    cls, section = speculator_config_class(name), SpeculativeConfig(num_speculative_tokens=4)
    assert cls.specialize({"num_nextn_predict_layers": 3, "n_predict": 3}, section) is cls
    assert cls.specialize(None, section) is cls


def test_2_5_configure_of_dspark_takes_k_from_the_block():
    """Block size as the default k, and the checkpoint's architecture rewritten."""
    made = resolved_case("dspark", without="num_speculative_tokens")
    assert made.num_speculative_tokens == 7
    draft = resolved({"model": folder("dspark-qwen3")}, "target-qwen3").speculative
    assert draft.method == "dspark"


FACTORS = {
    "ngram": {},
    "draft_model": {},
    "eagle": {},
    "eagle3": {},
    "mtp": {},
    "extract_hidden_states": {},
    "dflash": {"num_speculative_tokens": 4},
    "dspark": {"num_speculative_tokens": 4},
    "draft_model parallel": {"num_speculative_tokens": 4},
    "eagle3 parallel": {"num_speculative_tokens": 4},
}


@pytest.mark.parametrize("name", FACTORS)
def test_2_5_hash_factors(name):
    """None beyond the declared fields, but k where the draft's shapes contain it."""
    speculator = resolved_case(name).speculative.speculator
    assert speculator.hash_factors(Stage.COMPILE, 4) == FACTORS[name]
    assert speculator.hash_factors(Stage.CAPTURE, 4) == {}


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("mtp", "index_share_for_mtp_iteration", (True, False)),
        ("dspark", "enable_adaptive_verification", (True, False)),
    ],
)
def test_2_5_declared_fields_are_hash_factors(name, option, values):
    """MTP's index sharing and DSpark's adaptive verification change the COMPILE key."""
    on, off = (resolved_case(name, {option: v}).compute_hash(Stage.COMPILE) for v in values)
    assert on != off
    assert getattr(resolved_case(name).speculative.speculator, option) is False


def test_2_5_a_head_is_wrapped_once():
    """The type and class names of a head; one that has them stays the same object."""
    config = peer_config("eagle-head")
    once = EagleSpeculatorConfig.adapt_draft_model_config(config, {})
    assert once["model_type"] == "eagle"
    assert once["architectures"] == ("EagleLlamaForCausalLM",)
    assert wrap_head(once, "Eagle", "eagle") is once
    assert config == peer_config("eagle-head")


def test_2_5_a_speculators_checkpoint_names_its_own_kind():
    """The algorithm stands before the layer's class, and the parallel head is known."""
    made = resolved_case("eagle3", {"model": folder("speculators-peagle")}).speculative
    assert made.draft_model.architecture == "speculators"
    assert made.draft_model.architectures == ("PeagleLlamaForCausalLM",)
    assert is_parallel_head(peer_config("speculators-peagle"))


@pytest.mark.parametrize("name", ["eagle", "eagle3", "dflash"])
def test_2_5_wrapping_a_config_without_vocab_size_is_a_clear_error(tmp_path, name):
    """The checkpoint and the missing field are named; no attribute error."""
    model = CASES[name].section["model"].rpartition("/")[2]
    draft = variant(tmp_path / model, model, without="vocab_size")
    (where,) = refused_case(name, {"model": draft})
    assert "vocab_size" in where
    assert draft in where


SUPPORTED = {
    "draft_lm_head_quantization": ("fp8", {"eagle", "eagle3", "mtp"}),
    "index_share_for_mtp_iteration": (False, {"mtp"}),
    "dspark_draft_topk": (1, {"dspark"}),
    "xpress_topc": (0, {"dflash"}),
    "speculator_options": ({}, {"custom_class"}),
}
"""Option -> the value that a careless test would take for unset, and the methods that read it."""


def test_2_6_guarded_options():
    """The five options of the reference are guarded."""
    assert set(GUARDED) == set(SUPPORTED)


@pytest.mark.parametrize(("option", "name"), list(itertools.product(SUPPORTED, NAMES)))
def test_2_6_option(option, name):
    """Accepted by the methods of the table and refused by all others; 0, False and {} count as set."""
    value, readers = SUPPORTED[option]
    section = {option: value}
    if name == "dflash":
        section["model"] = folder("dflash-xpress")
    if name in readers:
        assert resolved_case(name, section)
    else:
        problem = refused_case(name, section)[f"speculative.{option}"]
        assert name in problem.found
    assert (option in speculator_config_class(name).supported_options) is (name in readers)


def test_2_6_both_refusals_of_the_seed():
    """mtp with dspark_draft_topk, eagle with index_share_for_mtp_iteration."""
    assert list(refused_case("mtp", {"dspark_draft_topk": 64})) == ["speculative.dspark_draft_topk"]
    found = refused_case("eagle", {"index_share_for_mtp_iteration": True})
    assert list(found) == ["speculative.index_share_for_mtp_iteration"]


@config_class
class Mine(NgramSpeculatorConfig):
    """A method of a plugin on top of ngram."""


@config_class
class Other(NgramSpeculatorConfig):
    """Another one."""


@pytest.mark.parametrize("name", NAMES)
def test_2_7_a_built_in_name_is_taken(name):
    """No plugin replaces a built-in method."""
    with pytest.raises(SpecError, match="built-in"):
        register_speculative_method(name, Mine)


def test_2_7_a_registration_may_be_repeated_with_the_same_class():
    """The same pair again is no error; another class under the name is, and the first stays."""
    with registered("mine", Mine):
        register_speculative_method("mine", Mine)
        with pytest.raises(SpecError, match="Mine"):
            register_speculative_method("mine", Other)
        assert speculator_config_class("mine") is Mine


def test_2_7_listing_is_sorted():
    """Names come sorted, entry points among them."""
    with registered("zz", Mine), registered("aa", Other):
        assert registered_speculative_methods() == ("aa", "medusa", "zz")


@pytest.mark.parametrize("bad", [None, "medusa", "nothing"])
def test_2_7_a_class_builds_on_a_built_in_method(bad):
    """base_method None, or a method that is not built in, is refused at registration."""

    @config_class
    class Baseless(SpeculatorConfig):
        """Builds on nothing."""

        base_method = bad

    with pytest.raises(SpecError, match="base_method"):
        register_speculative_method("baseless", Baseless)
    assert "baseless" not in registered_speculative_methods()


@pytest.mark.parametrize("bad", [object, dict, NgramSpeculatorConfig.examples()[0][1]])
def test_2_7_only_classes_of_methods_are_registered(bad):
    """Anything but a subclass of SpeculatorConfig is refused."""
    with pytest.raises(SpecError, match="SpeculatorConfig"):
        register_speculative_method("bad", bad)


def test_2_7_the_method_becomes_the_base_and_the_name_is_kept():
    """Consumers that know only built-in methods see the base; the key keeps the name."""
    section = {"num_speculative_tokens": 3}
    with registered("mine", Mine):
        made = resolved({"method": "mine", **section})
    assert (made.speculative.method, made.speculative.custom_method) == ("ngram", "mine")
    assert type(made.speculative.speculator) is Mine
    base = resolved({"method": "ngram", **section})
    assert made.compute_hash(Stage.COMPILE) != base.compute_hash(Stage.COMPILE)


def test_2_7_a_method_is_unknown_before_it_is_registered():
    """Plugins register before configs are built."""
    assert list(refused({"method": "mine", "num_speculative_tokens": 3})) == ["speculative.method"]


def test_2_7_medusa_is_registered_like_any_plugin(tmp_path):
    """The worked example comes by entry point, and its checkpoint is found without a method's name."""
    draft = tmp_path / "heads"
    variant(draft, "eagle-head", without="architectures model_type", medusa_num_heads=3)
    made = resolved({"model": str(draft), "speculator_options": {"top_k": 4}}).speculative
    assert (made.method, made.custom_method) == ("eagle", "medusa")
    assert type(made.speculator) is MedusaSpeculatorConfig
    assert (made.speculator.num_heads, made.speculator.top_k) == (3, 4)
    assert made.num_speculative_tokens == 3
