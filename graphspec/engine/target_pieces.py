"""The target's step in pieces: what lies between two attentions is one piece, which a graph of any number of tokens can hold.

    piece 0        embedding; norm, q, k and v of layer 0
    attention 0    over the rows and requests that there are: not captured, it writes keys and values
    piece i        output and MLP of layer i - 1; norm, q, k and v of layer i
    attention i
    piece last     output and MLP of the last layer

Pieces share static buffers and nothing else. Rows of padding run through the pieces and through no attention, so that they
have no slot, no block and no request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import attrs
import torch
from torch.nn import functional as F

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.capture.keys import CaptureKey
from graphspec.capture.pieces import Piece
from graphspec.engine.attention import paged_attention
from graphspec.engine.buffers import RequestRows, StepBuffers
from graphspec.engine.weights import Weights
from graphspec.resolve.spec import EngineSpec

_LARGE = 1e4
"""Unlike any activation, and within every float type."""


@attrs.frozen(kw_only=True, eq=False)
class Work:
    """What pieces hand on, for the most tokens of a step.

    hidden [tokens, H]: the residual stream; q [tokens, heads, D], k and v [tokens, kv_heads, D]; attended [tokens, heads * D];
    aux [tokens, layers * H]: outputs of the auxiliary layers side by side, None where none is asked for.
    """

    hidden: StaticBuffer
    q: StaticBuffer
    k: StaticBuffer
    v: StaticBuffer
    attended: StaticBuffer
    aux: StaticBuffer | None

    @classmethod
    def allocate(cls, spec: EngineSpec, aux_layers: int, *, debug_padding: bool) -> "Work":
        """Zeroed buffers."""
        m, tokens = spec.model, spec.scheduler.max_num_batched_tokens
        dtype, device = getattr(torch, m.dtype.value), spec.device.target.value

        def buffer(name: str, *shape: int) -> StaticBuffer:
            zeros = torch.zeros((tokens, *shape), dtype=dtype, device=device)
            padding = Padding(poison=_LARGE, unread=_LARGE)
            return StaticBuffer(f"pieces.{name}", zeros, padding, debug=debug_padding)

        width = m.hidden_size
        return cls(
            hidden=buffer("hidden", width),
            q=buffer("q", m.num_attention_heads, m.head_dim),
            k=buffer("k", m.num_key_value_heads, m.head_dim),
            v=buffer("v", m.num_key_value_heads, m.head_dim),
            attended=buffer("attended", m.num_attention_heads * m.head_dim),
            aux=buffer("aux", aux_layers * width) if aux_layers else None,
        )

    @cached_property
    def all(self) -> Sequence[StaticBuffer]:
        """Every buffer."""
        return [b for b in attrs.astuple(self, recurse=False) if b is not None]


@attrs.frozen(kw_only=True)
class Units:
    """The compiled units, each of which returns a list of tensors."""

    attention_input: Callable[..., Any]
    attention_output: Callable[..., Any]


class TargetPieces:
    """Steps of any shape in pieces, on the step's buffers and `Work` of its own."""

    def __init__(
        self,
        spec: EngineSpec,
        weights: Weights,
        units: Units,
        buffers: StepBuffers,
        cache: torch.Tensor,
        aux_layers: Sequence[int],
        *,
        debug_padding: bool = False,
    ) -> None:
        self._weights, self._units, self._buffers, self._cache = weights, units, buffers, cache
        self._aux_layers = tuple(aux_layers)
        self.work = Work.allocate(spec, len(self._aux_layers), debug_padding=debug_padding)
        # What attention between pieces runs over. The host's part of the step, as the buffers are the device's.
        self._rows = self._requests = 0

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """What pieces read and write beside the step's buffers, the cache and the weights."""
        return {buffer.name: buffer.tensor for buffer in self.work.all}

    def write(self, requests: Sequence[RequestRows], bucket: int) -> int:
        """Copies a step in and pads it to `bucket` tokens; returns its number of rows."""
        rows = self._buffers.write(requests)
        for buffer in (self._buffers.token_ids, self._buffers.positions):
            buffer.pad(rows, bucket)
        self.work.attended.pad(rows, bucket)
        self._rows, self._requests = rows, len(requests)
        return rows

    def fill(self, bucket: int, made: torch.Generator) -> None:
        """Random content of `bucket` rows in place of what other pieces hand on, so that each piece can be run alone."""
        for buffer in self.work.all:
            rows = buffer.tensor[:bucket]
            rows.copy_(torch.rand(rows.shape, generator=made) - 0.5)

    def pieces(self, key: CaptureKey) -> Sequence[Piece]:
        """The parts of a step of `key.bucket` tokens. The last returns hidden [bucket, H] and, if asked for, aux."""
        layers = len(self._weights.layers)
        made = [Piece(run=self._first(key.bucket))]
        for at in range(layers):
            made.append(Piece(run=partial(self._attend, at), captured=False))
            made.append(Piece(run=self._after(at, key.bucket)))
        return made

    def _first(self, tokens: int) -> Callable[[], Sequence[torch.Tensor]]:
        ids, embedding = self._buffers.token_ids.tensor[:tokens], self._weights.embedding
        hidden = self.work.hidden.tensor[:tokens]
        project = self._input(0, tokens)

        def run() -> Sequence[torch.Tensor]:
            hidden.copy_(F.embedding(ids, embedding))
            return [hidden, *project(hidden)]

        return run

    def _after(self, at: int, tokens: int) -> Callable[[], Sequence[torch.Tensor]]:
        """From attention of layer `at` to that of the next."""
        # Views are made here, once: a recorded view would be one more operation of each replay.
        layer, finish = self._weights.unit_layers[at], self._units.attention_output
        hidden = self.work.hidden.tensor[:tokens]
        attended = self.work.attended.tensor[:tokens]
        place = self._aux_of(at, tokens)
        last = at + 1 == len(self._weights.layers)
        project = None if last else self._input(at + 1, tokens)
        aux = self.work.aux
        ends = [hidden] if aux is None else [hidden, aux.tensor[:tokens]]

        def run() -> Sequence[torch.Tensor]:
            (made,) = finish(
                attended, hidden, layer.w_o, layer.mlp_norm, layer.w_gate_up, layer.w_down
            )
            hidden.copy_(made)
            if place is not None:
                place.copy_(made)
            return ends if project is None else [hidden, *project(made)]

        return run

    def _input(self, at: int, tokens: int) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
        layer, project = self._weights.unit_layers[at], self._units.attention_input
        positions = self._buffers.positions.tensor[:tokens]
        into = [b.tensor[:tokens] for b in (self.work.q, self.work.k, self.work.v)]

        def run(hidden: torch.Tensor) -> Sequence[torch.Tensor]:
            made = project(hidden, positions, layer.attention_norm, layer.w_qkv)
            for held, new in zip(into, made, strict=True):
                held.copy_(new)
            return into

        return run

    def _aux_of(self, at: int, tokens: int) -> torch.Tensor | None:
        if self.work.aux is None or at not in self._aux_layers:
            return None
        width, place = self._weights.embedding.shape[1], self._aux_layers.index(at)
        return self.work.aux.tensor[:tokens, place * width : (place + 1) * width]

    def _attend(self, at: int) -> Sequence[torch.Tensor]:
        rows, requests, w, b = self._rows, self._requests, self.work, self._buffers
        attended = w.attended.tensor[:rows]
        attended.copy_(
            paged_attention(
                w.q.tensor[:rows],
                w.k.tensor[:rows],
                w.v.tensor[:rows],
                self._cache[at],
                b.slots.tensor[:rows],
                b.block_tables.tensor[:requests],
                b.context_lens.tensor[:requests],
                b.query_starts.tensor[: requests + 1],
                None if b.unseen is None else b.unseen.tensor[:rows],
            )
        )
        return [attended]
