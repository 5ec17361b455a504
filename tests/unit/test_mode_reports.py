"""The graph mode in field reports B90 to B92, the facts that sections state, and the page of its rules."""

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given

from graphspec.config.compilation import (
    CompilationConfig,
    CompileMode,
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
from graphspec.resolve.modes import ROWS, decide_mode
from graphspec.resolve.runner import decide_runner
from support.modes import (
    ALWAYS,
    BOTH,
    CUT,
    DECODE_ONLY,
    FULL,
    LEVELS,
    MODES,
    NEVER,
    NONE,
    PIECEWISE,
    SINGLE,
    UNCUT,
    UNIFORM,
    codes,
    engines,
    granted_or_none,
    modes,
    refusals,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "modes.md"


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
