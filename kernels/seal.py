"""A seal over Triton's compiler: after "ready", a kernel that would be compiled is an error, or is counted."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Self

from graphspec.errors import KernelError, Problem
from graphspec.kernels.variants import PACKAGE

Hook = Callable[..., Any]

_closed: "list[KernelSeal]" = []
_before: list[Hook | None] = []
_guard = threading.Lock()
_meant: ContextVar[bool] = ContextVar("compiling_is_meant", default=False)


@contextlib.contextmanager
def compiling_is_meant() -> Iterator[None]:
    """Inside the block no seal looks: an engine warms up in a process where another one is ready."""
    token = _meant.set(True)
    try:
        yield
    finally:
        _meant.reset(token)


class KernelSeal:
    """Watches every launch that finds no compiled kernel in this process. Use as a context manager, or `close` and `open` it.

    A kernel of graphspec's is then a `KernelError` at the launch, unless `strict` is off: `variants` lists all of them, and
    a launch beyond the list is a defect. Kernels of others are compiled and counted: they are not ours to refuse. `seen`
    has one line for each. Kernels that are in Triton's cache on disk count too: loading them also stops a step.

    Several seals see the same launches, and may be opened in any order.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self.seen: list[str] = []

    def __enter__(self) -> Self:
        self.close()
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()

    @property
    def strict(self) -> bool:
        """Whether a kernel of graphspec's is an error."""
        return self._strict

    def close(self) -> None:
        """Begins the watch. Whoever watched before goes on."""
        from triton import knobs

        with _guard:
            if self in _closed:
                return
            if not _closed:
                _before[:] = [knobs.runtime.jit_cache_hook]
                knobs.runtime.jit_cache_hook = _look
            _closed.append(self)

    def open(self) -> None:
        """Ends the watch; nothing happens to one that is open."""
        from triton import knobs

        with _guard:
            if self not in _closed:
                return
            _closed.remove(self)
            if not _closed:
                knobs.runtime.jit_cache_hook = _before.pop()

    @property
    def ours(self) -> Sequence[str]:
        """Those of `seen` that are graphspec's kernels."""
        return [line for line in self.seen if line.startswith(PACKAGE)]


def _look(**told: Any) -> Any:
    """What Triton calls before it compiles or loads a kernel."""
    seals = [] if _meant.get() else list(_closed)
    if seals:
        function = told["fn"]
        types, constants = told["compile"]["signature"], told["compile"]["constants"]
        values = [value for _, value in sorted(constants.items())]
        form = f"({', '.join(map(str, types.values()))}), constants {values}"
        line = f"{function.module}.{function.name}{form}"
        for seal in seals:
            seal.seen.append(line)
        if line.startswith(PACKAGE) and any(seal.strict for seal in seals):
            raise KernelError(
                Problem(
                    where=f"kernel {function.name}",
                    found=f"a launch that nothing was compiled ahead for: {form}",
                    wanted="one of the variants that the warmup has loaded",
                    hint="graphspec kernels list names them; a seal that is not strict counts instead",
                )
            )
    before = next(iter(_before), None)
    return before(**told) if before is not None else None
