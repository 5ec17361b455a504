"""Reports B105 to B107 of shared/reference/field-reports.md: vocabularies, token budgets, and counts that users mix up.

Left to later issues: swapped ids when no map is asked for (B105: only tokenizers show them, and this layer opens
configs alone), and the acceptance metric (B107: there is no function for it yet).
"""

import pytest

from graphspec.errors import SpecError
from graphspec.fields import Stage
from graphspec.keys.factors import compute_hash
from graphspec.speculators.vocabulary import map_vocabularies, reduced_vocabulary
from support.peer_cases import folder
from support.speculative import (
    keys_of,
    refused,
    refused_case,
    resolution,
    resolved,
    resolved_case,
    section_of,
    variant,
)

LETTERS = "abcdefghij"
TARGET = {letter: i for i, letter in enumerate(LETTERS)}


def mapped(draft, size=None, target=None):
    target = TARGET if target is None else target
    return map_vocabularies(
        draft, target, draft_vocab_size=size or len(draft), target_vocab_size=len(target)
    )


def test_B105_another_size_is_refused_unless_it_is_asked_for():
    """8 tokens against 10, equal or not: the config layer sees sizes, and only an opt-in goes on."""
    section = {"model": folder("draft-llama-vocab")}
    problem = refused_case("draft_model", section)["speculative.model"]
    assert "use_heterogeneous_vocab" in problem.hint
    assert resolved_case("draft_model", {**section, "use_heterogeneous_vocab": True})


def test_B105_a_prefix_maps_to_itself():
    """A draft with the first 8 of 10 tokens; padding of either side is mapped to nothing."""
    prefix = {letter: TARGET[letter] for letter in LETTERS[:8]}
    assert mapped(prefix).draft_to_target == tuple(range(8))
    padded = mapped({**prefix, "pad": 8, "j": 9}, size=9)
    assert padded.draft_to_target == (*range(8), -1)
    assert padded.allowed == (True,) * 8 + (False,)


def test_B105_swapped_ids_are_mapped_by_their_strings():
    """Two ids changed places."""
    swapped = {**TARGET, "a": 1, "b": 0}
    assert mapped(swapped).draft_to_target == (1, 0, *range(2, 10))
    assert mapped(swapped).target_to_draft()[0] == 1


def test_B105_an_empty_intersection_is_refused():
    """No token in common is no pair of models."""
    with pytest.raises(SpecError, match="no token in common"):
        mapped({"x": 0, "y": 1})


@pytest.mark.parametrize("draft", [TARGET, {"a": 1, "x": 0}, {"j": 0, "zz": 1, "a": 2}])
def test_B105_every_proposed_id_is_a_valid_target_id(draft):
    """What may be proposed maps below the target's size, and nothing else may be."""
    made = mapped(draft)
    assert made.common == sum(made.allowed) > 0
    for token, allowed in zip(made.draft_to_target, made.allowed, strict=True):
        assert (0 <= token < 10) if allowed else token == -1


def test_B105_a_reduced_vocabulary_is_a_map():
    """Sorted target ids with every end-of-text id."""
    made = reduced_vocabulary([0, 3, 9], eos_token_ids=[9], target_vocab_size=10)
    assert made.draft_to_target == (0, 3, 9)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([0, 3, 10], "below 10"),
        ([-1, 9], "below 10"),
        ([3, 0, 9], "ascending"),
        ([0, 3], "end-of-text"),
    ],
)
def test_B105_a_map_with_a_wrong_id_is_refused(ids, match):
    """An id at or beyond the target's size, out of order, or without the end of a text."""
    with pytest.raises(SpecError, match=match):
        reduced_vocabulary(ids, eos_token_ids=[9], target_vocab_size=10)


def test_B105_the_map_is_keyed_where_it_is_in_the_graph():
    """Its COMPILE hash follows its content, and mapping at all is in the contract's."""
    one, other = mapped(TARGET), mapped({**TARGET, "a": 1, "b": 0})
    assert compute_hash(one, Stage.COMPILE) != compute_hash(other, Stage.COMPILE)
    plain = resolved_case("draft_model")
    assert (
        keys_of(plain)[0]
        != keys_of(resolved_case("draft_model", {"use_heterogeneous_vocab": True}))[0]
    )


PARD = {"num_speculative_tokens": 16}
BUDGETS = {2048: -2048, 4096: 0, 4097: 1}


