"""The protocol of graph backends: warm a call, capture it, replay it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from graphspec.errors import CaptureStateError, Problem

Call = Callable[[], Sequence[torch.Tensor]]
"""One step on static buffers. It takes nothing, reads and writes tensors at fixed addresses, and returns its outputs."""


class Graph(Protocol):
    """A captured call."""

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        """The outputs, at addresses that every replay writes."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Device memory that this graph keeps, beyond what graphs captured before it keep."""
        ...

    def replay(self) -> Sequence[torch.Tensor]:
        """Runs the call again on the present content of its static buffers."""
        ...

    def release(self) -> None:
        """Lets go of its memory and outputs. A replay afterwards raises `CaptureStateError`; a second release is none."""
        ...


class GraphBackend(Protocol):
    """Captures calls on one device."""

    name: str
    needs_warmup: bool
    """True where a first run may set up what a capture forbids or must not see: workspaces, handles, lazy modules."""

    def warm(self, call: Call) -> Sequence[torch.Tensor]:
        """Runs the call once without capturing, the way it will be captured, and returns its outputs."""
        ...

    def capture(self, call: Call) -> Graph:
        """Captures one run of the call.

        Raises `CaptureIllegalError` for what no replay can repeat, and `CaptureStateError` inside another capture.
        Leaves no capture running on any path, and keeps no memory of one that failed.
        """
        ...

    def give_back(self) -> None:
        """Returns to the device what no graph uses any more. For use after graphs were released or a capture failed."""
        ...


def released_graph(backend: str) -> CaptureStateError:
    """The error of a graph that is replayed after its release."""
    return CaptureStateError(
        Problem(
            where=f"{backend} graph",
            found="a replay after release",
            wanted="a graph that is still captured",
            hint="dispatch again: the manager names only graphs that it holds",
        )
    )
