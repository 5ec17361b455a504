"""Sections 4.5 to 4.8 of shared/reference/speculative.md: the draft's size, length, depth and parallel section."""

import sys

import pytest

from graphspec.config.parallel import ParallelConfig
from graphspec.resolve.draft import draft_parallel
from support.peer_cases import folder
from support.speculative import (
    CASES,
    notes_of,
    refused_case,
    resolution,
    resolved,
    resolved_case,
    variant,
)

SIZES = [
    (1, None, 1),
    (1, 1, 1),
    (4, None, 4),
    (4, 1, 1),
    (4, 4, 4),
    (4, 2, None),
    (4, 8, None),
    (1, 2, None),
]


@pytest.mark.parametrize(("target", "asked", "made"), SIZES)
def test_4_5_tensor_parallel_size(target, asked, made):
    """The target's, or 1, or an error with both values; with a target on one device, 1 is the only value."""
    parallel = {"tensor_parallel_size": target}
    given = {"draft_tensor_parallel_size": asked}
    if made is not None:
        spec = resolved_case("eagle3", given, parallel=parallel)
        assert spec.speculative.draft_parallel.tensor_parallel_size == made
        return
    problem = refused_case("eagle3", given, parallel=parallel)[
        "speculative.draft_tensor_parallel_size"
    ]
    assert str(asked) in problem.found
    assert f"tensor_parallel_size is {target}" in problem.hint
    assert problem.wanted.startswith("1")


@pytest.mark.parametrize("name", CASES)
def test_4_5_every_method_has_the_rule(name):
    """Methods without a draft model too."""
    found = refused_case(name, {"draft_tensor_parallel_size": 7})
    assert "speculative.draft_tensor_parallel_size" in found


LENGTHS = [
    # draft, given, the target's length, the draft's length
    ("draft-llama-2k", None, 8192, 2048),
    ("draft-llama", None, 1024, 1024),
    ("draft-llama", None, 8192, 8192),
    ("draft-llama", 1024, 8192, 1024),
    ("draft-llama-2k", 2048, 8192, 2048),
    ("draft-llama-2k", 2049, 8192, None),
    ("draft-llama", 2048, 1024, None),
]


@pytest.mark.parametrize(("draft", "given", "target", "made"), LENGTHS)
def test_4_6_draft_max_model_len(draft, given, target, made):
    """The smaller of both, or the given value, which is an error above either."""
    section = {"model": folder(draft), "max_model_len": given}
    if made is not None:
        spec = resolved_case("draft_model", section, model={"max_model_len": target})
        assert spec.speculative.draft_model.max_model_len == spec.max_draft_len == made
        assert spec.model.max_model_len == target
        return
    found = refused_case("draft_model", section, model={"max_model_len": target})
    assert str(given) in found["speculative.max_model_len"].found


def test_4_6_the_length_is_told():
    """A change of the draft's length stands in the trace; one that ends drafting early is a note."""
    shorter = resolution(
        CASES["draft_model"].section, "target-llama", model={"max_model_len": 1024}
    )
    derive = next(s for s in shorter.steps if s.name == "derive")
    assert "at most 1024 tokens" in derive.why
    early = resolved_case("draft_model", {"model": folder("draft-llama-2k")})
    assert "2048" in notes_of(early)["drafts_stop_early"]


DEPTHS = {
    2: {1: True, 2: True, 3: False, 4: True},
    3: {1: True, 2: True, 3: True, 6: True, 9: True, 4: False, 5: False, 7: False},
    1: {1: True, 2: True, 3: True, 7: True},
    None: {1: True, 2: True, 3: True, 5: True},
}


@pytest.mark.parametrize(("modules", "k"), [(n, k) for n, row in DEPTHS.items() for k in row])
def test_4_7_k_and_n_predict(tmp_path, modules, k):
    """k up to n_predict, or a multiple of it; without n_predict no check."""
    changes = {} if modules is None else {"n_predict": modules}
    draft = variant(tmp_path / "d", "eagle3-head", **changes)
    section = {"model": draft, "num_speculative_tokens": k}
    if DEPTHS[modules][k]:
        assert resolved_case("eagle3", section).num_speculative_tokens == k
        return
    problem = refused_case("eagle3", section)["speculative.num_speculative_tokens"]
    assert str(k) in problem.found
    assert f"multiple of {modules}" in problem.wanted
    below = k // modules * modules
    assert f"{below} or {below + modules}" in problem.hint


@pytest.mark.parametrize("modules", [1, 2, 3])
def test_4_7_k_defaults_to_n_predict(modules):
    """None is the checkpoint's count, with a note."""
    spec = resolved({"method": "mtp"}, f"target-deepseek-n{modules}")
    assert spec.num_speculative_tokens == modules
    assert str(modules) in notes_of(spec)["depth_defaulted"]


BLOCKS = [
    ({"block_size": 5, "dspark_block_size": 6, "n_predict": 9}, 5),
    ({"block_size": None, "dspark_block_size": 6, "n_predict": 9}, 6),
    ({"block_size": None, "n_predict": 9}, None),
]


@pytest.mark.parametrize(("stated", "k"), BLOCKS)
def test_4_7_dspark_defaults_to_its_block_size(tmp_path, stated, k):
    """block_size, else dspark_block_size; n_predict says nothing about DSpark."""
    section = {"model": variant(tmp_path / "d", "dspark-qwen3", **stated)}
    section["num_speculative_tokens"] = None
    if k is None:
        found = refused_case("dspark", section)
        assert "speculative.num_speculative_tokens" in found
    else:
        assert resolved_case("dspark", section).num_speculative_tokens == k


