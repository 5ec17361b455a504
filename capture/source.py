"""`StepSource`: what an engine gives to be captured."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from graphspec.capture.keys import CaptureKey


class StepSource(Protocol):
    """What an engine gives to be captured: decode steps on static buffers.

    A source whose steps are captured in pieces also has ``pieces(key)``: see `graphspec.capture.pieces`.
    """

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that steps read or write at a fixed address, by name. Asked for at each replay."""
        ...

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        """Puts valid, harmless content into the static inputs for a step of this key, the same for equal arguments.

        Variants differ in content: a graph is captured on one and verified on another, so that a value that was frozen
        into it shows.
        """
        ...

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """Runs one step of this key on the static buffers and returns its outputs."""
        ...
