"""`NetworkSpeculator`: a network under the protocol that engines call."""

from collections.abc import Mapping, Sequence

import torch

from graphspec.capture.keys import CaptureKey
from graphspec.engine.drafters.autoregressive import AutoregressiveDrafter
from graphspec.engine.drafters.parallel import ParallelDrafter
from graphspec.engine.drafters.protocol import Proposal, TargetStep


class NetworkSpeculator:
    """Drafts by running `drafter`. A method's class adds `make`."""

    def __init__(self, drafter: AutoregressiveDrafter | ParallelDrafter) -> None:
        self.drafter = drafter

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request of the step."""
        return self.drafter.propose(step)

    def forget(self, request: int) -> None:
        """Nothing is kept for a request alone: keys and values lie in its blocks."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights."""
        return self.drafter.static_tensors()

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The passes that a graph of `key` holds."""
        return self.drafter.draft_step(key)

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens and features."""
        self.drafter.fill_draft_example(key, variant)
