"""TensorRT-LLM's options: each is carried, left with a reason, or a problem with its own name."""

import attrs
import pytest

from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import dense_schedule
from graphspec.errors import SpecError
from graphspec.fields import policies
from graphspec.formats.carry import choices_at, kind_at
from graphspec.formats.trtllm import (
    METHODS,
    NO_METHOD,
    REASONS,
    ROWS,
    from_trtllm,
    read_trtllm,
    to_trtllm,
)

SPEC = "speculative_config"
K, TABLE = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"


def problems_of(options):
    with pytest.raises(SpecError) as caught:
        from_trtllm(options)
    return {p.where: p for p in caught.value.problems}


def left_of(carried):
    return {left.where: left for left in carried.left}


def drafting(kind, **options):
    return {"model": "m", SPEC: {"decoding_type": kind, **options}}


def nested(name, value):
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def at(data, path):
    for part in path.split("."):
        data = data[part]
    return data


@pytest.mark.parametrize(("name", "path"), ROWS.items())
def test_each_row_of_the_table_carries_its_option(name, path):
    """A value of the field's own kind arrives at the field, and the result is a config."""
    values = {
        "kernels.attention_backend": "FLASHINFER",
        "kernels.moe_backend": "marlin",
        "kv_cache.dtype": "nvfp4",
        "model.hf_overrides": {"a": 1},
    }
    choices = choices_at(path)
    other = choices[-1] if choices else {"flag": True, "int": 3, "text": "x"}.get(kind_at(path))
    value = values.get(path, other)
    data = from_trtllm({"model": "m"} | nested(name, value)).data
    assert at(data, path) == value
    EngineConfig.from_dict(data)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_an_option_without_a_field_is_left_with_its_reason(name):
    """Nothing is lost without a word."""
    nulls = {"cuda_graph_config": {"batch_sizes": [1]}, "torch_compile_config": {"x": 1}}
    value = {"unheard": 1} if name in ("kv_cache_config", "moe_config", "lora_config") else 1
    value = {"unheard": 1} if name == "kv_connector_config" else nulls.get(name, value)
    options = {"model": "m"} | nested(name, value)
    if name.startswith(SPEC):
        options[SPEC]["decoding_type"] = "Eagle3"
        if name.endswith("use_dynamic_tree"):
            options[SPEC]["use_dynamic_tree"] = True
    reported = [left for left in from_trtllm(options).left if left.where.startswith(name)]
    assert any(left.why == REASONS[name] for left in reported)


