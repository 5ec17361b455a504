"""The graph mode: each rule of the table, their order, and what holds for every engine."""

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.config.compilation import (
    AttentionSupport,
    CompilationConfig,
    CompileMode,
    CudagraphMode,
    Runner,
    RunnerFacts,
)
from graphspec.config.engine import EngineConfig
from graphspec.config.extras import LoRAConfig
from graphspec.config.kernels import KernelConfig
from graphspec.config.kv_cache import KVCacheConfig, KVConnectorConfig
from graphspec.config.model import ModelConfig
from graphspec.config.parallel import All2AllBackend, ParallelConfig
from graphspec.config.schedule import KSchedule
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, policies
from graphspec.resolve.decision import ModeDecision, ModeFacts
from graphspec.resolve.engine_facts import mode_facts
from graphspec.resolve.model_facts import ModelFacts
from graphspec.resolve.modes import ROWS, decide_mode, step_mode
from graphspec.resolve.runner import decide_runner

PAGE = Path(__file__).resolve().parents[2] / "docs" / "modes.md"

NONE, PIECEWISE, FULL, DECODE_ONLY, BOTH = MODES = tuple(CudagraphMode)
NEVER, SINGLE, UNIFORM, ALWAYS = LEVELS = tuple(AttentionSupport)
ERROR = None

UNCUT = {
    "splitting ops without attention": {"splits_attention": False},
    "no splitting ops": {"splitting_ops_empty": True},
    "no splitting ops for the compiler's cut": {
        "splitting_ops_empty": True,
        "inductor_partition": True,
    },
    "fused attention": {"fuse_attention_quant": True},
    "no compiled part": {"model_compiled": False},
    "no compiler": {"compile_mode": CompileMode.NONE},
    "stock compiler on v1": {"compile_mode": CompileMode.STOCK, "runner_v2": False},
    "encoder and decoder": {"encoder_decoder": True},
    "encoder and decoder with breaks": {"encoder_decoder": True, "breakable": True},
}
CUT = {
    "by the tracer": {},
    "by the compiler": {"inductor_partition": True, "splits_attention": False},
    "by the compiler around a fused kernel": {
        "inductor_partition": True,
        "fuse_attention_quant": True,
    },
    "by breaks": {"breakable": True, "compile_mode": CompileMode.NONE, "model_compiled": False},
    "by breaks in one piece": {"breakable": True, "splitting_ops_empty": True},
}

