"""The graph mode: each rule of the table, their order, and what holds for every engine."""

import re

import pytest
from hypothesis import given

from graphspec.config.compilation import (
    CompileMode,
)
from graphspec.config.parallel import All2AllBackend
from graphspec.errors import SpecError
from graphspec.resolve.decision import ModeDecision, ModeFacts
from graphspec.resolve.modes import ROWS, decide_mode, step_mode
from support.modes import (
    BOTH,
    CUT,
    DECODE_ONLY,
    ERROR,
    FULL,
    MODES,
    NEVER,
    NONE,
    PIECEWISE,
    SINGLE,
    UNIFORM,
    codes,
    engines,
    granted_or_none,
    modes,
    refusals,
)

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
