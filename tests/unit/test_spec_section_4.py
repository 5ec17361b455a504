"""Sections 4.1 to 4.4 of shared/reference/speculative.md: the draft's model, its overrides, positions and class."""

import pickle
import sys
import textwrap

import pytest

from graphspec.frozen import freeze
from graphspec.resolve.draft import POSITIONS_ARE_TABLE_SIZES
from support.peer_cases import folder
from support.processes import run_python
from support.speculative import (
    checkpoint,
    notes_of,
    peer_config,
    refused,
    resolved,
    resolved_case,
    variant,
)

FUNCTIONS = """
    def halve(config):
        return {**config, "num_hidden_layers": config["num_hidden_layers"] // 2, "seen": config["model_type"]}

    def tag(config):
        return {**config, "seen": config["model_type"]}
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """The name of an importable module with functions for hf_overrides."""
    (tmp_path / "spec_functions.py").write_text(textwrap.dedent(FUNCTIONS))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "spec_functions"
    sys.modules.pop("spec_functions", None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"])
def test_4_1_the_dtype_is_the_targets(name, dtype):
    """Whatever type the draft's checkpoint states."""
    spec = resolved_case(name, model={"dtype": dtype})
    assert spec.speculative.draft_model.dtype.value == dtype


def test_4_1_model_quantization_and_length_are_the_sections():
    """They come from the speculative section; the rest is the checkpoint's."""
    draft = folder("draft-llama")
    given = {"quantization": "awq", "max_model_len": 1024}
    made = resolved_case("draft_model", given).speculative.draft_model
    assert (made.source, made.quantization, made.max_model_len) == (draft, "awq", 1024)
    assert made.hidden_size == peer_config("draft-llama")["hidden_size"]


@pytest.mark.parametrize("override", [{"rope_theta": 5.0}, {"hidden_act": "gelu"}])
def test_4_2_overrides_as_a_mapping_are_the_targets_alone(override):
    """They are dropped for a separate draft, and a note names them."""
    spec = resolved_case("eagle3", model={"hf_overrides": override})
    ((name, value),) = override.items()
    assert getattr(spec.model, name) == value
    assert getattr(spec.speculative.draft_model, name) != value
    assert name in notes_of(spec)["overrides_not_for_draft"]


def test_4_2_without_overrides_only_the_mapping_acts():
    """No note, and the class names are the rewriting's."""
    spec = resolved_case("eagle3")
    assert "overrides_not_for_draft" not in notes_of(spec)
    assert spec.speculative.draft_model.architectures == ("LlamaForCausalLMEagle3",)
    assert spec.speculative.draft_overrides.function is None


def test_4_2_overrides_as_a_function_act_after_the_mapping(functions):
    """The function sees the rewritten config, for a separate draft and for one inside the target, and acts once."""
    model = {"hf_overrides": f"{functions}:halve"}
    eagle = resolved_case("eagle", model=model)
    assert eagle.speculative.draft_model.extra["seen"] == "eagle"
    assert eagle.model.num_hidden_layers == 4
    mtp = resolved_case("mtp", model=model)
    assert mtp.speculative.draft_model.extra["seen"] == "deepseek_mtp"
    assert mtp.model.num_hidden_layers == mtp.speculative.draft_model.num_hidden_layers == 2


@pytest.mark.parametrize("name", ["eagle", "mtp", "dspark", "dflash"])
def test_4_2_the_composed_overrides_are_picklable(functions, name):
    """No closure: what is unpickled is equal and does the same."""
    spec = resolved_case(name, model={"hf_overrides": f"{functions}:tag"})
    overrides = spec.speculative.draft_overrides
    again = pickle.loads(pickle.dumps(overrides))
    assert again == overrides
    given = freeze(peer_config("eagle-head"))
    assert again(given) == overrides(given)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_4_2_the_composed_overrides_work_in_a_spawned_process(functions, tmp_path):
    """A worker that shares no memory turns the checkpoint's config into the same one."""
    model = {"hf_overrides": f"{functions}:halve"}
    overrides = resolved_case("eagle3", model=model).speculative.draft_overrides
    given = freeze(peer_config("eagle3-head"))
    (tmp_path / "both").write_bytes(pickle.dumps((overrides, given)))
    code = """
        import os, pickle, sys
        sys.path.insert(0, os.environ["AT"])
        overrides, given = pickle.load(open(os.path.join(os.environ["AT"], "both"), "rb"))
        made = overrides(given)
        print(made["model_type"], made["architectures"][0], made["num_hidden_layers"], made["seen"])
    """
    made = overrides(given)
    wanted = [made[n] for n in ("model_type", "num_hidden_layers", "seen")]
    model_type, _, layers, seen = run_python(code, AT=str(tmp_path)).split()
    assert [model_type, int(layers), seen] == wanted == ["eagle", 0, "eagle"]


