"""The executor: runs one step of the model on static buffers, eagerly or inside a capture."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from graphspec.capture.keys import CaptureKey
from graphspec.engine.attention import paged_attention
from graphspec.engine.buffers import RequestRows, allocate_buffers, allocate_cache
from graphspec.engine.weights import Weights
from graphspec.resolve.spec import EngineSpec


class Executor:
    """Weights, KV cache, buffers and artifacts of one replica. It is the step source that graphs are captured from.

    A step returns, for each of its rows: the best token id [rows], its logit [rows], and the margin to the second best
    [rows]. `debug_padding` poisons what no request owns: results of requests must not change by a bit.
    """

    def __init__(
        self,
        spec: EngineSpec,
        weights: Weights,
        artifacts: Mapping[str, Any],
        *,
        debug_padding: bool = False,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.buffers = allocate_buffers(spec, debug_padding=debug_padding)
        self.cache = allocate_cache(spec, debug_padding=debug_padding)
        self._input = artifacts["attention_input"]
        self._output = artifacts["attention_output"]
        self._head = artifacts["head"]

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, cache and weights: everything that a captured step has the addresses of."""
        return {**self.buffers.by_name(), "cache": self.cache, **self.weights.by_name}

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        """A step of `key` on pseudo-random tokens. For use before serving: it writes to the first blocks of the cache."""
        rows, spec = 1 + key.k, self.spec
        each = -(-rows // spec.kv_cache.block_size)
        if key.bucket * each >= spec.kv_cache.num_blocks:
            # Too few blocks for one's own each: rows that share the scratch block must be equal to be deterministic.
            self.buffers.write([self.padding_request(key.k)] * key.bucket)
            return
        made = random.Random(variant)
        requests = [
            RequestRows(
                tokens=[made.randrange(spec.model.vocab_size) for _ in range(rows)],
                position=0,
                blocks=range(1 + at * each, 1 + (at + 1) * each),
            )
            for at in range(key.bucket)
        ]
        self.buffers.write(requests)

    def padding_request(self, k: int) -> RequestRows:
        """A request of 1 + k rows that no result is read from."""
        return RequestRows(tokens=(), position=0, blocks=(), padding=1 + k)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """A uniform decode step of `key` on the buffers' content."""
        hidden = self._layers(key.tokens, key.bucket)
        return self._best(hidden)

    def run(self, requests: Sequence[RequestRows], rows: Sequence[int]) -> Sequence[torch.Tensor]:
        """Any step, without a graph: compiled pieces with attention between. Results for the given rows only."""
        count = self.buffers.write(requests)
        with torch.no_grad():
            hidden = self._layers(count, len(requests))
            chosen = torch.tensor(rows, dtype=torch.int64, device=hidden.device)
            return self._best(hidden.index_select(0, chosen))

    def logits(self, requests: Sequence[RequestRows]) -> torch.Tensor:
        """Logits [rows, vocabulary] of every row of a step."""
        count = self.buffers.write(requests)
        with torch.no_grad():
            hidden = self._layers(count, len(requests))
            out: torch.Tensor = self._head(hidden, self.weights.final_norm, self.weights.w_head)[0]
            return out

    def _layers(self, rows: int, requests: int) -> torch.Tensor:
        b, w = self.buffers, self.weights
        positions, slots = b.positions.tensor[:rows], b.slots.tensor[:rows]
        tables, lens = b.block_tables.tensor[:requests], b.context_lens.tensor[:requests]
        starts = b.query_starts.tensor[: requests + 1]
        hidden = F.embedding(b.token_ids.tensor[:rows], w.embedding)
        for layer, cache in zip(w.layers, self.cache, strict=True):
            q, k, v = self._input(hidden, positions, layer.attention_norm, layer.w_qkv)
            attended = paged_attention(q, k, v, cache, slots, tables, lens, starts)
            (hidden,) = self._output(
                attended, hidden, layer.w_o, layer.mlp_norm, layer.w_gate_up, layer.w_down
            )
        return hidden

    def _best(self, hidden: torch.Tensor) -> Sequence[torch.Tensor]:
        (logits,) = self._head(hidden, self.weights.final_norm, self.weights.w_head)
        values, ids = torch.topk(logits, 2, dim=-1)
        return [ids[:, 0], values[:, 0], values[:, 0] - values[:, 1]]