# Each line: a rule, facts, and what becomes of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY and FULL_AND_PIECEWISE by that
# rule alone. An ellipsis is a mode that another rule acts on.
TABLE = [
    ("enforce_eager", {"enforce_eager": True}, [NONE] * 5),
    ("all2all_not_capturable", {"all2all_backend": All2AllBackend.MOONEP}, [NONE] * 5),
    (
        "all2all_not_capturable",
        {"all2all_backend": All2AllBackend.DEEPEP_HIGH_THROUGHPUT, "data_parallel_size": 2},
        [NONE] * 5,
    ),
    ("all2all_not_capturable", {"all2all_backend": All2AllBackend.DEEPEP_HIGH_THROUGHPUT}, MODES),
    (
        "all2all_not_capturable",
        {"all2all_backend": All2AllBackend.DEEPEP_LOW_LATENCY, "data_parallel_size": 2},
        MODES,
    ),
    ("v2_stock_compile", {"compile_mode": CompileMode.STOCK}, [NONE] * 5),
    ("pooling", {"pooling": True}, [NONE, *[PIECEWISE] * 4]),
    ("connector_layerwise", {"connector_layerwise": True}, [NONE, *[PIECEWISE] * 4]),
    (
        "runner_v1_dynamic_k",
        {"runner_full_graphs_per_k": False, "dynamic_schedule": True},
        [NONE, *[PIECEWISE] * 4],
    ),
    ("runner_v1_dynamic_k", {"runner_full_graphs_per_k": False}, MODES),
    ("runner_v1_dynamic_k", {"dynamic_schedule": True}, MODES),
    ("encoder_decoder", {"encoder_decoder": True}, [NONE, NONE, *[DECODE_ONLY] * 3]),
    (
        "attention_quant_fusion",
        {"fuse_attention_quant": True},
        [NONE, NONE, FULL, DECODE_ONLY, FULL],
    ),
    (
        "attention_quant_fusion",
        {"fuse_attention_quant": True, "attention_support": UNIFORM},
        [NONE, NONE, ..., DECODE_ONLY, DECODE_ONLY],
    ),
    ("splitting_ops_empty", {"splitting_ops_empty": True}, [NONE, NONE, FULL, DECODE_ONLY, FULL]),
    (
        "splitting_ops_empty",
        {"splitting_ops_empty": True, "hisparse": True},
        [NONE, NONE, ..., DECODE_ONLY, DECODE_ONLY],
    ),
    ("mixed_full_never", {"attention_support": NEVER}, [NONE, PIECEWISE, ERROR, ..., ...]),
    *(
        ("mixed_full_unsupported", {"attention_support": level}, [*MODES[:2], BOTH, *MODES[3:]])
        for level in (SINGLE, UNIFORM)
    ),
    *(
        (
            "mixed_full_unsupported",
            {"attention_support": level, "splits_attention": False},
            [NONE, ..., DECODE_ONLY, DECODE_ONLY, ...],
        )
        for level in (SINGLE, UNIFORM)
    ),
    *(
        (
            "decode_full_unsupported",
            {"attention_support": NEVER, **cut},
            [NONE, PIECEWISE, ..., PIECEWISE, PIECEWISE],
        )
        for cut in CUT.values()
    ),
    (
        "decode_full_unsupported",
        {"attention_support": NEVER, "splits_attention": False},
        [NONE, ..., ..., NONE, NONE],
    ),
    (
        "speculation_unsupported",
        {"attention_support": SINGLE, "query_len": 2},
        [NONE, PIECEWISE, ..., PIECEWISE, PIECEWISE],
    ),
    (
        "speculation_unsupported",
        {"attention_support": SINGLE, "query_len": 2, "splits_attention": False},
        [NONE, ..., ..., NONE, NONE],
    ),
    (
        "speculation_unsupported",
        {"attention_support": UNIFORM, "query_len": 2},
        [*MODES[:2], ..., *MODES[3:]],
    ),
    (
        "compile_mode_not_piecewise",
        {"compile_mode": CompileMode.NONE},
        [NONE, NONE, FULL, DECODE_ONLY, DECODE_ONLY],
    ),
    ("compile_mode_not_piecewise", {"compile_mode": CompileMode.NONE, "breakable": True}, MODES),
    ("no_compiled_submodule", {"model_compiled": False}, [NONE, NONE, FULL, *[DECODE_ONLY] * 2]),
    ("no_compiled_submodule", {"model_compiled": False, "breakable": True}, MODES),
    ("attention_not_split", {"splits_attention": False}, [NONE, NONE, FULL, *[DECODE_ONLY] * 2]),
    ("hisparse_full", {"hisparse": True}, [*MODES[:2], ERROR, *MODES[3:]]),
    ("adaptive_without_full_graphs", {"adaptive_verification": True}, [ERROR, ERROR, *MODES[2:]]),
    (
        "adaptive_with_pipeline",
        {"adaptive_verification": True, "pipeline_parallel_size": 2},
        [..., ..., *[ERROR] * 3],
    ),
    ("adaptive_with_lora", {"adaptive_verification": True, "lora": True}, [..., ..., *[ERROR] * 3]),
    ("adaptive_with_lora", {"pipeline_parallel_size": 2, "lora": True}, MODES),
    (
        "mamba_blocks",
        {"mamba": True, "max_num_seqs": 9, "num_blocks": 8},
        [NONE, PIECEWISE, *[ERROR] * 3],
    ),
    ("mamba_blocks", {"mamba": True, "max_num_seqs": 8, "num_blocks": 8}, MODES),
    ("mamba_blocks", {"max_num_seqs": 9, "num_blocks": 8}, MODES),
]

