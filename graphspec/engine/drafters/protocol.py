"""What an engine tells a drafter after each step of the target, and what it gets back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import torch

from graphspec.capture.keys import CaptureKey

if TYPE_CHECKING:
    from graphspec.engine.drafters.graphs import DraftGraphs


@attrs.frozen(kw_only=True, eq=False)
class Computed:
    """One request's part of a finished step of the target.

    The step computed positions `first` to `first + count - 1` of the request and kept them: rows of rejected drafts are
    left out. `tokens` are all that are known, prompt tokens past the end of a chunk included; in decode the last one was
    just sampled, and no row has been computed for it. `row` is where its first row lies in the step's hidden states.
    `blocks` are its blocks in order, of the target's cache and of the drafter's alike; they reach over the lookahead
    slots. `wanted` is the number of drafts to propose; 0 for a chunk of a prompt, a depth of 0, or a request without
    speculation: the drafter only brings what it keeps up to date.
    """

    request: int
    tokens: Sequence[int]
    first: int
    count: int
    row: int
    blocks: Sequence[int]
    wanted: int
    temperature: float = 0.0
    seed: int = 0


@attrs.frozen(kw_only=True, eq=False)
class TargetStep:
    """A finished step of the target.

    hidden: [rows, hidden_size], after the final norm; aux: [rows, layers * hidden_size], outputs of the layers that the
    contract names, side by side. Each is None where the contract does not ask for it. Both are read before the next
    step, which may write into them. `graphs` are the captured draft phases that the drafter may replay; None: its passes run
    without a graph.
    """

    requests: Sequence[Computed]
    hidden: torch.Tensor | None = None
    aux: torch.Tensor | None = None
    graphs: "DraftGraphs | None" = None


@attrs.frozen(kw_only=True, eq=False)
class Proposal:
    """Drafts for one request: at most as many as wanted.

    `logits`: [drafts, vocabulary] float32, of the distribution that drafts were sampled from; None for drafts taken as
    sure (the best token, or one that was looked up). `confidence`: probability for each draft that it is accepted if
    those before it are, where the drafter has an opinion. `margins`: for each draft how far its logit, the best, lies above
    the next, where `DraftContext.wants_margins`. `parents`: for drafts that form a tree, the index of each one's parent, -1
    for those that follow the last token; None for a chain. Parents come before children, and the likeliest nodes first.
    """

    tokens: Sequence[int] = ()
    logits: torch.Tensor | None = None
    confidence: Sequence[float] | None = None
    margins: Sequence[float] | None = None
    parents: Sequence[int] | None = None


class Speculator(Protocol):
    """A drafter. It is made by ``make(context)``, a class method of the class that the contract names."""

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request of the step, in its order. Also called for steps that want none."""
        ...

    def forget(self, request: int) -> None:
        """The request has ended, or lost its blocks: what is kept for it alone can go."""
        ...

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, caches and weights that captured draft steps have the addresses of."""
        ...


class CapturedSpeculator(Speculator, Protocol):
    """A drafter whose draft phase has passes of a fixed shape, which a graph can hold: what `CaptureManager` captures.

    It works on static tensors of its own. Rows of a bucket that no request has are padding: they write to the scratch block.
    """

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The passes that a graph of `key` holds, on the present content of the static tensors."""
        ...

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Valid content for `draft_step`, the same for equal arguments; it may write to the first blocks."""
        ...
