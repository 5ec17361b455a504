"""Sections 5.2, 6.1, 6.4 and 6.5 of shared/reference/speculative.md: what the hashes contain, and dynamic depth."""

import itertools

import pytest

from graphspec.config.compilation import CudagraphMode, RunnerFacts
from graphspec.config.parallel import ParallelConfig
from graphspec.config.schedule import dense_schedule, table_problems
from graphspec.config.speculative import SpeculativeConfig
from graphspec.resolve.detect import Chosen
from graphspec.resolve.runner import RunnerDecision, decide_runner
from graphspec.resolve.schedule import decide_schedule
from graphspec.speculators.registry import speculator_config_class
from support.peer_cases import folder
from support.speculative import CASES, METHODS, keys_of, refused_case, resolved_case, variant

PARALLEL = ["dflash", "dspark", "dspark fill-in", "eagle3 parallel", "draft_model parallel"]
SEQUENTIAL = ["mtp", "eagle", "eagle3", "draft_model", "ngram", "ngram_gpu"]


def at_k(name, k):
    return keys_of(resolved_case(name, {"num_speculative_tokens": k}))


@pytest.mark.parametrize("name", PARALLEL)
def test_5_2_parallel_drafting_with_another_k_has_another_compile_hash(name):
    """The draft's shapes contain k, so 7, 9 and 11 share nothing."""
    made = [at_k(name, k) for k in (7, 9, 11)]
    assert len({compile_hash for compile_hash, _ in made}) == 3


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_5_2_sequential_drafting_with_another_k_has_the_same_compile_hash(name):
    """The draft's graph is run k times; only the captured graphs differ."""
    made = [at_k(name, k) for k in (3, 6)]
    assert made[0][0] == made[1][0]
    assert made[0][1] != made[1][1]


@pytest.mark.parametrize("name", CASES)
def test_5_2_equal_configs_have_equal_hashes(name):
    """Two resolutions of one section have the same two hashes, and k changes the CAPTURE one."""
    assert keys_of(resolved_case(name)) == keys_of(resolved_case(name))
    assert at_k(name, 2)[1] != at_k(name, 4)[1]


OVERRIDES = {
    "draft_tensor_parallel_size": 1,
    "moe_backend": "triton",
    "attention_backend": "flash_attn",
    "kv_cache_dtype": "fp8",
    "quantization": "fp8",
    "draft_lm_head_quantization": "fp8",
    "use_local_argmax_reduction": True,
}


@pytest.mark.parametrize("field", OVERRIDES)
def test_5_2_a_draft_override_changes_the_compile_hash(field):
    """Each is applied to the draft's own section, which is keyed, and the target's stays."""
    parallel = {"tensor_parallel_size": 2}
    plain = resolved_case("eagle3", parallel=parallel)
    other = resolved_case("eagle3", {field: OVERRIDES[field]}, parallel=parallel)
    assert keys_of(plain)[0] != keys_of(other)[0]
    assert (plain.kernels, plain.parallel, plain.model) == (
        other.kernels,
        other.parallel,
        other.model,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"draft_sample_method": "probabilistic"},
        {"enforce_eager": True},
        {"max_model_len": 1024},
        {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]},
    ],
)
def test_5_2_what_changes_captured_graphs_alone(changes):
    """Buffers, captured depths and lengths are in the CAPTURE hash and not in the COMPILE one."""
    plain, other = keys_of(resolved_case("eagle3")), keys_of(resolved_case("eagle3", changes))
    assert plain[0] == other[0]
    assert plain[1] != other[1]


def test_5_2_the_draft_model_changes_the_hash(tmp_path):
    """Two drafters with one difference in their configs share nothing; the place of the draft does not matter."""
    same = variant(tmp_path / "elsewhere", "eagle3-head")
    other = variant(tmp_path / "other", "eagle3-head", num_hidden_layers=2)
    plain = keys_of(resolved_case("eagle3"))
    assert keys_of(resolved_case("eagle3", {"model": same})) == plain
    assert keys_of(resolved_case("eagle3", {"model": other}))[0] != plain[0]


def test_5_2_layer_ids_change_the_hash():
    """The layers that the target returns are part of the target's code."""
    aux = resolved_case("eagle3", {"model": folder("eagle3-head-aux")})
    assert aux.aux_hidden_state_layer_ids == (1, 3, 6)
    assert keys_of(aux)[0] != keys_of(resolved_case("eagle3"))[0]