VALUES = {
    bool: st.booleans(),
    int: st.integers(1, 3),
    str: st.sampled_from(["", "FAKE"]),
    AttentionSupport: st.sampled_from(LEVELS),
    CompileMode: st.sampled_from(list(CompileMode)),
    All2AllBackend | None: st.none() | st.sampled_from(list(All2AllBackend)),
}
SOME = {
    # True is rare in one fact, else most engines could do nothing at all.
    field.name: st.integers(0, 7).map(
        lambda n, default=field.default: default if n else not default
    )
    if field.type is bool
    else VALUES[field.type]
    for field in attrs.fields(ModeFacts)
}
engines = st.builds(ModeFacts, **SOME)
modes = st.sampled_from(MODES)


def codes(decision):
    return [reason.partition(": ")[0] for reason in decision.reasons]


def refusals(call):
    with pytest.raises(SpecError) as caught:
        call()
    return caught.value.problems


def granted_or_none(mode, facts):
    """The decision, or nothing where no mode is possible."""
    try:
        return decide_mode(mode, facts)
    except SpecError:
        return None


def row(code):
    return next(r for r in ROWS if r.code == code)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_by_default_every_mode_is_granted(mode):
    """Facts that are not declared forbid nothing."""
    assert decide_mode(mode, ModeFacts(), strict=True) == ModeDecision(asked=mode, granted=mode)


@pytest.mark.parametrize(("code", "facts", "becomes"), TABLE, ids=[line[0] for line in TABLE])
def test_row(code, facts, becomes):
    """Each rule changes these modes into those, with its code as the only reason, and leaves the others alone."""
    facts = ModeFacts(**facts)
    for mode, wanted in zip(MODES, becomes, strict=True):
        if wanted is ...:
            continue
        if wanted is ERROR:
            problem = refusals(lambda mode=mode: decide_mode(mode, facts))[0]
            assert problem.hint.startswith(f"{code}: ")
            continue
        decision = decide_mode(mode, facts)
        assert (decision.asked, decision.granted) == (mode, wanted)
        assert codes(decision) == ([] if mode is wanted else [code])


def test_every_row_but_the_guard_is_in_the_table():
    """No rule is untested. The last check of attention can only be reached through a mistake in the rules above it."""
    assert {r.code for r in ROWS} - {line[0] for line in TABLE} == {"full_unsupported"}


def test_codes_are_unique_and_snake_case():
    """A code names one rule, and can be compared with ==."""
    assert len({r.code for r in ROWS}) == len(ROWS)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]+", r.code) for r in ROWS)


@pytest.mark.parametrize("mode", [FULL, DECODE_ONLY, BOTH], ids=lambda mode: mode.value)
def test_full_unsupported_refuses_what_should_have_been_lowered(mode):
    """The guard refuses any full graph that would hold attention of level never."""
    facts = ModeFacts(attention_support=NEVER, attention_backend="FAKE")
    guard = row("full_unsupported")
    assert guard.applies(facts, mode)
    assert guard.grants(facts, mode) is None
    assert "FAKE" in guard.why(facts, mode)
    assert not guard.applies(facts, PIECEWISE)
    assert not guard.applies(ModeFacts(attention_support=SINGLE), mode)


