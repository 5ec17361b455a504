"""F30: a field that is in no key, changed alone, leaves the generated code as it is."""

import contextlib
import functools

import pytest

from graphspec.cache.compiling.compiler import Compiler
from graphspec.cache.compiling.fingerprint import graph_fingerprint
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.compiling.trace import trace
from graphspec.capture.program import load_program
from graphspec.errors import SpecError
from graphspec.fields import evolve
from graphspec.testing import perturb
from support.specs import plain_spec
from support.speculative import resolved_case

SMALL = "support.small_units:several"
EVERYTHING = "support.small_units:everything"


def units(program, spec):
    return load_program(evolve(spec, program=program)).units()


def fingerprints(program, spec):
    """The graph of each unit that the program has for the spec."""
    return {u.name: graph_fingerprint(trace(u, spec, "cpu").program) for u in units(program, spec)}


def unkeyed(spec):
    """Pairs of specs that differ in one unkeyed field alone, by the field's path; every one at any depth is there."""
    for leaf in perturb.leaves(spec):
        if leaf.stage is None:
            other = next(accepted(leaf), None)
            assert other is not None, f"no other value of {leaf.path} is accepted"
            yield leaf.path, leaf.base, other


def accepted(leaf):
    for value in leaf.others:
        with contextlib.suppress(SpecError):
            yield leaf.changed(value)


def changed_by(program, pairs):
    """The unkeyed fields that move a graph, or add or remove a unit."""
    of = functools.cache(functools.partial(fingerprints, program))
    return [path for path, one, other in pairs if of(one) != of(other)]


def test_F30_no_unkeyed_field_changes_a_graph(tmp_path):
    """Each of them alone, for a unit that reads all that it may."""
    pairs = list(unkeyed(plain_spec(tmp_path)))
    assert len(pairs) > 30
    assert changed_by(EVERYTHING, pairs) == []


def test_F30_a_unit_that_reads_an_unkeyed_field_behind_the_view_is_found(tmp_path):
    """The comparison sees a graph that moves: the planted field is the one that it names."""
    path = "kv_cache.enable_prefix_caching"
    pairs = [pair for pair in unkeyed(plain_spec(tmp_path)) if pair[0] in (path, "cache.max_bytes")]
    assert len(pairs) == 2
    assert changed_by("support.audited:zoo", pairs) == [path]


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", [SMALL, "graphspec.engine.llama:program"])
def test_F30_no_unkeyed_field_changes_a_graph_of_larger_programs(tmp_path, program):
    """The same for units that read little, and for those that the demo compiles; both programs are given the raw spec."""
    assert changed_by(program, unkeyed(plain_spec(tmp_path))) == []


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_F30_all_unkeyed_fields_together_change_no_byte_of_the_libraries():
    """What inductor and the C++ compiler make of the units of the small programs, before and after."""
    one = other = resolved_case("dspark")
    paths = [leaf.path for leaf in perturb.leaves(one) if leaf.stage is None and not leaf.inside]
    assert len(paths) > 25
    for path in paths:
        (leaf,) = [leaf for leaf in perturb.leaves(other) if leaf.path == path]
        other = next(accepted(leaf))
    for program in (EVERYTHING, SMALL):
        assert libraries(program, other) == libraries(program, one)


def libraries(program, spec):
    flags, options = compiler_flags(spec.device), compiler_options(spec.device)
    with Compiler(flags, options, "cpu") as compiler:
        return {
            u.name: compiler.compile(u, trace(u, spec, "cpu")).library for u in units(program, spec)
        }
