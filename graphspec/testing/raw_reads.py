"""Which fields of a spec are read while some code runs, whoever reads them, and past any view of it.

A field that nothing has read cannot have changed what the code did: with another value there, the same code runs the
same way. That is what lets the audit answer for most fields without tracing again.
"""

import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphspec.fields import evolve, is_config_class, policies
from graphspec.keys.scope import RecordingView

_VIEW_IS_MADE = RecordingView.__init__.__code__
"""A view lists the paths of every keyed field when it is made. It takes their names, never their values."""


def unshared(section: Any) -> Any:
    """An equal spec in which no section stands at two paths, so that reads of one are not reads of the other."""
    inner = {name: getattr(section, name) for name in policies(type(section))}
    return evolve(
        section,
        **{name: unshared(v) for name, v in inner.items() if is_config_class(type(v))},
    )


class RawReads:
    """Watches one spec. Python's own access to a field is watched, so it does not matter how the code got hold of it."""

    def __init__(self, spec: Any) -> None:
        self._sections: list[Any] = []  # keeps them alive: they are told apart by address
        self._paths: dict[int, list[str]] = {}
        self._read: set[str] = set()
        self._find(spec, "")

    def _find(self, section: Any, path: str) -> None:
        self._sections.append(section)
        self._paths.setdefault(id(section), []).append(path)
        for name in policies(type(section)):
            value = getattr(section, name)
            if is_config_class(type(value)):
                self._find(value, f"{path}{name}.")

    @contextmanager
    def recording(self) -> Iterator[set[str]]:
        """The dotted paths of the fields that are read inside the block, on any thread.

        An object that stands at several paths counts as read at all of them. Not to be nested.
        """
        self._read = set()
        replaced = []
        try:
            for cls in dict.fromkeys(type(s) for s in self._sections):
                for home, name, slot in _slots(cls):
                    if not isinstance(slot, _Slot):
                        setattr(home, name, _Slot(slot, name, self._told))
                        replaced.append((home, name, slot))
            yield self._read
        finally:
            for home, name, slot in replaced:
                setattr(home, name, slot)

    def _told(self, section: Any, name: str) -> None:
        paths = self._paths.get(id(section))
        if paths is None or all(p + name in self._read for p in paths):
            return
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is _VIEW_IS_MADE:
                return
            frame = frame.f_back
        self._read.update(p + name for p in paths)


def _slots(cls: type) -> Sequence[tuple[type, str, Any]]:
    """For each field of a config class the class that holds its slot, the name, and what Python finds there."""
    found = []
    for name in policies(cls):
        home = next(base for base in cls.__mro__ if name in vars(base))
        found.append((home, name, vars(home)[name]))
    return found


class _Slot:
    """Stands in for a slot of a class, and tells of reads."""

    __slots__ = ("_name", "_slot", "_told")

    def __init__(self, slot: Any, name: str, told: Any) -> None:
        self._slot = slot
        self._name = name
        self._told = told

    def __get__(self, section: Any, owner: type | None = None) -> Any:
        if section is None:
            return self
        self._told(section, self._name)
        return self._slot.__get__(section, owner)

    def __set__(self, section: Any, value: Any) -> None:
        self._slot.__set__(section, value)
