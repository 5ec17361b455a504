"""`Signature`: what the inputs of a unit must be, checked at each call in one to two microseconds."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from graphspec.errors import Problem, SignatureError


@attrs.frozen
class Dimension:
    """One dimension of an input or output: from `low` to `high`, both included. A static one has no name, and one size."""

    name: str
    low: int
    high: int

    @classmethod
    def stored(cls, value: Any) -> "Dimension":
        """The dimension as an entry's metadata describe it: a size, or (name, minimum, maximum)."""
        if isinstance(value, tuple | list):
            return cls(str(value[0]), int(value[1]), int(value[2]))
        return cls("", int(value), int(value))


@attrs.frozen
class _Input:
    name: str
    dtype: torch.dtype
    dims: Sequence[Dimension]

    @property
    def is_dynamic(self) -> bool:
        return any(dim.name for dim in self.dims)

    @property
    def strides(self) -> Sequence[int | None]:
        """The strides of a contiguous tensor; None where they follow from a dynamic dimension, or make no difference."""
        strides: list[int | None] = []
        step: int | None = 1
        for dim in reversed(self.dims):
            strides.insert(0, step if dim.name or dim.low > 1 else None)
            step = None if step is None or dim.name else step * dim.low
        return strides


_recording = torch.is_grad_enabled
_Guard = Callable[..., bool]
_MOST_LESSONS = 4
"""Guards of a signature: weights are parameters or plain tensors, and calls are in inference mode or not."""


class Signature:
    """What a unit takes: contiguous tensors of stated types and sizes, in the memory of one device, without gradients.

    A dimension of one name has one size in a call. Addresses need no alignment: a library for a CPU loads from any, and one
    for a GPU copies what is not aligned. Negated and conjugated views pass, because torch resolves them before the library.

    `check` is on the way of every call, and to read five properties of each tensor in Python costs more than the call may.
    So what is fixed is compared by guards of torch's own, compiled ones, which are learned from inputs that the step by step
    examination has found right. Sizes that vary are read each time. What the guards do not know is examined, and has its
    error. One thing only the examination sees: a tensor whose storage was freed. Where such a tensor is like one that the
    guards know, the library crashes, as every operator of torch does.
    """

    def __init__(self, unit: str, inputs: Sequence[Mapping[str, Any]], device: str) -> None:
        self._unit = unit
        self._device = _resolved(device)
        self._inputs = [
            _Input(i["name"], getattr(torch, i["dtype"]), [Dimension.stored(d) for d in i["shape"]])
            for i in inputs
        ]
        self._accepts = _written(self._inputs)
        self._guards: list[tuple[_Guard, bool]] = []
        self._lessons = 0

    def check(self, inputs: Sequence[object]) -> None:
        """Raises `SignatureError` that names the first input that the unit was not compiled for."""
        try:
            for guard, with_gradient in self._guards:
                if self._accepts(inputs, guard) and not (with_gradient and _recording()):
                    return
        except Exception:
            # No tensors, or another number of them or of dimensions. The examination says which.
            pass
        self._examine(inputs)
        if self._lessons < _MOST_LESSONS:
            self._lessons += 1
            self._learn(inputs)

    def sizes(self, inputs: Sequence[torch.Tensor]) -> Mapping[str, int]:
        """The size of each dynamic dimension in a call with these inputs."""
        return {
            dim.name: size
            for tensor, wanted in zip(inputs, self._inputs, strict=True)
            for size, dim in zip(tensor.shape, wanted.dims, strict=True)
            if dim.name
        }

    def _learn(self, inputs: Sequence[Any]) -> None:
        try:
            # Not a public part of torch. Where it is missing or has changed, every call is examined.
            compiled: Any = torch._C._dynamo.guards.TensorGuards
            guard = compiled(
                *inputs,
                dynamic_dims_sizes=[
                    [None if d.name else d.low for d in i.dims] for i in self._inputs
                ],
                dynamic_dims_strides=[i.strides for i in self._inputs],
            ).check
            # Without an address there may be no memory: what has no elements to read is examined each time.
            if self._accepts(inputs, guard) and all(t.data_ptr() for t in inputs):
                self._guards.append((guard, any(t.requires_grad for t in inputs)))
        except (AttributeError, TypeError, RuntimeError):
            pass

    def _examine(self, inputs: Sequence[object]) -> None:
        if len(inputs) != len(self._inputs):
            raise self._error(
                "the call", f"{len(inputs)} inputs", f"{len(self._inputs)} inputs", _OTHER
            )
        sizes: dict[str, tuple[int, str]] = {}
        for value, wanted in zip(inputs, self._inputs, strict=True):
            found, hint = self._fault(value, wanted, sizes)
            if found:
                raise self._error(f"input {wanted.name}", found, self._wanted(wanted, sizes), hint)

    def _fault(
        self, value: object, wanted: _Input, sizes: dict[str, tuple[int, str]]
    ) -> tuple[str, str]:
        """What is wrong with one input, and what to do; empty texts for nothing."""
        if not isinstance(value, torch.Tensor):
            return f"a value of type {type(value).__qualname__}", "pass a tensor"
        if (
            value.is_nested
            or value.layout is not torch.strided
            or value.dtype is not wanted.dtype
            or value.device != self._device
            or value.dim() != len(wanted.dims)
            or not _fits(value.shape, wanted, sizes)
            or not value.is_contiguous()
        ):
            return _show(value), _OTHER
        if value.requires_grad and _recording():
            return f"{_show(value)} that requires a gradient", _NO_GRADIENT
        if not _has_memory(value):
            return f"{_show(value)} without memory of its own", _NO_MEMORY
        return "", ""

    def _wanted(self, wanted: _Input, sizes: Mapping[str, tuple[int, str]]) -> str:
        shape = ", ".join(_show_dimension(dim, wanted.name, sizes) for dim in wanted.dims)
        return f"a contiguous {wanted.dtype} tensor on {self._device} of shape ({shape})"

    def _error(self, where: str, found: str, wanted: str, hint: str) -> SignatureError:
        return SignatureError(
            Problem(where=f"unit {self._unit}: {where}", found=found, wanted=wanted, hint=hint)
        )


