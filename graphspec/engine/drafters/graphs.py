"""The way from a drafter to its captured passes: which graph a step's draft phase runs in, or why it runs in none."""

from collections.abc import Callable, Sequence

import attrs
import torch

from graphspec.capture.dispatch import Dispatch, Fallthrough
from graphspec.capture.keys import CaptureKey
from graphspec.engine.drafters.protocol import TargetStep


@attrs.define(kw_only=True, eq=False)
class DraftGraphs:
    """The draft graphs for one step, whose schedule asks for `depth` drafts. `taken` has how each of its draft phases ran.

    `dispatch` and `replay` are those of `CaptureManager`: `dispatch_draft` by requests and depth, and `replay`.
    """

    depth: int
    dispatch: Callable[[int, int], Dispatch]
    replay: Callable[[CaptureKey], Sequence[torch.Tensor]]
    taken: list[Dispatch] = attrs.field(factory=list)

    def key_for(self, requests: int) -> CaptureKey | None:
        """The graph for the drafts of `requests` requests; None where they run without one."""
        found = self.dispatch(requests, self.depth)
        self.taken.append(found)
        return found.key

    def decline(self, requests: int, reason: Fallthrough) -> None:
        """Says that drafts run without a graph for a reason that the plan cannot know. One that the plan has comes first."""
        found = self.dispatch(requests, self.depth)
        self.taken.append(Dispatch(k=found.k, reason=found.reason or reason))

    def ran(self, wanting: int) -> Sequence[Dispatch]:
        """How the step's draft phases ran; `wanting` requests wanted drafts. A drafter that never asked drafts on the host."""
        if self.taken or not wanting:
            return self.taken
        found = self.dispatch(wanting, self.depth)
        return [Dispatch(k=found.k, reason=found.reason or Fallthrough.NO_DRAFT_PHASE)]


def key_for(step: TargetStep, requests: int) -> CaptureKey | None:
    """The graph for the drafts of `requests` requests of a step; None where they run without one."""
    return None if step.graphs is None else step.graphs.key_for(requests)


def decline(step: TargetStep, requests: int, reason: Fallthrough) -> None:
    """As `DraftGraphs.decline`."""
    if step.graphs is not None:
        step.graphs.decline(requests, reason)


def replay(step: TargetStep, key: CaptureKey) -> Sequence[torch.Tensor]:
    """Runs the graph that `key_for` gave."""
    assert step.graphs is not None, "the key is from there"
    return step.graphs.replay(key)
