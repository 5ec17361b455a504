"""Facts of the public configs under tests/data: what each is known for, and that no damage to one escapes as a crash."""

import contextlib
import copy
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.config.model import Dtype, ModelConfig
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.fields import Stage
from graphspec.frozen import FrozenMap, freeze
from graphspec.keys.factors import compute_hash
from graphspec.resolve.checkpoint import read_checkpoint
from graphspec.resolve.model_facts import facts_of, model_spec, model_spec_of

DATA = Path(__file__).resolve().parents[1] / "data"
HF = sorted(p.parent for p in (DATA / "hf-configs").glob("*/config.json"))
PEERS = sorted(p.parent for p in (DATA / "peer-cases" / "models").glob("*/config.json"))
CONFIGS = {p.name: json.loads((p / "config.json").read_text()) for p in (*HF, *PEERS)}
INCOMPLETE = {"gemma-3-27b", "medusa-vicuna-7b-v1.3"}

EXPECTED = {
    "deepseek-v3": {
        "num_nextn_predict_layers": 1,
        "rope_type": "yarn",
        "num_experts": 256,
        "head_dim": 192,
        "num_key_value_heads": 128,
        "tie_word_embeddings": False,
        "quantization": None,
    },
    "deepseek-v4-flash": {
        "rope_type": "deepseek_yarn",
        "rope_theta": 10000.0,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "num_hidden_layers": 3,
        "intermediate_size": None,
    },
    "ernie-4.5-moe": {
        "num_nextn_predict_layers": 1,
        "num_experts": 64,
        "dtype": "bfloat16",
        "num_hidden_layers": 5,
    },
    "gemma-2-9b": {
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 256,
        "sliding_window": 4096,
        "rope_type": "default",
        "tie_word_embeddings": None,
        "vocab_size": 256000,
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "vocab_size": None,
        "max_position_embeddings": None,
        "rope_type": "linear",
        "rope_theta": None,
        "num_hidden_layers": 62,
        "head_dim": 128,
        "sliding_window": 1024,
        "dtype": "bfloat16",
    },
    "glm-4.5-air": {
        "num_experts": 128,
        "num_nextn_predict_layers": None,
        "attention_bias": True,
        "head_dim": 128,
    },
    "glm-4.7": {
        "architectures": (),
        "num_experts": 160,
        "num_nextn_predict_layers": 1,
        "rope_type": "default",
        "rope_theta": None,
        "max_position_embeddings": None,
    },
    "gpt-oss-20b": {
        "rope_type": "yarn",
        "num_experts": 32,
        "quantization": "mxfp4",
        "vocab_size": 201088,
        "sliding_window": 128,
        "has_mamba": False,
    },
    "kimi-k2": {
        "model_type": "kimi_k2",
        "architectures": ("DeepseekV3ForCausalLM",),
        "num_experts": 384,
        "num_nextn_predict_layers": None,
        "vocab_size": 163840,
        "head_dim": 192,
    },
    "llama-3.2-1b": {"rope_type": "llama3", "head_dim": 64, "tie_word_embeddings": True},
    "llama-3.3-70b": {"rope_type": "llama3", "num_experts": 0, "head_dim": 128},
    "mimo-7b": {"num_nextn_predict_layers": 1, "rope_theta": 640000.0, "vocab_size": 151680},
    "ministral-3-3b": {
        "model_type": "mistral3",
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "hidden_size": 3072,
        "num_hidden_layers": 26,
        "sliding_window": None,
    },
    "mixtral-8x7b": {"num_experts": 8, "rope_type": "default", "sliding_window": None},
    "nemotron-3-nano-30b-a3b": {
        "model_type": "",
        "has_mamba": True,
        "has_attention": True,
        "num_experts": 128,
        "head_dim": 128,
        "rope_type": "default",
    },
    "phi-3-mini-128k": {"rope_type": "longrope", "head_dim": 96, "sliding_window": 262144},
    "qwen2.5-0.5b": {"vocab_size": 151936, "sliding_window": None, "head_dim": 64},
    "qwen2.5-vl-7b": {
        "rope_type": "mrope",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
    },
    "qwen3-0.6b": {"head_dim": 128, "rope_type": "default", "tie_word_embeddings": True},
    "qwen3-30b-a3b": {"num_experts": 128, "rope_type": "default", "head_dim": 128},
    "qwen3-4b-2507": {"max_position_embeddings": 262144, "rope_theta": 5e6, "head_dim": 128},
    "qwen3.5-35b-a3b": {
        "model_type": "qwen3_5_moe",
        "vocab_size": 248320,
        "rope_type": "default",
        "rope_theta": 1e7,
        "num_experts": 256,
        "has_mamba": True,
        "has_attention": True,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": None,
    },
    "smollm2-135m": {"num_key_value_heads": 3, "head_dim": 64, "rope_theta": 1e5},
    "tinyllama-1.1b": {"rope_type": "default", "rope_theta": 1e4, "max_position_embeddings": 2048},
    "dflash-kimi-k2.7-code": {"rope_type": "yarn", "model_type": "qwen3", "num_hidden_layers": 6},
    "dflash-qwen3-8b": {"architectures": ("DFlashDraftModel",), "draft_vocab_size": None},
    "dspark-deepseek-v4-flash": {
        "model_type": "deepseek_v4_dspark_draft",
        "num_experts": 256,
        "max_position_embeddings": None,
        "head_dim": 512,
        "num_key_value_heads": 1,
    },
    "dspark-qwen3-8b": {"num_hidden_layers": 5, "sliding_window": None},
    "dspark-speculators-glm-5.2": {
        "model_type": "",
        "architectures": (),
        "draft_vocab_size": 154880,
        "vocab_size": 154880,
        "head_dim": 64,
        "rope_theta": 8e6,
        "max_position_embeddings": None,
    },
    "eagle1-llama3-8b": {
        "num_hidden_layers": 1,
        "max_position_embeddings": 2048,
        "draft_vocab_size": None,
    },
    "eagle3-gemma4-full-vocab": {"draft_vocab_size": 262144, "vocab_size": 262144},
    "eagle3-kimi-k2": {"model_type": "kimi_k2", "draft_vocab_size": 32000, "num_experts": 0},
    "eagle3-llama3-70b": {"rope_type": "llama3", "max_position_embeddings": 4096},
    "eagle3-llama3-8b": {"draft_vocab_size": 32000, "rope_theta": None, "head_dim": 128},
    "eagle3-nebius-gpt-oss-20b": {
        "draft_vocab_size": 64000,
        "rope_type": "yarn",
        "max_position_embeddings": None,
    },
    "eagle3-speculators-qwen3-moe": {
        "model_type": "llama",
        "architectures": ("Eagle3DraftModel",),
        "draft_vocab_size": 32000,
        "vocab_size": 151936,
        "sliding_window": 2048,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "eagle3.1-qwen3-30b-a3b": {"num_experts": 0, "num_key_value_heads": 4},
    "medusa-vicuna-7b-v1.3": {
        "model_type": "",
        "architectures": (),
        "hidden_size": None,
        "head_dim": None,
        "num_key_value_heads": None,
        "vocab_size": None,
    },
    "mtp-qwen3.5-122b-a10b": {
        "draft_vocab_size": 64000,
        "num_experts": 256,
        "rope_type": "default",
        "rope_theta": 1e7,
    },
    "peagle-qwen3-8b": {"num_hidden_layers": 4, "draft_vocab_size": 151936},
}


def spec_of(config, **options):
    """The model section of `config` as a draft, which asks for the fewest facts."""
    given = {
        "source": "somewhere",
        "weights": None,
        "dtype": Dtype.BFLOAT16,
        "quantization": None,
        "max_model_len": None,
        "where": "speculative.model",
        "default_max_model_len": 64,
    }
    return model_spec_of(facts_of(config), config, **{**given, **options})


def test_every_config_of_the_data_has_its_expectations():
    """The table covers the folder, so that a config which is added is looked at."""
    assert EXPECTED.keys() == {p.name for p in HF}
    assert len(HF) == 40
    assert len(PEERS) == 34


@pytest.mark.parametrize("folder", HF, ids=lambda p: p.name)
def test_a_public_config_gives_the_facts_it_is_known_for(folder):
    """Whatever names and levels a family uses, its facts arrive, and nothing counts as damaged."""
    facts = facts_of(read_checkpoint(str(folder)))
    expected = EXPECTED[folder.name]
    assert {name: getattr(facts, name) for name in expected} == expected
    assert facts.bad == ()


@pytest.mark.parametrize("folder", [*HF, *PEERS], ids=lambda p: p.name)
def test_a_public_config_makes_a_model_section(folder):
    """Each has a key, except the two that leave out what its class would fill in; those name it."""
    config = read_checkpoint(str(folder))
    if folder.name in INCOMPLETE:
        with pytest.raises(SpecError, match="vocab_size"):
            spec_of(config)
        return
    spec = spec_of(config)
    assert len(compute_hash(spec, Stage.COMPILE)) == 32
    assert str(folder) not in repr(spec.extra)


@pytest.mark.parametrize("folder", PEERS, ids=lambda p: p.name)
def test_facts_of_a_peer_model_are_those_of_its_config(folder):
    """The small models of the peer's cases are plain: what their config says is what arrives."""
    config = CONFIGS[folder.name]
    text = config.get("transformer_layer_config", config)
    facts = facts_of(config)
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        assert getattr(facts, name) == text[name]
    assert facts.num_experts == text.get("num_local_experts", text.get("n_routed_experts", 0))
    assert facts.draft_vocab_size == config.get("draft_vocab_size")
    assert facts.rope_type == text.get("rope_scaling", {}).get("rope_type", "default")
    assert facts.bad == ()


def test_facts_that_the_peer_states_of_a_draft_are_ours():
    """Where vLLM runs a draft's own config, vocabulary and kind of MLP are the same as here."""
    cases = json.loads((DATA / "peer-cases" / "spec-cases.json").read_text())["cases"]
    seen = set()
    for case in cases:
        draft, model = case["vllm"]["config"].get("draft"), case["spec"].get("model")
        if not draft or draft.get("is_target") or not str(model).startswith("models/"):
            continue
        facts = facts_of(CONFIGS[model.removeprefix("models/")])
        assert (facts.vocab_size, facts.num_experts > 0) == (draft["vocab_size"], draft["is_moe"])
        seen.add(model)
    assert len(seen) > 15


def test_a_config_that_leaves_facts_to_its_class_names_them(tmp_path):
    """Gemma 3 states neither vocabulary nor positions; both are named with the way to set them."""
    folder = DATA / "hf-configs" / "gemma-3-27b"
    with pytest.raises(SpecError) as caught:
        model_spec(ModelConfig(source=str(folder)))
    assert [p.hint for p in caught.value.problems] == [
        "set it under model.hf_overrides.max_position_embeddings",
        "set it under model.hf_overrides.vocab_size",
    ]
    given = {"vocab_size": 262208, "max_position_embeddings": 131072, "num_hidden_layers": 2}
    spec = model_spec(ModelConfig(source=str(folder), hf_overrides=given))
    assert (spec.vocab_size, spec.max_model_len, spec.num_hidden_layers) == (262208, 131072, 2)
    assert spec.extra["rope_parameters"] == {"factor": 8.0}
    assert spec.extra["model_type"] == "gemma3_text"
    assert "vision_config" in spec.extra
    # Its classes tie the head and take this activation, though the config says neither.
    assert spec.tie_word_embeddings is True
    assert spec.hidden_act == "gelu_pytorch_tanh"


def test_what_changes_no_code_stays_out_of_the_section():
    """Locations, versions, training and token ids are not in the key; the rest is."""
    spec = spec_of(CONFIGS["eagle3-speculators-qwen3-moe"])
    text = json.dumps(repr(spec.extra))
    for name in (
        "/model/from_s3",
        "auto_map",
        "transformers_version",
        "initializer_range",
        "dtype",
    ):
        assert name not in text
    assert spec.extra["layer_types"] == ("sliding_attention",)
    assert spec.extra["draft_vocab_size"] == 32000
    assert spec.extra["speculators_config"]["algorithm"] == "eagle3"
    assert "transformer_layer_config" not in spec.extra
    phi = spec_of(CONFIGS["phi-3-mini-128k"])
    assert len(phi.extra["rope_parameters"]["long_factor"]) == 48
    assert phi.extra["rope_parameters"]["original_max_position_embeddings"] == 4096
    assert not phi.extra.keys() & {"_name_or_path", "embd_pdrop", "eos_token_id", "rope_scaling"}
    assert spec_of(CONFIGS["target-llama"]).extra == {}


HARMLESS = set(
    """bos_token_id eos_token_id pad_token_id torch_dtype dtype transformers_version auto_map use_cache
    initializer_range attention_dropout resid_pdrop embd_pdrop tie_word_embeddings router_aux_loss_coef mtp_loss_weight
    cache_implementation output_router_logits _name_or_path transformers.js_config speculators_version
    base_model_name_or_path""".split()
)
NESTS = ("text_config", "transformer_layer_config")


def another(value):
    """A value of the same type, or a window where there was none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 64
    return {list: ["other"], dict: {"other": 1}, str: "other"}.get(type(value), 64)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - INCOMPLETE))
def test_every_change_of_a_config_is_a_change_of_its_section(name):
    """Facts or `extra`: no value that can change code is lost between a config and its section."""
    config = CONFIGS[name]
    before, lost = spec_of(config), []
    for path in paths(config):
        depth = 2 if path[0] in NESTS else 1
        if len(path) > depth or path[-1] in (*HARMLESS, *NESTS):
            continue
        value = another(value_at(config, path))
        with contextlib.suppress(SpecError):
            if spec_of(changed(config, path, value)) == before:
                lost.append(path)
    assert lost == []


def paths(value, path=()):
    """The path of everything below a config; of a list its first item alone."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from paths(inner, (*path, key))


def value_at(config, path):
    for key in path:
        config = config[key]
    return config


def changed(config, path, junk, *, remove=False):
    made = copy.deepcopy(config)
    at = made
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = junk
    return made


def only_our_errors(config):
    facts = facts_of(config)
    assert facts_of(freeze(config)) == facts
    problems = []
    try:
        assert len(compute_hash(spec_of(config), Stage.COMPILE)) == 32
    except SpecError as error:
        problems = error.problems
    assert all(p.where.startswith("speculative.model: ") for p in problems)


JUNK = [None, True, -1, 0, 10**400, 1e300, "", "x", [], ["x", 1], {}, {"rope_type": 3}]
PLACES = [(name, path) for name, config in CONFIGS.items() for path in paths(config)]


@pytest.mark.parametrize("name", CONFIGS)
def test_no_field_can_crash_by_lacking_or_by_its_type(name):
    """Every field of every config removed, and replaced by each type of junk: facts, or a SpecError with its place."""
    config = CONFIGS[name]
    for path in paths(config):
        only_our_errors(changed(config, path, None, remove=True))
        junk = JUNK[len(path) + sum(map(len, map(str, path))) :: 5] + JUNK[::3]
        for value in junk:
            only_our_errors(changed(config, path, value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rope_type", "rope_theta", "text_config", "hidden_size", "", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(place=st.sampled_from(PLACES), junk=JSON, other=st.sampled_from(PLACES))
@example(place=("gemma-3-27b", ("text_config",)), junk={"text_config": {}}, other=PLACES[0])
@example(place=("gpt-oss-20b", ("rope_scaling",)), junk={"full_attention": {}}, other=PLACES[0])
def test_generated_junk_ends_in_facts_or_a_spec_error(place, junk, other):
    """Any JSON value anywhere, NaN included; only what is beyond all keys is left to the key's own error."""
    name, path = place
    config = changed(CONFIGS[name], path, junk)
    facts = facts_of(config)
    assert all(p.found and p.wanted for p in facts.bad)
    try:
        spec = spec_of(config)
    except SpecError:
        return
    assert spec.hidden_size >= 1
    assert isinstance(spec.extra, FrozenMap)


@given(junk=JSON)
def test_generated_junk_in_a_file_ends_in_our_errors(tmp_path_factory, junk):
    """The same through config.json and the target's path, where numbers that are not finite become text."""
    folder = tmp_path_factory.getbasetemp() / "junk"
    folder.mkdir(exist_ok=True)
    config = {**CONFIGS["target-llama"], "rope_scaling": junk, "unknown": junk}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        spec = model_spec(ModelConfig(source=str(folder)))
    except (SpecError, EnvironmentProblem):
        return
    assert len(compute_hash(spec, Stage.COMPILE)) == 32
