"""Constants of a module by its source: the value that a name has for everybody who imports the same content.

Only what follows from the source is a constant: literals, arithmetic and containers of them, names of other constants, and
values of the toolchain's modules such as ``torch.float16``. A call is none, except of functions that only shape values.
"""

import ast
import enum
import importlib.util
import math
import operator
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from graphspec.errors import KeyFactorError
from graphspec.keys.bindings import Binding, bindings
from graphspec.keys.source import is_toolchain_module, module_file

Covers = Callable[[str], bool]


class NotConstantError(Exception):
    """A name has no value that follows from its source. The text says why."""

    def __init__(self, why: str, *, undeclared: bool = False) -> None:
        super().__init__(why)
        self.undeclared = undeclared


class Sources:
    """The parsed modules of one check."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], Mapping[str, list[Binding]]] = {}
        self._trees: dict[str, ast.Module] = {}

    def is_constant(self, module: str, name: str) -> bool:
        """True when the source gives the name a value that is one assignment of a constant."""
        try:
            self.constant(module, name, lambda module: True)
        except NotConstantError:
            return False
        return True

    def constant(self, module: str, name: str, covers: Covers) -> tuple[str, Any]:
        """Where and as what the source of a module, or of a class in it, defines a constant.

        Raises `NotConstantError`, also for one that comes through a module that `covers` refuses.
        """
        if not covers(module):
            raise NotConstantError(
                "which comes from a module that is not declared", undeclared=True
            )
        binding = self._binding(module, name)
        node = binding.node
        place = f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom):
            return self._imported(module, name, node, covers)
        if not binding.always:
            raise NotConstantError(
                f"which is assigned under a condition or in a function ({place})"
            )
        reader = _Reader(self, module, covers)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return place, reader.value(node.value)
        if isinstance(node, ast.Assign):
            return place, _part(node, name.rpartition(".")[2], reader.value(node.value))
        raise NotConstantError(f"which is no constant assignment ({place})")

    def _binding(self, module: str, name: str) -> Binding:
        owner, _, last = name.rpartition(".")
        found = self._table(module, owner).get(last)
        if not found:
            raise NotConstantError("which its source does not assign")
        if len(found) > 1:
            lines = ", ".join(str(b.node.lineno) for b in found)
            raise NotConstantError(f"which its source assigns more than once (lines {lines})")
        return found[0]

    def _table(self, module: str, owner: str) -> Mapping[str, list[Binding]]:
        if (module, owner) not in self._tables:
            table: dict[str, list[Binding]] = {}
            for name, binding in bindings(self._body(module, owner)):
                table.setdefault(name, []).append(binding)
            self._tables[module, owner] = table
        return self._tables[module, owner]

    def _body(self, module: str, owner: str) -> list[ast.stmt]:
        if module not in self._trees:
            self._trees[module] = _parsed(module)
        if not owner:
            return self._trees[module].body
        binding = self._binding(module, owner)
        if not isinstance(binding.node, ast.ClassDef) or not binding.always:
            raise NotConstantError(
                "which belongs to a class that its source does not define as such"
            )
        return binding.node.body

    def _imported(
        self, module: str, name: str, node: ast.ImportFrom, covers: Covers
    ) -> tuple[str, Any]:
        origin = next(a.name for a in node.names if name in (a.asname, a.name))
        source = "." * node.level + (node.module or "")
        if node.level:
            try:
                source = importlib.util.resolve_name(source, _package(module))
            except ImportError:
                raise NotConstantError("which comes from outside its package") from None
        if is_toolchain_module(source):
            return source, getattr(sys.modules.get(source), origin, None)
        return self.constant(source, origin, covers)


def _package(module: str) -> str:
    found = sys.modules.get(module)
    return str(getattr(found, "__package__", None) or module.rpartition(".")[0])


def _parsed(module: str) -> ast.Module:
    try:
        with open(module_file(module), "rb") as file:
            return _tree(file.read())
    except (KeyFactorError, OSError, SyntaxError, ValueError):
        raise NotConstantError("which has no source that can be read") from None


@lru_cache(maxsize=64)
def _tree(source: bytes) -> ast.Module:
    return ast.parse(source)


def _part(node: ast.Assign, name: str, value: Any) -> Any:
    for target in node.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return value
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, tuple | list):
            names = [part.id for part in target.elts if isinstance(part, ast.Name)]
            if name in names and len(names) == len(target.elts) == len(value):
                return value[names.index(name)]
    raise NotConstantError(f"which is no constant assignment (line {node.lineno})")


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_SHAPING: Mapping[str, Callable[..., Any]] = {
    c.__name__: c
    for c in (
        frozenset,
        set,
        dict,
        tuple,
        list,
        sorted,
        range,
        int,
        float,
        str,
        bool,
        len,
        min,
        max,
    )
}
_KEEP_ORDER = frozenset(("tuple", "list", "dict", "str"))
"""Those of them whose result follows the order of what they are given."""
_TEXT_METHODS = frozenset(("split", "encode", "lower", "upper", "strip"))
_MODULES = ("math", "torch")
"""Modules whose attributes are constants by the toolchain's version."""


