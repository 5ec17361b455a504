"""SGLang's server arguments: each is carried, left with a reason, or a problem with its own name."""

import json

import attrs
import pytest

from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import policies
from graphspec.formats.carry import choices_at, kind_at
from graphspec.formats.sglang import (
    REASONS,
    ROWS,
    from_sglang,
    sglang_command,
    to_sglang,
)

K, TABLE = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"


def problems_of(source):
    with pytest.raises(SpecError) as caught:
        from_sglang(source)
    return {p.where: p for p in caught.value.problems}


def left_of(carried):
    return {left.where: left for left in carried.left}


def drafting(algorithm, **options):
    settings = {f"speculative_{name}": value for name, value in options.items()}
    return {"model_path": "m", "speculative_algorithm": algorithm, **settings}


def at(data, path):
    for part in path.split("."):
        data = data[part]
    return data


@pytest.mark.parametrize(("name", "path"), ROWS.items())
def test_each_row_of_the_table_carries_its_argument(name, path):
    """A value of the field's own kind arrives at the field, and the result is a config."""
    choices = [c for c in choices_at(path) if c != "AUTO"]
    value = choices[-1] if choices else {"flag": True, "int": 3, "text": "x"}[kind_at(path)]
    settings = {name: value, "speculative_algorithm": "NEXTN"}
    data = from_sglang({"model_path": "m"} | settings).data
    assert at(data, path) == value
    EngineConfig.from_dict(data)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_an_argument_without_a_field_is_left_with_its_reason(name):
    """Nothing is lost without a word, with and without drafting."""
    for beside in ({}, {"speculative_algorithm": "NGRAM"}):
        left = left_of(from_sglang({"model_path": "m", name: 1, **beside}))
        assert left[name].why
        assert not left[name].changed_to


@pytest.mark.parametrize(
    "settings",
    [
        {
            "model_path": "m",
            "dtype": "half",
            "tp_size": 4,
            "ep_size": 4,
            "json_model_override_args": '{"rope_theta": 1}',
            "enable_lora": True,
            "max_loras_per_batch": 2,
            "max_lora_rank": 8,
            "chunked_prefill_size": 4096,
            "disable_radix_cache": True,
            "disable_overlap_schedule": False,
            "max_total_tokens": 160,
            "page_size": 16,
            "cuda_graph_backend_prefill": "disabled",
            "cuda_graph_bs": [1, 2],
            "attention_backend": "fa3",
            "moe_runner_backend": "humming",
            "random_seed": None,
            "unheard_of": 1,
        },
        drafting("EAGLE", draft_model_path="d", num_steps=3, eagle_topk=1, num_draft_tokens=4),
        drafting("EAGLE3", num_steps=3, eagle_topk=4, num_draft_tokens=16, token_map="t"),
        drafting(
            "EAGLE3", adaptive=True, num_steps=3, adaptive_config={"1": {"candidate_steps": [3]}}
        ),
        drafting(
            "STANDALONE",
            adaptive=True,
            num_steps=2,
            use_block_verification=True,
            draft_load_format="x",
        ),
        drafting("NGRAM", num_draft_tokens=8, ngram_max_match_window_size=4, eagle_topk=1),
        drafting("DFLASH", dflash_block_size=8, num_draft_tokens=8, num_steps=1),
        drafting("UNO", num_draft_tokens=8, eagle_topk=1),
        {"model_path": "m", "speculative_num_steps": 3, "chunked_prefill_size": -1, "ep_size": 2},
    ],
)
def test_no_argument_is_lost(settings):
    """Taking any one away changes the data, what is left, or whether there is a result."""
    whole = from_sglang(settings)
    for name in settings:
        try:
            fewer = from_sglang({n: v for n, v in settings.items() if n != name})
        except SpecError:
            continue
        assert fewer != whole, name


@pytest.mark.parametrize(
    ("algorithm", "options", "method"),
    [
        ("EAGLE", {"draft_model_path": "d"}, "eagle"),
        ("eagle", {"draft_model_path": "d"}, "eagle"),
        ("EAGLE", {}, "mtp"),
        ("EAGLE", {"draft_model_path": "m"}, "mtp"),
        ("EAGLE3", {}, "eagle3"),
        ("NEXTN", {"draft_model_path": "d"}, "mtp"),
        ("STANDALONE", {"draft_model_path": "d"}, "draft_model"),
        ("NGRAM", {}, "ngram"),
        ("DFLASH", {}, "dflash"),
        ("DSPARK", {}, "dspark"),
    ],
)
def test_each_algorithm_has_its_method(algorithm, options, method):
    """EAGLE without a draft of its own drafts with the target's own layers."""
    carried = from_sglang(drafting(algorithm, **options))
    assert carried.data["speculative"]["method"] == method
    assert left_of(carried)["speculative_algorithm"].changed_to == f"speculative.method: {method}"


