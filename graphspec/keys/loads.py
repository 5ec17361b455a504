"""Which globals the code of a function can load, read from its instructions."""

import dis
from types import CodeType

import attrs

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_WITHOUT_VALUE = ("EXTENDED_ARG", "PRECALL", "PUSH_NULL")
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


@attrs.frozen
class Reads:
    """What one function's code can read besides its arguments: globals, and the sets in it that it goes through in order,
    with their lines."""

    loads: tuple[Load, ...]
    sets: tuple[tuple[frozenset[object], int], ...]


def reads_of(code: CodeType) -> Reads:
    """Every global that this code can load, with the attributes that are taken of it at once, and its ordered sets.

    >>> reads = reads_of(compile("[a.b.c + x for x in {'d', 'd'}]", "", "eval"))
    >>> [sorted(members) for members, line in reads.sets]
    [['d']]
    """
    steps = [s for s in dis.get_instructions(code) if s.opname not in _WITHOUT_VALUE]
    loads, sets, imported = [], [], ""
    for at, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            end = at + 1
            while steps[end].opname in _ATTRIBUTE:
                end += 1
            attributes = tuple(str(s.argval) for s in steps[at + 1 : end])
            in_order = _in_order(steps, at, end)
            loads.append(Load(str(step.argval), attributes, _line(step, code), in_order))
        elif step.opname == "IMPORT_NAME":
            # Before it the level and the names are loaded.
            imported = "." * steps[at - 2].argval + str(step.argval)
        elif step.opname == "IMPORT_FROM":
            loads.append(Load(str(step.argval), (), _line(step, code), module=imported))
        elif isinstance(step.argval, frozenset) and steps[at + 1].opname in _TAKES_IN_ORDER:
            sets.append((step.argval, _line(step, code)))
    return Reads(tuple(loads), tuple(sets))


def _line(step: dis.Instruction, code: CodeType) -> int:
    line = step.positions.lineno if step.positions is not None else None
    return line or code.co_firstlineno


def _in_order(steps: list[dis.Instruction], at: int, end: int) -> bool:
    """Whether the value that the steps from `at` to `end` load is taken member by member in the step after them."""
    if steps[end].opname in _TAKES_IN_ORDER:
        return True
    return steps[end].opname == "CALL" and steps[at - 1].argval in _CALLS_IN_ORDER
