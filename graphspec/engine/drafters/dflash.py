"""DFlash: a block of mask queries that see one another, over keys and values made from the target's states alone.

For a request whose last computed position is P: every position up to P has keys and values made from the target's fused
states there. The block starts at P + 1 with the token just sampled and goes on with masks; all its queries see the context
and the whole block. Drafts are what the masks give. Rows of the block are provisional, states replace them step by step.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.nn import functional as F

from graphspec.capture.keys import CaptureKey
from graphspec.engine.buffers import RequestRows, example_requests
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.eagle import embedding_of
from graphspec.engine.drafters.graphs import key_for, replay
from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.layers import DraftLayers, HeadNorms, Rows
from graphspec.engine.drafters.network import Bench, features_of, last_computed
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.drafters.sampling import Draws, take_each
from graphspec.engine.drafters.scoring import PlainScorer
from graphspec.engine.llama import rms_norm
from graphspec.engine.outputs import aux_layers
from graphspec.engine.weights import read_layer

_PADDING = RequestRows(tokens=(), position=0, blocks=(), padding=1)


class BlockNetwork:
    """Qwen3 layers, with norms of query and key heads, over a context that is given as states.

    Tensors: ``fc.weight`` [H, layers * target H], then ``hidden_norm.weight``; ``layers.N.*`` with ``self_attn.q_norm`` and
    ``k_norm``; ``norm.weight``. Embedding and head are the target's unless ``embed_tokens`` and ``lm_head`` are there.
    """

    def __init__(self, context: DraftContext, read: HeadReader) -> None:
        m, width = context.model, context.model.hidden_size
        self._eps = m.rms_norm_eps
        fused = len(aux_layers(context.spec)) * context.spec.model.hidden_size
        self._fc = read("fc.weight", width, fused)
        self._state_norm = read("hidden_norm.weight", width)
        self._norm = read("norm.weight", width)
        prefixes = [f"layers.{at}." for at in range(m.num_hidden_layers)]
        self._layers = DraftLayers(
            context,
            [read_layer(read, m, prefix) for prefix in prefixes],
            [
                HeadNorms(
                    q=read(prefix + "self_attn.q_norm.weight", m.head_dim),
                    k=read(prefix + "self_attn.k_norm.weight", m.head_dim),
                )
                for prefix in prefixes
            ],
        )
        self._embedding = embedding_of(context, read)
        vocabulary = context.spec.model.vocab_size
        own = read.has("lm_head.weight")
        self._scorer = PlainScorer(
            read("lm_head.weight", vocabulary, width) if own else context.weights.w_head
        )

    def fused(self, aux: torch.Tensor) -> torch.Tensor:
        """Outputs of the target's chosen layers [T, layers * target H] -> context states [T, H]."""
        return rms_norm(F.linear(aux, self._fc).contiguous(), self._state_norm, self._eps)

    def store(self, states: torch.Tensor, rows: Rows) -> None:
        """Keys and values of context states, in every layer, at the rows' slots."""
        for at in range(len(self._layers.weights)):
            self._layers.store(at, states, rows)

    def block(self, rows: Rows) -> torch.Tensor:
        """The block's queries -> what the head scores [T, H]."""
        hidden = self._layers.run(F.embedding(rows.ids, self._embedding), rows)
        return rms_norm(hidden, self._norm, self._eps)

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32."""
        return self._scorer.logits(scored)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache and weights."""
        return {
            **self._layers.static_tensors(),
            "fc": self._fc,
            "state_norm": self._state_norm,
            "norm": self._norm,
            "embedding": self._embedding,
            **self._scorer.static_tensors(),
        }