@pytest.mark.parametrize("algorithm", ["UNO", "MY_OWN"])
def test_an_algorithm_without_a_method_leaves_all_of_drafting(algorithm):
    """The result drafts nothing, and says so for each setting."""
    carried = from_sglang(drafting(algorithm, num_steps=3, draft_model_path="d"))
    assert "speculative" not in carried.data
    names = {"speculative_algorithm", "speculative_num_steps", "speculative_draft_model_path"}
    assert names <= set(left_of(carried))


@pytest.mark.parametrize(
    ("settings", "k"),
    [
        (drafting("EAGLE3", num_steps=3, eagle_topk=1, num_draft_tokens=4), 3),
        (drafting("EAGLE3", num_steps=3), 3),
        (drafting("EAGLE3", num_steps=5, eagle_topk=8, num_draft_tokens=64), 5),
        (drafting("NEXTN", num_steps=1, eagle_topk=1, num_draft_tokens=2), 1),
        (drafting("NGRAM", num_draft_tokens=8), 7),
        (drafting("NGRAM"), 11),
        (drafting("DFLASH", dflash_block_size=16), 15),
        (drafting("DFLASH", num_draft_tokens=16), 15),
        (drafting("DFLASH", num_draft_tokens=16, dflash_block_size=16), 15),
        (drafting("DSPARK", dspark_block_size=5), 5),
        (drafting("DSPARK", num_draft_tokens=6, dspark_block_size=5), 5),
        (drafting("DSPARK", num_draft_tokens=6), 5),
        (drafting("EAGLE3"), None),
        (drafting("DFLASH"), None),
    ],
)
def test_the_depth_follows_from_steps_or_verified_tokens(settings, k):
    """k is the number of drafts; a block of DFlash and the verified tokens count one more."""
    assert from_sglang(settings).data["speculative"].get(K) == k


def test_a_tree_becomes_the_chain_of_its_steps():
    """The width of the tree is left with a reason."""
    left = left_of(from_sglang(drafting("EAGLE3", num_steps=5, eagle_topk=8, num_draft_tokens=64)))
    assert "tree" in left["speculative_eagle_topk"].why
    assert "tree" in left["speculative_num_draft_tokens"].why


@pytest.mark.parametrize(
    ("settings", "name", "parts"),
    [
        (
            drafting("EAGLE3", num_steps=3, eagle_topk=1, num_draft_tokens=7),
            "speculative_num_draft_tokens",
            ["7 (an integer)", "4: 3 steps", "with 1 draft"],
        ),
        (
            drafting("DFLASH", dflash_block_size=8, num_draft_tokens=7),
            "speculative_num_draft_tokens",
            ["7", "8"],
        ),
        (
            drafting("DSPARK", dspark_block_size=8, num_draft_tokens=8),
            "speculative_num_draft_tokens",
            ["8", "9"],
        ),
        (drafting("EAGLE3", eagle_topk=2), "speculative_num_steps", ["eagle_topk"]),
        (drafting("EAGLE3", num_steps=0), "speculative_num_steps", ["0", "at least 1"]),
        (drafting("EAGLE3", num_steps="3"), "speculative_num_steps", ["'3'", "an integer"]),
        (drafting("NGRAM", num_draft_tokens=1), "speculative_num_draft_tokens", ["at least 1"]),
        ({"model_path": "m", "tp_size": "2"}, "tp_size", ["'2'", "an integer"]),
        ({"model_path": "m", "max_total_tokens": 1.5}, "max_total_tokens", ["1.5", "an integer"]),
        ({"model_path": "m", "enable_lora": "yes"}, "enable_lora", ["'yes'", "true or false"]),
        (
            {"model_path": "m", "json_model_override_args": "{a: 1}"},
            "json_model_override_args",
            ["{a: 1}", "key"],
        ),
        ({"tp_size": 1, "tensor-parallel-size": 1}, "tensor-parallel-size", ["tp_size"]),
        (
            drafting("EAGLE3", num_steps=2, adaptive=True),
            "speculative_num_steps",
            ["2", "[0, 1, 3, 5, 7]"],
        ),
        (
            drafting("EAGLE3", adaptive=True, adaptive_config={"1": {"candidate_steps": [-1]}}),
            "speculative_adaptive_config.1.candidate_steps",
            ["[-1]", "a list"],
        ),
        (
            drafting("EAGLE3", adaptive=True, adaptive_config="/no/such/file.json"),
            "speculative_adaptive_config",
            ["/no/such", "file"],
        ),
    ],
)
def test_a_wrong_value_is_a_problem_with_its_argument(settings, name, parts):
    """Argument, found and wanted."""
    text = problems_of(settings)[name].render()
    assert [part for part in parts if part not in text] == []


