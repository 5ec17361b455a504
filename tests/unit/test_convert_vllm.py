"""vLLM's engine arguments: each is carried, left with a reason, or a problem with its own name."""

import attrs
import pytest

from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import policies
from graphspec.formats.carry import choices_at, kind_at
from graphspec.formats.vllm import OLDER, REASONS, ROWS, from_vllm, to_vllm, vllm_command
from graphspec.text import show

SPEC = "speculative_config"


def problems_of(source):
    with pytest.raises(SpecError) as caught:
        from_vllm(source)
    return {p.where: p for p in caught.value.problems}


def left_of(carried):
    return {left.where: left for left in carried.left}


def at(data, path):
    for part in path.split("."):
        data = data[part]
    return data


def nested(name, value):
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def sample(path):
    choices = [c for c in choices_at(path) if c != "AUTO"]
    if choices:
        return choices[-1]
    return {"flag": True, "int": 3, "float": 0.5, "text": "x"}.get(kind_at(path))


@pytest.mark.parametrize(("name", "path"), [*ROWS.items(), *OLDER.items()])
def test_each_row_of_the_table_carries_its_argument(name, path):
    """A value of the field's own kind arrives at the field, and the result is a config."""
    values = {"compilation.compile_mode": 3, "compilation.splitting_ops": ["a"]}
    value = values.get(path, {"a": 1} if path == "model.hf_overrides" else sample(path))
    beside = {"model": "m"} if name != "model" else {}
    if path == "watermark.algorithm":
        beside["watermark_config"] = {"key": 1, "algorithm": value}
    data = from_vllm({**nested(name, value), **beside}).data
    expected = "piecewise" if path == "compilation.compile_mode" else value
    assert at(data, path) == expected
    EngineConfig.from_dict({"model": {"source": "m"}} | data)


@pytest.mark.parametrize("name", policies(SpeculativeConfig))
def test_each_field_of_speculation_is_carried_by_its_name(name):
    """The speculative section has one vocabulary on both sides."""
    values = {
        "num_speculative_tokens_per_batch_size": [[1, 4, 3]],
        "synthetic_acceptance_rates": [0.5],
        "draft_load_config": {"load_format": "dummy"},
        "speculator_options": {"top_k": 2},
        "suffix_decoding_min_token_prob": 0.2,
        "synthetic_acceptance_length": 1.5,
    }
    value = values.get(name, sample(f"speculative.{name}"))
    beside = {}
    if name.startswith("synthetic_"):
        beside = {"rejection_sample_method": "synthetic"}
    elif name.startswith("fly_"):
        beside = {"rejection_sample_method": "fly"}
    elif name == "rejection_sample_method":
        value = "block"
    settings = {"model": "m", SPEC: {name: value, **beside}}
    if name == "tensor_parallel_size":
        assert problems_of(settings)[f"{SPEC}.{name}"].hint.endswith("draft_tensor_parallel_size")
        return
    assert from_vllm(settings).data["speculative"][name] == value


@pytest.mark.parametrize("name", sorted(n for n in REASONS if "." not in n and n != "enable_lora"))
def test_an_argument_without_a_field_is_left_with_its_reason(name):
    """Nothing is lost without a word."""
    value = {} if name.endswith("_config") else 1
    left = left_of(from_vllm({"model": "m", name: value}))
    assert left[name].why
    assert not left[name].changed_to


@pytest.mark.parametrize(
    "settings",
    [
        {
            "model": "m",
            "dtype": "half",
            "max_model_len": 4096,
            "enable_lora": True,
            "max_loras": 2,
            "max_lora_rank": 8,
            "runner": "pooling",
            "compilation_config": {"mode": "VLLM_COMPILE", "cache_dir": "c", "level": None},
            "attention_config": {"hisparse_config": {"device_buffer_size": 4}, "unheard": 1},
            "kv_transfer_config": {"kv_connector": "LMCache", "kv_role": "kv_both"},
            SPEC: {"method": "medusa", "disable_by_batch_size": 8, "moe-backend": "humming"},
            "spec_tokens": 3,
            "seed": None,
            "unheard_of": 1,
        },
        {"model": "m", "enable_lora": False, "max_loras": 2, "dtype": "auto", "max_model_len": -1},
    ],
)
def test_no_argument_is_lost(settings):
    """Taking any one away, at any level, changes the data or what is left."""
    whole = from_vllm(settings)
    for name, value in settings.items():
        assert from_vllm({n: v for n, v in settings.items() if n != name}) != whole, name
        for key in value if isinstance(value, dict) else ():
            fewer = settings | {name: {k: v for k, v in value.items() if k != key}}
            assert from_vllm(fewer) != whole, (name, key)