def _has_set(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_set, value))
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    return isinstance(value, set | frozenset)


class _Reader:
    """The value of a constant expression of one module."""

    def __init__(self, sources: Sources, module: str, covers: Covers) -> None:
        self._sources = sources
        self._module = module
        self._covers = covers

    def value(self, node: ast.expr) -> Any:
        """The expression's value. Raises `NotConstantError` for what does not follow from the source alone."""
        try:
            return self._value(node)
        except NotConstantError:
            raise
        except Exception as error:  # the operators of Python raise anything
            raise NotConstantError(f"whose source fails with {type(error).__name__}") from None

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=elts):
                return tuple(map(self._value, elts))
            case ast.List(elts=elts):
                return list(map(self._value, elts))
            case ast.Set(elts=elts):
                return set(map(self._value, elts))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self._value(k): self._value(v) for k, v in zip(keys, values, strict=True) if k
                }
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return _BINARY[type(op)](self._value(left), self._value(right))
            case ast.Subscript(value=held, slice=index) if not isinstance(index, ast.Slice):
                return self._value(held)[self._value(index)]
            case ast.Name(id=name):
                return self._sources.constant(self._module, name, self._covers)[1]
            case ast.Attribute(value=held, attr=name):
                return getattr(self._holder(held), name)
            case ast.Call(func=func, args=args, keywords=[]):
                return self._call(func, args)
        raise NotConstantError(f"which is no constant expression (line {node.lineno})")

    def _holder(self, node: ast.expr) -> Any:
        """What a constant may be an attribute of: torch, math, an enum, or the limits of a dtype."""
        match node:
            case ast.Name(id=name):
                found = vars(sys.modules[self._module]).get(name)
                if isinstance(found, ModuleType) and found.__name__ in _MODULES:
                    return found
                if isinstance(found, type) and issubclass(found, enum.Enum):
                    return found
            case ast.Call(func=ast.Attribute(attr="finfo" | "iinfo") as func, args=[dtype]):
                return self._value(func)(self._value(dtype))
        raise NotConstantError(f"which is no constant expression (line {node.lineno})")

    def _call(self, func: ast.expr, args: list[ast.expr]) -> Any:
        values = list(map(self._value, args))
        match func:
            case ast.Name(id=name) if name in _SHAPING:
                if name in _KEEP_ORDER and any(map(_has_set, values)):
                    raise NotConstantError(
                        f"which depends on the order of a set (line {func.lineno})"
                    )
                return _SHAPING[name](*values)
            case ast.Attribute(value=ast.Name(id="math"), attr=name):
                return getattr(math, name)(*values)
            case ast.Attribute(value=ast.Constant(value=str() as text), attr=name) if (
                name in _TEXT_METHODS
            ):
                return getattr(text, name)(*values)
        raise NotConstantError(f"which is no constant expression (line {func.lineno})")