@pytest.mark.parametrize(
    ("asked", "facts", "granted", "wanted"),
    [
        # The level of mixed steps, then decode steps of several tokens.
        (
            FULL,
            {"attention_support": SINGLE, "query_len": 4},
            PIECEWISE,
            ["mixed_full_unsupported", "speculation_unsupported"],
        ),
        (
            FULL,
            {"attention_support": SINGLE, "query_len": 4, "splits_attention": False},
            NONE,
            ["mixed_full_unsupported", "speculation_unsupported"],
        ),
        # No full graphs, then no pieces.
        (
            BOTH,
            {"pooling": True, "compile_mode": CompileMode.NONE},
            NONE,
            ["pooling", "compile_mode_not_piecewise"],
        ),
        (
            FULL,
            {"connector_layerwise": True, "splitting_ops_empty": True},
            NONE,
            ["connector_layerwise", "splitting_ops_empty"],
        ),
        (
            DECODE_ONLY,
            {
                "runner_full_graphs_per_k": False,
                "dynamic_schedule": True,
                "splits_attention": False,
            },
            NONE,
            ["runner_v1_dynamic_k", "attention_not_split"],
        ),
        (FULL, {"pooling": True, "encoder_decoder": True}, NONE, ["pooling", "encoder_decoder"]),
        (
            FULL,
            {"encoder_decoder": True, "runner_full_graphs_per_k": False, "dynamic_schedule": True},
            NONE,
            ["runner_v1_dynamic_k", "encoder_decoder"],
        ),
        # One reason where one is enough.
        (BOTH, {"pooling": True, "connector_layerwise": True}, PIECEWISE, ["pooling"]),
        (
            BOTH,
            {"enforce_eager": True, "all2all_backend": All2AllBackend.MOONEP},
            NONE,
            ["enforce_eager"],
        ),
        (BOTH, {"compile_mode": CompileMode.STOCK, "pooling": True}, NONE, ["v2_stock_compile"]),
        (
            BOTH,
            {"encoder_decoder": True, "fuse_attention_quant": True},
            DECODE_ONLY,
            ["encoder_decoder"],
        ),
        (
            BOTH,
            {"fuse_attention_quant": True, "splitting_ops_empty": True},
            FULL,
            ["attention_quant_fusion"],
        ),
        (
            BOTH,
            {"enforce_eager": True, "pooling": True, "attention_support": NEVER},
            NONE,
            ["enforce_eager"],
        ),
        (
            PIECEWISE,
            {"compile_mode": CompileMode.NONE, "model_compiled": False},
            NONE,
            ["compile_mode_not_piecewise"],
        ),
        # Decode steps only, and then not even those.
        (
            FULL,
            {"encoder_decoder": True, "attention_support": NEVER},
            NONE,
            ["encoder_decoder", "decode_full_unsupported"],
        ),
        # No one is refused for a mode that no one asked for.
        (
            BOTH,
            {"splitting_ops_empty": True, "attention_support": NEVER},
            NONE,
            ["splitting_ops_empty", "decode_full_unsupported"],
        ),
        # What a rule above dissolves is not refused.
        (
            FULL,
            {"hisparse": True, "attention_support": UNIFORM},
            BOTH,
            ["mixed_full_unsupported"],
        ),
        (FULL, {"attention_support": NEVER, "pooling": True}, PIECEWISE, ["pooling"]),
        (BOTH, {"mamba": True, "max_num_seqs": 2, "pooling": True}, PIECEWISE, ["pooling"]),
    ],
)
def test_rules_act_in_order(asked, facts, granted, wanted):
    """Each rule sees what the rules above it left, and gives its own reason."""
    decision = decide_mode(asked, ModeFacts(**facts))
    assert decision.granted is granted
    assert codes(decision) == wanted


def test_the_rules_of_attention_stand_in_the_fixed_order():
    """Level, decode, speculation, pieces, final check, Mamba blocks."""
    order = [
        "mixed_full_never",
        "mixed_full_unsupported",
        "decode_full_unsupported",
        "speculation_unsupported",
        "compile_mode_not_piecewise",
        "no_compiled_submodule",
        "full_unsupported",
        "mamba_blocks",
    ]
    assert [r.code for r in ROWS if r.code in order] == order


@given(modes, engines)
def test_deciding_again_changes_nothing(mode, facts):
    """The granted mode is granted as it is, without a reason, even in strict mode."""
    decision = granted_or_none(mode, facts)
    if decision:
        again = decide_mode(decision.granted, facts, strict=True)
        assert (again.granted, again.reasons) == (decision.granted, ())


@given(modes, engines)
def test_no_full_graph_is_granted_that_was_not_asked_for(mode, facts):
    """Only a model of one piece turns the mixed steps of FULL_AND_PIECEWISE into full ones, and never decode steps."""
    decision = granted_or_none(mode, facts)
    if decision is None:
        return
    granted = decision.granted
    assert mode.decode_is_full or not granted.decode_is_full
    if granted.mixed_is_full and not mode.mixed_is_full:
        assert mode is BOTH
        assert codes(decision) in (["splitting_ops_empty"], ["attention_quant_fusion"])
    if mode is NONE:
        assert granted is NONE