def test_4_7_dspark_ignores_n_predict_for_a_given_k(tmp_path):
    """No multiple is asked for."""
    draft = variant(tmp_path / "d", "dspark-qwen3", n_predict=3)
    assert resolved_case("dspark", {"model": draft, "num_speculative_tokens": 5})


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"suffix", "mtp", "mtp multi-module"}))
def test_4_7_without_any_k_it_is_required(name):
    """A SpecError that names method and field, where neither checkpoint nor method has a depth."""
    if name.startswith("dspark"):
        assert resolved_case(name, without="num_speculative_tokens").num_speculative_tokens == 7
        return
    problem = refused_case(name, without="num_speculative_tokens")[
        "speculative.num_speculative_tokens"
    ]
    assert name.split()[0] in problem.found


@pytest.mark.parametrize(("given", "kept"), [(4, 4), (None, 9)])
def test_4_7_a_drafts_own_lookahead_is_set_to_k(tmp_path, given, kept):
    """num_lookahead_tokens in the draft's config becomes k when k was given."""
    draft = variant(tmp_path / "d", "eagle3-head", num_lookahead_tokens=9, n_predict=2)
    section = {"model": draft, "num_speculative_tokens": given}
    made = resolved_case("eagle3", section).speculative.draft_model
    assert made.extra["num_lookahead_tokens"] == kept


@pytest.mark.parametrize(("modules", "k", "told"), [(1, 1, False), (1, 2, True), (2, 4, True)])
def test_4_7_reuse_of_modules_is_told(modules, k, told):
    """More drafts than modules run them again, which is less often right; the note has both numbers."""
    section = {"method": "mtp", "num_speculative_tokens": k}
    notes = notes_of(resolved(section, f"target-deepseek-n{modules}"))
    assert ("mtp_modules_reused" in notes) is told
    if told:
        assert f"{k} drafts" in notes["mtp_modules_reused"]


EVERYTHING = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "data_parallel_size": 2,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 2,
    "enable_expert_parallel": True,
    "all2all_backend": "deepep_low_latency",
    "disable_custom_all_reduce": True,
    "distributed_executor_backend": "ray",
    "max_parallel_loading_workers": 3,
    "ray_workers_use_nsight": True,
}
COPIED = {
    "disable_custom_all_reduce": True,
    "distributed_executor_backend": "ray",
    "max_parallel_loading_workers": 3,
    "ray_workers_use_nsight": True,
}
NOT_COPIED = {
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
}


def draft_section(draft, target="target-moe", **parallel):
    section = {"method": "draft_model", "model": folder(draft), "num_speculative_tokens": 3}
    return resolved(section, target, parallel={**EVERYTHING, **parallel}).speculative.draft_parallel


@pytest.mark.parametrize("field", COPIED)
def test_4_8_copied(field):
    """How processes start, load and reduce is the target's."""
    assert getattr(draft_section("draft-moe"), field) == COPIED[field]


@pytest.mark.parametrize("field", NOT_COPIED)
def test_4_8_not_copied(field):
    """One pipeline stage, and neither data nor context parallelism."""
    assert getattr(draft_section("draft-moe"), field) == NOT_COPIED[field]


def test_4_8_prefill_context_parallelism_is_not_copied():
    """Where a method drafts from split prompts at all."""
    spec = resolved_case("dspark", parallel={"prefill_context_parallel_size": 2})
    assert spec.speculative.draft_parallel.prefill_context_parallel_size == 1


EXPERTS = [
    ("draft-moe", True, True),
    ("draft-moe", False, False),
    ("draft-llama", True, False),
    ("draft-llama", False, False),
]


@pytest.mark.parametrize(("draft", "target", "made"), EXPERTS)
def test_4_8_expert_parallelism_is_inherited_and_never_invented(draft, target, made):
    """The target's, and only for a draft with experts."""
    backend = {} if target else {"all2all_backend": None}
    made_of = draft_section(draft, enable_expert_parallel=target, **backend)
    assert made_of.enable_expert_parallel is made


def test_4_8_without_a_draft_config_expert_parallelism_is_inherited():
    """n-gram has the target's section as it is."""
    spec = resolved_case("ngram", parallel={"data_parallel_size": 2, "tensor_parallel_size": 2})
    assert spec.speculative.draft_parallel is spec.parallel


DENSE_DRAFT = """
def dense_draft(config):
    whole = config["num_hidden_layers"] > 2
    return {k: v for k, v in config.items() if whole or "expert" not in k}
"""


@pytest.fixture
def dense_draft(tmp_path, monkeypatch):
    """The name of a function that takes the experts from a small model's config, and leaves the target's."""
    (tmp_path / "spec_dense.py").write_text(DENSE_DRAFT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "spec_dense:dense_draft"
    sys.modules.pop("spec_dense", None)


def test_4_8_the_final_config_decides_about_experts(dense_draft):
    """After rewriting and overrides: a draft whose experts a function takes away is dense."""
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    section = {"method": "draft_model", "model": folder("draft-moe"), "num_speculative_tokens": 3}
    spec = resolved(section, "target-moe", parallel=parallel)
    assert spec.speculative.draft_parallel.enable_expert_parallel
    function = {"hf_overrides": dense_draft}
    spec = resolved(section, "target-moe", parallel=parallel, model=function)
    assert spec.model.is_moe
    assert not spec.speculative.draft_model.is_moe
    assert not spec.speculative.draft_parallel.enable_expert_parallel


def test_4_8_the_targets_section_is_not_changed():
    """The draft's is a new one."""
    target = ParallelConfig(tensor_parallel_size=4, data_parallel_size=2)
    made = draft_parallel(target, 1, is_moe=False)
    assert (made.tensor_parallel_size, made.data_parallel_size) == (1, 1)
    assert target == ParallelConfig(tensor_parallel_size=4, data_parallel_size=2)
