"""Every case of tests/data/peer-cases/spec-cases.json: the same outcome as vLLM 0.33.0, or a named difference.

A difference names the rule that decides it. [S] is the seed design, section 12 its decisions; the numbers are those of
the specification.
"""

import pytest

from graphspec.errors import GraphspecError
from graphspec.resolve import check
from support.peer_cases import cases, config_of, ours, theirs

CASES = {case["id"]: case for case in cases()}

STRICT = "stricter types: nothing is coerced (issue)"
UNREAD = "an option that the method does not read is refused (3.7 [S]; issue)"
LENGTH = "4.6: the draft's limit ends drafting, it does not shorten the target (1.1: max_model_len skips speculation)"
RAISED = "4.3 [S]: the head sees the target's positions, so its raised limit is its length"
DECLARED = "3.6.1 [S]: what the checkpoint declares comes before its path"
EXPLICIT = (
    "3.6.4 [S]: an explicit method is never replaced; a checkpoint that declares another is refused"
)

REFUSED_HERE = {
    "ngram/min-bool": STRICT,
    "ngram/with-draft-tp": "4.5: the draft's size is 1 or the target's, for every method",
    "ngram/parallel-drafting": UNREAD,
    "ngram/dspark-option": UNREAD,
    "ngram/xpress-option": UNREAD,
    "ngram/window-on-draft-model": UNREAD,
    "k/whole-float": STRICT,
    "k/true": STRICT,
    "k/huge": "stricter types: the bound of the field is 1024 (issue: huge integers are refused)",
    "fields/flag-number": STRICT,
    "draft-model/length-text": STRICT,
    "draft-model/tp-text": STRICT,
    "draft-model/kv-dtype-unknown": "stricter types: the known types are an enumeration",
    "draft-model/on-mtp-checkpoint": EXPLICIT,
    "draft-model/on-dflash-path": EXPLICIT,
    "mtp/explicit-on-eagle-path": EXPLICIT,
    "custom-class/explicit-slash-path": "1.1, 3.2 [S]: a custom class is named by an import path",
    "extract/layers": "1.8 [S]: draft_model_config is derived, not a field of the user's",
    "synthetic/rates-text": STRICT,
    "watermark/mtp": "2.3 [S]: the EAGLE family and the block drafters keep a mark, MTP does not",
    "dspark/no-model-dense-target": "2.5 [S]: only DeepSeek V4 targets ship DSpark modules",
}
"""Cases that vLLM accepts and we refuse: id -> rule."""

ACCEPTED_HERE = {
    "fields/speculator-options-none": "1.7 [S]: the field exists, and unset it has no effect",
    "eagle/path-with-both": DECLARED,
    "eagle/path-inside-word": DECLARED,
    "eagle3/parallel-checkpoint-raw": DECLARED,
    "mtp/n1-no-k": "3.5 [S]: the default model is applied without k, and k is n_predict",
    "mtp/n2-no-k-model-given": "4.7: k is n_predict",
}
"""Cases that vLLM refuses and we accept: id -> rule."""

OTHER_FACTS = {
    "draft-model/length-short-draft": ({"target_max_model_len": 8192}, LENGTH),
    "draft-model/length-short-yarn": ({"target_max_model_len": 8192}, LENGTH),
    "draft-model/length-given": ({"target_max_model_len": 8192}, LENGTH),
    "draft-model/length-at-draft-limit": ({"target_max_model_len": 8192}, LENGTH),
    "eagle3/short-positions-longrope": ({"target_max_model_len": 32768}, LENGTH),
    "dflash/short-positions-yarn": ({"target_max_model_len": 16384}, LENGTH),
    "eagle3/short-positions-linear": ({"draft_max_model_len": 32768}, RAISED),
    "dflash/short-positions": ({"draft_max_model_len": 16384}, RAISED),
    "draft-model/on-eagle-path": (
        {
            "method": "draft_model",
            "max_num_new_slots_for_drafting": 1,
            "needs_eagle_block_drop": False,
            "use_eagle_block_drop": False,
            "num_prefill_lookahead_tokens": 0,
            "num_hash_lookahead_tokens": 0,
            "draft_architectures": ["LlamaForCausalLM"],
        },
        EXPLICIT,
    ),
    "eagle3/neutral-path": (
        {
            "method": "eagle3",
            "max_num_new_slots_for_drafting": 0,
            "uses_aux_hidden_states": True,
            "needs_eagle_block_drop": True,
            "use_eagle_block_drop": True,
            "num_prefill_lookahead_tokens": 1,
            "num_hash_lookahead_tokens": 1,
        },
        DECLARED,
    ),
    "eagle3/parallel-speculators-no-flag": (
        {"parallel_drafting": True, "max_num_new_slots_for_drafting": 3, "runner": "v1"},
        DECLARED,
    ),
}
"""Cases that both accept with other facts: id -> ({fact: ours}, rule)."""


def accepted_there(case):
    """True when vLLM takes the section, the engine around it, and the schedule that the section asks for."""
    config, engine = case["vllm"]["config"], case["vllm"].get("engine") or {}
    schedule = config.get("schedule", {"accepted": True})
    used = "table_kept" in engine
    return config["accepted"] and engine["accepted"] and (schedule["accepted"] or not used)


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_the_same_outcome_or_a_named_difference(name):
    """Acceptance, method, k, lengths, parallelism, lookahead, slots, schedule, runner and graph mode agree."""
    case = CASES[name]
    made = check(config_of(case))
    accepted = made.spec is not None
    wanted = name in ACCEPTED_HERE or (accepted_there(case) and name not in REFUSED_HERE)
    assert accepted is wanted, [p.render() for p in made.problems]
    if not accepted or not accepted_there(case):
        return
    there = theirs(case)
    here = ours(made.spec, there)
    different = {n: here[n] for n in there if here[n] != there[n]}
    assert different == OTHER_FACTS.get(name, ({}, ""))[0]


def test_named_differences_are_differences():
    """No entry of the tables is left over from a case that agrees by now."""
    assert all(accepted_there(CASES[name]) for name in REFUSED_HERE)
    assert not any(accepted_there(CASES[name]) for name in ACCEPTED_HERE)
    assert all(different for different, _ in OTHER_FACTS.values())


def test_a_refused_case_says_why():
    """Every refusal is one of our errors with the four parts."""
    for case in CASES.values():
        made = check(config_of(case))
        if made.spec is None:
            error = made.error()
            assert isinstance(error, GraphspecError)
            assert all(p.where and p.found and p.wanted for p in error.problems), case["id"]
