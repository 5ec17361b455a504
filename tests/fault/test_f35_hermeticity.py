"""F35: a trace that reads or runs something its key does not cover fails, and says what and where."""

import gc
import importlib
import inspect
import logging
import os
import sys
import threading

import pytest
import torch

from graphspec.cache.compiling.trace import trace
from graphspec.cache.native import NativeLibrary
from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.errors import CompileError, UndeclaredFactorError
from graphspec.keys.scope import Scope
from support import operator_units, operators, stray, switches, tracing

ROWS = DynamicDim(name="rows", maximum=16)


def unit(build, *paths, modules=(), **more):
    return CompileUnit(
        name="probe",
        scope=Scope(paths),
        modules=modules,
        build=build,
        inputs=(TensorInput(name="x", shape=(ROWS, 4), dtype="float32"),),
        **more,
    )


def problems(spec, *arguments, **more):
    """What a trace that must fail reports."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(*arguments, **more), spec, "cpu")
    return caught.value.problems


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (tracing.reads_in_build, "model.hidden_size"),
        (tracing.reads_in_call, "model.hidden_size"),
        (tracing.reads_k, "speculative"),
    ],
)
def test_F35_a_read_outside_the_scope_fails_with_the_fields_name(tiny_spec, build, field):
    """Whether while building or while running, the error names the field and the line that read it."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(build, "model.rms_norm_eps"), tiny_spec, "cpu")
    (problem,) = caught.value.problems
    assert problem.where.startswith(field)
    assert "tracing.py:" in problem.found or "spec.py:" in problem.found
    assert "scope" in problem.hint


def test_F35_what_was_read_is_recorded(tiny_spec):
    """The trace lists the fields it read, and no others of its scope."""
    wide = unit(tracing.stays_inside, "model", "scheduler")
    assert trace(wide, tiny_spec, "cpu").reads == ["model.rms_norm_eps"]


@pytest.mark.parametrize("build", [tracing.calls_outside, tracing.calls_outside_two_levels_down])
def test_F35_code_outside_the_declared_modules_fails_with_its_file(tiny_spec, build):
    """A callee in another module must be declared, at any depth; declared, it traces."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(build), tiny_spec, "cpu")
    assert [p for p in caught.value.problems if stray.__file__ in p.found]
    trace(unit(build, modules=("support.stray",)), tiny_spec, "cpu")


def test_F35_code_without_a_file_fails(tiny_spec):
    """Code made from a string in a module that is not declared has no digest, so it may not run."""
    with pytest.raises(UndeclaredFactorError, match="module __main__"):
        trace(unit(tracing.calls_code_from_a_string), tiny_spec, "cpu")


def test_F35_handlers_of_the_application_are_not_code_of_the_unit(tiny_spec):
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


def test_F35_a_branch_on_values_is_refused_with_the_units_name(tiny_spec):
    """What torch.export cannot trace is a CompileError that names the unit."""
    with pytest.raises(CompileError, match="unit probe"):
        trace(unit(tracing.branches_on_data), tiny_spec, "cpu")


READERS = [
    switches.variable_by_index,
    switches.variable_by_get,
    switches.variable_by_getenv,
    switches.variable_by_in,
    switches.variable_by_bytes,
    switches.variable_by_expansion,
]


@pytest.mark.parametrize("build", READERS)
def test_F35_a_read_of_a_variable_fails_with_its_name_and_line(tiny_spec, monkeypatch, build):
    """While building or while running, by any way of reading: named, with the line, and without the value."""
    monkeypatch.setenv("SUPPORT_SCALE", "7531")
    (problem,) = problems(tiny_spec, build)
    lines, first = inspect.getsourcelines(build)
    line = first + next(i for i, text in enumerate(lines) if "SUPPORT_SCALE" in text)
    assert problem.found == (
        f"a read of the environment variable SUPPORT_SCALE at {switches.__file__}:{line}"
    )
    assert "`environment`" in problem.hint
    assert "7531" not in str(problem)


def test_F35_a_read_of_a_missing_variable_is_the_error_and_not_its_consequence(
    tiny_spec, monkeypatch
):
    """The KeyError that the read ends with says nothing about keys, so the read itself is reported."""
    monkeypatch.delenv("SUPPORT_SCALE", raising=False)
    (problem,) = problems(tiny_spec, switches.variable_by_index)
    assert "SUPPORT_SCALE" in problem.found


def test_F35_a_copy_of_the_environment_fails(tiny_spec):
    """Who reads all variables reads those that no key holds."""
    (problem,) = problems(tiny_spec, switches.every_variable)
    assert problem.found.startswith("a read of all environment variables at")


@pytest.mark.parametrize("build", READERS)
def test_F35_a_declared_variable_may_be_read(tiny_spec, monkeypatch, build):
    """A unit that lists the variable has it in its key, so the read is covered."""
    monkeypatch.setenv("SUPPORT_SCALE", "2")
    trace(unit(build, environment=("SUPPORT_SCALE",)), tiny_spec, "cpu")


def test_F35_a_variable_that_is_in_every_key_may_be_read(tiny_spec):
    """What the table says changes code is in the key of each unit already."""

    def build(spec):
        os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE")
        return lambda x: x + 1

    trace(unit(build), tiny_spec, "cpu")


def test_F35_what_other_threads_read_is_not_blamed(tiny_spec):
    """A thread of the host application may read what it likes in the middle of a trace."""

    def build(spec):
        def read():
            os.environ.get("SUPPORT_SCALE")
            stray.double(1)

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        return lambda x: x + 1

    trace(unit(build), tiny_spec, "cpu")


def test_F35_what_an_import_or_the_toolchain_reads_is_not_blamed(tiny_spec):
    """Module bodies, torch and the standard library read variables that decide nothing about the graph."""
    assert trace(unit(switches.imported_variable), tiny_spec, "cpu").outputs
    assert "support.reads_at_import" in sys.modules

    def build(spec):
        import tempfile

        tempfile.mkdtemp(dir=tempfile.gettempdir())
        return lambda x: x + 1

    trace(unit(build), tiny_spec, "cpu")


@pytest.mark.parametrize("build", [switches.variable_by_get, switches.variable_by_index])
def test_F35_nothing_is_left_behind(tiny_spec, monkeypatch, build):
    """Environment, profile function and threads are as before, after a trace that fails too."""
    monkeypatch.delenv("SUPPORT_SCALE", raising=False)
    before = os.environ, type(os.environ), dict(os.environ), sys.getprofile(), sys.gettrace()
    problems(tiny_spec, build)
    after = os.environ, type(os.environ), dict(os.environ), sys.getprofile(), sys.gettrace()
    assert after == before
    assert after[0] is before[0]


@pytest.mark.parametrize(
    "build",
    [operator_units.halves, operator_units.thirds, operator_units.inside_a_branch],
)
def test_F35_an_operator_of_an_undeclared_module_fails(tiny_spec, build):
    """A custom operator's Python file is code of the unit, also where its kernel runs outside of the trace."""
    assert operators.LIBRARY
    for _ in range(2):  # the second trace finds what the first one left in torch's caches
        found = [p.found for p in problems(tiny_spec, build)]
        assert any("the operator graphspec_test" in f and operators.__file__ in f for f in found)
    trace(unit(build, modules=("support.operators",)), tiny_spec, "cpu")


