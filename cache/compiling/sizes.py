"""Demands on sizes as plain lists: what a compiled graph takes for granted about the sizes that it is called with.

A size is ``["size", 3]``, an operation its name and operands: ``["at most", ["size", 0], 4096]``. So a demand can be
stored, and is checked by the functions below: no text of an entry is ever run.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class UnwritableError(ValueError):
    """An expression has a part for which there is no name below."""


def _sum(*terms: Any) -> Any:
    return functools.reduce(operator.add, terms)


def _maximum(*values: Any) -> Any:
    import torch

    return functools.reduce(torch.sym_max, values)


def _minimum(*values: Any) -> Any:
    import torch

    return functools.reduce(torch.sym_min, values)


def _all(*conditions: Any) -> bool:
    return all(bool(c) for c in conditions)


def _any(*conditions: Any) -> bool:
    return any(bool(c) for c in conditions)


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _sum,
    "product": lambda *factors: math.prod(factors),
    "power": operator.pow,
    "quotient": operator.floordiv,
    "remainder": operator.mod,
    "largest": _maximum,
    "smallest": _minimum,
    "equal": operator.eq,
    "unequal": operator.ne,
    "below": operator.lt,
    "at most": operator.le,
    "above": operator.gt,
    "at least": operator.ge,
    "all": _all,
    "any": _any,
    "not": lambda condition: not bool(condition),
}

_CLASSES: Mapping[str, str] = {
    "Add": "sum",
    "Mul": "product",
    "Pow": "power",
    "PowByNatural": "power",
    "FloorDiv": "quotient",
    "CleanDiv": "quotient",
    "Mod": "remainder",
    "PythonMod": "remainder",
    "Max": "largest",
    "Min": "smallest",
    "Equality": "equal",
    "Unequality": "unequal",
    "StrictLessThan": "below",
    "LessThan": "at most",
    "StrictGreaterThan": "above",
    "GreaterThan": "at least",
    "And": "all",
    "Or": "any",
    "Not": "not",
}
"""Classes of sympy and of torch, by name. Both remainders are Python's: torch's own is only of what is not negative."""


def written(expression: Any, numbers: Mapping[str, int]) -> Any:
    """A sympy expression as plain values; `numbers` are the numbers of its symbols, by their names.

    Raises `UnwritableError` for symbols without a number, fractions, and functions that are not in the table.
    """
    if isinstance(expression, bool | int):
        return expression
    kind = type(expression).__name__
    if kind == "Symbol":
        if expression.name not in numbers:
            raise UnwritableError(f"the symbol {expression.name}")
        return ["size", numbers[expression.name]]
    if kind in ("BooleanTrue", "BooleanFalse"):
        return kind == "BooleanTrue"
    if getattr(expression, "is_Integer", False):
        return int(expression)
    if kind not in _CLASSES:
        raise UnwritableError(f"{kind} in {expression}")
    operands = [written(e, numbers) for e in expression.args]
    if _CLASSES[kind] == "power" and not (isinstance(operands[1], int) and operands[1] >= 0):
        raise UnwritableError(f"a power in {expression}")
    return [_CLASSES[kind], *operands]


def value(expression: Any, sizes: Sequence[Any]) -> Any:
    """What a written expression is for these sizes, which are integers, or torch's symbols while a graph is compiled.

    Raises `UnwritableError` for what `written` never makes.

    >>> value(["at most", ["product", 2, ["size", 0]], 10], [5])
    True
    """
    if isinstance(expression, bool | int):
        return expression
    if not isinstance(expression, list | tuple) or not expression:
        raise UnwritableError(f"{expression!r}")
    name, *operands = expression
    if name == "size":
        return _size(operands, sizes)
    if name not in _OPERATIONS:
        raise UnwritableError(f"{name!r}")
    return _OPERATIONS[name](*(value(o, sizes) for o in operands))


def _size(operands: Sequence[Any], sizes: Sequence[Any]) -> Any:
    if len(operands) != 1 or type(operands[0]) is not int or not 0 <= operands[0] < len(sizes):
        raise UnwritableError(f"the size {operands!r}")
    return sizes[operands[0]]


def hold(demands: Sequence[Any], sizes: Sequence[Any]) -> bool:
    """Whether all demands hold. For torch's symbols, those that do become guards of the graph that is being compiled."""
    return all(bool(value(d, sizes)) for d in demands)


def demands_of(program: Any, numbers: Mapping[str, int]) -> Sequence[Any]:
    """What tracing and compiling an exported program took for granted about its sizes, so far.

    The compiler chooses code by the sizes of the example, and notes as a guard what it then relies on. A library has no
    guards: whoever calls it must see to them. Raises `UnwritableError`.
    """
    from torch._guards import detect_fake_mode

    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    mode = detect_fake_mode(values)
    if mode is None or mode.shape_env is None:
        return []
    return [written(guard.expr, numbers) for guard in mode.shape_env.guards]
