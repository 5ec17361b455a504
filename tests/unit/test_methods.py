"""The comparison table of methods: read from the classes, and printed on the docs page."""

from pathlib import Path

import pytest

from graphspec.speculators.base import DraftModelSpeculatorConfig, DraftPhase, SpeculatorConfig
from graphspec.speculators.comparison import COLUMNS, comparison, formula
from graphspec.speculators.registry import known_methods, speculator_config_class

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_the_docs_show_the_table_as_it_is():
    """Each row of docs/methods.md is what the classes say, in order."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    printed = [
        tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in rows
    ]
    assert printed == [tuple(row) for row in comparison()]


def test_every_method_has_a_row():
    """No method, built in or registered, is left out."""
    named = {row[0].split(" ")[0] for row in comparison()}
    assert named == set(known_methods())
    assert all(len(row) == len(COLUMNS) for row in comparison())


@pytest.mark.parametrize("name", known_methods())
def test_every_number_is_a_formula_in_k(name):
    """Lookahead, prefill lookahead and slots are constant or k plus a constant, and never negative."""
    for _, example in speculator_config_class(name).examples():
        for count in (
            example.num_lookahead_tokens,
            example.num_prefill_lookahead_tokens,
            example.max_num_new_slots_for_drafting,
            example.draft_tokens_per_request,
        ):
            assert ":" not in formula(count)
            assert all(count(k) >= 0 for k in range(1, 33))


def method_classes(cls=SpeculatorConfig):
    """Every class of graphspec that a method can be of, variants too, found by walking subclasses."""
    for name in known_methods():
        speculator_config_class(name)  # imports its module
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("graphspec.") and sub is not DraftModelSpeculatorConfig:
            yield sub
        yield from method_classes(sub)


@pytest.mark.parametrize("cls", sorted(set(method_classes()), key=lambda cls: cls.__name__))
def test_every_method_class_states_how_it_drafts(cls):
    """In its own body, not by what it inherits: whoever writes a method has to think of it."""
    assert isinstance(vars(cls)["usual_draft_phase"], DraftPhase)


def passes(example):
    """One in parallel, none on the host; in a loop those after the first, of which each module has one."""
    if example.draft_phase is DraftPhase.PARALLEL:
        return [0, *[1] * 16]
    first = getattr(example, "num_modules", 1)
    looped = example.draft_phase is DraftPhase.AUTOREGRESSIVE
    return [max(0, k - first) if looped else 0 for k in range(17)]


@pytest.mark.parametrize("name", known_methods())
def test_tokens_of_a_draft_pass_follow_from_its_phase(name):
    """None without a phase and at depth 0, one a request in a loop, the method's block in one pass."""
    for _, example in speculator_config_class(name).examples():
        tokens = example.draft_tokens_per_request
        assert [example.draft_passes(k) for k in range(17)] == passes(example)
        assert tokens(0) == 0
        if example.draft_phase is DraftPhase.PARALLEL:
            assert all(1 <= tokens(k) <= k + 1 for k in range(1, 17))
        else:
            once = 1 if example.draft_phase is DraftPhase.AUTOREGRESSIVE else 0
            assert {tokens(k) for k in range(1, 17)} == {once}
        assert (example.draft_phase is DraftPhase.NONE) is not example.has_draft_model


def test_parallel_drafting_is_one_pass():
    """The same method drafts in a loop or in one pass, as its configuration says."""
    phases = {row[0]: row[COLUMNS.index("draft phase")] for row in comparison()}
    assert phases["eagle3"] == phases["draft_model"] == "autoregressive"
    assert phases["eagle3 (parallel)"] == phases["draft_model (parallel)"] == "parallel, k"
    assert (phases["dflash"], phases["dspark"], phases["medusa"]) == (
        "parallel, k+1",
        "parallel, k",
        "parallel, 1",
    )
