"""Config to contract: rules between sections, mode downgrades, what the spec forwards, and all errors at once."""

import pytest

from graphspec.capture.plan import plan_capture
from graphspec.config.compilation import CudagraphMode, Runner
from graphspec.config.engine import EngineConfig
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.fields import Stage
from graphspec.resolve import check, resolution
from graphspec.speculators.ngram import NgramSpeculatorConfig
from support.specs import config_folder, plain_config

TABLE = [[1, 2, 2], [3, 4, 1]]


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
    assert spec.speculative.schedule.asked == ((1, 2, 2), (3, 4, 1))
    assert spec.speculative.schedule.granted.dense == (0, 2, 2, 1, 1)
    assert spec.schedule is spec.speculative.schedule.granted
    assert (spec.runner.asked, spec.runner.granted) == ("auto", "v2")
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


def lowered(spec):
    """The notes of a contract that say that max_num_seqs was lowered."""
    return [note.text for note in spec.notes if note.code == "max_num_seqs_lowered"]


@pytest.mark.parametrize(
    ("budget", "granted"), [(12, 4), (11, 3), (9, 3), (8, 2), (6, 2), (5, 1), (4, 1)]
)
def test_the_widest_verify_step_fits_the_token_budget(resolve, budget, granted):
    """4 requests with 2 drafts each are 12 tokens. A budget below that lowers max_num_seqs, and a note says so.

    The plan and the schedule are those of the granted number: no graph is made for a step that cannot happen.
    """
    spec = resolve(scheduler={"max_num_seqs": 4, "max_num_batched_tokens": budget})
    assert spec.scheduler.max_num_seqs == spec.schedule.max_num_seqs == granted
    assert max(key.bucket for key in plan_capture(spec).keys) == granted
    notes = lowered(spec)
    assert len(notes) == (granted < 4)
    assert all(f"is {granted} instead of 4" in n and "12 would serve all 4" in n for n in notes)


def test_the_number_of_requests_is_never_lowered_in_silence_or_under_strict(resolve):
    """With compilation.strict a budget below the widest step is an error that names the least one that fits."""
    found = problems_of(
        lambda: resolve(
            scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 11},
            compilation={"strict": True},
        )
    )
    assert list(found) == ["scheduler.max_num_batched_tokens"]
    assert "at least 12" in found["scheduler.max_num_batched_tokens"].wanted


def test_a_budget_below_one_request_with_its_drafts_is_refused(resolve):
    """One request with 2 drafts is 3 tokens: with a budget of 2 nothing is left to grant."""
    found = problems_of(lambda: resolve(scheduler={"max_num_seqs": 1, "max_num_batched_tokens": 2}))
    assert list(found) == ["scheduler.max_num_batched_tokens"]
    assert "at least 3" in found["scheduler.max_num_batched_tokens"].wanted


def test_a_budget_below_one_token_a_request_is_refused(resolve):
    """4 requests and 3 tokens are an error, whatever the depth: the hint names each way out."""
    found = problems_of(lambda: resolve(scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 3}))
    assert list(found) == ["scheduler.max_num_batched_tokens"]
    hint = found["scheduler.max_num_batched_tokens"].hint
    assert "scheduler.max_num_batched_tokens 4 or more" in hint
    assert "scheduler.max_num_seqs 3 or fewer" in hint