@given(modes, engines)
def test_a_mode_differs_exactly_where_there_is_a_reason(mode, facts):
    """No silent change, and no reason without one."""
    decision = granted_or_none(mode, facts)
    assert decision is None or (decision.granted is mode) == (decision.reasons == ())


@given(modes, engines)
def test_strict_grants_what_was_asked_or_refuses(mode, facts):
    """In strict mode the answer is the asked mode or an error."""
    try:
        decision = decide_mode(mode, facts, strict=True)
    except SpecError:
        decision = granted_or_none(mode, facts)
        assert decision is None or decision.granted is not mode
    else:
        assert decision == ModeDecision(asked=mode, granted=mode)


@given(modes, engines)
def test_every_sentence_is_complete(mode, facts):
    """Each reason names what became of the mode, and has a cause and what to change; no name in braces is left."""
    for one in ROWS:
        if not one.applies(facts, mode):
            continue
        why = one.why(facts, mode)
        granted = one.grants(facts, mode)
        assert granted is None or why.startswith(f"{mode.value} becomes {granted.value}, since ")
        assert "; " in why
        assert "{" not in why
        if granted is None:
            problem = one.problem(facts, mode, mode.value)
            assert "{" not in problem.render()
            assert problem.wanted


def test_strict_reports_each_downgrade_as_a_problem():
    """Two steps down are two problems, both with the mode that would be granted."""
    facts = ModeFacts(attention_support=SINGLE, query_len=4)
    problems = refusals(lambda: decide_mode(FULL, facts, strict=True))
    assert [p.hint.partition(":")[0] for p in problems] == [
        "mixed_full_unsupported",
        "speculation_unsupported",
    ]
    for problem in problems:
        assert problem.where == "compilation.cudagraph_mode"
        assert problem.found == "FULL"
        assert problem.wanted == "PIECEWISE, since compilation.strict forbids a downgrade"


def test_strict_reports_downgrades_beside_refusals():
    """What was refused and what was lowered come in one error, so that both can be changed at once."""
    facts = ModeFacts(adaptive_verification=True, lora=True, pooling=True)
    problems = refusals(lambda: decide_mode(BOTH, facts, strict=True))
    assert [p.hint.partition(":")[0] for p in problems] == [
        "adaptive_without_full_graphs",
        "adaptive_with_lora",
        "pooling",
    ]


def test_a_reason_says_what_a_higher_mode_would_have_needed():
    """NONE instead of PIECEWISE has a second cause, and that is named; where it is not the cause it is not."""
    facts = ModeFacts(attention_support=NEVER, splits_attention=False)
    (reason,) = decide_mode(BOTH, facts).reasons
    assert ", and no pieces are cut at attention; " in reason
    (reason,) = decide_mode(BOTH, ModeFacts(attention_support=NEVER)).reasons
    assert "no pieces" not in reason
    facts = ModeFacts(attention_support=UNIFORM, splitting_ops_empty=True)
    assert "mixed steps" in decide_mode(BOTH, facts).reasons[0]
    assert "mixed steps" not in decide_mode(PIECEWISE, facts).reasons[0]


def test_refusals_come_together_with_the_way_the_mode_went():
    """One error has every refusal, each where the user can change it."""
    facts = ModeFacts(adaptive_verification=True, pipeline_parallel_size=2, lora=True, pooling=True)
    problems = {p.where: p for p in refusals(lambda: decide_mode(BOTH, facts))}
    assert list(problems) == [
        "compilation.cudagraph_mode",
        "parallel.pipeline_parallel_size",
        "lora",
    ]
    found = problems["compilation.cudagraph_mode"].found
    assert found == "FULL_AND_PIECEWISE, which pooling made PIECEWISE"
    assert problems["parallel.pipeline_parallel_size"].found == "2"


