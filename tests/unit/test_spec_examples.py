"""Sections 7.1 to 7.5 and 12 of shared/reference/speculative.md, by number: what consumers read, and the decisions.

Sections 1 to 6 are in test_spec_section_*.py. Left to later issues: the chunk rule of 7.2 and the hashes themselves of
7.4 (scheduler and block manager), and the option `latest` of 12's last line (the n-gram kernel).
"""

import pytest

from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, config_class
from graphspec.kernels.ngram import propose_ngram
from graphspec.speculators.base import DraftModelSpeculatorConfig, SpeculatorConfig
from graphspec.speculators.registry import register_speculative_method, speculator_config_class
from support.peer_cases import folder
from support.speculative import (
    CASES,
    METHODS,
    refused_case,
    resolution,
    resolved,
    resolved_case,
    section_of,
)

FORWARDS = {
    # case: lookahead, prefill lookahead, hash lookahead, drop needed, hidden states, aux, draft KV, lane
    "ngram": (0, 0, 0, False, False, False, False, False),
    "ngram_gpu": (0, 0, 0, False, False, False, False, False),
    "suffix": (0, 0, 0, False, False, False, False, False),
    "custom_class": (0, 0, 0, False, False, False, False, False),
    "extract_hidden_states": (0, 0, 0, False, False, True, True, False),
    "draft_model": (4, 0, 0, False, False, False, True, False),
    "draft_model parallel": (4, 0, 0, False, False, False, True, False),
    "eagle": (4, 1, 1, True, True, False, True, False),
    "eagle3": (4, 1, 1, True, True, True, True, False),
    "eagle3 parallel": (4, 1, 1, True, True, True, True, False),
    "mtp": (4, 1, 1, True, True, False, True, False),
    "mtp multi-module": (4, 4, 4, True, True, False, True, False),
    "dflash": (5, 1, 0, False, True, True, True, False),
    "dspark": (4, 1, 0, False, True, True, True, True),
    "dspark fill-in": (5, 1, 0, False, True, True, True, True),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_7_1_forwards(name):
    """What scheduler, block manager and executor read of the contract, for k = 4."""
    spec = resolved_case(name)
    assert (
        spec.num_lookahead_tokens,
        spec.num_prefill_lookahead_tokens,
        spec.num_hash_lookahead_tokens,
        spec.needs_eagle_block_drop,
        spec.uses_target_hidden_states,
        spec.uses_aux_hidden_states,
        spec.uses_draft_kv_cache,
        spec.speculative.speculator.uses_separate_workspace_lane,
    ) == FORWARDS[name]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("k", [2, 6])
def test_7_1_the_query_length_is_1_plus_k_and_not_the_lookahead(name, k):
    """For every method, whatever it reserves."""
    spec = resolved_case(name, {"num_speculative_tokens": k})
    assert spec.num_speculative_tokens == k
    assert spec.uniform_decode_query_len == 1 + k


def test_7_1_without_speculation_all_is_zero():
    """And one token a request."""
    spec = resolved(None)
    assert (spec.num_speculative_tokens, spec.uniform_decode_query_len) == (0, 1)
    assert (spec.num_lookahead_tokens, spec.num_prefill_lookahead_tokens) == (0, 0)
    assert (spec.num_hash_lookahead_tokens, spec.max_num_new_slots_for_drafting) == (0, 0)
    assert (spec.needs_eagle_block_drop, spec.use_eagle_block_drop) == (False, False)
    assert (spec.uses_target_hidden_states, spec.uses_draft_kv_cache) == (False, False)
    assert spec.max_num_draft_seqs == 64
    assert spec.schedule.depths == (0,)


@pytest.mark.parametrize(("modules", "k", "reads"), [(1, 4, 1), (2, 4, 4), (3, 3, 3), (3, 1, 1)])
def test_7_2_a_chunk_leaves_what_the_drafter_reads(modules, k, reads):
    """The prefill lookahead L: one token, or k with several modules."""
    section = {"method": "mtp", "num_speculative_tokens": k}
    spec = resolved(section, f"target-deepseek-n{modules}")
    assert spec.num_prefill_lookahead_tokens == reads


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("off", [False, True])
def test_7_3_use_eagle_block_drop(name, off):
    """Needed by eagle, eagle3 and mtp, not by dflash and dspark [S]; and used unless it is switched off."""
    spec = resolved_case(name, {"disable_eagle_block_drop": off})
    needed = name.split()[0] in ("eagle", "eagle3", "mtp")
    assert spec.needs_eagle_block_drop is needed
    assert spec.use_eagle_block_drop is (needed and not off)


@pytest.mark.parametrize("connector", [None, {"name": "some"}])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("hashes_off", [True, False])
@pytest.mark.parametrize("drop_off", [True, False])
@pytest.mark.parametrize("name", ["eagle3", "mtp multi-module", "dflash", "draft_model"])
def test_7_4_num_hash_lookahead_tokens(name, drop_off, hashes_off, caching, connector):
    """Non-zero only with caching, a used block drop, hashes not switched off, and no connector."""
    section = {
        "disable_eagle_block_drop": drop_off,
        "disable_lookahead_block_hashes": hashes_off,
    }
    cache = {"enable_prefix_caching": caching, "connector": connector}
    spec = resolved_case(name, section, kv_cache=cache)
    on = caching and connector is None and not drop_off and not hashes_off
    full = {"eagle3": 1, "mtp multi-module": 4}.get(name, 0)
    assert spec.num_hash_lookahead_tokens == (full if on else 0)


@pytest.mark.parametrize(
    ("name", "model", "layers"),
    [
        ("eagle3", "eagle3-head-aux", (1, 3, 6)),
        ("eagle3", "eagle3-head", ()),
        ("dflash", "dflash-qwen3", (1, 5, 9)),
        ("dspark", "dspark-qwen3", (1, 5, 9)),
        ("eagle", "eagle-head", ()),
    ],
)
def test_7_5_which_layers_the_target_returns(name, model, layers):
    """The layer ids of the checkpoint, wherever it keeps them; empty leaves the choice to the engine."""
    spec = resolved_case(name, {"model": folder(model)})
    assert spec.aux_hidden_state_layer_ids == layers


def test_7_5_exported_layers_come_from_the_targets_config():
    """extract_hidden_states: model.hf_overrides can set them."""
    model = {"hf_overrides": {"eagle_aux_hidden_state_layer_ids": [1, 3]}}
    spec = resolved_case("extract_hidden_states", model=model)
    assert spec.aux_hidden_state_layer_ids == (1, 3)


def test_7_5_the_implementation_of_a_custom_class_is_the_users():
    """Elsewhere it is the class's dotted name."""
    assert resolved_case("custom_class").speculative.speculator.implementation == (
        "package.module.Drafter"
    )
    eagle = resolved_case("eagle").speculative.speculator
    assert eagle.implementation == eagle.speculator_class


@pytest.mark.parametrize("name", [n for n in CASES if FORWARDS[n][3]])
def test_12_hash_lookahead_equals_prefill_lookahead(name):
    """When on, the two are one number."""
    spec = resolved_case(name)
    assert spec.num_hash_lookahead_tokens == spec.num_prefill_lookahead_tokens > 0


def test_12_speculator_options_are_plain_values_and_none_by_default():
    """Anything that JSON cannot hold is refused."""
    assert SpeculativeConfig().speculator_options is None
    for bad in ({"a": object()}, {"a": {1, 2}}, {1: 2}, [1]):
        with pytest.raises(SpecError):
            SpeculativeConfig(speculator_options=bad)


def test_12_a_base_method_of_none_is_refused():
    """At registration."""

    @config_class
    class Baseless(SpeculatorConfig):
        """Builds on nothing."""

    with pytest.raises(SpecError, match="base_method"):
        register_speculative_method("baseless", Baseless)


def test_12_custom_method_is_never_a_users():
    """It is not a field."""
    assert list(refused_case("ngram", {"custom_method": None})) == ["speculative.custom_method"]


def test_12_nested_options_have_one_encoding():
    """Order of keys does not matter, nesting and None do, and lists equal tuples."""
    nested = [
        {"a": {"b": [1, None]}, "c": 0},
        {"c": 0, "a": {"b": (1, None)}},
        {"a": {"b": [1]}, "c": 0},
        {"a": {"b": [1, None]}, "c": False},
        {"a": {"b": [1, None]}, "c": None},
    ]
    made = [
        resolved_case("custom_class", {"speculator_options": o}).compute_hash(Stage.COMPILE)
        for o in nested
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 4


@pytest.mark.parametrize(
    ("option", "lowest", "below"),
    [("fly_window_size", 1, 0), ("fly_entropy_threshold", 0, -0.1), ("fly_entropy_top_k", 1, 0)],
)
def test_12_fly_options(option, lowest, below):
    """Bounds as vLLM 0.33.0 has them, and refused with any other rejection method."""
    fly = {"rejection_sample_method": "fly"}
    assert resolved_case("ngram", {**fly, option: lowest})
    assert list(refused_case("ngram", {**fly, option: below})) == [f"speculative.{option}"]
    for other in ("standard", "block", "synthetic"):
        found = refused_case("ngram", {"rejection_sample_method": other, option: lowest})
        assert f"speculative.{option}" in found


@pytest.mark.parametrize(("name", "least"), [("dflash", 5), ("dspark", 5), ("dspark fill-in", 5)])
def test_12_no_draft_pass_at_all_is_refused(name, least):
    """Below one request's tokens the smallest budget that works is named, and it works."""

    def scheduler(budget):
        return {"max_num_seqs": 1, "max_num_batched_tokens": budget}

    found = refused_case(name, scheduler=scheduler(least - 1))
    problem = found["scheduler.max_num_batched_tokens"]
    assert str(least) in problem.wanted
    spec = resolved_case(name, scheduler=scheduler(least))
    assert spec.max_num_draft_seqs == 1


@pytest.mark.parametrize("name", METHODS)
def test_12_shares_target_positions(name):
    """False for standalone drafts, True for every other draft-model class."""
    cls = speculator_config_class(name)
    if issubclass(cls, DraftModelSpeculatorConfig):
        assert cls.shares_target_positions is (name != "draft_model")


@pytest.mark.parametrize("value", [3.9, 3.0, True, "3", None])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_12_tables_take_integers_only(at, value):
    """Checked when the config is read, before any checkpoint: floats and booleans are refused, not truncated."""
    entry = [1, 64, 4]
    entry[at] = value
    section = section_of("ngram", {"num_speculative_tokens_per_batch_size": [entry]})
    made = resolution(section, "/no/such/target")
    where = f"speculative.num_speculative_tokens_per_batch_size[0][{at}]"
    assert where in [p.where for p in made.problems]


def test_12_the_ngram_tie_rule_is_longest_then_earliest():
    """The CPU rule of section 8.1."""
    tokens = [1, 2, 3, 9, 1, 2, 3, 8, 2, 3, 7, 1, 2, 3]
    assert propose_ngram(tokens, 1, 3, 2, 100) == [9, 1]
    assert propose_ngram(tokens, 1, 2, 1, 100) == [9]