class DFlashSpeculator:
    """Drafts whole blocks. It keeps nothing of a request but keys and values in the request's own blocks."""

    anchored = False
    """Whether the block's first query, at the token just sampled, gives a draft too."""

    def __init__(self, context: DraftContext, network: BlockNetwork) -> None:
        self._context, self._network, self._mask = context, network, context.mask_token()
        most = context.spec.num_lookahead_tokens
        # To attention each query is a request of its own, as long as the block: so all see all.
        self._bench = Bench.allocate(context, width=most, alone=True)

    @classmethod
    def make(cls, context: DraftContext) -> "DFlashSpeculator":
        """Reads the draft's weights, or makes them from the seed."""
        context.refuse("xpress_topc")
        with HeadReader(context) as read:
            return cls(context, BlockNetwork(context, read))

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request; requests that want none only get their keys and values up to date."""
        draws = [self._context.draws(r) for r in step.requests]
        depth = [self._context.depth(r) for r in step.requests]
        with torch.no_grad():
            if draws:
                self._store(step)
            drafting = [(d, k) for d, k in zip(draws, depth, strict=True) if k]
            for group in self._groups(drafting):
                self._draft(step, group)
        return [d.proposal(None, self._context.spec.model.vocab_size) for d in draws]

    def forget(self, request: int) -> None:
        """Nothing is kept for a request alone."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights."""
        return {**self._bench.static_tensors(), **self._network.static_tensors()}

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The block's pass: `draft_pass`."""
        return self.draft_pass(key.bucket, key.k)

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens, in blocks of the requests' own where there are enough."""
        queries = self._queries(key.k)
        requests = example_requests(self._context.spec, key.bucket, queries, random.Random(variant))
        padding = [_PADDING] * (key.bucket * queries)
        self._bench.write(
            [row for r in requests for row in r.one_by_one()] if requests else padding
        )
        if requests:
            self._bench.buffers.context_lens.copy_in([queries] * key.bucket * queries)

    def draft_pass(self, bucket: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over the block's queries of `bucket` requests, on the buffers' content.

        Gives what the head scores [bucket * queries, H] and its logits [bucket * queries, V]. Shapes and addresses depend on
        the two numbers alone, so that a graph can hold the pass.
        """
        count = bucket * self._queries(k)
        scored = self._network.block(Rows.of(self._bench.buffers, count, count))
        return scored, self._network.logits(scored)

    def _queries(self, k: int) -> int:
        return k if self.anchored else k + 1

    def _store(self, step: TargetStep) -> None:
        assert step.aux is not None
        parts = [(r, last_computed(r) + 1) for r in step.requests]
        rows = self._bench.write(
            [
                RequestRows(tokens=[0] * r.count, position=r.first, blocks=r.blocks)
                for r in step.requests
            ]
        )
        states = features_of(step.aux, parts)
        assert states is not None
        self._network.store(self._network.fused(states), rows)

    def _groups(
        self, drafting: Sequence[tuple[Draws, int]]
    ) -> Iterator[Sequence[tuple[Draws, int]]]:
        """As many requests at once as the contract lets a draft pass hold."""
        most = self._context.spec.max_num_draft_seqs
        for first in range(0, len(drafting), most):
            yield drafting[first : first + most]

    def _draft(self, step: TargetStep, group: Sequence[tuple[Draws, int]]) -> None:
        key, deepest = key_for(step, len(group)), max(depth for _, depth in group)
        bucket, k = (len(group), deepest) if key is None else (key.bucket, key.k)
        rows, lens = [], []
        for d, depth in group:
            queries = self._queries(depth)
            block = self._block(d.request, queries)
            padding = self._queries(k) - queries
            rows += [*block, *[_PADDING] * padding]
            # Causal attention over the block's whole length, for each query: it sees those behind it too.
            lens += [*[last_computed(d.request) + 1 + queries] * queries, *[1] * padding]
        width = self._queries(k)
        nobody = (bucket - len(group)) * width
        self._bench.write([*rows, *[_PADDING] * nobody])
        self._bench.buffers.context_lens.copy_in([*lens, *[1] * nobody])
        scored, logits = self.draft_pass(bucket, k) if key is None else replay(step, key)
        for at, (d, depth) in enumerate(group):
            first = at * width + (0 if self.anchored else 1)
            mine = slice(first, first + depth)
            self._take(d, scored[mine], logits[mine])

    def _block(self, request: Computed, queries: int) -> list[RequestRows]:
        start = last_computed(request) + 1
        tokens = [request.tokens[-1], *[self._mask] * (queries - 1)]
        return [
            RequestRows(tokens=(token,), position=start + at, blocks=request.blocks)
            for at, token in enumerate(tokens)
        ]

    def _take(self, draws: Draws, scored: torch.Tensor, logits: torch.Tensor) -> None:
        """The drafts of one request from its rows: scored [drafts, H], logits [drafts, V]."""
        take_each([(draws, row) for row in range(len(logits))], logits, None)