SAME_TARGET = [
    (one, other)
    for one, other in itertools.combinations(METHODS, 2)
    if CASES[one].target == CASES[other].target
]


@pytest.mark.parametrize(("one", "other"), SAME_TARGET)
def test_5_2_the_method_itself_changes_the_hash(one, other):
    """No two methods on one target have one COMPILE hash, those without any draft model included."""
    assert keys_of(resolved_case(one))[0] != keys_of(resolved_case(other))[0]


SAMPLING = [
    {"rejection_sample_method": "block"},
    {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5},
    {"rejection_sample_method": "fly"},
    {"rejection_sample_method": "fly", "fly_window_size": 2, "fly_entropy_threshold": 0.1},
    {"disable_eagle_block_drop": True},
    {"disable_lookahead_block_hashes": True},
    {"draft_load_config": {"a": 1}},
]


@pytest.mark.parametrize("changes", SAMPLING, ids=str)
def test_5_2_what_only_samples_or_keeps_books_changes_no_hash(changes):
    """The cache is not lost for a rule of verification, of the block manager, or of loading."""
    assert keys_of(resolved_case("eagle3", changes)) == keys_of(resolved_case("eagle3"))


EXAMPLES = {
    1: ([[1, 2, 4], [5, 8, 1]], 8, 4, dict(enumerate([4, 4, 4, 4, 1, 1, 1, 1], 1))),
    2: ([[1, 2, 4], [5, 6, 1]], 10, 3, dict(enumerate([3, 3, 3, 3, 1, 1, 1, 1, 1, 1], 1))),
    3: (
        [[1, 8, 4], [9, 32, 3], [33, 128, 2]],
        256,
        4,
        {1: 4, 8: 4, 9: 3, 32: 3, 33: 2, 128: 2, 129: 2, 256: 2},
    ),
    4: (
        [[1, 16, 3], [32, 128, 2], [256, 2048, 0]],
        256,
        3,
        {17: 3, 31: 3, 129: 2, 255: 2, 256: 0},
    ),
    5: ([[1, 16, 5]], 32, 3, dict.fromkeys(range(1, 33), 3)),
}


@pytest.mark.parametrize("number", EXAMPLES)
def test_6_1_example(number):
    """The reference's examples, through the contract of an engine with such a table."""
    table, requests, k, wanted = EXAMPLES[number]
    section = {
        "num_speculative_tokens": k,
        "num_speculative_tokens_per_batch_size": table,
    }
    schedule = resolved_case("ngram", section, scheduler={"max_num_seqs": requests}).schedule
    assert {b: schedule.k_for(b) for b in wanted} == wanted
    assert schedule.dense[0] == 0
    assert schedule.max_num_seqs == requests


BAD_TABLES = {
    "not a list": "1:64:4",
    "empty": [],
    "two values": [[1, 64]],
    "four values": [[1, 64, 4, 1]],
    "no list inside": [1, 64, 4],
    "a float": [[1, 64, 3.9]],
    "a boolean": [[1, 64, True]],
    "text": [["1", 64, 4]],
    "start 0": [[0, 64, 4]],
    "negative end": [[1, -4, 4]],
    "start above end": [[8, 4, 2]],
    "negative k": [[1, 64, -1]],
    "overlap": [[1, 16, 4], [16, 32, 2]],
    "first range at 2": [[2, 64, 4]],
}


@pytest.mark.parametrize("name", BAD_TABLES)
@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_6_1_validation(method, name):
    """Each broken rule is refused when the config is read, at the table's path."""
    section = {"num_speculative_tokens_per_batch_size": BAD_TABLES[name]}
    where = "speculative.num_speculative_tokens_per_batch_size"
    assert all(w.startswith(where) for w in refused_case(method, section))


def test_6_1_rules_of_a_table_that_is_fine():
    """Ranges in any order, k of 0, and sizes beyond max_num_seqs."""
    assert table_problems([(9, 900, 0), (1, 8, 4)]) == []