OPTIONS = {
    "model": "m",
    "dtype": "auto",
    "tensor_parallel_size": 4,
    "moe_expert_parallel_size": 2,
    "allreduce_strategy": "NCCL",
    "disable_overlap_scheduler": False,
    "lora_config": {"max_loras": 2, "lora_dir": ["d"]},
    "kv_cache_config": {"max_tokens": 100, "tokens_per_block": 8, "free_gpu_memory_fraction": 0.5},
    "moe_config": {"backend": "WIDEEP", "max_num_tokens": 3},
    "kv_connector_config": {"connector": "lmcache", "server_url": "u"},
    "cuda_graph_config": {"batch_sizes": [1, 2], "enable_padding": True},
    "prefill_cuda_graph_backend": "piecewise",
    "torch_compile_config": {"enable_inductor": True},
    "backend": "pytorch",
    "max_beam_width": None,
    "unheard_of": 1,
}


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        {"model": "m", "cuda_graph_config": None, "prefill_cuda_graph_backend": "breakable"},
        {"model": "m", "enable_lora": True},
        drafting(
            "Eagle3",
            max_draft_len=3,
            max_total_draft_tokens=9,
            speculative_model="d",
            use_dynamic_tree=True,
            dynamic_tree_max_topK=3,
            max_concurrency=8,
            use_rejection_sampling=False,
            load_format="dummy",
            sa_config={"threshold": 4},
        ),
        drafting("NGram", max_draft_len=3, max_matching_ngram_size=2, is_keep_all=True),
        drafting("MTP", num_nextn_predict_layers=2, max_draft_len=2, relaxed_topk=3),
        drafting("DSpark", max_draft_len=4, block_size=4, markov_rank=8, max_concurrency=8),
        drafting("Lookahead", max_window_size=4, max_ngram_size=3),
        drafting("SaveState", output_directory="o", write_interval=3),
    ],
)
def test_no_option_is_lost(options):
    """Taking any one away, at any level, changes the data, what is left, or whether there is a result."""
    whole = from_trtllm(options)
    smaller = [{n: v for n, v in options.items() if n != name} for name in options]
    for name, value in options.items():
        keys = value if isinstance(value, dict) else ()
        smaller += [options | {name: {k: v for k, v in value.items() if k != key}} for key in keys]
    for fewer in smaller:
        try:
            assert from_trtllm(fewer) != whole, fewer
        except SpecError:
            continue


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("Eagle", {"max_draft_len": 4, "speculative_model_dir": "d"}, {"method": "eagle3", K: 4}),
        ("Eagle3", {"max_draft_len": 4, "speculative_model": "d"}, {"method": "eagle3", K: 4}),
        ("MTP", {"max_draft_len": 2}, {"method": "mtp", K: 2}),
        ("MTP", {"num_nextn_predict_layers": 2}, {"method": "mtp", K: 2}),
        (
            "NGram",
            {"max_draft_len": 4, "max_matching_ngram_size": 3},
            {"method": "ngram", K: 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
        ),
        (
            "NGram",
            {"max_draft_len": 4},
            {"method": "ngram", K: 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1},
        ),
        ("Draft_Target", {"max_draft_len": 4}, {"method": "draft_model", K: 4}),
        (
            "PARD",
            {"max_draft_len": 4, "mask_token_id": 7},
            {"method": "draft_model", K: 4, "parallel_drafting": True},
        ),
        ("DFlash", {"max_draft_len": 15, "target_layer_ids": [1]}, {"method": "dflash", K: 15}),
        ("DSpark", {"max_draft_len": 4, "block_size": 4}, {"method": "dspark", K: 4}),
        ("DSpark", {"block_size": 4}, {"method": "dspark", K: 4}),
        ("Medusa", {"max_draft_len": 4}, {"method": "medusa", K: 4}),
        (
            "Medusa",
            {"num_medusa_heads": 4, "medusa_choices": [[0]]},
            {"method": "medusa", K: 4},
        ),
        ("SaveState", {"output_directory": "o"}, {"method": "extract_hidden_states", K: 1}),
    ],
)
def test_each_decoding_type_has_its_method(kind, options, expected):
    """Depth, model and what the type itself means are carried; the result is a config."""
    carried = from_trtllm(drafting(kind, **options))
    section = {n: v for n, v in carried.data["speculative"].items() if n != "model"}
    assert section == expected
    assert left_of(carried)[f"{SPEC}.decoding_type"].changed_to
    if any(name.startswith("speculative_model") for name in options):
        assert carried.data["speculative"]["model"] == "d"
    EngineConfig.from_dict(carried.data)


@pytest.mark.parametrize("kind", sorted(NO_METHOD))
def test_a_type_without_a_method_leaves_all_of_drafting(kind):
    """The rest is carried, and the result drafts nothing."""
    carried = from_trtllm(drafting(kind, max_draft_len=3, max_window_size=4))
    assert carried.data == {"model": {"source": "m"}}
    left = left_of(carried)
    assert left[f"{SPEC}.decoding_type"].why == NO_METHOD[kind]
    assert {f"{SPEC}.max_draft_len", f"{SPEC}.max_window_size"} <= set(left)


def test_all_decoding_types_are_decided():
    """The union of the LLM API, with the two older types that it dropped."""
    assert set(METHODS) | set(NO_METHOD) == set(
        "Draft_Target Eagle3 Eagle MTP NGram SA User_Provided SaveState PARD DFlash DSpark AUTO Medusa Lookahead".split()
    )


def test_eagle_means_what_the_backend_makes_of_it():
    """The PyTorch backend takes Eagle for Eagle3; the TensorRT backend did not."""
    older = from_trtllm({"backend": "tensorrt", **drafting("Eagle", max_draft_len=2)})
    assert older.data["speculative"]["method"] == "eagle"


@pytest.mark.parametrize(
    ("options", "table"),
    [
        (
            {"draft_len_schedule": {4: 4, 8: 2, 32: 1}},
            [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 33, 0]],
        ),
        ({"draft_len_schedule": {"8": 2, "4": 4}}, [[1, 4, 4], [5, 8, 2], [9, 9, 0]]),
        ({"max_concurrency": 16}, [[1, 16, 4], [17, 17, 0]]),
    ],
)
@pytest.mark.parametrize("largest", [None, 64])
def test_a_schedule_ends_with_no_drafts(options, table, largest):
    """Thresholds become inclusive ranges; past the last one the depth is 0, up to the largest batch."""
    extra = {} if largest is None else {"max_batch_size": largest}
    data = from_trtllm({**drafting("Eagle3", max_draft_len=4, **options), **extra}).data
    expected = [*table[:-1], [table[-1][0], largest or table[-1][1], 0]]
    assert data["speculative"][TABLE] == expected
    EngineConfig.from_dict(data)


