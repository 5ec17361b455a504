"""Which globals the code of a function can load, read from its instructions."""

import dis
from collections.abc import Iterator
from types import CodeType

import attrs

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_TAKES_IN_ORDER = ("GET_ITER", "LIST_EXTEND", "UNPACK_SEQUENCE", "UNPACK_EX")
_CALLS_IN_ORDER = frozenset(("list", "tuple", "enumerate", "iter", "join"))


@attrs.frozen
class Load:
    """A global that code loads, the attributes that it takes of it, and where."""

    name: str
    attributes: tuple[str, ...]
    line: int
    in_order: bool = False
    """True when its members are taken one after the other."""
    module: str = ""
    """Set for ``from module import name`` inside a function; relative names begin with dots."""


def loads_of(code: CodeType) -> Iterator[Load]:
    """Every global that this code can load, with the attributes that are taken of it at once.

    >>> [(l.name, l.attributes) for l in loads_of(compile("a.b.c + d", "x", "eval"))]
    [('a', ('b', 'c')), ('d', ())]
    """
    steps = _steps(code)
    imported = ""
    for at, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            end = at + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTE:
                end += 1
            yield Load(
                str(step.argval),
                tuple(str(s.argval) for s in steps[at + 1 : end]),
                _line(step, code),
                _in_order(steps, at, end),
            )
        elif step.opname == "IMPORT_NAME":
            level = steps[at - 2].argval
            imported = "." * (level if isinstance(level, int) else 0) + str(step.argval)
        elif step.opname == "IMPORT_FROM":
            yield Load(str(step.argval), (), _line(step, code), module=imported)


def sets_in_order(code: CodeType) -> Iterator[tuple[frozenset[object], int]]:
    """Every set that is written in this code and whose members are taken one after the other, with its line.

    >>> [sorted(s) for s, line in sets_in_order(compile("[x for x in {'a', 'b'}]", "x", "eval"))]
    [['a', 'b']]
    """
    steps = _steps(code)
    for at, step in enumerate(steps):
        is_set = step.opname == "LOAD_CONST" and isinstance(step.argval, frozenset)
        if is_set and _in_order(steps, at, at + 1):
            yield step.argval, _line(step, code)


def _steps(code: CodeType) -> list[dis.Instruction]:
    return [s for s in dis.get_instructions(code) if s.opname not in ("EXTENDED_ARG", "PRECALL")]


def _line(step: dis.Instruction, code: CodeType) -> int:
    line = step.positions.lineno if step.positions is not None else None
    return line or code.co_firstlineno


def _in_order(steps: list[dis.Instruction], at: int, end: int) -> bool:
    """Whether the value that the steps from `at` to `end` load is taken member by member in the step after them."""
    if end >= len(steps):
        return False
    if steps[end].opname in _TAKES_IN_ORDER:
        return True
    return steps[end].opname == "CALL" and at > 0 and steps[at - 1].argval in _CALLS_IN_ORDER