def test_6_1_lookup():
    """Gaps take the previous k, the tail keeps the last, and sizes outside are an IndexError."""
    schedule = dense_schedule([(1, 2, 4), (5, 8, 1)], 4, 10)
    assert [schedule.k_for(b) for b in (3, 4, 9, 10)] == [4, 4, 1, 1]
    for outside in (-1, 0, 11):
        with pytest.raises(IndexError):
            schedule.k_for(outside)


TABLE = [[1, 8, 4], [9, 64, 1]]
DYNAMIC = {"num_speculative_tokens_per_batch_size": TABLE}
WHITELIST = {"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"}
V1 = RunnerDecision(
    asked="v1",
    granted="v1",
    facts=RunnerFacts(full_graphs_per_k=False, central_trimming=False),
)


def decided(name, runner, **parallel):
    cls = speculator_config_class(name)
    return decide_schedule(
        Chosen(method=name, custom_method=None, cls=cls, why="test"),
        SpeculativeConfig(num_speculative_tokens_per_batch_size=tuple(map(tuple, TABLE))),
        k=4,
        runner=runner,
        parallel=ParallelConfig(**parallel),
        max_num_seqs=64,
        strict=False,
    )


@pytest.mark.parametrize("name", METHODS)
def test_6_4_v1_whitelist(name):
    """On the first runner only proposers that take a smaller k keep the table; for the others it is cleared, loudly."""
    made = decided(name, V1)
    assert made.asked == tuple(map(tuple, TABLE))
    if name in WHITELIST:
        assert made.granted.depths == (4, 1)
        assert made.reasons == ()
    else:
        assert made.granted.depths == (4,)
        assert made.reasons[0].startswith("runner_cannot_trim: ")
        assert name in made.reasons[0]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("central", [True, False])
def test_6_4_a_runner_with_central_trimming_takes_any_method(name, central):
    """The declared capability decides, whatever the runner's generation."""
    facts = RunnerFacts(full_graphs_per_k=True, central_trimming=central)
    made = decided(name, decide_runner(facts, None, None, None))
    assert made.granted.depths == ((4, 1) if central or name in WHITELIST else (4,))


RUNS_ON_V1 = [name for name in CASES if not name.startswith("dspark")]


@pytest.mark.parametrize("name", RUNS_ON_V1)
def test_6_4_through_the_contract(name):
    """The whole pipeline on v1: table or no table, and no error either way."""
    spec = resolved_case(name, DYNAMIC, compilation={"runner": "v1"})
    kept = name.split()[0] in WHITELIST
    assert (spec.schedule.depths == (4, 1)) is kept
    assert bool(spec.speculative.schedule.reasons) is not kept


@pytest.mark.parametrize("name", sorted(set(CASES) - {"suffix", "custom_class"}))
def test_6_4_v2_trims_for_every_method(name):
    """Every method that the second runner has keeps its table there."""
    if "parallel" in name:  # for v1 alone
        assert resolved_case(name, DYNAMIC).schedule.depths == (4, 1)
        return
    spec = resolved_case(name, DYNAMIC, compilation={"runner": "v2"})
    assert spec.schedule.depths == (4, 1)


@pytest.mark.parametrize("name", METHODS)
def test_6_5_data_parallelism_clears_the_table(name):
    """Ranks could choose different depths; the depth is fixed at k, and the reason says so."""
    made = decided(
        name,
        decide_runner(RunnerFacts(full_graphs_per_k=True, central_trimming=True), None, None, None),
        data_parallel_size=2,
    )
    assert made.granted.depths == (4,)
    assert made.reasons[0].startswith("data_parallel: ")


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_6_5_the_table_is_cleared_before_the_mode_is_decided(mode, ranks):
    """On v1 a table costs full graphs; one that data parallelism has cleared does not."""
    spec = resolved_case(
        "ngram",
        DYNAMIC,
        compilation={"runner": "v1", "cudagraph_mode": mode},
        parallel={"data_parallel_size": ranks},
    )
    assert spec.mode.granted is CudagraphMode[mode if ranks == 2 else "PIECEWISE"]


def test_6_5_strict_refuses_to_clear():
    """compilation.strict makes the warning an error with the reason."""
    found = refused_case(
        "ngram", DYNAMIC, compilation={"strict": True}, parallel={"data_parallel_size": 2}
    )
    problem = found["speculative.num_speculative_tokens_per_batch_size"]
    assert problem.hint.startswith("data_parallel: ")
