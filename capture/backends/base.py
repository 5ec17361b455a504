"""The protocol of graph backends: warm a call, capture it, replay it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

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

        Raises `CaptureIllegalError` for what no replay can repeat, and leaves no capture running on any path.
        """
        ...
