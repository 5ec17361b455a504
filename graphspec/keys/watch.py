"""The watch over a trace: which Python code runs, and which environment variables it reads.

It is a profile function of the tracing thread and nothing else: nothing is replaced, so nothing has to be put back, and
what other threads do is not seen.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import attrs

from graphspec.keys.source import MODULE, ToolchainCode, real_origin

_GENERATED = ("<frozen ", "<eval_with_key>", "<attrs generated", "<__array_function__")
"""Code that Python, torch.fx, attrs and numpy make from other code, which is recorded where it lies."""

_ASIDE = frozenset(
    (
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
        str(logging.__file__),
        str(warnings.__file__),
    )
)
"""Files whose callees say nothing about the graph: imports, log calls and warnings."""

_ENVIRON = type(os.environ)
_ONE_VARIABLE = _ENVIRON.__getitem__.__code__
"""What every read of a variable comes to: indexing, get, getenv, setdefault, pop and ``in``."""
_ALL_VARIABLES = frozenset(
    id(getattr(_ENVIRON, name).__code__) for name in ("__iter__", "__len__", "__repr__")
)
EVERY = "*"
"""Stands for a read of all variables at once, as a copy or a loop makes it."""

_INTERPRETER = os.path.join("torch", "_dynamo", "symbolic_convert.py")
_INTERPRETED = "InliningInstructionTranslator.inline_call_"
"""Where Dynamo goes through a function without running it, as for the branches of torch.cond (torch 2.11 to 2.14)."""

_NEVER_BORING = (_ONE_VARIABLE.co_filename, _INTERPRETER)

_ACCESSORS = frozenset(
    ("os", "_collections_abc", "collections.abc", "posixpath", "ntpath", "genericpath")
)
"""Modules through which code reads variables: whoever calls them is the reader."""


@attrs.frozen
class Function:
    """Code that ran, and the globals that it ran with."""

    code: CodeType
    module_globals: Mapping[str, Any] = attrs.field(repr=False)


class Watch:
    """What ran and was read in the blocks that `watching` covers. The toolchain's own code is left out."""

    def __init__(self) -> None:
        self.functions: dict[int, Function] = {}
        self.reads: dict[tuple[str, str], None] = {}
        self._toolchain = ToolchainCode()
        self._boring: set[str] = set()

    @property
    def files(self) -> frozenset[str]:
        """The origin of each function that ran: its file, or for code that was made from a string, ``module NAME``
        after the module it was made in."""
        return frozenset(_origin(f.code, f.module_globals) for f in self.functions.values())

    @property
    def variables(self) -> Sequence[tuple[str, str]]:
        """Each environment variable that was read, with file and line of the reader."""
        return tuple(self.reads)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records what runs inside the block on this thread.

        Left out is what runs below an import, a log call or a warning: module bodies, import hooks and handlers of the
        host application, which torch reaches while it traces. A graph is not made from them.
        """
        # Above the caller anything may stand: a script that is being imported, a log handler that warms an engine.
        caller = sys._getframe(2)

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                self._called(frame, caller)

        before: Callable[..., Any] | None = sys.getprofile()
        sys.setprofile(on_event)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _called(self, frame: FrameType, caller: FrameType) -> None:
        code = frame.f_code
        name = code.co_filename
        if name in self._boring or id(code) in self.functions:
            return
        if code is _ONE_VARIABLE:
            key = frame.f_locals[code.co_varnames[1]]
            name = os.fsdecode(key) if isinstance(key, str | bytes) else repr(key)
            self._variable(frame, name, caller)
        elif id(code) in _ALL_VARIABLES:
            self._variable(frame, EVERY, caller)
        elif code.co_qualname == _INTERPRETED and name.endswith(_INTERPRETER):
            tracer = frame.f_locals["self"]
            self._record(tracer.f_code, tracer.f_globals)
        elif self._is_toolchain(code, frame.f_globals):
            if not name.startswith("<") and not name.endswith(_NEVER_BORING):
                self._boring.add(name)
        elif not _is_aside(frame, caller) and not self._is_text_of_toolchain(frame):
            self.functions[id(code)] = Function(code, frame.f_globals)

    def _record(self, code: CodeType, module_globals: Mapping[str, Any]) -> None:
        if not self._is_toolchain(code, module_globals):
            self.functions[id(code)] = Function(code, module_globals)

    def _is_toolchain(self, code: CodeType, module_globals: Mapping[str, Any]) -> bool:
        return self._toolchain.covers(real_origin(_origin(code, module_globals)))

    def _is_text_of_toolchain(self, frame: FrameType) -> bool:
        """True for code from a text, made in no module, that the toolchain calls: Dynamo's guards, wrappers of torch.fx."""
        by = frame.f_back
        return (
            "__name__" not in frame.f_globals
            and by is not None
            and self._is_toolchain(by.f_code, by.f_globals)
        )

    def _variable(self, frame: FrameType, name: str, caller: FrameType) -> None:
        reader = frame.f_back
        while reader is not None and reader.f_globals.get("__name__") in _ACCESSORS:
            reader = reader.f_back
        if reader is None or _is_aside(reader, caller):
            return
        if not self._is_toolchain(reader.f_code, reader.f_globals):
            self.reads[name, f"{reader.f_code.co_filename}:{reader.f_lineno}"] = None


def _origin(code: CodeType, module_globals: Mapping[str, Any]) -> str:
    name = code.co_filename
    if not name.startswith("<") or name.startswith(_GENERATED):
        return name
    return f"{MODULE}{module_globals.get('__name__', '?')}"


def _is_aside(frame: FrameType | None, caller: FrameType) -> bool:
    while frame is not None and frame is not caller:
        if frame.f_code.co_filename in _ASIDE:
            return True
        frame = frame.f_back
    return False
