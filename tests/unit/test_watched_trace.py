"""A trace that reads or runs something its key does not cover fails, and says what and where."""

import logging

import pytest

from graphspec.cache.trace import trace
from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.errors import CompileError, UndeclaredFactorError
from graphspec.keys.scope import Scope
from support import stray, tracing

ROWS = DynamicDim(name="rows", maximum=16)


def unit(build, *paths, modules=()):
    return CompileUnit(
        name="probe",
        scope=Scope(paths),
        modules=modules,
        build=build,
        inputs=(TensorInput(name="x", shape=(ROWS, 4), dtype="float32"),),
    )


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (tracing.reads_in_build, "model.hidden_size"),
        (tracing.reads_in_call, "model.hidden_size"),
        (tracing.reads_k, "speculative"),
    ],
)
def test_a_read_outside_the_scope_fails_with_the_fields_name(tiny_spec, build, field):
    """Whether while building or while running, the error names the field and the line that read it."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(build, "model.rms_norm_eps"), tiny_spec, "cpu")
    (problem,) = caught.value.problems
    assert problem.where.startswith(field)
    assert "tracing.py:" in problem.found or "spec.py:" in problem.found
    assert "scope" in problem.hint


def test_what_was_read_is_recorded(tiny_spec):
    """The trace lists the fields it read, and no others of its scope."""
    wide = unit(tracing.stays_inside, "model", "scheduler")
    assert trace(wide, tiny_spec, "cpu").reads == ["model.rms_norm_eps"]


@pytest.mark.parametrize("build", [tracing.calls_outside, tracing.calls_outside_two_levels_down])
def test_code_outside_the_declared_modules_fails_with_its_file(tiny_spec, build):
    """A callee in another module must be declared, at any depth; declared, it traces."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(build), tiny_spec, "cpu")
    assert [p for p in caught.value.problems if stray.__file__ in p.found]
    trace(unit(build, modules=("support.stray",)), tiny_spec, "cpu")


def test_code_without_a_file_fails(tiny_spec):
    """Code made from a string in a module that is not declared has no digest, so it may not run."""
    with pytest.raises(UndeclaredFactorError, match="module __main__"):
        trace(unit(tracing.calls_code_from_a_string), tiny_spec, "cpu")


def test_handlers_of_the_application_are_not_code_of_the_unit(tiny_spec):
    """What runs below a log call, an import or a warning makes no graph."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    handler, logger = Handler(), logging.getLogger("support.tracing")
    logger.addHandler(handler)
    try:
        trace(unit(tracing.logs), tiny_spec, "cpu")
    finally:
        logger.removeHandler(handler)
    assert seen == ["traced"]


def test_a_branch_on_values_is_refused_with_the_units_name(tiny_spec):
    """What torch.export cannot trace is a CompileError that names the unit."""
    with pytest.raises(CompileError, match="unit probe"):
        trace(unit(tracing.branches_on_data), tiny_spec, "cpu")