def test_F35_code_that_torch_interprets_is_code_that_runs(tiny_spec):
    """The branches of torch.cond never run as Python code, and must be declared all the same."""
    build = operator_units.undeclared_inside_a_branch
    (problem,) = problems(tiny_spec, build)
    assert stray.__file__ in problem.found
    trace(unit(build, modules=("support.stray",)), tiny_spec, "cpu")


def test_F35_callbacks_of_the_host_are_not_the_units_code(tiny_spec):
    """Dynamo collects garbage in the middle of a trace; what the host application does then is not blamed on the unit."""
    build = operator_units.undeclared_inside_a_branch
    seen = []

    def callback(phase, info):
        seen.append(phase)

    gc.callbacks.append(callback)
    try:
        trace(unit(build, modules=("support.stray",)), tiny_spec, "cpu")
        assert callback in gc.callbacks
    finally:
        gc.callbacks.remove(callback)


@pytest.fixture
def library():
    """A library of operators that comes with torch for its own tests."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libaoti_custom_ops.so")
    if not os.path.isfile(path):
        pytest.skip("this torch has no library of test operators")
    torch.ops.load_library(path)
    return path


def test_F35_an_operator_of_an_undeclared_library_fails(tiny_spec, library):
    """A compiled library must be listed, since a rebuilt one leaves no trace in Python."""
    (problem,) = problems(tiny_spec, operator_units.adds)
    assert "aoti_custom_ops::custom_add" in problem.found
    assert "NativeLibrary(namespace='aoti_custom_ops'" in problem.hint
    for file in ("torch:lib/libaoti_custom_ops.so", "libaoti_custom_ops.so"):
        declared = NativeLibrary(namespace="aoti_custom_ops", file=file)
        assert declared.path() == library
        trace(unit(operator_units.adds, libraries=(declared,)), tiny_spec, "cpu")
    other = NativeLibrary(namespace="other", file="torch:lib/libaoti_custom_ops.so")
    problems(tiny_spec, operator_units.adds, libraries=(other,))


@pytest.fixture
def editable(tmp_path, monkeypatch):
    """Writes and imports a module with a build function; gives it and its file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "graphspec_test_editable.py"
    path.write_text("def build(spec):\n    return lambda x: x + 1\n")
    importlib.invalidate_caches()
    yield importlib.import_module("graphspec_test_editable"), path
    del sys.modules["graphspec_test_editable"]


@pytest.mark.parametrize(
    "text",
    [
        "def build(spec):\n    return lambda x: x + 2\n",
        "\ndef build(spec):\n    return lambda x: x + 1\n",
        "def build(spec):\n    return lambda x: x + 1 +\n",
    ],
)
def test_F35_a_module_that_was_edited_since_its_import_fails(tiny_spec, editable, text):
    """The key has the digest of the file, and the code that runs is older: the entry would hold the wrong graph."""
    module, path = editable
    trace(unit(module.build), tiny_spec, "cpu")
    path.write_text(text)
    (problem,) = problems(tiny_spec, module.build)
    assert "graphspec_test_editable has changed since it was imported" in problem.found
    importlib.invalidate_caches()


def test_F35_a_rewritten_comment_is_no_other_code(tiny_spec, editable):
    """Only the code is compared."""
    module, path = editable
    path.write_text("def build(spec):\n    return lambda x: x + 1  # one\n")
    trace(unit(module.build), tiny_spec, "cpu")


def test_F35_autocast_of_the_calling_thread_is_no_part_of_a_unit(tiny_spec):
    """What a thread has switched on around a trace does not add conversions to the graph."""
    from graphspec.cache.compiling.fingerprint import graph_lines

    probe = unit(lambda spec: lambda x: x @ x.t())
    usual = graph_lines(trace(probe, tiny_spec, "cpu").program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert graph_lines(trace(probe, tiny_spec, "cpu").program) == usual
        assert torch.is_autocast_enabled("cpu")
