"""Whether the code that runs is the code that is digested: a file may have been edited since its module was imported."""

import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType

from graphspec.errors import Problem
from graphspec.keys.source import module_file
from graphspec.keys.watch import Function


def stale_problems(
    functions: Iterable[Function], modules: Sequence[str], unit: str
) -> Sequence[Problem]:
    """One problem for each declared module of which code ran that its file does not hold.

    Modules that an import hook has rewritten are left out: their code is never that of their file.
    """
    ran: dict[str, list[CodeType]] = {}
    for function in functions:
        ran.setdefault(os.path.realpath(function.code.co_filename), []).append(function.code)
    problems = []
    for name in modules:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if type(getattr(spec, "loader", None)) is not importlib.machinery.SourceFileLoader:
            continue
        file = module_file(name)
        here = ran.get(file)
        if here and not _codes_of(file).issuperset(here):
            problems.append(
                Problem(
                    where=f"unit {unit}",
                    found=f"module {name} has changed since it was imported: {file} holds other code than what ran",
                    wanted="the code that its digest in the key stands for",
                    hint="start the process again; nothing was stored",
                )
            )
    return problems


def _codes_of(file: str) -> frozenset[CodeType]:
    with open(file, "rb") as source:
        return _compiled(source.read())


@lru_cache(maxsize=64)
def _compiled(source: bytes) -> frozenset[CodeType]:
    # Code is equal to code of another file name.
    try:
        return frozenset(_within(compile(source, "<digested>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return frozenset()


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)