@pytest.mark.parametrize(
    ("options", "name", "parts"),
    [
        ({"max_batch_size": "8"}, "max_batch_size", ["'8'", "an integer"]),
        ({"max_batch_size": 0}, "max_batch_size", ["0", "at least 1"]),
        ({"kv_cache_config": 3}, "kv_cache_config", ["3", "a mapping"]),
        (
            {"kv_cache_config": {"max_tokens": "1"}},
            "kv_cache_config.max_tokens",
            ["'1'", "an integer"],
        ),
        (drafting("eagle3"), f"{SPEC}.decoding_type", ["'eagle3'", "did you mean 'Eagle3'"]),
        (drafting(None), f"{SPEC}.decoding_type", ["Eagle3"]),
        ({SPEC: {"max_draft_len": 3}}, f"{SPEC}.decoding_type", ["nothing", "NGram"]),
        (drafting("Eagle3", max_draft_len=0), f"{SPEC}.max_draft_len", ["0", "at least 1"]),
        (
            drafting("MTP", max_draft_len=2, num_nextn_predict_layers=3),
            f"{SPEC}.num_nextn_predict_layers",
            ["3", "2, as max_draft_len says"],
        ),
        (
            drafting("Eagle3", speculative_model="a", speculative_model_dir="b"),
            f"{SPEC}.speculative_model_dir",
            ["'b'", f"{SPEC}.speculative_model"],
        ),
        (
            drafting("Eagle3", max_draft_len=3, max_concurrency=4, draft_len_schedule={4: 3}),
            f"{SPEC}.max_concurrency",
            ["one of"],
        ),
        (
            drafting("Eagle3", max_draft_len=3, draft_len_schedule={4: 2}),
            f"{SPEC}.draft_len_schedule",
            ["max_draft_len (3)"],
        ),
        (
            drafting("Eagle3", max_draft_len=3, draft_len_schedule={4: 3, 8: 5}),
            f"{SPEC}.draft_len_schedule",
            ["no more for any other"],
        ),
        (
            drafting("Eagle3", draft_len_schedule={0: 3}),
            f"{SPEC}.draft_len_schedule.0",
            ["batch size of 1"],
        ),
        (
            drafting("Eagle3", draft_len_schedule={"4": 1.5}),
            f"{SPEC}.draft_len_schedule.4",
            ["1.5", "a depth"],
        ),
        (
            {
                "prefill_cuda_graph_backend": "disabled",
                "torch_compile_config": {"enable_piecewise_cuda_graph": True},
            },
            "prefill_cuda_graph_backend",
            ["'disabled'", "piecewise"],
        ),
    ],
)
def test_a_wrong_value_is_a_problem_with_its_option(options, name, parts):
    """Option, found and wanted."""
    text = problems_of(options)[name].render()
    assert [part for part in parts if part not in text] == []


def test_all_problems_come_at_once():
    """Types, numbers that disagree and unknown kinds are checked in one round."""
    options = drafting("MTP", max_draft_len=2, num_nextn_predict_layers=3, draft_len_schedule=[])
    assert set(problems_of({**options, "model": 1, "max_seq_len": 1})) == {
        "model",
        "max_seq_len",
        f"{SPEC}.num_nextn_predict_layers",
        f"{SPEC}.draft_len_schedule",
    }


@pytest.mark.parametrize(
    ("options", "mode", "breaks", "compiled"),
    [
        ({"cuda_graph_config": {"enable_padding": True}}, "FULL_DECODE_ONLY", False, None),
        ({"cuda_graph_config": None}, "NONE", False, None),
        ({"prefill_cuda_graph_backend": "piecewise"}, "FULL_AND_PIECEWISE", False, "piecewise"),
        ({"prefill_cuda_graph_backend": "breakable"}, "FULL_AND_PIECEWISE", True, None),
        (
            {"torch_compile_config": {"enable_piecewise_cuda_graph": True}},
            "FULL_AND_PIECEWISE",
            False,
            "piecewise",
        ),
        ({"torch_compile_config": {"enable_inductor": True}}, None, None, "stock"),
        ({"torch_compile_config": None}, None, None, "none"),
        (
            {"cuda_graph_config": None, "prefill_cuda_graph_backend": "breakable"},
            None,
            None,
            None,
        ),
    ],
)
def test_graph_options_become_a_mode(options, mode, breaks, compiled):
    """What is captured of decode and of prefill, and what is compiled."""
    section = from_trtllm({"model": "m", **options}).data.get("compilation", {})
    assert section.get("cudagraph_mode") == mode
    assert section.get("breakable_cudagraph") == breaks
    assert section.get("compile_mode") == compiled