def test_a_command_line_is_read_as_it_is_typed():
    """Short forms, equals signs, negations, inverses, dotted keys, sizes, and variables before the program."""
    line = (
        "VLLM_USE_V2_MODEL_RUNNER=1 CUDA_VISIBLE_DEVICES=0 vllm serve m -tp 2 -pp=3 --dtype=float --max-model-len 16k "
        "--no-enable-prefix-caching --disable-expert-parallel --trust-remote-code --max-num-batched-tokens 1.5k "
        "-sc.method eagle3 --speculative-config.num-speculative-tokens 4 -cc.splitting_ops+ a,b -cc.splitting_ops+=c "
        "-cc.cudagraph_mode full -O2 --served-model-name a b --enforce-eager"
    )
    line = line.replace("--speculative-config.", "-sc.")
    carried = from_vllm(line.split())
    assert carried.data == {
        "model": {"source": "m", "max_model_len": 16000, "dtype": "float32"},
        "scheduler": {"max_num_batched_tokens": 1500},
        "compilation": {
            "runner": "v2",
            "enforce_eager": True,
            "cudagraph_mode": "FULL",
            "splitting_ops": ["a", "b", "c"],
        },
        "parallel": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 3,
            "enable_expert_parallel": False,
        },
        "kv_cache": {"enable_prefix_caching": False},
        "speculative": {"method": "eagle3", "num_speculative_tokens": 4},
    }
    left = left_of(carried)
    assert left["--dtype"].changed_to == "model.dtype: float32"
    assert left["--served-model-name"].found == "['a', 'b'] (a list)"
    assert {"--trust-remote-code", "-O", "CUDA_VISIBLE_DEVICES"} <= set(left)
    EngineConfig.from_dict(carried.data)


def test_a_switch_before_the_model_does_not_take_it():
    """A flag that graphspec does not know takes a value, unless its name is that of a switch."""
    carried = from_vllm("serve --enable-new --no-other --new 1 m --disable-third".split())
    assert carried.data == {"model": {"source": "m"}}
    found = {left.where: left.found for left in carried.left}
    assert found["--enable-new"] == found["--no-other"] == show(True)
    assert found["--new"] == "'1' (a string)"
    words = "serve m --disable-access-log-for-endpoints /health".split()
    assert from_vllm(words).data == {"model": {"source": "m"}}


@pytest.mark.parametrize(
    ("words", "where", "found", "wanted"),
    [
        ("--max-num-seqs 8.0", "--max-num-seqs", "'8.0' (a string)", "an integer"),
        ("--max-num-seqs=x", "--max-num-seqs", "'x' (a string)", "an integer"),
        ("--max-num-seqs 0", "--max-num-seqs", "0 (an integer)", "at least 1"),
        ("--max-model-len 1.5K", "--max-model-len", "'1.5K' (a string)", "suffix"),
        ("--max-num-batched-tokens 1x", "--max-num-batched-tokens", "'1x'", "suffix"),
        ("--block-size", "--block-size", "no value", "a value"),
        ("--block-size --enforce-eager", "--block-size", "no value", "a value"),
        ("--enforce-eager=true", "--enforce-eager", "'true'", "no value"),
        ("--gpu-memory-utilization all", "--gpu-memory-utilization", "'all'", "a number"),
        ("-tp 2 --tensor-parallel-size 2", "--tensor-parallel-size", "-tp", "one value"),
        ("--block-size 1 --block-size 1", "--block-size", "given twice", "one value"),
        ("-sc.method a -sc.method b", "-sc.method", "'b'", "one value for each key"),
        ("-sc {} -sc.method b", "-sc", "given twice", "one value"),
        ("-sc {", "-sc:1:2", "invalid JSON", "key"),
        ('-sc {"a":1,"a":2}', "-sc:1: a", "a second value", "one value"),
        ("-sc [1]", "-sc", "[1] (a list)", "a mapping"),
        ("-cc.mode 7", "-cc.mode", "7 (an integer)", "0 to 3"),
        ("other", "the command line", "the word 'other'", "flags"),
        ("--spec-method mtp -sc.method mtp", "--spec-method", "'mtp'", "-sc.method"),
        ("-sc.num_speculative_tokens 3.5", "-sc.num_speculative_tokens", "3.5", "an integer"),
    ],
)
def test_a_wrong_word_is_a_problem_with_its_flag(words, where, found, wanted):
    """Flag, found and wanted, as typed."""
    problem = problems_of(["vllm", "serve", "m", *words.split()])[where]
    assert found in problem.found
    assert wanted in problem.wanted


