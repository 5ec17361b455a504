"""`GraphCall`: a loaded library in the place of Dynamo's graph, and the trial that a new one has to pass."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphspec.cache.compiling.sizes import value
from graphspec.cache.dynamo.graph import Lifted, NotStorableError, Output, Place, Source, hint
from graphspec.cache.dynamo.trace import own_modes
from graphspec.cache.loading.library import open_library

_logger = logging.getLogger("graphspec.cache")


class GraphCall:
    """What Dynamo calls in place of its graph. Shapes are not checked at a call: Dynamo's guards have been.

    `demands` is what the library takes for granted of sizes. `written` are its inputs that it writes to: autograd is told, as
    it is by torch's own operators. Where one of them shares memory with another input, `eager` is called instead: a library
    reads and writes in an order of its own. Raises RuntimeError when the library does not load, LookupError for inputs that
    are none.
    """

    def __init__(
        self,
        lifted: Lifted,
        payload: bytes | memoryview,
        demands: Sequence[Any],
        written: Sequence[int],
        eager: Callable[..., Any],
    ) -> None:
        self.demands = demands
        self.written = tuple(written)
        self._tensors = tuple(lifted.tensors)
        if not all(0 <= at < len(self._tensors) for at in self.written):
            raise LookupError(f"inputs {self.written} of {len(self._tensors)} are written to")
        self._held = tuple(lifted.held)
        self._numbers = tuple(lifted.numbers)
        self._device = lifted.device
        self._outputs = tuple(_getter(o) for o in lifted.outputs)
        self._lengths = [_length(t) for t in lifted.inputs]
        # Its conversions are in the library, whose operators would convert once more.
        self._autocast = torch._C._is_any_autocast_enabled()
        self._eager = eager if self.written else None
        self._run = open_library(payload, str(lifted.device), single_threaded=False).run

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        inputs = [arguments[at] for at in self._tensors]
        inputs.extend(self._held)
        inputs.extend(torch.empty((arguments[n], 0), device=self._device) for n in self._numbers)
        if self._eager is not None and self.overlap(inputs):
            _logger.debug("inputs of a graph share memory, and it writes to one: it runs eagerly")
            return _flat(self._eager(*arguments))
        if self._autocast:
            with torch._C._DisableAutocast():
                results = self._run(inputs)
        else:
            results = self._run(inputs)
        for at in self.written:
            if not inputs[at].is_inference():
                torch.autograd.graph.increment_version(inputs[at])
        return [get(results, arguments) for get in self._outputs]

    def overlap(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an input that is written to shares memory with another, by the addresses between their ends."""
        starts = [t.data_ptr() for t in inputs]
        ends = [
            start + (_reach(tensor) if length is None else length)
            for start, length, tensor in zip(starts, self._lengths, inputs, strict=False)
        ]
        return any(
            starts[at] < end and start < ends[at] and other != at
            for at in self.written
            for other, (start, end) in enumerate(zip(starts, ends, strict=True))
        )


def _length(tensor: torch.Tensor) -> int | None:
    """Bytes from the first to behind the last element, None where that differs from call to call."""
    dynamic = any(isinstance(s, torch.SymInt) for s in (*tensor.shape, *tensor.stride()))
    return None if dynamic else _reach(tensor)


def _reach(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


_Getter = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]


def _getter(output: Output) -> _Getter:
    held = output.value
    if output.source is Source.LIBRARY:
        return lambda results, arguments: results[held]
    if output.source is Source.ARGUMENT:
        return lambda results, arguments: arguments[held]
    if output.source is Source.CONSTANT:
        return lambda results, arguments: held
    places = tuple(output.places)
    return lambda results, arguments: value(held, [_size(p, arguments) for p in places])


def _size(place: Place, arguments: Sequence[Any]) -> int:
    argument = arguments[place.argument]
    return int(argument if place.dim is None else argument.shape[place.dim])


def try_out(
    lifted: Lifted,
    call: GraphCall,
    eager: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    """Runs a new library beside the graph that it was made of, on the same inputs; those that it writes to are copied.

    Raises `NotStorableError` where it gives other numbers, shapes or strides, or outputs that share memory otherwise: then
    the compiler has broken a promise, or one was asked of it that it does not give.
    """
    places = {lifted.tensors[at] for at in call.written}
    plain: list[Any] = [hint(a) if isinstance(a, torch.SymInt) else a for a in arguments]
    if places and call.overlap([*(plain[at] for at in lifted.tensors), *lifted.held]):
        raise NotStorableError("an input that is written to shares memory with another")
    mine, theirs = ([_copied(a) if at in places else a for at, a in enumerate(plain)] for _ in "12")
    with own_modes():
        results = call(*mine)
    with own_modes():
        expected = _flat(eager(*theirs))
    for at, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        fault = _difference(result, wanted)
        if fault:
            reason = f"output {at} of the library differs from eager: {fault}"
            raise NotStorableError(reason, lasting=True)
    for at in places:
        fault = _difference(mine[at], theirs[at])
        if fault:
            reason = f"what the library writes to input {at} differs from eager: {fault}"
            raise NotStorableError(reason, lasting=True)
    if _sharing(results, mine) != _sharing(expected, theirs):
        raise NotStorableError("an output shares memory otherwise than in eager", lasting=True)


def _flat(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple | list) else (results,)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor.detach())


_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Largest norm of the difference, of that of the result. It tells another computation from another order of rounding."""
_ROUGH = 5e-2


def _difference(result: Any, wanted: Any) -> str:
    if not isinstance(wanted, torch.Tensor):
        return "" if type(result) is type(wanted) and result == wanted else f"{result!r}"
    if result.dtype != wanted.dtype or result.device != wanted.device:
        return f"{result.dtype} on {result.device} instead of {wanted.dtype} on {wanted.device}"
    if result.shape != wanted.shape or _strides(result) != _strides(wanted):
        shown = [f"shape {tuple(t.shape)}, strides {t.stride()}" for t in (result, wanted)]
        return f"{shown[0]} instead of {shown[1]}"
    if (
        result.is_inference() != wanted.is_inference()
        or result.requires_grad != wanted.requires_grad
    ):
        return "another kind of tensor for autograd"
    return _distance(result.detach(), wanted.detach())


def _distance(result: torch.Tensor, wanted: torch.Tensor) -> str:
    if not wanted.is_floating_point() and not wanted.is_complex():
        return "" if torch.equal(result, wanted) else "other values"
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    one, two = result.to(wide), wanted.to(wide)
    finite = torch.isfinite(two)
    if not torch.equal(torch.isfinite(one), finite) or not torch.equal(one.isnan(), two.isnan()):
        return "other values are infinite or not a number"
    one, two = one[finite], two[finite]
    distance, size = float((one - two).norm()), float(two.norm())
    if distance > _TOLERANCE.get(wanted.dtype, _ROUGH) * size:
        return f"{distance:.3g} away from a result of norm {size:.3g}"
    return ""


def _strides(tensor: torch.Tensor) -> Sequence[int]:
    """The strides that matter: where there is but one element, none does."""
    if not tensor.numel():
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _sharing(results: Sequence[Any], arguments: Sequence[Any]) -> Sequence[Any]:
    """For each output, the arguments and outputs with memory of which it is."""
    memory = [
        t.untyped_storage().data_ptr() if isinstance(t, torch.Tensor) and t.numel() else None
        for t in (*arguments, *results)
    ]
    own = memory[len(arguments) :]
    return [[at for at, m in enumerate(memory) if m == mine and m] for mine in own]
