"""The tape's rules without its refusals: runs a call to its end and notes every operation that no replay can repeat."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.capture.backends.calling_line import calling_line
from graphspec.capture.backends.dry_run import outputs_without_running
from graphspec.capture.backends.tape_rules import HOST_READ, is_host_read, why_illegal


@attrs.frozen(kw_only=True)
class Illegal:
    """An operation that no replay can repeat: its name, what is wrong with it, and the line of the caller's own code
    that it comes from. `file` is empty, and `line` 0, where no Python code called it."""

    operation: str
    what: str
    file: str
    line: int


@contextlib.contextmanager
def noting(
    found: Callable[[Illegal], None],
    generators: Sequence[torch.Generator] = (),
    *,
    called_from: str = "",
) -> Iterator[None]:
    """Runs the block for real and tells `found` of every operation that a capture would not allow, each time it runs.

    Reads by the host are answered with the value that is there, so that the block goes on as it would without a
    capture. An engine's own operation without a kernel for its tensors' device answers with zeros. What an operation
    does inside itself is its own business, as on the tape. Lines of the file `called_from`, and of what called that, are
    nobody's own code.
    """

    def told(operation: str, what: str) -> None:
        file, line = calling_line(called_from)
        found(Illegal(operation=operation, what=what, file=file, line=line))

    watch = _Dispatched(told, generators)
    with torch.no_grad(), _Called(told, watch), watch:
        yield


class _Dispatched(TorchDispatchMode):
    def __init__(
        self, found: Callable[[str, str], None], generators: Sequence[torch.Generator]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found
        self._generators = generators
        self.inside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # As for the tape: the default would import the compiler.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not self.inside:
            what = why_illegal(func, args, kwargs, self._generators)
            if what:
                self._found(str(func), what)
        with self.within():
            if func.namespace == "aten" or _can_run(func):
                return func(*args, **kwargs)
            return outputs_without_running(func, args, kwargs)

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """What runs in the block belongs to an operation that has been judged."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before


class _Called(TorchFunctionMode):
    """Sees the reads that pass the dispatcher by."""

    def __init__(self, found: Callable[[str, str], None], watch: _Dispatched) -> None:
        super().__init__()
        self._found = found
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._watch.inside or not is_host_read(func):
            return func(*args, **(kwargs or {}))
        self._found(f"Tensor.{func.__name__}", HOST_READ)
        with self._watch.within():
            return func(*args, **(kwargs or {}))


def _can_run(func: Any) -> bool:
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"))