_OTHER = (
    "the unit was compiled for these inputs only; change the unit's declaration to serve others"
)
_NO_GRADIENT = "a compiled unit computes no gradients; call it under torch.no_grad()"
_NO_MEMORY = "its storage was freed, or it only stands for a tensor; pass one that has its elements"


def _resolved(device: str) -> torch.device:
    """The very device: a library is loaded for one, and another's memory is not its own."""
    found = torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _written(inputs: Sequence[_Input]) -> Callable[..., bool]:
    """A function of inputs and a guard that is true where the guard holds and dynamic sizes and layouts fit.

    Its text holds numbers only. It is written out because loops would take as long as the guard.
    """
    known: dict[str, str] = {}
    ranges: set[Dimension] = set()
    tensors = [f"t{at}" for at in range(len(inputs))]
    lines, before, after = [f"[{', '.join(tensors)}] = inputs"], [], []
    for tensor, wanted in zip(tensors, inputs, strict=True):
        if not wanted.is_dynamic:
            # The guard ends the process at a nested tensor, which cannot tell its shape. Others are asked for theirs here.
            before.append(f"not {tensor}.is_nested")
            continue
        sizes = [f"{tensor}_{axis}" for axis in range(len(wanted.dims))]
        lines.append(f"[{', '.join(sizes)}] = {tensor}.shape")
        for dim, size in zip(wanted.dims, sizes, strict=True):
            if not dim.name:
                continue
            if dim not in ranges:
                ranges.add(dim)
                before.append(f"{dim.low} <= {size} <= {dim.high}")
            if known.setdefault(dim.name, size) != size:
                before.append(f"{size} == {known[dim.name]}")
        if any(dim.name for dim in wanted.dims[1:]):
            after.append(f"{tensor}.is_contiguous()")
    lines.append(f"return {' and '.join([*before, 'guard(*inputs)', *after])}")
    names: dict[str, Any] = {}
    exec("\n ".join(["def accepts(inputs, guard):", *lines]), names)
    accepts: Callable[..., bool] = names["accepts"]
    return accepts


def _fits(shape: Sequence[int], wanted: _Input, sizes: dict[str, tuple[int, str]]) -> bool:
    return all(
        dim.low <= size <= dim.high
        and (not dim.name or sizes.setdefault(dim.name, (size, wanted.name))[0] == size)
        for size, dim in zip(shape, wanted.dims, strict=True)
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """True where there is nothing to read, or an address to read it from."""
    try:
        with warnings.catch_warnings():
            # Fake tensors warn that they have none.
            warnings.simplefilter("ignore")
            return not tensor.numel() or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _show_dimension(dim: Dimension, where: str, sizes: Mapping[str, tuple[int, str]]) -> str:
    if not dim.name:
        return str(dim.low)
    size, setter = sizes.get(dim.name, (0, where))
    if setter == where:
        return f"{dim.name} from {dim.low} to {dim.high}"
    return f"{dim.name}={size} as in input {setter}"


def _show(tensor: torch.Tensor) -> str:
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    kind = "tensor" if plain else type(tensor).__name__
    if layout != "strided":
        return f"a {layout} {tensor.dtype} {kind} on {tensor.device}"
    strides = "" if tensor.is_contiguous() else f" with strides {tuple(tensor.stride())}"
    return f"a {tensor.dtype} {kind} on {tensor.device} of shape {tuple(tensor.shape)}{strides}"
