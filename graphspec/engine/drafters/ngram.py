"""The n-gram drafter: drafts for each request from its own tokens."""

from collections.abc import Sequence

from graphspec.kernels.ngram import propose_ngram
from graphspec.speculators.ngram import NgramSpeculatorConfig


class NgramSpeculator:
    """Proposes continuations of earlier occurrences. Keeps no state."""

    def __init__(self, config: NgramSpeculatorConfig, max_model_len: int) -> None:
        self._config = config
        self._max_model_len = max_model_len

    def propose(self, requests: Sequence[Sequence[int]], k: int) -> list[list[int]]:
        """At most `k` drafts for each request, given all its tokens."""
        c = self._config
        return [
            propose_ngram(tokens, c.prompt_lookup_min, c.prompt_lookup_max, k, self._max_model_len)
            for tokens in requests
        ]
