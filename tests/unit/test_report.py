"""Reports of a warmup: what is less than asked is said, and nothing else is."""

import pytest

from graphspec.cache.units import CompileUnit
from graphspec.capture.report import Decisions
from graphspec.engine.llama import program
from graphspec.keys.scope import Scope
from support.speculative import METHODS, resolved_case


def unit(*paths):
    """A unit that may read these parts of the spec."""
    return CompileUnit(
        name="part", scope=Scope(paths), modules=(), build=lambda spec: spec, inputs=()
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_draft_model_that_no_unit_reads_is_a_finding(name):
    """A program without units of the draft runs it as it is, or compiles it while it serves: the report says so, for every
    method."""
    spec = resolved_case(name)
    cold = Decisions.of(spec, [unit("model", "device.target")])
    assert bool(cold.cold_draft) is spec.speculative.speculator.has_draft_model
    assert any("is not compiled" in found for found in cold.lowered) is bool(cold.cold_draft)
    for paths in (("speculative",), ("speculative.draft_model.hidden_size",)):
        assert Decisions.of(spec, [unit(*paths)]).cold_draft == ""


def test_without_drafts_nothing_is_cold():
    """A contract with drafting switched off has no such finding."""
    spec = resolved_case("eagle3").without_speculation()
    assert Decisions.of(spec, []).lowered == []


def test_the_reference_program_compiles_no_draft_model():
    """What its report says is true of its own units."""
    spec = resolved_case("eagle3")
    assert program.__module__ == "graphspec.engine.llama"
    assert Decisions.of(spec, program(spec).units()).cold_draft == "eagle3"