def test_all_problems_come_at_once():
    """Words, numbers that disagree, and types are checked in one round."""
    line = (
        "--model-path m --tp x --page-size 0 --speculative-algorithm EAGLE3 --speculative-num-steps 3 "
        "--speculative-num-draft-tokens 9 stray"
    )
    assert set(problems_of(line.split())) == {
        "--tp",
        "--page-size",
        "--speculative-num-draft-tokens",
        "the command line",
    }


@pytest.mark.parametrize(
    ("config", "largest", "table", "k"),
    [
        (None, 128, [[1, 7, 7], [8, 31, 3], [32, 63, 1], [64, 128, 0]], 7),
        (None, None, [[1, 7, 7], [8, 31, 3], [32, 63, 1], [64, 64, 0]], 7),
        ({"4": {"candidate_steps": [1, 2]}}, None, [[1, 4, 2]], 2),
        (
            {"16": {"candidate_steps": [0]}, "2": {"candidate_steps": [3, 1]}},
            20,
            [[1, 15, 3], [16, 20, 0]],
            3,
        ),
    ],
)
def test_adaptive_slots_become_ranges_with_the_largest_step(config, largest, table, k, tmp_path):
    """A slot holds up to the next one, the first from 1 on; below its largest step SGLang goes at run time."""
    settings = drafting("EAGLE3", adaptive=True)
    if largest is not None:
        settings["max_running_requests"] = largest
    if config is not None:
        settings["speculative_adaptive_config"] = config
    section = from_sglang(settings).data["speculative"]
    assert (section[TABLE], section[K]) == (table, k)
    if config is not None:
        path = tmp_path / "adaptive.json"
        path.write_text(json.dumps(config | {"ema_alpha": 0.2}))
        again = from_sglang(settings | {"speculative_adaptive_config": str(path)})
        assert again.data["speculative"] == section
        assert "speculative_adaptive_config.ema_alpha" in left_of(again)


@pytest.mark.parametrize(
    "settings",
    [
        drafting("STANDALONE", adaptive=True, num_steps=3),
        drafting("EAGLE3", adaptive=True, num_steps=3, eagle_topk=4),
    ],
)
def test_adaptation_that_sglang_turns_off_is_left(settings):
    """Without it the depth is the number of steps."""
    carried = from_sglang(settings)
    assert carried.data["speculative"][K] == 3
    assert TABLE not in carried.data["speculative"]
    assert not left_of(carried)["speculative_adaptive"].changed_to


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"use_rejection_sampling": True}, {"draft_sample_method": "probabilistic"}),
        (
            {"use_block_verification": True},
            {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"},
        ),
        ({"use_block_verification": False}, {}),
    ],
)
def test_verification_is_carried(options, expected):
    """Block verification of a chain draws its drafts."""
    section = from_sglang(drafting("EAGLE3", num_steps=3, **options)).data["speculative"]
    assert {n: v for n, v in section.items() if n not in ("method", K)} == expected