def test_too_few_mamba_blocks_are_refused_with_both_numbers():
    """No silent cap: the two numbers stand in the error."""
    facts = ModeFacts(mamba=True, max_num_seqs=9, num_blocks=8)
    (problem,) = refusals(lambda: decide_mode(BOTH, facts))
    assert problem.where == "scheduler.max_num_seqs"
    assert problem.found == "9"
    assert "at most 8" in problem.wanted


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [(NONE, NONE), (PIECEWISE, PIECEWISE), (FULL, NONE), (DECODE_ONLY, NONE), (BOTH, PIECEWISE)],
)
def test_a_cascade_step_uses_no_full_graph(mode, wanted):
    """A step with cascade attention runs in pieces where they are captured, and eagerly elsewhere."""
    assert step_mode(mode, cascade=True) is wanted
    assert step_mode(mode, cascade=False) is mode


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
@pytest.mark.parametrize("asked", [FULL, BOTH], ids=lambda mode: mode.value)
def test_B90_a_lower_mode_is_recorded_with_its_reason(asked, level, k):
    """Fake backends of all levels, with and without drafts: a fixed result, readable by code, and an error if strict."""
    level_codes = {
        (FULL, SINGLE, 0): (BOTH, ["mixed_full_unsupported"]),
        (FULL, SINGLE, 3): (PIECEWISE, ["mixed_full_unsupported", "speculation_unsupported"]),
        (FULL, UNIFORM, 0): (BOTH, ["mixed_full_unsupported"]),
        (FULL, UNIFORM, 3): (BOTH, ["mixed_full_unsupported"]),
        (BOTH, NEVER, 0): (PIECEWISE, ["decode_full_unsupported"]),
        (BOTH, NEVER, 3): (PIECEWISE, ["decode_full_unsupported"]),
        (BOTH, SINGLE, 3): (PIECEWISE, ["speculation_unsupported"]),
    }
    facts = ModeFacts(attention_support=level, attention_backend="FAKE", query_len=1 + k)
    if (asked, level) == (FULL, NEVER):
        (problem,) = refusals(lambda: decide_mode(asked, facts))
        assert problem.hint.startswith("mixed_full_never: ")
        assert "FAKE" in problem.hint
        assert problem.wanted == "PIECEWISE"
        return
    decision = decide_mode(asked, facts)
    assert (decision.granted, codes(decision)) == level_codes.get((asked, level, k), (asked, []))
    for reason in decision.reasons:
        assert f"FAKE (level {level.value})" in reason
        assert "choose an attention backend" in reason
    if decision.reasons:
        assert f"{asked.value} becomes" in decision.reasons[0]
        assert f"becomes {decision.granted.value}," in decision.reasons[-1]
        problems = refusals(lambda: decide_mode(asked, facts, strict=True))
        assert [p.hint for p in problems] == list(decision.reasons)


def test_B90_the_granted_mode_is_part_of_the_key():
    """What is granted acts on graphs, and what was asked or why does not."""
    stages = {name: policy.stage for name, policy in policies(ModeDecision).items()}
    assert stages == {"asked": None, "granted": Stage.CAPTURE, "reasons": None}


@given(modes, engines)
def test_B91_the_query_length_matters_only_to_backends_of_single_tokens(mode, facts):
    """The width of decode steps is the target's 1 + k. At every other level it changes no decision."""
    narrow, wide = (attrs.evolve(facts, query_len=n) for n in (1, 4))
    if facts.attention_support is SINGLE:
        lower = granted_or_none(mode, wide)
        assert lower is None or not lower.granted.decode_is_full
        return
    assert granted_or_none(mode, narrow) == granted_or_none(mode, wide)


@pytest.mark.parametrize("draft", LEVELS, ids=lambda level: level.value)
@pytest.mark.parametrize("target", LEVELS, ids=lambda level: level.value)
@pytest.mark.parametrize("mode", [m for m in MODES if m is not FULL], ids=lambda mode: mode.value)
def test_B91_a_pair_gets_what_the_weaker_of_the_two_gets(mode, target, draft):
    """Each model is decided by its own level; together they get the weaker one's mode, and nothing lower."""
    alone = [decide_mode(mode, ModeFacts(attention_support=level)) for level in (target, draft)]
    weaker = min(target, draft, key=lambda level: level.level)
    together = decide_mode(mode, ModeFacts(attention_support=weaker))
    assert together.granted in {decision.granted for decision in alone}


