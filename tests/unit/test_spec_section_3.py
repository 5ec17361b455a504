"""Section 3 of shared/reference/speculative.md: the order of resolution, step by step."""

import copy
import itertools

import pytest

from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import config_class
from graphspec.formats.vllm import from_vllm
from graphspec.resolve.infer import canonical, class_of, infer
from graphspec.speculators.custom import is_import_path
from graphspec.speculators.eagle import Eagle3SpeculatorConfig, EagleSpeculatorConfig
from graphspec.speculators.mtp import MTPSpeculatorConfig, MultiModuleMTPSpeculatorConfig
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.speculators.registry import DETECTION_ORDER, speculator_config_class
from support.peer_cases import folder
from support.speculative import (
    CASES,
    METHODS,
    engine,
    notes_of,
    peer_config,
    refused,
    refused_case,
    registered,
    resolution,
    resolved,
    resolved_case,
    section_of,
    variant,
)

LEGACY = {"spec_method": "ngram", "spec_model": "some/path", "spec_tokens": 3}
FIELDS = dict(zip(LEGACY, ("method", "model", "num_speculative_tokens"), strict=True))


@pytest.mark.parametrize("flag", LEGACY)
def test_3_1_a_legacy_flag_joins_the_section(flag):
    """Each of the three flags is a field of the section, alone and beside it."""
    value, field = LEGACY[flag], FIELDS[flag]
    assert from_vllm({"model": "m", flag: value}).data["speculative"] == {field: value}
    beside = {"model": "m", flag: value, "speculative_config": {"prompt_lookup_max": 4}}
    assert from_vllm(beside).data["speculative"] == {"prompt_lookup_max": 4, field: value}


@pytest.mark.parametrize("flag", LEGACY)
def test_3_1_the_same_field_both_ways_is_an_error(flag):
    """Even when both agree."""
    value, field = LEGACY[flag], FIELDS[flag]
    with pytest.raises(SpecError, match=field):
        from_vllm({"model": "m", flag: value, "speculative_config": {field: value}})


def test_3_1_hyphens_in_keys_become_underscores():
    """In vLLM's section and in our own; two spellings of one field are an error."""
    section = {"method": "ngram", "num-speculative-tokens": 3, "prompt-lookup-max": 2}
    made = from_vllm({"model": "m", "speculative_config": section}).data["speculative"]
    assert made == {k.replace("-", "_"): v for k, v in section.items()}
    assert resolved(section).num_speculative_tokens == 3
    found = refused({**section, "num_speculative_tokens": 3})
    assert "twice" in found["speculative.num_speculative_tokens"].found


def test_3_1_the_users_data_is_never_changed():
    """Importing and resolving leave the caller's mappings as they were, nested ones too."""
    theirs = {"model": "m", "spec_tokens": 3, "speculative_config": {"method": "ngram"}}
    ours = engine(section_of("mtp"), "target-deepseek-n1", model={"hf_overrides": {"n_group": 2}})
    before = copy.deepcopy((theirs, ours))
    from_vllm(theirs)
    config, twin = EngineConfig.from_dict(ours), EngineConfig.from_dict(ours)
    assert config.resolve() == config.resolve()
    assert config == twin
    assert (theirs, ours) == before


@config_class
class Mine(NgramSpeculatorConfig):
    """A registered method."""


INFERRED = [
    ({"method": "mine"}, "ngram", "mine"),
    ({"method": "mine", "model": "a.b"}, "ngram", "mine"),
    ({"model": "package.module.Class"}, "custom_class", None),
    ({"model": "my.model"}, "custom_class", None),
    ({"model": "ngram"}, "ngram", None),
    ({"model": "[ngram]"}, "ngram", None),
    ({}, "draft_model", None),
    ({"model": "some/folder"}, None, None),
    ({"model": "Qwen2.5"}, None, None),
    ({"method": "eagle", "model": "package.module.Class"}, "eagle", None),
]


@pytest.mark.parametrize(
    ("section", "method", "custom"), INFERRED, ids=[str(s) for s, _, _ in INFERRED]
)
def test_3_2_the_first_rule_that_fits_decides(section, method, custom):
    """Registered, import path, n-gram, nothing at all; otherwise the checkpoint decides, and a given method stays."""
    with registered("mine", Mine):
        made = infer(SpeculativeConfig(**section))
    assert (made.method, made.custom_method) == (method, custom)
    assert made.explicit is ("method" in section)


