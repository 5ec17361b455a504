"""Suffix decoding (arXiv 2411.04975): what followed the text's last tokens before, in its own text and in earlier outputs.

Every length of the matched suffix proposes its likeliest continuation, and the one with the most expected hits wins. A
longer match may draft more, up to `max_spec_factor` drafts a matched token.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import attrs
import torch

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.drafters.suffix_trie import SuffixTrie, Text
from graphspec.speculators.suffix import SuffixSpeculatorConfig

MAX_NODES = 2_000_000
"""Most nodes of the trie of earlier outputs, about 460 MB (229 bytes each): the oldest outputs leave it first."""


@attrs.define(eq=False)
class _Own:
    """One request's text in a trie of its own. Its output starts at `prompt`."""

    trie: SuffixTrie
    prompt: int
    text: Text = attrs.field(factory=Text)


@attrs.frozen(kw_only=True)
class _Output:
    """An earlier output, and where in its request it began, should the request come back."""

    prompt: int
    tokens: Sequence[int]


class Outputs:
    """The outputs of the last `most` requests in one trie of at most `max_nodes` nodes."""

    def __init__(self, depth: int, most: int, max_nodes: int = MAX_NODES) -> None:
        self.trie = SuffixTrie(depth)
        self._most, self._max_nodes = most, max_nodes
        self._kept: OrderedDict[int, _Output] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def prompt_of(self, request: int) -> int | None:
        """Where the output of a request began that was here before, as a preempted one was."""
        known = self._kept.get(request)
        return None if known is None else known.prompt

    def add(self, request: int, prompt: int, tokens: Sequence[int]) -> None:
        """Adds the output of a request, in place of what it had; the oldest outputs make room."""
        self._drop(request)
        if self._most and tokens:
            self._kept[request] = _Output(prompt=prompt, tokens=tuple(tokens))
            self.trie.extend(Text(), tokens)
        while len(self._kept) > self._most or self.trie.nodes > self._max_nodes:
            self._drop(next(iter(self._kept)))

    def _drop(self, request: int) -> None:
        known = self._kept.pop(request, None)
        if known is not None:
            self.trie.remove(known.tokens)


class SuffixSpeculator:
    """Keeps a trie for each request, and one of earlier outputs."""

    def __init__(self, context: DraftContext, config: SuffixSpeculatorConfig) -> None:
        self._context, self._config = context, config
        self._own: dict[int, _Own] = {}
        self.outputs = Outputs(config.max_tree_depth, config.max_cached_requests)

    @classmethod
    def make(cls, context: DraftContext) -> "SuffixSpeculator":
        """With the options of the contract."""
        config = context.speculative.speculator
        assert isinstance(config, SuffixSpeculatorConfig)
        return cls(context, config)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request, none where nothing matches."""
        return [self._propose(r) for r in step.requests]

    def forget(self, request: int) -> None:
        """Its output joins the earlier ones."""
        own = self._own.pop(request, None)
        if own is not None:
            self.outputs.add(request, own.prompt, own.text.tokens[own.prompt :])

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Nothing on the device."""
        return {}

    def _propose(self, request: Computed) -> Proposal:
        k = self._context.depth(request)
        own = self._own.get(request.request) or self._begin(request)
        # In a chunk of a prompt, tokens past it are not to be read.
        end = len(request.tokens) if request.wanted else request.first + request.count
        new = [request.tokens[at] for at in range(len(own.text.tokens), end)]
        own.trie.extend(own.text, new)
        return Proposal(tokens=tuple(self._best(own, k))) if k else Proposal()

    def _begin(self, request: Computed) -> _Own:
        known = self.outputs.prompt_of(request.request)
        sampled = request.wanted > 0
        prompt = len(request.tokens) - sampled if known is None else known
        own = self._own[request.request] = _Own(SuffixTrie(self._config.max_tree_depth), prompt)
        return own

    def _best(self, own: _Own, k: int) -> list[int]:
        """The continuation with the most expected hits; of equal ones, of the longest match, and the request's own first."""
        c, best, most = self._config, list[int](), 0.0
        earlier = self.outputs.trie
        for trie, ends in ((own.trie, own.text.ends), (earlier, earlier.ends_of(own.text.tokens))):
            for length in range(len(ends), 0, -1):
                drafts = min(k, int(c.max_spec_factor * length))
                tokens, expected = trie.likeliest(ends[length - 1], drafts, c.min_token_prob)
                if expected > most:
                    best, most = tokens, expected
        return best