def test_B91_no_fact_is_the_drafter_s():
    """A number of the drafter, or one from which a level could be worked out anew, cannot be passed in."""
    names = " ".join(field.name for field in attrs.fields(ModeFacts))
    assert "draft" not in names
    assert "head" not in names


@pytest.mark.parametrize("uncut", UNCUT.values(), ids=UNCUT)
@pytest.mark.parametrize("mode", [PIECEWISE, DECODE_ONLY, BOTH], ids=lambda mode: mode.value)
def test_B92_without_pieces_attention_of_no_level_runs_eagerly(mode, uncut):
    """A backend that no graph may hold gets NONE, not PIECEWISE, where pieces are not cut at attention."""
    facts = ModeFacts(attention_support=NEVER, **uncut)
    assert not facts.cuts_attention
    decision = decide_mode(mode, facts)
    assert decision.granted is NONE
    assert decision.reasons


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT)
def test_B92_with_pieces_it_runs_in_them(cut):
    """The same backend gets PIECEWISE where each piece ends at attention."""
    facts = ModeFacts(attention_support=NEVER, **cut)
    assert facts.cuts_attention
    assert decide_mode(BOTH, facts).granted is PIECEWISE


@given(modes, engines)
def test_B92_no_granted_graph_holds_attention_that_it_may_not(mode, facts):
    """Pieces are granted only where they are cut at attention, full graphs only where the level allows them."""
    decision = granted_or_none(mode, facts)
    if decision is None:
        return
    granted, level = decision.granted, facts.attention_support
    assert not granted.needs_piecewise or facts.cuts_attention
    assert not granted.mixed_is_full or level is ALWAYS
    if granted.decode_is_full:
        assert level is not NEVER
        assert facts.query_len == 1 or level is not SINGLE


LAYERWISE = KVCacheConfig(connector=KVConnectorConfig(name="c", layerwise=True))
HIGH_THROUGHPUT_OF_TWO = ParallelConfig(
    all2all_backend=All2AllBackend.DEEPEP_HIGH_THROUGHPUT, data_parallel_size=2
)
PLAIN = ModelFacts()
ADAPTIVE = SpeculativeConfig(method="dspark", enable_adaptive_verification=True)


def decided(checkpoint=PLAIN, **sections):
    """The decision for a config of these sections: a schedule of two depths, three requests."""
    config = EngineConfig(**{"model": ModelConfig(source="m"), **sections})
    runner = decide_runner(config.compilation.runner, None, None, None)
    schedule = KSchedule(dense=(0, 2, 1, 1))
    facts = mode_facts(config, checkpoint, runner=runner, schedule=schedule, k=2, max_num_seqs=3)
    return decide_mode(config.compilation.cudagraph_mode, facts, strict=config.compilation.strict)


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ({}, []),
        ({"runner": Runner.V1}, ["runner_v1_dynamic_k"]),
        ({"runner": Runner.V2}, []),
        ({"enforce_eager": True}, ["enforce_eager"]),
        ({"runner": RunnerFacts(full_graphs_per_k=True, central_trimming=False)}, []),
        (
            {"runner": RunnerFacts(full_graphs_per_k=False, central_trimming=True)},
            ["runner_v1_dynamic_k"],
        ),
        ({"compile_mode": CompileMode.STOCK}, ["v2_stock_compile"]),
        ({"splitting_ops": ()}, ["splitting_ops_empty"]),
        ({"splitting_ops": ("vllm::unified_attention",)}, []),
        ({"splitting_ops": ("aten::mm",)}, ["attention_not_split"]),
        ({"splitting_ops": ("aten::mm",), "use_inductor_graph_partition": True}, []),
        ({"fuse_attention_quant": True}, ["attention_quant_fusion"]),
        ({"compile_mode": CompileMode.NONE, "breakable_cudagraph": True}, []),
        ({"attention_support": SINGLE}, ["speculation_unsupported"]),
        ({"cudagraph_mode": FULL, "attention_support": UNIFORM}, ["mixed_full_unsupported"]),
    ],
)
def test_the_compilation_section_states_facts(section, wanted):
    """Each field of the compilation section that a mode depends on reaches the rules."""
    assert codes(decided(compilation=CompilationConfig(**section))) == wanted


