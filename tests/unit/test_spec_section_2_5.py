"""Sections 2.5 to 2.7 of shared/reference/speculative.md: hooks, guarded options, and the registry."""

import itertools

import pytest

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, config_class
from graphspec.resolve.options import GUARDED
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.dflash import DSparkSpeculatorConfig
from graphspec.speculators.eagle import EagleSpeculatorConfig, is_parallel_head, wrap_head
from graphspec.speculators.medusa import MedusaSpeculatorConfig
from graphspec.speculators.mtp import MTPSpeculatorConfig
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.speculators.registry import (
    DETECTION_ORDER,
    register_speculative_method,
    registered_speculative_methods,
    speculator_config_class,
)
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


def test_2_5_default_model_of_mtp_and_dspark():
    """The target's weights, else its model; given or not, k plays no part."""
    section = SpeculativeConfig()
    for cls in (MTPSpeculatorConfig, DSparkSpeculatorConfig):
        assert cls.default_model(section, ModelConfig(source="a")) == "a"
        assert cls.default_model(section, ModelConfig(source="a", weights="b")) == "b"


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"mtp", "dspark"}))
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


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"mtp"}))
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


def test_2_5_extract_hidden_states_runs_no_model():
    """A model that is given is not read, and a note says so."""
    spec = resolved_case("extract_hidden_states", {"model": "/no/such/folder"})
    assert "not read" in notes_of(spec)["model_unused"]


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


@pytest.mark.parametrize(("option", "name"), list(itertools.product(SUPPORTED, METHODS)))
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


@pytest.mark.parametrize("name", [*METHODS, "deepseek_mtp"])
def test_2_7_a_built_in_name_is_taken(name):
    """No plugin replaces a built-in method or takes a deprecated name of one."""
    with pytest.raises(SpecError, match="built-in"):
        register_speculative_method(name, Mine)


def test_2_7_a_registration_may_be_repeated_with_the_same_class():
    """The same pair again is no error; another class under the name is, and the first stays."""
    with registered("mine", Mine):
        register_speculative_method("mine", Mine)
        with pytest.raises(SpecError, match="Mine"):
            register_speculative_method("mine", Other)
        assert speculator_config_class("mine") is Mine


def test_2_7_a_name_of_an_entry_point_is_taken_too():
    """Another class under medusa is refused, the same one is no error."""
    assert "medusa" in registered_speculative_methods()
    with pytest.raises(SpecError, match="MedusaSpeculatorConfig"):
        register_speculative_method("medusa", Mine)
    with registered("medusa", MedusaSpeculatorConfig):
        assert registered_speculative_methods() == ("medusa",)


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