def test_every_problem_is_reported_at_once():
    """Words, types, bounds and rules are checked in one round."""
    found = problems_of(
        {
            "model": 3,
            "max-num-seqs": "8",
            "max_num_seqs": 8,
            "spec_tokens": 2,
            SPEC: {
                "num_speculative_tokens": 0,
                "prompt_lookup_min": 3,
                "prompt_lookup_max": 2,
                "num_speculative_tokens_per_batch_size": [[2, 3, 1]],
            },
        }
    )
    assert set(found) == {
        "model",
        "max_num_seqs",
        "max-num-seqs",
        "spec_tokens",
        f"{SPEC}.num_speculative_tokens",
        f"{SPEC}.num_speculative_tokens_per_batch_size",
        f"{SPEC}.prompt_lookup_min",
    }


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("spec_method", "method", "ngram"),
        ("spec_model", "model", "d"),
        ("spec_tokens", "num_speculative_tokens", 4),
    ],
)
def test_legacy_flags_join_the_section(flag, key, value):
    """A flag beside the section is merged; the same field given both ways is an error; the input stays as it is."""
    section = {"enforce-eager": True}
    settings = {"model": "m", SPEC: section, flag: value}
    data = from_vllm(settings).data
    assert data["speculative"] == {"enforce_eager": True, key: value}
    assert section == {"enforce-eager": True}
    assert settings[flag] == value
    assert flag in problems_of({"model": "m", flag: value, SPEC: {key: value}})
    assert from_vllm({"model": "m", flag: value}).data["speculative"] == {key: value}


@pytest.mark.parametrize(
    "name",
    "disable_by_batch_size speculative_token_tree disable_logprobs dspark_confidence_threshold dspark_budget_frac "
    "dspark_sps_curve dspark_online_sts synthetic_acceptance_rate".split(),
)
def test_a_removed_field_has_a_reason_of_its_own(name):
    """Fields of older versions say what took their place."""
    left = left_of(from_vllm({"model": "m", SPEC: {name: 1}}))
    assert "removed from vLLM" in left[f"{SPEC}.{name}"].why


def test_older_names_of_acceptance_and_methods_are_understood():
    """strict and probabilistic said how drafts are drawn; medusa is a plugin now; mlp_speculator is gone."""
    strict = from_vllm({"model": "m", SPEC: {"rejection_sample_method": "strict"}})
    assert strict.data["speculative"] == {"rejection_sample_method": "standard"}
    drawn = from_vllm({"model": "m", SPEC: {"rejection_sample_method": "probabilistic"}})
    assert drawn.data["speculative"]["draft_sample_method"] == "probabilistic"
    medusa = from_vllm({"model": "m", SPEC: {"method": "medusa"}})
    assert medusa.data["speculative"] == {"method": "medusa"}
    assert left_of(medusa)[f"{SPEC}.method"].changed_to == "speculative.method: medusa"
    assert f"{SPEC}.method" in problems_of({"model": "m", SPEC: {"method": "mlp_speculator"}})


def test_a_value_that_graphspec_does_not_know_is_left():
    """A kernel of another engine is not forced into the nearest name."""
    settings = {"model": "m", "moe_backend": "humming", "attention_backend": "HPC_ATTN"}
    carried = from_vllm(settings | {"kv_cache_dtype": "turboquant_k8v4", "dtype": "auto"})
    assert carried.data == {"model": {"source": "m"}}
    assert {"moe_backend", "attention_backend", "kv_cache_dtype", "dtype"} <= set(left_of(carried))


def test_a_typo_is_left_with_the_nearest_name():
    """A name that vLLM does not have is reported, with what may have been meant."""
    left = left_of(from_vllm({"model": "m", "max_num_seq": 3, SPEC: {"num_speculative_token": 2}}))
    assert "did you mean 'max_num_seqs'?" in left["max_num_seq"].why
    assert "num_speculative_tokens'?" in left[f"{SPEC}.num_speculative_token"].why


def test_defaults_that_differ_are_named():
    """What the input leaves to vLLM is not what graphspec would take."""
    missing = {left.where for left in from_vllm({"model": "m"}).left}
    assert missing == {
        "model.dtype",
        "scheduler.max_num_seqs",
        "scheduler.max_num_batched_tokens",
        "kv_cache.num_blocks",
        "device.target",
    }
    assert "model.source" in {left.where for left in from_vllm({"seed": 1}).left}


