"""Config to contract: rules between sections, mode downgrades, what the spec forwards, and all errors at once."""

import pytest

from graphspec.config.compilation import CompilationConfig, CudagraphMode, Runner
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.resolve.modes import mode_decision
from graphspec.speculators.ngram import NgramSpeculatorConfig
from support.specs import config_folder, plain_config

TABLE = [[1, 2, 2], [3, 4, 1]]
STATIC, DYNAMIC = KSchedule(dense=(0, 2, 2)), KSchedule(dense=(0, 2, 1))


@pytest.fixture
def resolve(tmp_path):
    """The contract of the tiny model with these sections replaced."""
    folder = config_folder(tmp_path / "model")

    def make(**sections):
        return EngineConfig.from_dict(plain_config(folder, **sections)).resolve()

    make.source = str(folder)
    return make


def problems_of(call):
    with pytest.raises(SpecError) as caught:
        call()
    return {p.where: p for p in caught.value.problems}


def ngram(**options):
    return {"method": "ngram", "num_speculative_tokens": 2, **options}


def test_the_contract_holds_what_the_config_says(resolve):
    """Sections pass through; the model and the speculative section are resolved."""
    spec = resolve(speculative=ngram(num_speculative_tokens_per_batch_size=TABLE))
    assert spec.scheduler.max_num_seqs == 4
    assert spec.kv_cache.num_blocks == 128
    assert spec.model.hidden_size == 32
    assert spec.speculative.schedule.dense == (0, 2, 2, 1, 1)
    assert spec.schedule is spec.speculative.schedule
    assert spec.runner is Runner.V2
    assert spec.program == "graphspec.engine.llama:program"


def test_what_components_ask_the_spec_is_derived_in_one_place(resolve):
    """Depth, query length and lookahead: one answer for scheduler, KV manager and executor."""
    spec = resolve(speculative=ngram(num_speculative_tokens=3))
    assert spec.num_speculative_tokens == 3
    assert spec.uniform_decode_query_len == 4
    assert spec.num_lookahead_tokens == 0
    assert spec.schedule.dense == (0, 3, 3, 3, 3)


def test_the_lookahead_is_the_method_s_and_never_the_query_length(resolve):
    """A method with lookahead forwards its own number for the configured depth."""
    import attrs

    from graphspec.speculators.base import SpeculatorConfig

    class Ahead(SpeculatorConfig):
        def num_lookahead_tokens(self, k):
            return 10 + k

    spec = resolve()
    spec = attrs.evolve(spec, speculative=attrs.evolve(spec.speculative, speculator=Ahead()))
    assert spec.num_lookahead_tokens == 12
    assert spec.uniform_decode_query_len == 3


def test_without_speculation_everything_is_zero_and_the_query_length_one(resolve):
    """No speculative section is depth 0 for each batch size."""
    spec = resolve(speculative=None)
    assert spec.speculative is None
    assert (spec.num_speculative_tokens, spec.num_lookahead_tokens) == (0, 0)
    assert spec.uniform_decode_query_len == 1
    assert spec.schedule.dense == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_max": 7}, (7, 7)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 4}, (4, 4)),
    ],
)
def test_one_lookup_bound_stands_for_both_and_none_is_five(resolve, given, window):
    """Reference 1.5: both absent give 5 and 5, one absent mirrors the other."""
    speculator = resolve(speculative=ngram(**given)).speculative.speculator
    assert isinstance(speculator, NgramSpeculatorConfig)
    assert (speculator.prompt_lookup_min, speculator.prompt_lookup_max) == window


def test_an_empty_lookup_window_is_refused(resolve):
    """min above max is named by its path in the config."""
    found = problems_of(
        lambda: resolve(speculative=ngram(prompt_lookup_min=5, prompt_lookup_max=2))
    )
    assert list(found) == ["speculative.prompt_lookup_min"]
    assert "2" in found["speculative.prompt_lookup_min"].wanted


def test_an_unknown_method_is_refused_with_the_nearest_name(resolve):
    """The method's name must be registered."""
    found = problems_of(lambda: resolve(speculative=ngram(method="ngran")))
    assert "ngram" in found["speculative.method"].hint


@pytest.mark.parametrize(("budget", "fine"), [(12, True), (11, False)])
def test_the_widest_verify_step_must_fit_the_token_budget(resolve, budget, fine):
    """4 requests with 2 drafts each are 12 tokens: that fits 12 and not 11."""
    scheduler = {"max_num_seqs": 4, "max_num_batched_tokens": budget}
    if fine:
        assert resolve(scheduler=scheduler)
        return
    found = problems_of(lambda: resolve(scheduler=scheduler))
    assert list(found) == ["scheduler.max_num_batched_tokens"]
    assert "at least 12" in found["scheduler.max_num_batched_tokens"].wanted