SAFE = ["default", "linear", "llama3", "ntk", "proportional"]
UNSAFE = ["yarn", "deepseek_yarn", "deepseek_llama_scaling", "dynamic", "longrope", "su"]
SHARED = {
    # method: a draft whose limit can be set, its target, and the target's length
    "eagle": ("eagle-head", "target-llama", 8192),
    "eagle3": ("eagle3-head", "target-llama", 8192),
    "dflash": ("dflash-qwen3", "target-qwen3", 16384),
    "dspark": ("dspark-qwen3", "target-qwen3", 16384),
    "mtp": ("mtp-deepseek-n1", "target-deepseek-n1", 16384),
}


def scaled(at, name, kind, positions=2048):
    """A peer model with this limit and kind of rotary scaling."""
    rope = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 512}
    scaling = {} if kind == "default" else {"rope_scaling": rope}
    return variant(at, name, max_position_embeddings=positions, **scaling)


def drafted(at, method, kind, positions=2048, **sections):
    name, target, _ = SHARED[method]
    section = {"method": method, "num_speculative_tokens": 3}
    section["model"] = scaled(at / name, name, kind, positions)
    return resolved(section, target, **sections)


def test_4_3_the_safe_kinds():
    """The five of [S]."""
    assert set(SAFE) == POSITIONS_ARE_TABLE_SIZES


@pytest.mark.parametrize("kind", SAFE)
@pytest.mark.parametrize("method", SHARED)
def test_4_3_a_shorter_limit_is_raised(tmp_path, method, kind):
    """To the target's max_model_len, with a note that has both numbers."""
    spec = drafted(tmp_path, method, kind)
    length = SHARED[method][2]
    assert spec.speculative.draft_model.max_position_embeddings == length
    assert spec.speculative.draft_model.max_model_len == length
    note = notes_of(spec)["draft_positions_raised"]
    assert str(length) in note
    assert "2048" in note


@pytest.mark.parametrize("kind", UNSAFE)
@pytest.mark.parametrize("method", SHARED)
def test_4_3_a_limit_that_the_frequencies_depend_on_is_kept(tmp_path, method, kind):
    """The table is not a table alone: the limit stays, drafting ends there, and notes say both."""
    spec = drafted(tmp_path, method, kind)
    assert spec.speculative.draft_model.max_position_embeddings == 2048
    assert spec.max_draft_len == 2048
    assert {"draft_positions_kept", "drafts_stop_early"} <= set(notes_of(spec))


@pytest.mark.parametrize("positions", [8192, 8193, 100000])
def test_4_3_an_equal_or_larger_limit_is_untouched(tmp_path, positions):
    """No change and no note."""
    spec = drafted(tmp_path, "eagle3", "default", positions)
    assert spec.speculative.draft_model.max_position_embeddings == positions
    assert "draft_positions_raised" not in notes_of(spec)


def test_4_3_a_missing_limit_is_untouched(tmp_path):
    """What the checkpoint does not state is not made up."""
    draft = variant(tmp_path / "eagle3", "eagle3-head", without="max_position_embeddings")
    spec = resolved_case("eagle3", {"model": draft})
    assert spec.speculative.draft_model.max_position_embeddings == 0
    assert spec.max_draft_len == 8192
    assert notes_of(spec) == {}


def test_4_3_the_limit_is_compared_with_the_targets_length(tmp_path):
    """max_model_len of the target counts, and not its own positions."""
    spec = drafted(tmp_path, "eagle", "default", model={"max_model_len": 1024})
    assert spec.speculative.draft_model.max_position_embeddings == 2048
    spec = drafted(tmp_path, "eagle", "default", model={"max_model_len": 4096})
    assert spec.speculative.draft_model.max_position_embeddings == 4096


@pytest.mark.parametrize("kind", [*SAFE, *UNSAFE])
def test_4_3_an_independent_draft_keeps_its_own_limit(tmp_path, kind):
    """Never for draft_model."""
    draft = scaled(tmp_path / "d", "draft-llama", kind)
    spec = resolved_case("draft_model", {"model": draft})
    assert spec.speculative.draft_model.max_position_embeddings == 2048
    assert spec.max_draft_len == 2048
    assert list(notes_of(spec)) == ["drafts_stop_early"]


ADAPTED = [
    ("eagle", "eagle-head", "eagle", "EagleLlamaForCausalLM"),
    ("eagle3", "eagle3-head", "eagle", "LlamaForCausalLMEagle3"),
    ("eagle3", "speculators-peagle", "speculators", "PeagleLlamaForCausalLM"),
    ("dflash", "dflash-qwen3", "eagle", "DFlashDraftModel"),
    ("dspark", "dspark-qwen3", "qwen3", "Qwen3DSparkModel"),
]