def test_secrets_are_not_shown():
    """A report can be pasted into an issue."""
    words = "vllm serve m --api-key sk-secret --hf-token hf-secret".split()
    assert "secret" not in "".join(left.render() for left in from_vllm(words).left)
    with_key = from_vllm({"model": "m", "watermark_config": {"key": 77123, "alpha": 0.5}})
    assert with_key.data["watermark"] == {"key": 77123}
    assert "77123" not in "".join(left.render() for left in with_key.left)


def test_a_file_of_settings_yields_to_the_command_line(tmp_path):
    """--config gives what the command line does not, and what it replaces is named with its line."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: m\nmax-num-seqs: 8\nspeculative-config:\n  method: mtp\nno-enable-prefix-caching: true\n"
    )
    carried = from_vllm(["vllm", "serve", "--config", str(path), "--max-num-seqs", "4"])
    assert carried.data == {
        "model": {"source": "m"},
        "scheduler": {"max_num_seqs": 4},
        "speculative": {"method": "mtp"},
        "kv_cache": {"enable_prefix_caching": False},
    }
    lost = [left for left in carried.left if "wins" in left.why]
    assert [(left.found) for left in lost] == ["8 (an integer)"]
    path.write_text("model: m\nmax-num-seqs: '8'\n")
    assert f"{path}:2: max-num-seqs" in problems_of(["--config", str(path)])


CONFIGS = [
    {"model": {"source": "m"}},
    {
        "model": {
            "source": "m",
            "weights": "w",
            "tokenizer": "t",
            "dtype": "bfloat16",
            "quantization": "fp8",
            "max_model_len": 99,
            "pooling": True,
            "hf_overrides": {"rope_theta": 5},
        },
        "parallel": {
            "tensor_parallel_size": 2,
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
            "all2all_backend": "deepep_low_latency",
            "disable_custom_all_reduce": True,
            "distributed_executor_backend": "ray",
            "ray_workers_use_nsight": True,
        },
        "scheduler": {"max_num_seqs": 7, "max_num_batched_tokens": 77, "async_scheduling": True},
        "kv_cache": {"block_size": 32, "num_blocks": 5, "enable_prefix_caching": False},
        "kernels": {"attention_backend": "FLASHINFER", "moe_backend": "marlin"},
        "compilation": {
            "cudagraph_mode": "NONE",
            "compile_mode": "stock",
            "splitting_ops": ["a.b"],
            "use_inductor_graph_partition": True,
            "fuse_attention_quant": True,
            "enforce_eager": True,
        },
        "lora": {"max_loras": 3, "max_lora_rank": 32},
        "watermark": {"key": 5, "algorithm": "dual_key_gumbel"},
        "speculative": {
            "method": "eagle3",
            "model": "d",
            "num_speculative_tokens": 4,
            "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 9, 2]],
            "parallel_drafting": False,
            "xpress_topc": 0,
            "moe_backend": "triton",
            "rejection_sample_method": "fly",
            "fly_window_size": 2,
        },
    },
    {
        "model": {"source": "m", "hf_overrides": "pkg:function"},
        "kernels": {"attention_backend": "PAGED"},
        "kv_cache": {"dtype": "int8", "connector": {"name": "X", "layerwise": True}},
        "compilation": {"runner": "v1", "strict": True, "hisparse": True},
        "lora": {"max_lora_rank": 7},
        "device": {"target": "cuda"},
        "program": "a:b",
    },
]


def leaves(section, prefix=""):
    for name in policies(type(section)):
        value = getattr(section, name)
        if attrs.has(type(value)):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@pytest.mark.parametrize("data", CONFIGS)
@pytest.mark.parametrize("form", ["mapping", "command"])
def test_what_is_exported_comes_back(data, form):
    """Every field that the export did not report has its value again, from arguments and from a command line."""
    config = EngineConfig.from_dict(data)
    exported = to_vllm(config)
    source = exported.data if form == "mapping" else vllm_command(exported.data)
    back = dict(leaves(EngineConfig.from_dict(from_vllm(source).data)))
    reported = {left.where for left in exported.left}
    for path, value in leaves(config):
        if path not in reported:
            assert back[path] == value, path


def test_the_export_reports_what_vllm_cannot_say():
    """Fields without an argument, and values without a name there."""
    reported = left_of(to_vllm(EngineConfig.from_dict(CONFIGS[2])))
    assert set(reported) == {
        "model.hf_overrides",
        "kernels.attention_backend",
        "kv_cache.dtype",
        "kv_cache.connector.name",
        "kv_cache.connector.layerwise",
        "compilation.runner",
        "compilation.strict",
        "compilation.hisparse",
        "lora.max_lora_rank",
        "device.target",
        "program",
    }
    assert not to_vllm(EngineConfig.from_dict(CONFIGS[1])).left
