"""Which function a unit is built by, as plain values: its name, its place in the source, and the values that it holds."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import encode
from graphspec.keys.source import is_toolchain_module


def build_identity(build: Callable[..., Any]) -> Mapping[str, Any]:
    """What tells one build function from another of the same module: part of a unit's key.

    Two units may differ in nothing else: a loop makes them with ``partial(build, layer)``, or a method of the engine
    takes one function or the other. Plain values that cannot change are held in arguments of a partial, in defaults and
    in closures, also of functions that are held. Others, such as ``self`` or a whole spec, are left out:
    reads of a spec that are made past the view are found by the audit.
    """
    return _identity(build, frozenset())


def bare(build: Callable[..., Any]) -> Any:
    """The function behind partial applications and methods."""
    function: Any = build
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _identity(build: Any, above: frozenset[int]) -> Mapping[str, Any]:
    function = inspect.unwrap(bare(build))
    named = function if hasattr(function, "__qualname__") else type(function)
    code = getattr(function, "__code__", None)
    holds: dict[str, Any] = {}
    if id(function) not in above and not is_toolchain_module(str(named.__module__)):
        for name, value in _held(build):
            if isinstance(value, FunctionType | functools.partial):
                holds[name] = _identity(value, above | {id(function)})
            elif _is_plain(value):
                holds[name] = value
    return {
        "function": f"{named.__module__}:{named.__qualname__}",
        "place": _place(code) if isinstance(code, CodeType) else (),
        "holds": holds,
    }


def _held(function: Any) -> Iterator[tuple[str, Any]]:
    while isinstance(function, functools.partial):
        yield from ((f"argument {at}", value) for at, value in enumerate(function.args))
        yield from ((f"argument {name}", value) for name, value in function.keywords.items())
        function = function.func
    function = bare(function)
    defaults = getattr(function, "__defaults__", None) or ()
    yield from ((f"default {at}", value) for at, value in enumerate(defaults))
    named = getattr(function, "__kwdefaults__", None) or {}
    yield from ((f"default {name}", value) for name, value in named.items())
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f"closed {name}", cell.cell_contents
    if hasattr(function, "__wrapped__"):
        yield "wrapped", function.__wrapped__


def _place(code: CodeType) -> tuple[int, int]:
    """Line and column: two functions without a name may stand in one line."""
    columns = [c for line, _, c, _ in code.co_positions() if line == code.co_firstlineno and c]
    return code.co_firstlineno, min(columns, default=0)


def _is_plain(value: Any) -> bool:
    try:
        hash(value)
        encode(value)
    except (TypeError, KeyFactorError):
        return False
    return not hasattr(type(value), "__attrs_attrs__")
