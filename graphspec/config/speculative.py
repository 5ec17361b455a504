"""The speculative section: what the user writes of drafting."""

from graphspec.config.schedule import table_problems
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed, unkeyed

_TABLE = "num_speculative_tokens_per_batch_size"


@config_class
class SpeculativeConfig:
    """What the user writes of speculative decoding. Which depths reach compiled code is the method's declaration."""

    method: str = keyed(Stage.COMPILE, doc="Name of a registered drafting method.")
    num_speculative_tokens: int = keyed(
        Stage.CAPTURE, minimum=1, maximum=1024, doc="Largest draft depth k, in tokens."
    )
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = keyed(
        Stage.CAPTURE,
        default=None,
        doc="Dynamic depth: inclusive ranges [first, last, k] of requests in a step.",
    )
    prompt_lookup_min: int | None = unkeyed(
        default=None,
        minimum=1,
        doc="n-gram: shortest suffix that must match, in tokens.",
        reason="matching runs on the host; no graph contains it",
    )
    prompt_lookup_max: int | None = unkeyed(
        default=None,
        minimum=1,
        doc="n-gram: longest suffix that is looked up, in tokens.",
        reason="matching runs on the host; no graph contains it",
    )

    def problems(self) -> list[Problem]:
        """Rules of the dynamic table."""
        if self.num_speculative_tokens_per_batch_size is None:
            return []
        found = table_problems(self.num_speculative_tokens_per_batch_size)
        return [p.under(_TABLE) for p in found]
