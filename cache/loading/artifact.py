"""`Artifact`: a compiled unit, loaded from the bytes that were verified, callable with checked inputs."""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphspec.cache.entry import Entry
from graphspec.cache.loading.library import open_library
from graphspec.cache.loading.signature import Dimension, Signature
from graphspec.errors import CacheError, CaptureIllegalError, Problem

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
# For each kind of memory by itself: torch then resolves negated and conjugated views before, and refuses sparse, quantised
# and nested tensors, which a kernel for everything would be given as they are.
for _device in ("CPU", "CUDA"):
    _library.impl("run_artifact", _run_artifact, _device)
_library.impl("run_artifact", _shapes_only, "Meta")


class Artifact:
    """A loaded unit. Call it with the unit's inputs in order; it returns a list of output tensors.

    The library itself checks nothing: another dtype, layout or size would crash or give garbage. So each call checks
    the stored `signature` and raises `SignatureError` naming the input. What a capture recorded is replayed without it.
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
        self.signature = Signature(name, signature, device)
        self._outputs = outputs
        self._handle = next(_handles)
        _loaded[self._handle] = self

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        self.signature.check(inputs)
        outputs: Sequence[torch.Tensor] = torch.ops.graphspec.run_artifact.default(
            self._handle, inputs
        )
        return outputs

    def described_outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Meta tensors with the shapes that a call with such inputs returns.

        An output whose shape is more than plain dimensions has the error of a unit that cannot be recorded.
        """
        sizes = self.signature.sizes(inputs)
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
        dims = [Dimension.stored(d) for d in output["shape"]]
        shape = [sizes[dim.name] if dim.name else dim.low for dim in dims]
        return torch.empty(shape, dtype=getattr(torch, output["dtype"]), device="meta")


def load_artifact(entry: Entry, *, single_threaded: bool = False) -> Artifact:
    """The callable of an entry whose digest has been verified. Imports no compiler.

    `single_threaded` loads the library for calls that are captured in a CUDA graph, without its own stream handling.
    """
    metadata = entry.metadata
    device = str(metadata["device"])
    try:
        runner = open_library(entry.payload, device, single_threaded=single_threaded)
    except (RuntimeError, OSError) as error:
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
