"""The tape: captures a call on any device by recording its operations, with the rules of CUDA graphs enforced.

Capturing changes nothing, as on a GPU: outputs have their values from the first replay on. It is the backend where there
is no GPU, and the check in CI that a step could be captured on one. What a CUDA graph would refuse or silently freeze is
refused here, by `graphspec.capture.backends.tape_rules`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from graphspec.capture.backends.base import Call, released_graph
from graphspec.capture.backends.dry_run import outputs_without_running
from graphspec.capture.backends.nested import changed, items
from graphspec.capture.backends.tape_rules import HOST_READ, illegal, is_host_read, why_illegal
from graphspec.errors import CaptureIllegalError, CaptureStateError, Problem

_active = threading.local()


@attrs.frozen
class _Slot:
    """Stands in a recorded argument list for a value that an earlier operation of the tape makes."""

    index: int


@attrs.frozen(kw_only=True)
class _Node:
    """One recorded operation: its arguments with slots, where its outputs go, and which slots end here.

    `used` has every slot among the arguments. `plain` and `listed` say where they are: a slot's position among the
    positional arguments, and for an argument that is a list, the positions in it. `nested` is True where some lie deeper or
    in keywords: a replay then walks the whole structure, which takes 40 us, as long as calling the operation.
    `shapes` has the shapes of an opaque operation's outputs; those of torch's own follow from their inputs.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    used: tuple[int, ...]
    plain: tuple[tuple[int, int], ...]
    listed: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    nested: bool
    outputs: tuple[int, ...]
    shapes: Sequence[torch.Size] | None = None
    releases: tuple[int, ...] = ()

    def filled(self, values: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional arguments and keywords, each slot replaced by its value."""
        if self.nested:
            args, keywords = tree_map(
                lambda a: values[a.index] if type(a) is _Slot else a,
                (self.arguments, self.keywords),
            )
            return args, keywords
        filled = list(self.arguments)
        for at, slot in self.plain:
            filled[at] = values[slot]
        for at, inside in self.listed:
            items = filled[at] = list(filled[at])
            for position, slot in inside:
                items[position] = values[slot]
        return filled, self.keywords


class TapeGraph:
    """A recorded call. `replay` runs its operations on the static tensors it was recorded with."""

    def __init__(
        self, nodes: Sequence[_Node], slots: int, results: Sequence[tuple[torch.Tensor, int | None]]
    ) -> None:
        self._nodes = nodes
        self._slots = slots
        self._results = results
        self._released = False

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        return [tensor for tensor, _ in self._results]

    @property
    def memory_bytes(self) -> int:
        made = [tensor for tensor, slot in self._results if slot is not None]
        return sum(t.numel() * t.element_size() for t in made)

    @property
    def operations(self) -> int:
        """Number of recorded operations."""
        return len(self._nodes)

    def release(self) -> None:
        self._nodes, self._results, self._released = (), (), True

    def replay(self) -> Sequence[torch.Tensor]:
        if self._released:
            raise released_graph("tape")
        values: list[Any] = [None] * self._slots

        for node in self._nodes:
            args, kwargs = node.filled(values)
            made = node.function(*args, **kwargs)
            if node.outputs:
                tensors = _tensors_of(made)
                if node.shapes is not None and [t.shape for t in tensors] != node.shapes:
                    raise _changed(str(node.function), [t.shape for t in tensors], node.shapes)
                for slot, value in zip(node.outputs, tensors, strict=True):
                    values[slot] = value
            for ended in node.releases:
                values[ended] = None
        for static, result in self._results:
            if result is not None:
                self._deliver(values[result], static)
        return self.outputs

    def _deliver(self, made: torch.Tensor, static: torch.Tensor) -> None:
        if made.shape != static.shape or made.dtype is not static.dtype:
            # copy_ would broadcast or convert without a word.
            raise _changed(
                "tape output", f"{made.dtype} {made.shape}", f"{static.dtype} {static.shape}"
            )
        static.copy_(made)


class TapeBackend:
    """Records and replays calls. `generators` are those that captured calls may draw from."""

    name = "tape"
    needs_warmup = False

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = tuple(generators)

    def warm(self, call: Call) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return call()

    def capture(self, call: Call) -> TapeGraph:
        if getattr(_active, "recording", False):
            raise CaptureStateError(
                Problem(
                    where="tape",
                    found="a capture inside a capture",
                    wanted="one capture at a time on a thread",
                    hint="capture the inner call on its own, or inline it",
                )
            )
        recorder = _Recorder(self._generators)
        _active.recording = True
        try:
            with torch.no_grad(), _HostReads(recorder), recorder:
                outputs = call()
            return recorder.graph(outputs)
        finally:
            _active.recording = False

    def give_back(self) -> None:
        """Nothing to do: what a released tape held is freed with its tensors."""


class _Recorder(TorchDispatchMode):
    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators
        self._nodes: list[_Node] = []
        self._slot_of: dict[int, int] = {}
        # Identity is by id(), so every tensor that has a slot stays alive until the tape is complete.
        self._alive: list[torch.Tensor] = []
        self.inside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The default would wrap the method below and import Dynamo, and with it the compiler: 2 s in a warm start.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        what = why_illegal(func, args, kwargs, self._generators)
        if what:
            raise illegal(str(func), what)
        arguments, keywords = changed(self._argument, (tuple(args), kwargs))
        used = tuple(a.index for a in items((arguments, keywords)) if type(a) is _Slot)
        plain = _slots_in(arguments)
        lists = ((at, _slots_in(a)) for at, a in enumerate(arguments) if type(a) is list)
        listed = tuple((at, inside) for at, inside in lists if inside)
        self.inside = True
        try:
            made = outputs_without_running(func, args, kwargs)
        finally:
            self.inside = False
        tensors = _tensors_of(made)
        self._nodes.append(
            _Node(
                function=func,
                arguments=arguments,
                keywords=keywords,
                used=used,
                plain=plain,
                listed=listed,
                nested=len(used) != len(plain) + sum(len(inside) for _, inside in listed),
                outputs=tuple(self._slot(t) for t in tensors),
                shapes=None if func.namespace == "aten" else [t.shape for t in tensors],
            )
        )
        return made

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in self._slot_of:
            return _Slot(self._slot_of[id(value)])
        return value

    def _slot(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._slot_of:
            self._slot_of[id(tensor)] = len(self._alive)
            self._alive.append(tensor)
        return self._slot_of[id(tensor)]

    def graph(self, outputs: Sequence[torch.Tensor]) -> TapeGraph:
        results = [(t, self._slot_of.get(id(t))) for t in outputs]
        kept = {slot for _, slot in results}
        last: dict[int, int] = {}
        for at, node in enumerate(self._nodes):
            last.update(dict.fromkeys((*node.used, *node.outputs), at))
        ends: dict[int, list[int]] = {}
        for slot, at in last.items():
            if slot not in kept:
                ends.setdefault(at, []).append(slot)
        nodes = [
            attrs.evolve(node, releases=tuple(ends.get(at, ())))
            for at, node in enumerate(self._nodes)
        ]
        return TapeGraph(nodes, len(self._alive), results)


class _HostReads(TorchFunctionMode):
    """Refuses reads that bypass the dispatcher on a CPU. Inside an opaque operation, reading is the kernel's business."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self._recorder.inside and is_host_read(func):
            raise illegal(f"Tensor.{func.__name__}", HOST_READ)
        return func(*args, **(kwargs or {}))


def _slots_in(arguments: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Position and index of each slot that is an item itself."""
    return tuple((at, a.index) for at, a in enumerate(arguments) if type(a) is _Slot)


def _tensors_of(made: Any) -> Sequence[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return (made,)
    if isinstance(made, tuple | list) and all(isinstance(t, torch.Tensor) for t in made):
        return made
    return [t for t in items(made) if isinstance(t, torch.Tensor)]


def _changed(where: str, found: Any, wanted: Any) -> CaptureIllegalError:
    # Neither copy_ nor most operations would object: they broadcast or convert without a word.
    return CaptureIllegalError(
        Problem(
            where=where,
            found=f"{found} at replay",
            wanted=f"{wanted} as recorded",
            hint="an opaque operation returns other shapes than it did; its output must be static",
        )
    )