IMPORT_PATHS = {
    "my.model": True,
    "pkg.MyProposer": True,
    "a.b.C": True,
    "_a.b9": True,
    "Qwen2.5": False,
    "name": False,
    "a/b.c": False,
    "a.b/c": False,
    "a..b": False,
    "a.": False,
    ".a": False,
    "http://a.b": False,
    "https://a.b": False,
    "file://a.b": False,
    "a-b.c": False,
    "": False,
}


@pytest.mark.parametrize("text", IMPORT_PATHS)
def test_3_2_import_path(text):
    """No scheme, no slash, and at least two identifiers with a dot between."""
    assert is_import_path(text) is IMPORT_PATHS[text]


def test_3_2_no_model_is_no_import_path():
    """None is not one."""
    assert not is_import_path(None)


def test_3_2_a_folder_that_reads_like_an_import_path_is_taken_as_one(tmp_path, monkeypatch):
    """The trap: only a slash makes it a folder. The trace says what was taken and why."""
    variant(tmp_path / "pkg.MyProposer", "draft-llama")
    monkeypatch.chdir(tmp_path)
    section = {"model": "pkg.MyProposer", "num_speculative_tokens": 3}
    made = resolution(section)
    assert made.spec.speculative.method == "custom_class"
    assert "import path" in made.steps[0].why
    with_slash = resolved({**section, "model": "./pkg.MyProposer"})
    assert with_slash.speculative.method == "draft_model"


def test_3_3_aliases_become_mtp_with_a_deprecation():
    """deepseek_mtp and the like; mtp itself is no alias and has no notice."""
    made = canonical(infer(SpeculativeConfig(method="deepseek_mtp")))
    assert made.method == "mtp"
    assert [n.code for n in made.notes] == ["method_deprecated"]
    assert canonical(infer(SpeculativeConfig(method="mtp"))).notes == ()


def test_3_3_brackets_are_a_model_and_no_method():
    """`[ngram]` as a method is refused by the name check; as a model it is n-gram, with or without the method."""
    found = refused({"method": "[ngram]", "num_speculative_tokens": 3})
    assert list(found) == ["speculative.method"]
    for section in ({"model": "[ngram]"}, {"model": "[ngram]", "method": "ngram"}):
        assert resolved({**section, "num_speculative_tokens": 3}).speculative.method == "ngram"


@pytest.mark.parametrize("name", METHODS)
def test_3_4_class_of(name):
    """The method's class is the registry's."""
    cls = class_of(infer(SpeculativeConfig(method=name)))
    assert cls is speculator_config_class(name)
    assert cls.base_method == name


def test_3_4_an_unknown_method_is_refused():
    """After normalisation the name must be known."""
    with pytest.raises(SpecError, match="did you mean 'eagle3'"):
        class_of(infer(SpeculativeConfig(method="eagle-3")))


def test_3_5_the_default_model_does_not_depend_on_k():
    """mtp without k sets itself up from the target, and k comes from n_predict."""
    made = resolved_case("mtp multi-module", without="num_speculative_tokens")
    assert made.num_speculative_tokens == 2
    assert made.speculative.draft_model.architecture == "deepseek_mtp"


@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3", "dflash"])
@pytest.mark.parametrize("k", [None, 3])
def test_3_5_a_method_without_default_and_model_is_an_error(name, k):
    """With k and without."""
    found = refused_case(name, {"num_speculative_tokens": k}, without="model")
    assert "no default" in found["speculative.model"].hint


@config_class
class MyHead(Eagle3SpeculatorConfig):
    """A registered form of eagle3."""


def test_3_6_item_1_a_declared_subclass_is_used_as_is(tmp_path):
    """A checkpoint may name a registered class; under the method that it builds on it is taken, and never refined."""
    draft = variant(tmp_path / "head", "eagle3-head", speculator_config_class="my_head")
    with registered("my_head", MyHead):
        for method in ("eagle3", None):
            made = resolved_case("eagle3", {"model": draft, "method": method}).speculative
            assert type(made.speculator) is MyHead
            assert (made.method, made.custom_method) == ("eagle3", "my_head")
        found = refused_case("eagle", {"model": draft})
    assert "my_head" in found["speculative.method"].found


def test_3_6_item_1_a_class_that_nobody_registered_says_nothing(tmp_path):
    """An unknown name in the checkpoint is no declaration; the other facts count."""
    draft = variant(tmp_path / "head", "eagle3-head", speculator_config_class="unheard")
    made = resolved_case("eagle3", {"model": draft, "method": None}).speculative
    assert type(made.speculator) is Eagle3SpeculatorConfig


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("mtp", MTPSpeculatorConfig),
        ("mtp multi-module", MultiModuleMTPSpeculatorConfig),
        ("eagle", EagleSpeculatorConfig),
    ],
)
def test_3_6_item_2_specialize_finds_the_class(name, cls):
    """Otherwise the method's class chooses."""
    assert type(resolved_case(name).speculative.speculator) is cls