def test_the_keys_of_a_schedule_may_be_numbers_in_yaml():
    """They are read as text, on their own lines; a key twice is still refused."""
    text = "model: m\nspeculative_config:\n  draft_len_schedule:\n    4: 4\n    8: 2\n"
    document = read_trtllm(text, "t.yaml")
    assert document.data[SPEC]["draft_len_schedule"] == {"4": 4, "8": 2}
    assert document.lines[(SPEC, "draft_len_schedule", "8")] == 5
    with pytest.raises(SpecError, match=r"t\.yaml:3.*second value"):
        read_trtllm("a:\n  4: 4\n  4: 2\n", "t.yaml")
    with pytest.raises(SpecError, match=r"t\.yaml"):
        read_trtllm("a: [", "t.yaml")
    with pytest.raises(SpecError, match="levels"):
        read_trtllm("a: &a\n  4: *a\n", "t.yaml")


CONFIGS = [
    {"model": {"source": "m"}},
    {
        "model": {"source": "m", "dtype": "float16", "pooling": True, "hf_overrides": {"a": 1}},
        "parallel": {
            "tensor_parallel_size": 2,
            "enable_expert_parallel": True,
            "disable_custom_all_reduce": True,
        },
        "scheduler": {"max_num_seqs": 7, "max_num_batched_tokens": 77, "async_scheduling": True},
        "kv_cache": {
            "block_size": 32,
            "num_blocks": 5,
            "enable_prefix_caching": False,
            "connector": {"name": "lmcache"},
        },
        "kernels": {"attention_backend": "FLASHINFER", "moe_backend": "deep_gemm"},
        "compilation": {"cudagraph_mode": "FULL_DECODE_ONLY", "compile_mode": "none"},
        "lora": {"max_loras": 3, "max_lora_rank": 32},
        "speculative": {
            "method": "draft_model",
            "model": "d",
            K: 4,
            "draft_sample_method": "probabilistic",
        },
    },
    *(
        {"model": {"source": "m"}, "speculative": {"method": method, K: 3}}
        for method in ("eagle3", "mtp", "dflash", "dspark", "medusa")
    ),
    {
        "model": {"source": "m"},
        "compilation": {"cudagraph_mode": "NONE", "compile_mode": "stock"},
        "speculative": {
            "method": "ngram",
            K: 4,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        },
    },
    {
        "model": {"source": "m", "hf_overrides": "a:b"},
        "compilation": {"cudagraph_mode": "PIECEWISE", "enforce_eager": True},
        "kernels": {"attention_backend": "PAGED", "moe_backend": "aiter"},
        "kv_cache": {"dtype": "int8"},
        "speculative": {"method": "suffix", K: 2},
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
def test_what_is_exported_comes_back(data):
    """Every field that the export did not report has its value again."""
    config = EngineConfig.from_dict(data)
    exported = to_trtllm(config)
    back = dict(leaves(EngineConfig.from_dict(from_trtllm(exported.data).data)))
    reported = {left.where for left in exported.left}
    for path, value in leaves(config):
        if path not in reported and not (path.startswith("speculative.") and path not in back):
            assert back[path] == value, path


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ([[1, 4, 4], [5, 64, 2]], True),
        ([[1, 4, 4], [9, 16, 2], [17, 64, 0]], True),
        ([[1, 4, 4], [5, 6, 1]], True),
        ([[1, 4, 2], [5, 64, 4]], False),
        ([[1, 4, 3], [5, 64, 2]], False),
    ],
)
def test_a_table_keeps_its_depth_for_every_batch(table, kept):
    """Gaps and tails mean the same on both sides; a table that TensorRT-LLM refuses is reported."""
    section = {"method": "eagle3", K: 4, TABLE: table}
    config = EngineConfig.from_dict({"model": {"source": "m"}, "speculative": section})
    exported = to_trtllm(config)
    assert (f"speculative.{TABLE}" not in left_of(exported)) is kept
    if kept:
        back = from_trtllm(exported.data).data["speculative"][TABLE]
        assert dense_schedule(back, 4, 64) == dense_schedule(table, 4, 64)
