"""Module globals that are configuration: what traced code reads from them must be what the digested source says.

The key covers the source of a unit's modules. A global whose value follows from that source is covered with it; one that
was changed at run time, that comes from an environment variable or that depends on the machine is not. For each function
that ran in a trace, the globals that its code can load are looked at, and values among them (numbers, texts, tuples,
mappings, enum members, dtypes) are compared with their source. Functions, classes and modules are left to the watch over
files. Code of branches that were not taken is looked at too.
"""

import enum
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from graphspec.errors import KeyFactorError, Problem
from graphspec.keys.constants import NotConstantError, Sources
from graphspec.keys.encoding import encode
from graphspec.keys.environment import HIDDEN, is_secret
from graphspec.keys.loads import Load, reads_of
from graphspec.keys.source import is_toolchain_module, module_file
from graphspec.keys.watch import Function
from graphspec.text import show

_TELL = "make it a field of the spec, or a constant of the module"
_OWN_NAMES = frozenset(
    ("__name__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__")
)
"""What the import system sets. `__file__` is not among them: a path in a graph would be one machine's."""


_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
"""Classes of the standard library whose attributes are an application's settings."""


def global_problems(
    functions: Iterable[Function], modules: Sequence[str], unit: str
) -> Sequence[Problem]:
    """One problem for each global value that traced code can read and that the digest of `modules` does not cover."""
    check = _Check(modules, unit)
    for function in functions:
        if not function.code.co_filename.startswith("<"):
            reads = reads_of(function.code)
            for load in reads.loads:
                check.load(load, function)
            for members, line in reads.sets:
                check.order("a set", members, f"{function.code.co_filename}:{line}")
    return list(check.problems.values())


class _Check:
    def __init__(self, modules: Sequence[str], unit: str) -> None:
        self.problems: dict[tuple[str, str], Problem] = {}
        self._sources = Sources()
        self._declared = {module_file(name) for name in modules} | set(modules)
        self._modules = modules
        self._unit = unit
        self._fine: set[tuple[str, str]] = set()

    def load(self, load: Load, function: Function) -> None:
        """Follows a load to the first plain value on its way, and compares that one with its source."""
        found = function.module_globals
        module = str(found.get("__name__"))
        if load.module:
            module = _absolute(load.module, found)
            found = _contents(module)
        if load.name in _OWN_NAMES or load.name not in found or is_toolchain_module(module):
            return
        value, name = found[load.name], load.name
        place = f"{function.code.co_filename}:{load.line}"
        for attribute in (*load.attributes, None):
            if _is_value(value) or self._sources.is_constant(module, name):
                self._compare(module, name, value, place)
                if load.in_order:
                    self.order(f"the set {module}.{name}", value, place)
                return
            if attribute is None or _is_toolchain_object(value):
                return
            if isinstance(value, ModuleType):
                module, name = value.__name__, attribute
                if attribute not in vars(value):
                    return
                value = vars(value)[attribute]
            elif isinstance(value, type):
                holder = next((c for c in value.__mro__ if attribute in vars(c)), None)
                if holder is None or is_toolchain_module(holder.__module__):
                    return
                module, name = holder.__module__, f"{holder.__qualname__}.{attribute}"
                value = vars(holder)[attribute]
            else:
                self._object(module, name, value, attribute, place)
                return

    def order(self, what: str, members: Any, place: str) -> None:
        """Notes a loop over a set whose order is another in each process."""
        if (
            isinstance(members, set | frozenset)
            and len(members) > 1
            and not all(map(_is_number, members))
        ):
            self.problems[what, place] = Problem(
                where=f"unit {self._unit}",
                found=f"{what} is iterated at {place}",
                wanted="an order that is the same in each process, since the graph may follow it",
                hint="sort it, or make it a tuple: the order of texts in a set depends on PYTHONHASHSEED",
            )

    def _compare(self, module: str, name: str, value: Any, place: str) -> None:
        if (module, name) in self._fine or (module, name) in self.problems:
            return
        try:
            origin, constant = self._sources.constant(module, name, self._covers)
        except NotConstantError as error:
            wanted, hint = "a value that follows from the source of the unit's modules", _TELL
            if error.undeclared:
                wanted = (
                    f"a value from its declared modules {tuple(self._modules)} or the toolchain"
                )
                hint = "add the module to the unit's `modules`, so that a change of its content changes the key"
            self._add(module, name, f", {error}, read at {place}", wanted, hint)
            return
        if _same(constant, value):
            self._fine.add((module, name))
            return
        said, now = show(constant), show(value)
        if is_secret(name):
            said = now = HIDDEN
        self._add(
            module,
            name,
            f" = {now}, read at {place}, where its source says {said} ({origin})",
            "the value of its source, which the key covers",
            f"it was changed at run time: {_TELL}",
        )

    def _object(self, module: str, name: str, value: Any, attribute: str, place: str) -> None:
        held = inspect.getattr_static(value, attribute, None)
        if hasattr(
            type(held), "__get__"
        ):  # a slot holds a value as an attribute of the instance does
            held = getattr(value, attribute, None) if inspect.ismemberdescriptor(held) else None
        if held is not None and _is_value(held):
            self._add(
                module,
                f"{name}.{attribute}",
                f", an attribute of an object that lives beside the spec, read at {place}",
                "a value that follows from the source of the unit's modules",
                _TELL,
            )

    def _covers(self, module: str) -> bool:
        if module in self._declared:
            return True
        try:
            return module_file(module) in self._declared
        except KeyFactorError:
            return False

    def _add(self, module: str, name: str, found: str, wanted: str, hint: str) -> None:
        self.problems[module, name] = Problem(
            where=f"unit {self._unit}",
            found=f"module global {module}.{name}{found}",
            wanted=wanted,
            hint=hint,
        )


def _absolute(name: str, module_globals: Mapping[str, Any]) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    package = str(module_globals.get("__package__") or "").split(".")
    return ".".join([*package[: len(package) - dots + 1], *([name[dots:]] if name[dots:] else [])])


def _contents(module: str) -> Mapping[str, Any]:
    found = sys.modules.get(module)
    return vars(found) if found is not None else {}


def _is_value(value: Any) -> bool:
    """True for what a graph could be made from: anything with a canonical encoding, and tensors."""
    if isinstance(value, ModuleType | type | FunctionType):
        return False
    if any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in type(value).__mro__):
        return True
    return _text(value) is not None


def _is_toolchain_object(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return is_toolchain_module(value.__name__)
    if isinstance(value, type):
        return is_toolchain_module(value.__module__) or issubclass(value, enum.Enum)
    kind = type(value)
    if f"{kind.__module__}.{kind.__qualname__}" in _NAMESPACES:
        return False
    return callable(value) or is_toolchain_module(kind.__module__)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _same(constant: Any, value: Any) -> bool:
    texts = [_text(constant), _text(value)]
    if None not in texts:
        return texts[0] == texts[1]
    # Containers of functions have no encoding; the same functions are equal.
    return texts == [None, None] and type(constant) is type(value) and bool(constant == value)


def _text(value: Any) -> bytes | None:
    try:
        return encode(value)
    except KeyFactorError:
        return None