def test_the_widest_step_need_not_be_the_largest_batch(resolve):
    """With [[1,3,2],[4,4,0]] three requests of 3 tokens are wider than four of 1."""
    speculative = ngram(num_speculative_tokens_per_batch_size=[[1, 3, 2], [4, 4, 0]])
    found = problems_of(
        lambda: resolve(
            speculative=speculative, scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 8}
        )
    )
    wanted = found["scheduler.max_num_batched_tokens"].wanted
    assert "at least 9" in wanted
    assert "3 requests" in wanted


@pytest.mark.parametrize(("blocks", "fine"), [(17, True), (16, False)])
def test_the_cache_must_hold_one_longest_sequence_beside_block_0(resolve, blocks, fine):
    """128 tokens in blocks of 8 need 16 blocks and block 0."""
    kv_cache = {"block_size": 8, "num_blocks": blocks}
    if fine:
        assert resolve(kv_cache=kv_cache)
        return
    found = problems_of(lambda: resolve(kv_cache=kv_cache))
    assert list(found) == ["kv_cache.num_blocks"]
    assert "128" in found["kv_cache.num_blocks"].wanted


def test_rules_between_sections_come_together(resolve):
    """Both limits of checks.py in one error."""
    found = problems_of(
        lambda: resolve(
            scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 11},
            kv_cache={"block_size": 8, "num_blocks": 2},
        )
    )
    assert set(found) == {"scheduler.max_num_batched_tokens", "kv_cache.num_blocks"}


def test_errors_of_several_steps_come_together(resolve):
    """Model, speculation, mode and program report in one go."""
    found = problems_of(
        lambda: resolve(
            model={"source": resolve.source, "max_model_len": 999},
            speculative=ngram(method="unheard", num_speculative_tokens_per_batch_size=TABLE),
            program="not a program",
        )
    )
    assert set(found) == {"model.max_model_len", "speculative.method", "program"}


def test_a_missing_checkpoint_comes_alone_and_first(resolve, tmp_path):
    """Without facts nothing can be derived, so the environment's problem is the only one."""
    with pytest.raises(EnvironmentProblem) as caught:
        resolve(model={"source": str(tmp_path / "none")}, program="nonsense")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "program",
    ["", "module", "module:", ":factory", "a:b:c", "a b:c", "a.:c", "a:c()", "a:b.c", "../a:b"],
)
def test_a_program_is_module_and_factory(resolve, program):
    """Anything but module:factory is refused before anything is imported."""
    assert list(problems_of(lambda: resolve(program=program))) == ["program"]


def test_resolving_writes_nothing_into_the_config(resolve, tmp_path):
    """The config is equal before and after, and resolving twice gives the same contract."""
    config = EngineConfig.from_dict(plain_config(resolve.source))
    twin = EngineConfig.from_dict(plain_config(resolve.source))
    assert config.resolve() == config.resolve()
    assert config == twin


@pytest.mark.parametrize("mode", list(CudagraphMode))
@pytest.mark.parametrize("runner", list(Runner))
@pytest.mark.parametrize("schedule", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("strict", [False, True])
def test_the_mode_table(mode, runner, schedule, strict):
    """Every mode on either runner, static and dynamic: full graphs on v1 with several depths become PIECEWISE."""
    full = mode not in (CudagraphMode.NONE, CudagraphMode.PIECEWISE)
    lowered = full and runner is Runner.V1 and schedule is DYNAMIC
    config = CompilationConfig(cudagraph_mode=mode, runner=runner, strict=strict)
    if lowered and strict:
        with pytest.raises(SpecError) as caught:
            mode_decision(config, schedule)
        (problem,) = caught.value.problems
        assert problem.where == "compilation.cudagraph_mode"
        assert problem.found == mode.value
        assert "PIECEWISE" in problem.wanted
        assert "runner_v1_dynamic_k" in problem.hint
        return
    decision = mode_decision(config, schedule)
    assert decision.asked is mode
    assert decision.granted is (CudagraphMode.PIECEWISE if lowered else mode)
    assert len(decision.reasons) == int(lowered)
    assert all(reason.startswith("runner_v1_dynamic_k: ") for reason in decision.reasons)


def test_a_downgrade_reaches_the_contract(resolve):
    """The spec holds the granted mode beside the asked one; strict refuses."""
    dynamic = ngram(num_speculative_tokens_per_batch_size=TABLE)
    spec = resolve(speculative=dynamic, compilation={"runner": "v1"})
    assert spec.mode.asked is CudagraphMode.FULL_AND_PIECEWISE
    assert spec.mode.granted is CudagraphMode.PIECEWISE
    found = problems_of(
        lambda: resolve(speculative=dynamic, compilation={"runner": "v1", "strict": True})
    )
    assert list(found) == ["compilation.cudagraph_mode"]


def test_a_table_of_one_depth_is_no_dynamic_depth(resolve):
    """A table that gives every batch size the same depth lowers nothing."""
    table = ngram(num_speculative_tokens_per_batch_size=[[1, 2, 2], [3, 4, 9]])
    spec = resolve(speculative=table, compilation={"runner": "v1", "strict": True})
    assert spec.mode.granted is CudagraphMode.FULL_AND_PIECEWISE