@pytest.mark.parametrize(("method", "name", "kind", "cls"), ADAPTED)
def test_4_4_adapted(method, name, kind, cls):
    """The head's type and class, and every fact that follows from them."""
    made = resolved_case(method, {"model": folder(name)}).speculative.draft_model
    assert (made.architecture, made.architectures) == (kind, (cls,))


def test_4_4_a_qwen3_dspark_draft_gets_its_familys_class(tmp_path):
    """DSparkDraftModel of type qwen3 is renamed."""
    draft = variant(tmp_path / "d", "dspark-qwen3", architectures=["DSparkDraftModel"])
    made = resolved_case("dspark", {"model": draft}).speculative.draft_model
    assert made.architectures == ("Qwen3DSparkModel",)


@pytest.mark.parametrize("kind", ["deepseek_v4", "deepseek_v41"])
def test_4_4_deepseek_v4_reuses_the_targets_config(tmp_path, kind):
    """The full target config under another class, with the target's quantisation."""
    target = variant(tmp_path / "t", "target-deepseek-n1", model_type=kind)
    section = {"method": "dspark", "num_speculative_tokens": 3}
    spec = resolved(section, target, model={"quantization": "fp8"})
    draft = spec.speculative.draft_model
    assert draft.architectures == ("DSparkDraftModel",)
    assert draft.quantization == "fp8"
    assert (draft.hidden_size, draft.num_hidden_layers) == (1024, spec.model.num_hidden_layers)


@pytest.mark.parametrize("own", [None, [2, 3]])
def test_4_4_gemma4_copies_its_layer_ids(tmp_path, own):
    """target_layer_ids go to DSpark's name for them, if that has no value of its own."""
    changes = {} if own is None else {"dspark_target_layer_ids": own}
    draft = variant(
        tmp_path / "d",
        "dspark-qwen3",
        model_type="gemma4_text",
        architectures=["Gemma4DSparkModel"],
        **changes,
    )
    made = resolved_case("dspark", {"model": draft}).speculative
    assert made.draft_model.extra["dspark_target_layer_ids"] == tuple(own or [1, 5, 9])
    assert made.speculator.aux_layer_ids == tuple(own or [1, 5, 9])


OMNI = {
    "block size": ({"num_speculative_tokens": 6}, {}),
    "hidden size": ({}, {"hidden_size": 512}),
    "heads": ({}, {"num_attention_heads": 8}),
    "kv heads": ({}, {"num_key_value_heads": 16}),
    "head dim": ({}, {"head_dim": 64}),
    "no layers": ({}, {"target_layer_ids": []}),
    "layers not rising": ({}, {"target_layer_ids": [1, 5, 5]}),
    "a layer beyond the last": ({}, {"target_layer_ids": [1, 5, 12]}),
    "mask token outside": ({}, {"mask_token_id": 151936}),
    "no mask token": ({}, {"mask_token_id": None}),
    "several dimensions": ({}, {"rope_scaling": {"mrope_section": [1, 2, 3]}}),
    "markov rank": ({}, {"markov_rank": 0}),
    "markov head": ({}, {"markov_head_type": "gated"}),
    "layout": ({}, {"sample_from_anchor": False}),
}


@pytest.fixture
def omni(tmp_path):
    """A Qwen3-Omni target, whose language model lies two levels deep."""
    thinker = {"text_config": peer_config("target-qwen3")}
    config = {"model_type": "qwen3_omni_moe", "architectures": ["Qwen3OmniMoeForCausalLM"]}
    return checkpoint(tmp_path / "omni", {**config, "thinker_config": thinker})


def omni_section(tmp_path, changes, draft):
    model = variant(tmp_path / "d", "dspark-qwen3", **draft)
    return {"method": "dspark", "model": model, "num_speculative_tokens": 7, **changes}


@pytest.mark.parametrize("k", [7, None])
def test_4_4_omni_takes_a_draft_that_keeps_the_contract(tmp_path, omni, k):
    """Block size, shapes, layers and layout as they were trained."""
    section = omni_section(tmp_path, {"num_speculative_tokens": k}, {})
    assert resolved(section, omni).num_speculative_tokens == 7


@pytest.mark.parametrize("part", OMNI)
def test_4_4_omni_refuses(tmp_path, omni, part):
    """Each part of the contract on its own."""
    changes, draft = OMNI[part]
    found = refused(omni_section(tmp_path, changes, draft), omni)
    assert any("Qwen3-Omni" in problem.found for problem in found.values())
