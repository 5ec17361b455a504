"""`Request`: one prompt on its way through the engine, as a value that each step replaces."""

import attrs

from graphspec.engine.sampling import SamplingParams
from graphspec.engine.stop import FinishReason, TextSoFar


@attrs.frozen(kw_only=True)
class Counts:
    """What a request took: steps that gave it tokens, drafts verified and accepted, prompt tokens found in the cache."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cached: int = 0
    preempted: int = 0


@attrs.frozen(kw_only=True)
class Request:
    """A request in flight. Ids rise with arrival, so the smaller id has the higher priority.

    `tokens` are those of the prompt and all that were accepted; keys and values of the first `computed` are in the cache.
    `drafts` follow them and wait to be verified; `parents` are those of drafts that form a tree, -1 for one that follows the
    last token, and empty for a chain; `scores` are the chances that each is reached and kept, where somebody has an opinion.
    `limit` is the most tokens that there may be, the prompt's included.
    `seed` is that of its random numbers.
    `margins` has for each accepted token how far its logit lay above the second best.
    """

    id: int
    prompt_length: int
    tokens: tuple[int, ...]
    params: SamplingParams
    limit: int
    seed: int = 0
    computed: int = 0
    drafts: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    text: TextSoFar = attrs.field(factory=TextSoFar)
    counts: Counts = attrs.field(factory=Counts)

    @property
    def prefilling(self) -> bool:
        """Whether more than the last token is to be computed. A single one is a decode like any other."""
        return self.computed < len(self.tokens) - 1

    @property
    def output(self) -> tuple[int, ...]:
        """The accepted tokens."""
        return self.tokens[self.prompt_length :]


@attrs.frozen(kw_only=True)
class Delta:
    """What one step added to a request: tokens, the text that may be shown, and in the last one why it ended."""

    request: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    finished: FinishReason | None = None
