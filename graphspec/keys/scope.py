"""The view of the spec that a unit is traced through: it records each field read and refuses undeclared ones."""

import sys
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import attrs

from graphspec.errors import Problem, UndeclaredFactorError
from graphspec.fields import Stage, field_types, is_config_class, policies
from graphspec.keys.factors import classes_of, factor_tree, flatten


@attrs.frozen
class Scope:
    """The part of a spec that a unit may read: dotted paths of fields or whole sections, as the user wrote them."""

    paths: tuple[str, ...]

    def covers(self, path: str) -> bool:
        """True when `path` is one of the paths or lies below one."""
        return any(path == p or path.startswith(p + ".") for p in self.paths)

    def reaches(self, path: str) -> bool:
        """True when a path of the scope is `path`, lies below it or above it."""
        return self.covers(path) or any(p.startswith(path + ".") for p in self.paths)

    def factors(self, spec: Any) -> Mapping[str, Any]:
        """The COMPILE factors of `spec` that lie in this scope, by dotted path: part of the unit's key.

        Raises `UndeclaredFactorError` for a path that names no COMPILE factor of this spec, since such a path would
        promise a key that covers it.
        """
        tree = factor_tree(spec, Stage.COMPILE)
        known = dict(flatten(tree))
        chosen = {path: value for path, value in known.items() if self.covers(path)}
        idle = [
            p
            for p in self.paths
            if not any(path == p or path.startswith(p + ".") for path in chosen)
        ]
        if idle:
            raise UndeclaredFactorError(
                Problem(
                    where=f"scope path {path}",
                    found="no COMPILE-keyed field of this spec at that path",
                    wanted="a field or section whose fields are declared keyed(Stage.COMPILE, ...)",
                    hint=f"known: {', '.join(known)}",
                )
                for path in idle
            )
        # A class decides properties and ClassVars, so two classes with equal fields must not share a key.
        classes = {f"{path}:class": name for path, name in classes_of(tree) if self.reaches(path)}
        return {**chosen, **classes}


class RecordingView:
    """Stands in for a spec during a trace. Fields read through it land in `reads`, in order of first use.

    A property or method of a section runs with the view as its ``self``, so what it reads is recorded too.
    """

    __slots__ = ("_keyed", "_path", "_reads", "_scope", "_section")

    def __init__(
        self,
        section: Any,
        scope: Scope,
        reads: dict[str, Any],
        path: str = "",
        keyed: frozenset[str] | None = None,
    ) -> None:
        self._section = section
        self._scope = scope
        self._reads = reads
        self._path = path
        self._keyed = (
            frozenset(p for p, _ in flatten(factor_tree(section, Stage.COMPILE)))
            if keyed is None
            else keyed
        )

    def __getattr__(self, name: str) -> Any:
        section = self._section
        if name not in policies(type(section)):
            return self._derived(name)
        path = f"{self._path}.{name}" if self._path else name
        value = getattr(section, name)
        if is_config_class(type(value)):
            # Whether such a section is there, and of which class, is a choice of the config: reading it is a read.
            chosen = field_types(type(section))[name] is not type(value)
            if chosen and not self._scope.reaches(path):
                _refuse(
                    path,
                    "a read of a section that may be absent or of another class",
                    f"a read inside the scope {self._scope.paths}",
                    "add the path to the unit's scope, so that the key covers it",
                )
            return RecordingView(value, self._scope, self._reads, path, self._keyed)
        if not self._scope.covers(path):
            _refuse(
                path,
                "a read of this field",
                f"a read inside the scope {self._scope.paths}",
                "add the path to the unit's scope, so that the key covers it",
            )
        if path not in self._keyed:
            _refuse(
                path,
                "a read of a field that no COMPILE key contains",
                "a field declared keyed(Stage.COMPILE, ...)",
                "if compiled code depends on it, its declaration is wrong: change it there",
            )
        self._reads.setdefault(path, value)
        return value

    def _derived(self, name: str) -> Any:
        found = getattr(type(self._section), name)
        return found.__get__(self) if isinstance(found, property | FunctionType) else found

    def __repr__(self) -> str:
        return f"<watched {self._path or type(self._section).__name__}>"

    def __eq__(self, other: object) -> NoReturn:
        where = self._path or "spec"
        _refuse(
            where,
            "a comparison of a whole section",
            "comparisons of single fields",
            "a whole section compares fields that the scope does not name",
        )

    __hash__ = None  # type: ignore[assignment]


def _refuse(path: str, found: str, wanted: str, hint: str) -> NoReturn:
    raise UndeclaredFactorError(
        Problem(where=path, found=f"{found} at {_reader()}", wanted=wanted, hint=hint)
    )


def _reader() -> str:
    """File and line of the innermost frame outside this module: the code that read the field."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def reads_as_text(reads: Mapping[str, Any]) -> Sequence[str]:
    """The paths of a read set, sorted: what an entry stores for `explain` and the audit."""
    return sorted(reads)