ENCODER, MAMBA = ModelFacts(is_encoder_decoder=True), ModelFacts(has_mamba=True)


@pytest.mark.parametrize(
    ("sections", "facts", "wanted"),
    [
        ({"model": ModelConfig(source="m", pooling=True)}, PLAIN, "pooling"),
        ({"kv_cache": LAYERWISE}, PLAIN, "connector_layerwise"),
        (
            {"parallel": ParallelConfig(all2all_backend=All2AllBackend.MOONEP)},
            PLAIN,
            "all2all_not_capturable",
        ),
        ({"parallel": HIGH_THROUGHPUT_OF_TWO}, PLAIN, "all2all_not_capturable"),
        ({}, ENCODER, "encoder_decoder"),
    ],
)
def test_the_other_sections_and_the_checkpoint_state_facts(sections, facts, wanted):
    """What model, parallel and kv_cache sections and the checkpoint say reaches the rules."""
    assert codes(decided(facts, **sections)) == [wanted]


@pytest.mark.parametrize(
    ("sections", "facts", "where"),
    [
        ({"lora": LoRAConfig(), "speculative": ADAPTIVE}, PLAIN, "lora"),
        (
            {"parallel": ParallelConfig(pipeline_parallel_size=2), "speculative": ADAPTIVE},
            PLAIN,
            "parallel.pipeline_parallel_size",
        ),
        (
            {"compilation": CompilationConfig(cudagraph_mode=NONE), "speculative": ADAPTIVE},
            PLAIN,
            "compilation.cudagraph_mode",
        ),
        ({"kv_cache": KVCacheConfig(num_blocks=2)}, MAMBA, "scheduler.max_num_seqs"),
    ],
)
def test_what_the_sections_refuse_together_names_its_field(sections, facts, where):
    """Facts of two sections that exclude each other are refused at the field of one of them."""
    with pytest.raises(SpecError) as caught:
        decided(facts, **sections)
    assert [p.where for p in caught.value.problems] == [where]


def test_messages_name_the_backend_as_it_is_known():
    """An attention backend stands in reasons by its canonical name; `auto` is nobody's name."""
    level = CompilationConfig(attention_support=SINGLE)
    for written, known in (("flash_attn", "FLASH_ATTN"), ("Auto", "the weakest attention backend")):
        made = decided(compilation=level, kernels=KernelConfig(attention_backend=written))
        assert f"since {known} (level" in made.reasons[0]


def becomes(turns):
    """What a rule makes of modes, as text: the modes of one outcome together."""
    outcomes = {}
    for mode, granted in turns.items():
        outcomes.setdefault(f"`{granted.value}`" if granted else "error", set()).add(mode)
    names = {frozenset(MODES): "any", frozenset({FULL, DECODE_ONLY, BOTH}): "any full mode"}
    names[frozenset(MODES[1:])] = "any"
    return "; ".join(
        f"{names.get(frozenset(asked)) or ', '.join(f'`{m.value}`' for m in MODES if m in asked)} → {granted}"
        for granted, asked in outcomes.items()
    )


def line(one):
    """The row of docs/modes.md for one rule."""
    names = {
        "backend": "the weakest attention backend",
        "all2all": "of MoonEP, or of DeepEP high throughput between replicas,",
        "runner": "v1",
        "query_len": "1 + k",
        "max_num_seqs": "max_num_seqs",
    }
    result = becomes(one.turns)
    if one.lacking:
        others = {m: to for m, to in one.otherwise.items() if to is not one.turns[m]}
        result += f". Where {one.lacking}: {becomes(others)}"
    return f"| `{one.code}` | {one.cause.format_map(names)} | {result} | {one.keep} |"


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.code)
def test_docs_page_has_the_row(one):
    """docs/modes.md prints each rule as it is in the code."""
    assert line(one) in PAGE.read_text().splitlines()


def test_docs_page_has_the_rows_in_order_and_no_other():
    """A rule that is gone, or that moved, does so on the page too."""
    printed = re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert [code for code in printed if code not in policies(ModeDecision)] == [
        r.code for r in ROWS
    ]