@pytest.mark.parametrize(
    ("settings", "mode", "breaks"),
    [
        ({"cuda_graph_backend_prefill": "disabled"}, "FULL_DECODE_ONLY", False),
        ({"cuda_graph_backend_decode": "full"}, "FULL_AND_PIECEWISE", True),
        (
            {"cuda_graph_backend_decode": "full", "cuda_graph_backend_prefill": "full"},
            "FULL",
            False,
        ),
        ({"cuda_graph_backend_decode": "breakable"}, "PIECEWISE", True),
        (
            {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"},
            "NONE",
            False,
        ),
        ({"cuda_graph_backend_decode": "disabled"}, None, None),
    ],
)
def test_kinds_of_graphs_become_a_mode(settings, mode, breaks):
    """A pair that no mode means is left."""
    carried = from_sglang({"model_path": "m", **settings})
    section = carried.data.get("compilation", {})
    assert section.get("cudagraph_mode") == mode
    assert section.get("breakable_cudagraph") == breaks
    assert set(settings) <= set(left_of(carried))


def test_a_command_line_is_read_as_it_is_typed():
    """Aliases, equals signs, sizes and lists; the program's own words are none of the arguments."""
    line = (
        "python3 -m sglang.launch_server --model m --tp=2 --data-parallel-size 2 --max-total-tokens 64k --page-size 16 "
        "--cuda-graph-bs 1 2 4 --disable-radix-cache --mem-fraction-static 0.8 --kv-cache-dtype bf16 --ep 1 "
        '--json-model-override-args {"rope_theta":5} --disable-cuda-graph --chunked-prefill-size -1'
    )
    carried = from_sglang(line.split())
    assert carried.data == {
        "model": {"source": "m", "hf_overrides": {"rope_theta": 5}},
        "parallel": {
            "enable_expert_parallel": False,
            "tensor_parallel_size": 2,
            "data_parallel_size": 2,
        },
        "kv_cache": {
            "enable_prefix_caching": False,
            "num_blocks": 4001,
            "block_size": 16,
            "dtype": "bfloat16",
        },
        "compilation": {"enforce_eager": True},
    }
    left = left_of(carried)
    assert left["--cuda-graph-bs"].found == "['1', '2', '4'] (a list)"
    assert "--chunked-prefill-size" in left
    EngineConfig.from_dict(carried.data)


CONFIGS = [
    {"model": {"source": "m"}},
    {
        "model": {"source": "m", "dtype": "float16", "pooling": True, "hf_overrides": {"a": 1}},
        "parallel": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
        "scheduler": {"max_num_seqs": 7, "max_num_batched_tokens": 77, "async_scheduling": True},
        "kv_cache": {"block_size": 32, "num_blocks": 5, "enable_prefix_caching": False},
        "kernels": {"attention_backend": "FLASH_ATTN", "moe_backend": "marlin"},
        "compilation": {
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "breakable_cudagraph": True,
            "compile_mode": "none",
            "hisparse": True,
        },
        "lora": {"max_loras": 3, "max_lora_rank": 32},
        "device": {"target": "cuda"},
        "speculative": {
            "method": "eagle3",
            "model": "d",
            "num_speculative_tokens": 4,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block",
            "kv_cache_dtype": "fp8_e4m3",
        },
    },
    *(
        {"model": {"source": "m"}, "speculative": {"method": method, K: 3, "model": "d"}}
        for method in ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark", "ngram")
    ),
    {
        "model": {"source": "m", "hf_overrides": "pkg:f"},
        "kernels": {"attention_backend": "PAGED"},
        "kv_cache": {"dtype": "int8"},
        "compilation": {"cudagraph_mode": "PIECEWISE", "enforce_eager": True},
        "speculative": {"method": "suffix", K: 3},
    },
    {
        "model": {"source": "m"},
        "speculative": {
            "method": "mtp",
            K: 3,
            TABLE: [[1, 4, 3], [5, 9, 1]],
            "rejection_sample_method": "fly",
        },
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
    exported = to_sglang(config)
    back = dict(leaves(EngineConfig.from_dict(from_sglang(exported.data).data)))
    reported = {left.where for left in exported.left}
    unset = dict(leaves(SpeculativeConfig(), "speculative."))
    for path, value in leaves(config):
        if path not in reported:
            assert back.get(path, unset.get(path)) == value, path


def test_the_command_line_says_the_same_as_the_mapping():
    """A false switch needs no flag; all else is one word, or a flag and its value."""
    data = dict(to_sglang(EngineConfig.from_dict(CONFIGS[1])).data)
    words = sglang_command(data)
    assert words[:2] == ["sglang", "serve"]
    again = from_sglang(words).data
    expected = from_sglang({n: v for n, v in data.items() if v is not False}).data
    assert again == expected


def test_the_export_reports_what_sglang_cannot_say():
    """A table is a file there, and is shown as one."""
    reported = left_of(to_sglang(EngineConfig.from_dict(CONFIGS[-1])))
    assert '{"1": {"candidate_steps": [3]}, "5": {"candidate_steps": [1]}}' in (
        reported[f"speculative.{TABLE}"].why
    )
    assert "speculative.rejection_sample_method" in reported
    reported = left_of(to_sglang(EngineConfig.from_dict(CONFIGS[-2])))
    assert {"kernels.attention_backend", "kv_cache.dtype", "model.hf_overrides"} <= set(reported)
    assert {"speculative.method", f"speculative.{K}"} <= set(reported)