def test_3_6_item_3_detection_order():
    """eagle, eagle3, dflash, dspark, mtp."""
    assert DETECTION_ORDER == ("eagle", "eagle3", "dflash", "dspark", "mtp")


PATHS = {"eagle": "eagle-x", "eagle3": "eagle3-x", "dflash": "dflash-x", "dspark": "dspark-x"}
PAIRS = list(itertools.combinations(PATHS, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("swap", [False, True])
def test_3_6_item_3_the_first_match_of_a_path_wins(tmp_path, first, second, swap):
    """A path with two names is the earlier method in the order, wherever the names stand."""
    names = [PATHS[first], PATHS[second]]
    path = "-".join(reversed(names) if swap else names)
    draft = variant(tmp_path / path, "dspark-qwen3", without="markov_rank", architectures=["X"])
    section = {"model": draft, "num_speculative_tokens": 3}
    made = resolved(section, "target-qwen3")
    assert made.speculative.method == first
    assert path in notes_of(made)["method_inferred"]


def test_3_6_item_3_a_checkpoint_of_no_kind_is_a_draft_model(tmp_path):
    """No declaration and no path: a complete model drafts on its own, with a note that says so."""
    section = {"model": variant(tmp_path / "neutral", "draft-llama"), "num_speculative_tokens": 3}
    made = resolved(section)
    assert made.speculative.method == "draft_model"
    assert "LlamaForCausalLM" in notes_of(made)["method_inferred"]


def test_3_6_item_3_a_declaration_comes_before_the_path(tmp_path):
    """What the checkpoint says of itself beats the folder's name."""
    draft = variant(tmp_path / "eagle-dflash", "eagle3-head")
    made = resolved({"model": draft, "num_speculative_tokens": 3})
    assert made.speculative.method == "eagle3"


SUBTLE = {
    "eagle-and-eagle3": "eagle",
    "eagle3-x": "eagle3",
    "EAGLE-LLaMA3-Instruct-8B": "eagle",
    "EAGLE3-LLaMA3.1-Instruct-8B": "eagle3",
}


@pytest.mark.parametrize("path", SUBTLE)
def test_3_6_order_subtlety(tmp_path, path):
    """`eagle-` comes first; eagle3-x does not contain it; case does not matter."""
    section = {"model": variant(tmp_path / path, "eagle-head"), "num_speculative_tokens": 3}
    assert resolved(section).speculative.method == SUBTLE[path]


def test_3_6_item_4_a_mismatch_names_method_path_and_kind():
    """All three stand in the error."""
    draft = folder("mtp-deepseek-n1")
    section = {"method": "draft_model", "model": draft, "num_speculative_tokens": 1}
    problem = refused(section, "target-deepseek-n1")["speculative.method"]
    assert problem.found.startswith(f"draft_model for {draft}, whose checkpoint is of kind mtp")


def test_3_6_bullet_1_explicit_draft_model_in_an_eagle_folder_stays(tmp_path):
    """A path never replaces a method that was named."""
    draft = variant(tmp_path / "my-eagle-draft", "draft-llama")
    assert resolved_case("draft_model", {"model": draft}).speculative.method == "draft_model"


def test_3_6_bullet_2_explicit_draft_model_on_an_mtp_checkpoint_recommends_mtp():
    """The type of an MTP draft is a declaration."""
    section = {"method": "draft_model", "model": folder("mtp-deepseek-n1")}
    found = refused({**section, "num_speculative_tokens": 1}, "target-deepseek-n1")
    assert "set speculative.method to mtp" in found["speculative.method"].hint


def test_3_6_bullet_3_explicit_eagle_on_an_mtp_checkpoint_is_trusted():
    """DeepSeek's EAGLE heads carry an MTP type."""
    section = {"method": "eagle", "model": folder("mtp-deepseek-n1"), "num_speculative_tokens": 1}
    made = resolved(section, "target-deepseek-n1").speculative
    assert made.method == "eagle"
    assert made.draft_model.architectures == ("EagleDeepSeekMTPModel",)


def test_3_6_bullet_4_explicit_eagle_on_a_plain_model_is_trusted(tmp_path):
    """Heads of the first generation have plain class names; the config layer cannot know."""
    draft = variant(tmp_path / "neutral", "eagle-head")
    assert resolved_case("eagle", {"model": draft}).speculative.method == "eagle"


@pytest.mark.parametrize(
    ("method", "target"), [("mtp", "target-llama"), ("dflash", "target-llama")]
)
def test_3_6_bullet_5_a_structural_method_on_a_plain_model_blames_the_checkpoint(method, target):
    """The problem is at the model, and its hint says that the checkpoint is what does not fit."""
    section = {"method": method, "model": folder("draft-llama"), "num_speculative_tokens": 1}
    found = refused(section, target)
    assert "the checkpoint, not the method" in found["speculative.model"].hint


def test_3_6_bullet_5_dspark_on_a_plain_model_blames_the_checkpoint():
    """With a model, and with the target as the default one."""
    for given in ({"model": folder("draft-llama")}, {}):
        section = {"method": "dspark", "num_speculative_tokens": 1, **given}
        found = refused(section, "target-llama")
        assert "without DSpark modules" in found["speculative.model"].found


KINDS = {
    "eagle3": "eagle3-head",
    "dflash": "dflash-qwen3",
    "dspark": "dspark-qwen3",
    "mtp": "mtp-deepseek-n1",
}
TARGETS = {"eagle3": "target-llama", "mtp": "target-deepseek-n1"}
MISMATCHES = [
    (method, kind)
    for method, kind in itertools.product(("draft_model", "eagle", *KINDS), KINDS)
    if method != kind and (method, kind) not in {("eagle", "mtp"), ("dspark", "mtp")}
]


@pytest.mark.parametrize(("method", "kind"), MISMATCHES)
def test_3_6_item_4_every_pair_that_does_not_fit_is_refused(method, kind):
    """A declared kind is never run as another method, and a subclass's checkpoint not as its parent's."""
    section = {"method": method, "model": folder(KINDS[kind]), "num_speculative_tokens": 1}
    found = refused(section, TARGETS.get(kind, "target-qwen3"))
    assert f"of kind {kind}" in found["speculative.method"].found


def test_3_6_item_4_mtp_inside_a_deepseek_v4_is_no_mismatch_for_dspark(tmp_path):
    """Such a target ships both kinds of modules."""
    target = variant(tmp_path / "v4", "target-deepseek-n1", model_type="deepseek_v4")
    made = resolved({"method": "dspark", "num_speculative_tokens": 3}, target)
    assert made.speculative.method == "dspark"


UNSET = {
    "dspark_draft_topk": 1,
    "draft_lm_head_quantization": "fp8",
    "index_share_for_mtp_iteration": False,
    "xpress_topc": 0,
    "speculator_options": {},
}


@pytest.mark.parametrize("option", UNSET)
def test_3_7_set_means_not_none(option):
    """0, False and an empty mapping are values; null is none."""
    assert resolved_case("draft_model", {option: None})
    assert list(refused_case("draft_model", {option: UNSET[option]})) == [f"speculative.{option}"]


def test_3_7_the_final_class_decides():
    """Without a method, the options are those of the class that the checkpoint turns out to have."""
    section = {"model": folder("eagle3-head"), "num_speculative_tokens": 3}
    assert resolved({**section, "draft_lm_head_quantization": "fp8"})
    assert list(refused({**section, "xpress_topc": 0})) == ["speculative.xpress_topc"]


def test_3_8_verification_reports_every_broken_rule(tmp_path):
    """Rules of the last step do not hide each other."""
    section = {
        "model": variant(tmp_path / "eagle3", "eagle3-head", head_dtype="float32"),
        "draft_lm_head_quantization": "fp8",
        "use_local_argmax_reduction": True,
        "draft_sample_method": "probabilistic",
    }
    parallel = {"prefill_context_parallel_size": 2}
    assert set(refused_case("eagle3", section, parallel=parallel, watermark={"key": 1})) == {
        "speculative.draft_lm_head_quantization",
        "speculative.use_local_argmax_reduction",
        "parallel.prefill_context_parallel_size",
        "watermark.algorithm",
    }


STEPS = """infer locate choose specialise depth derive configure runner schedule mode""".split()


@pytest.mark.parametrize("name", CASES)
def test_3_every_step_says_what_it_decided_and_why(name):
    """The trace has all steps in their order, each with a decision and a reason, for every method."""
    made = resolution(CASES[name].section, CASES[name].target)
    assert [s.name for s in made.steps] == STEPS
    assert all(s.decided and s.why for s in made.steps)


def test_3_peer_models_are_what_their_names_say():
    """The checkpoints behind these tests declare the kinds that the tests assume."""
    for kind, name in KINDS.items():
        assert speculator_config_class(kind).declares(peer_config(name))