def test_the_widest_step_need_not_be_the_largest_batch(resolve):
    """With [[1,3,2],[4,4,0]] three requests of 3 tokens are wider than four of 1: a budget of 8 grants two."""
    speculative = ngram(num_speculative_tokens_per_batch_size=[[1, 3, 2], [4, 4, 0]])
    spec = resolve(
        speculative=speculative, scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 8}
    )
    assert spec.scheduler.max_num_seqs == 2
    (note,) = lowered(spec)
    assert "3 requests with 2 drafts each are 9 tokens" in note
    assert "9 would serve all 4" in note


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
    """The token budget and the cache's capacity in one error."""
    found = problems_of(
        lambda: resolve(
            scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 3},
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


def test_a_missing_checkpoint_alone_is_the_machine_s_problem(resolve, tmp_path):
    """A valid config whose checkpoint is not here is an EnvironmentProblem: another machine may have it."""
    with pytest.raises(EnvironmentProblem) as caught:
        resolve(model={"source": str(tmp_path / "none")})
    assert len(caught.value.problems) == 1


def test_a_missing_checkpoint_comes_with_the_config_s_own_problems(resolve, tmp_path):
    """As soon as the config is at fault too, one SpecError has everything that can be said without the checkpoint."""
    source = str(tmp_path / "none")
    found = problems_of(lambda: resolve(model={"source": source}, program="nonsense"))
    assert list(found) == [f"model.source {source}", "program"]


def test_no_file_is_opened_for_a_method_that_lacks_its_draft(resolve, tmp_path):
    """What the section itself lacks is reported alone: a checkpoint that is not here says nothing about it."""
    model = {"source": str(tmp_path / "none")}
    found = problems_of(lambda: resolve(model=model, speculative={"method": "eagle3"}))
    assert list(found) == ["speculative.model"]


def test_types_rules_and_resolution_report_together(resolve):
    """Plain data with a wrong type, a broken rule, a limit between sections and a bad program: one report."""
    data = plain_config(
        resolve.source,
        scheduler={"max_num_seqs": "4"},
        kv_cache={"block_size": 8, "num_blocks": 2},
        speculative=ngram(prompt_lookup_min=5, prompt_lookup_max=2, xpress_topc=0),
        program="nonsense",
    )
    made = check(data)
    assert made.spec is None
    assert [p.where for p in made.problems] == [
        "scheduler.max_num_seqs",
        "speculative.prompt_lookup_min",
        "speculative.xpress_topc",
        "program",
        "kv_cache.num_blocks",
    ]
    with pytest.raises(SpecError) as caught:
        made.require()
    assert caught.value.problems == made.problems


PARTS = {
    "model": {"dtype": "float31"},
    "parallel": {"tensor_parallel_size": "2"},
    "scheduler": {"max_num_seqs": "4"},
    "kv_cache": {"dtype": 8},
    "kernels": {"attention_backend": "none such"},
    "compilation": {"strict": "no"},
    "speculative": {"method": "ngram", "num_speculative_tokens": "2"},
    "lora": {"max_loras": 0},
    "watermark": {},
    "device": {"isa": "z80"},
    "program": 7,
}


@pytest.mark.parametrize("broken", ["value", "key", "section"])
@pytest.mark.parametrize("section", PARTS)
def test_one_problem_is_reported_once(resolve, section, broken):
    """A wrong value, an unknown key or no section at all: the steps that need it are left out, and add nothing."""
    # n-gram drafts and a watermark exclude each other, which would be a problem more.
    data = plain_config(resolve.source, speculative=None if section == "watermark" else ngram())
    if broken == "value":
        value = PARTS[section]
        data[section] = {**data.get(section, {}), **value} if isinstance(value, dict) else value
    elif broken == "section":
        data[section] = 3
    elif section in ("program", "watermark"):
        data["unknown"] = 3
    else:
        data[section] = {**data.get(section, {}), "unknown": 3}
    made = check(data)
    assert made.spec is None
    assert len(made.problems) == 1, made.problems
    assert "Partial" not in str(made.error())


def test_the_steps_say_what_was_decided_and_why(resolve):
    """Each step of a resolution is named once, with its decision and the reason for it."""
    made = resolution(EngineConfig.from_dict(plain_config(resolve.source)))
    steps = [step.name for step in made.steps]
    assert (
        steps
        == "infer locate choose specialise depth derive configure runner schedule mode".split()
    )
    assert all(step.decided and step.why for step in made.steps)
    assert made.problems == ()
    assert made.require() is made.spec


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


@pytest.mark.parametrize(
    ("one", "other"), [("flash_attn", "FLASH_ATTN"), ("Auto", None)], ids=["case", "auto"]
)
def test_an_attention_backend_has_one_name_in_the_contract(resolve, one, other):
    """Spellings that mean the same backend give one contract with one key, for the target and for drafts."""
    specs = [resolve(kernels={"attention_backend": name}) for name in (one, other)]
    assert specs[0] == specs[1]
    assert specs[0].kernels.attention_backend == other
    assert specs[0].speculative.draft_kernels == specs[0].kernels
    assert len({spec.compute_hash(Stage.COMPILE) for spec in specs}) == 1


@pytest.mark.parametrize("mode", list(CudagraphMode))
@pytest.mark.parametrize("runner", list(Runner))
@pytest.mark.parametrize("table", [None, TABLE], ids=["static", "dynamic"])
@pytest.mark.parametrize("strict", [False, True])
def test_the_mode_table(resolve, mode, runner, table, strict):
    """Every mode on each runner, static and dynamic: full graphs on v1 with several depths become PIECEWISE."""
    full = mode not in (CudagraphMode.NONE, CudagraphMode.PIECEWISE)
    lowered = full and runner is Runner.V1 and table is not None
    sections = {
        "speculative": ngram(num_speculative_tokens_per_batch_size=table),
        "compilation": {"cudagraph_mode": mode.value, "runner": runner.value, "strict": strict},
    }
    if lowered and strict:
        found = problems_of(lambda: resolve(**sections))
        (problem,) = found.values()
        assert problem.where == "compilation.cudagraph_mode"
        assert problem.found == mode.value
        assert "PIECEWISE" in problem.wanted
        assert "runner_v1_dynamic_k" in problem.hint
        return
    decision = resolve(**sections).mode
    assert decision.asked is mode
    assert decision.granted is (CudagraphMode.PIECEWISE if lowered else mode)
    assert len(decision.reasons) == int(lowered)
    assert all(reason.startswith("runner_v1_dynamic_k: ") for reason in decision.reasons)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_data_parallelism_clears_the_table_before_the_mode_is_decided(resolve, runner):
    """Ranks would choose different depths and hang, so every batch size has the full one: that costs no full graph."""
    sections = {
        "speculative": ngram(num_speculative_tokens_per_batch_size=TABLE),
        "parallel": {"data_parallel_size": 2},
    }
    spec = resolve(**sections, compilation={"runner": runner})
    made = spec.speculative.schedule
    assert made.asked == ((1, 2, 2), (3, 4, 1))
    assert made.granted.dense == (0, 2, 2, 2, 2)
    (reason,) = made.reasons
    assert reason.startswith("data_parallel: ")
    assert spec.mode.granted is CudagraphMode.FULL_AND_PIECEWISE
    found = problems_of(lambda: resolve(**sections, compilation={"runner": runner, "strict": True}))
    assert list(found) == ["speculative.num_speculative_tokens_per_batch_size"]


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