@pytest.mark.parametrize("budget", BUDGETS)
def test_B106_the_error_has_inputs_formula_and_ways_out(budget):
    """256 requests with 16 slots each: left with -2048, 0 and 1 tokens, each too few."""
    scheduler = {"max_num_seqs": 256, "max_num_batched_tokens": budget}
    problem = refused_case("draft_model parallel", PARD, scheduler=scheduler)[
        "scheduler.max_num_batched_tokens"
    ]
    assert f"{budget} - 256 x 16 slots for drafting = {BUDGETS[budget]} tokens" in problem.found
    assert "256 requests (max_num_seqs)" in problem.found
    tokens, requests, depth = ways_out(problem.hint)
    assert accepted({**scheduler, "max_num_batched_tokens": tokens}, PARD)
    assert accepted({**scheduler, "max_num_seqs": requests}, PARD)
    assert accepted(scheduler, {"num_speculative_tokens": depth})
    assert not accepted({**scheduler, "max_num_batched_tokens": tokens - 1}, PARD)
    assert not accepted({**scheduler, "max_num_seqs": requests + 1}, PARD)
    assert not accepted(scheduler, {"num_speculative_tokens": depth + 1})


def ways_out(hint):
    """The three values that the hint offers."""
    values = hint.removeprefix("any one of: ").split("; ")
    names = ("max_num_batched_tokens", "max_num_seqs", "num_speculative_tokens")
    assert [name in value for name, value in zip(names, values, strict=True)] == [True] * 3
    return [int(part) for value in values for part in value.split() if part.isdigit()]


def accepted(scheduler, changes):
    section = section_of("draft_model parallel", changes)
    return resolution(section, scheduler=scheduler).spec is not None


@pytest.mark.parametrize(("budget", "fine"), [(256, True), (255, False)])
def test_B106_the_same_check_without_speculation(budget, fine):
    """One token for each request, drafting or not."""
    scheduler = {"max_num_seqs": 256, "max_num_batched_tokens": budget}
    if fine:
        assert resolved(None, scheduler=scheduler)
        return
    made = resolution(None, scheduler=scheduler)
    (problem,) = made.problems
    assert problem.where == "scheduler.max_num_batched_tokens"
    assert "255" in problem.found
    assert "256" in problem.hint


@pytest.mark.parametrize("option", ["speculative_token_tree", "tree_width", "num_steps", "topk"])
def test_B107_there_is_one_field_for_the_number_of_drafts(option):
    """A tree's width or a number of steps beside k is an unknown field."""
    found = refused_case("eagle", {option: 4})
    assert found[f"speculative.{option}"].found == "an unknown key"


EAGLE_ONLY = {
    "draft_lm_head_quantization": "fp8",
    "parallel_drafting": True,
    "use_local_argmax_reduction": True,
    "draft_sample_method": "probabilistic",
    "model": "some/head",
    "quantization": "fp8",
    "attention_backend": "flash_attn",
}


@pytest.mark.parametrize("option", EAGLE_ONLY)
def test_B107_ngram_with_a_field_of_eagle_is_refused(option):
    """A rule of one method is not applied to another: the field is refused by name."""
    found = refused_case("ngram", {option: EAGLE_ONLY[option]})
    assert list(found) == [f"speculative.{option}"]


def test_B107_rules_of_one_method_are_for_that_method():
    """k above n_predict is MTP's affair: DSpark and n-gram take any k, and two windows do not bind eagle."""
    assert resolved_case("dspark", {"num_speculative_tokens": 5})
    assert resolved_case("ngram", {"num_speculative_tokens": 13, "prompt_lookup_max": 3})


def test_B107_counts_that_contradict_each_other_are_refused(tmp_path):
    """Heads and depth of a plugin's method, rates and depth of verification."""
    draft = variant(
        tmp_path / "heads", "eagle-head", without="architectures model_type", medusa_num_heads=3
    )
    section = {"method": "medusa", "model": draft, "num_speculative_tokens": 5}
    problem = refused(section)["speculative.num_speculative_tokens"]
    assert "5" in problem.found
    assert "3" in problem.wanted
    assert resolved({**section, "num_speculative_tokens": 3})
    rates = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.5]}
    found = refused_case("eagle", rates)
    assert "2 rates" in found["speculative.synthetic_acceptance_rates"].found
