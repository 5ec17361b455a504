"""Demands on sizes as plain lists: they say what the expression said, and nothing else can be said."""

import itertools

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from graphspec.cache.compiling.sizes import UnwritableError, hold, value, written
from graphspec.keys.encoding import decode, encode

A, B = (sympy.Symbol(name, integer=True, positive=True) for name in "ab")
NUMBERS = {"a": 0, "b": 1}
EXPRESSIONS = {
    "at most": sympy.Le(A * B, 4096),
    "below": sympy.Lt(A, B),
    "above": sympy.Gt(A + 3, 2 * B),
    "at least": sympy.Ge(A - B, -2),
    "equal": sympy.Eq(A**2, B),
    "unequal": sympy.Ne(A, 7),
    "remainder": sympy.Eq(Mod(A, 4), 0),
    "quotient": sympy.Le(FloorDiv(A**2, 4), B),
    "largest": sympy.Ge(Max(A, B), 6),
    "smallest": sympy.Ge(Min(A, 2 * B), 6),
    "both": sympy.And(sympy.Lt(A, 5), sympy.Ne(B, 2)),
    "one of two": sympy.Or(sympy.Gt(A, 5), sympy.Eq(B, 3)),
    "neither": sympy.Not(sympy.Or(sympy.Gt(A, 5), sympy.Eq(B, 3)), evaluate=False),
    "true": sympy.true,
}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_demand_says_what_the_expression_said(expression):
    """For all small sizes, also after it was stored."""
    demand = decode(encode(written(expression, NUMBERS)))
    for a, b in itertools.product(range(1, 9), repeat=2):
        said = bool(expression.subs({A: a, B: b}))
        assert hold([demand], [a, b]) is said, (a, b)


def test_a_number_is_computed_from_sizes():
    """As an output that is a size is."""
    assert value(written(2 * A + B - 1, NUMBERS), [5, 7]) == 16


UNWRITABLE = {
    "fraction": sympy.Eq(A / 2, B),
    "root": sympy.Lt(sympy.sqrt(A), 3),
    "float": sympy.Lt(A, 2.5),
    "unknown size": sympy.Lt(sympy.Symbol("c"), 3),
    "function": sympy.Lt(sympy.sin(A), 3),
}


@pytest.mark.parametrize("expression", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_has_no_name_is_not_written(expression):
    """Rather than written as something else."""
    with pytest.raises(UnwritableError):
        written(expression, NUMBERS)


@pytest.mark.parametrize(
    "demand",
    [["size", 2], ["size", -1], ["size", True], ["size"], ["__import__", "os"], [], "a", None, 1.5],
    ids=repr,
)
def test_a_demand_of_any_other_form_is_refused(demand):
    """Nothing in an entry is run, and no other size is read in its place."""
    with pytest.raises(UnwritableError):
        hold([["at most", demand, 4]], [1, 2])


def test_what_is_asked_of_torchs_symbols_becomes_a_guard():
    """A demand that holds now is kept by torch from then on; one that does not is known at once."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv()
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    fake = FakeTensorMode(shape_env=environment).from_tensor(
        torch.ones(5), symbolic_context=context
    )
    (size,) = fake.shape
    assert hold([["at most", ["size", 0], 4096], ["unequal", ["size", 0], 7]], [size])
    assert [str(g.expr).partition(" ")[2] for g in environment.guards[:1]] == ["<= 4096"]
    assert len(environment.guards) == 2
    assert not hold([["above", ["size", 0], 6]], [size])
