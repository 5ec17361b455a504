"""`Artifact`: a compiled unit, loaded from the bytes that were verified, callable with checked inputs."""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphspec.cache.entry import Entry
from graphspec.cache.library import open_library
from graphspec.errors import CacheError, CaptureIllegalError, Problem, SignatureError

_library = torch.library.Library("graphspec", "FRAGMENT")
_library.define("run_artifact(int handle, Tensor[] inputs) -> Tensor[]")
_loaded: "weakref.WeakValueDictionary[int, Artifact]" = weakref.WeakValueDictionary()
# Weak: the table finds an artifact by the number that a recorded call has, and must not keep alive what its owner dropped.
_handles = itertools.count()


def _run_artifact(handle: int, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    outputs: Sequence[torch.Tensor] = _loaded[handle].runner.run(list(inputs))
    return outputs


def _shapes_only(handle: int, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return _loaded[handle].described_outputs(inputs)


# One opaque operation: a recorder sees the call and not the library's allocations, which mean nothing without its kernels.
_library.impl("run_artifact", _run_artifact, "CompositeExplicitAutograd")
_library.impl("run_artifact", _shapes_only, "Meta")


class Artifact:
    """A loaded unit. Call it with the unit's inputs in order; it returns a list of output tensors.

    The library itself checks nothing: another dtype, layout or size would crash or give garbage. So each call checks
    the stored signature and raises `SignatureError` naming the input.
    """

    def __init__(
        self,
        name: str,
        signature: Sequence[Mapping[str, Any]],
        outputs: Sequence[Mapping[str, Any]],
        device: str,
        runner: Any,
    ) -> None:
        self.name = name
        self.runner = runner
        self._outputs = outputs
        self._device = torch.device(device).type
        self._inputs = [
            (i["name"], getattr(torch, i["dtype"]), [_dimension(d) for d in i["shape"]])
            for i in signature
        ]
        self._handle = next(_handles)
        _loaded[self._handle] = self

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        self._check(inputs)
        outputs: Sequence[torch.Tensor] = torch.ops.graphspec.run_artifact.default(
            self._handle, inputs
        )
        return outputs

    def described_outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Meta tensors with the shapes that a call with such inputs returns.

        An output whose shape is more than plain dimensions has the error of a unit that cannot be recorded.
        """
        sizes: dict[str, int] = {}
        for tensor, (_, _, dims) in zip(inputs, self._inputs, strict=True):
            _fits(tensor.shape, dims, sizes)
        return [self._described(output, sizes) for output in self._outputs]

    def _described(self, output: Mapping[str, Any], sizes: Mapping[str, int]) -> torch.Tensor:
        if output["shape"] is None:
            raise CaptureIllegalError(
                Problem(
                    where=f"unit {self.name}",
                    found="an output whose shape is computed from its inputs' dimensions",
                    wanted="outputs with the dimensions of inputs, or constants",
                    hint="return the rows of an input, and reshape outside the unit",
                )
            )
        dims = [_dimension(d) for d in output["shape"]]
        shape = [sizes[name] if name else low for name, low, _ in dims]
        return torch.empty(shape, dtype=getattr(torch, output["dtype"]), device="meta")

    def _check(self, inputs: Sequence[torch.Tensor]) -> None:
        if len(inputs) != len(self._inputs):
            raise self._error("the call", f"{len(inputs)} tensors", f"{len(self._inputs)} tensors")
        sizes: dict[str, int] = {}
        for tensor, (name, dtype, dims) in zip(inputs, self._inputs, strict=True):
            if (
                tensor.dtype is not dtype
                or tensor.device.type != self._device
                or not tensor.is_contiguous()
                or tensor.dim() != len(dims)
                or not _fits(tensor.shape, dims, sizes)
            ):
                raise self._error(
                    f"input {name}", _describe(tensor), self._wanted(dtype, dims, sizes)
                )

    def _wanted(self, dtype: torch.dtype, dims: Sequence[Any], sizes: Mapping[str, int]) -> str:
        shape = ", ".join(_show_dimension(n, low, high, sizes) for n, low, high in dims)
        return f"a contiguous {dtype} tensor on {self._device} of shape ({shape})"

    def _error(self, where: str, found: str, wanted: str) -> SignatureError:
        return SignatureError(
            Problem(
                where=f"unit {self.name}: {where}",
                found=found,
                wanted=wanted,
                hint="the unit was compiled for these inputs only; change the unit's declaration to serve others",
            )
        )


def _dimension(d: Any) -> tuple[str, int, int]:
    return (
        (str(d[0]), int(d[1]), int(d[2])) if isinstance(d, tuple | list) else ("", int(d), int(d))
    )


def _show_dimension(name: str, low: int, high: int, sizes: Mapping[str, int]) -> str:
    if not name:
        return str(low)
    return (
        f"{name}={sizes[name]}, set by an earlier input"
        if name in sizes
        else f"{name} from {low} to {high}"
    )


def _fits(
    shape: Sequence[int], dims: Sequence[tuple[str, int, int]], sizes: dict[str, int]
) -> bool:
    for size, (name, low, high) in zip(shape, dims, strict=True):
        if not low <= size <= high or (name and sizes.setdefault(name, size) != size):
            return False
    return True


def _describe(tensor: torch.Tensor) -> str:
    layout = "" if tensor.is_contiguous() else f" with strides {tuple(tensor.stride())}"
    return f"a {tensor.dtype} tensor on {tensor.device} of shape {tuple(tensor.shape)}{layout}"


def load_artifact(entry: Entry, *, single_threaded: bool = False) -> Artifact:
    """The callable of an entry whose digest has been verified. Imports no compiler.

    `single_threaded` loads the library for calls that are captured in a CUDA graph, without its own stream handling.
    """
    metadata = entry.metadata
    device = str(metadata["device"])
    try:
        runner = open_library(entry.payload, device, single_threaded=single_threaded)
    except RuntimeError as error:
        raise CacheError(
            Problem(
                where=f"unit {metadata['unit']}",
                found=f"its library does not load: {error}",
                wanted="a library for this torch and this machine",
                hint="remove the entry and run graphspec warmup again",
            )
        ) from None
    return Artifact(
        str(metadata["unit"]), metadata["signature"], metadata["outputs"], device, runner
    )
