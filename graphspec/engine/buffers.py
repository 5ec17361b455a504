"""Static buffers of a decode step: allocated once at the largest size, written in place, never replaced."""

from collections.abc import Mapping, Sequence

import attrs
import torch

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.engine.block_pool import SCRATCH_BLOCK
from graphspec.resolve.spec import EngineSpec

_NOWHERE = 1 << 40
"""A position, length or row that no buffer has."""

_LARGE = 1e4
"""Within every float type, and far from what keys and values are."""


@attrs.frozen(kw_only=True)
class RequestRows:
    """One request's part of a step: its new tokens, the position of the first, and its blocks in order.

    `padding` rows at the end are computed and ignored; their keys and values go to the scratch block.
    """

    tokens: Sequence[int]
    position: int
    blocks: Sequence[int]
    padding: int = 0


@attrs.frozen(kw_only=True, eq=False)
class StepBuffers:
    """Inputs of a step. The first rows are in use; what lies behind them is stale and not read."""

    token_ids: StaticBuffer
    positions: StaticBuffer
    slots: StaticBuffer
    block_tables: StaticBuffer
    context_lens: StaticBuffer
    query_starts: StaticBuffer
    block_size: int

    @property
    def all(self) -> Sequence[StaticBuffer]:
        """Every buffer."""
        names = [a.name for a in attrs.fields(StepBuffers) if a.name != "block_size"]
        return [getattr(self, name) for name in names]

    def by_name(self) -> Mapping[str, torch.Tensor]:
        """Every tensor, by name."""
        return {buffer.name: buffer.tensor for buffer in self.all}

    def write(self, requests: Sequence[RequestRows]) -> int:
        """Copies a step in, and returns its number of rows. Raises `CaptureError` for more than the buffers hold."""
        ids: list[float] = []
        positions: list[float] = []
        slots: list[float] = []
        lens: list[int] = []
        starts = [0]
        width = self.block_tables.tensor.shape[1]
        tables = []
        for r in requests:
            rows = len(r.tokens) + r.padding
            real = range(r.position, r.position + len(r.tokens))
            ids.extend([*r.tokens, *[self.token_ids.fill] * r.padding])
            positions.extend([*real, *[self.positions.fill] * r.padding])
            slots.extend([*(self._slot(r, p) for p in real), *[self.slots.fill] * r.padding])
            lens.append(r.position + rows)
            starts.append(starts[-1] + rows)
            tables.append([*r.blocks, *[SCRATCH_BLOCK] * (width - len(r.blocks))])
        for buffer, values in (
            (self.token_ids, ids),
            (self.positions, positions),
            (self.slots, slots),
            (self.context_lens, lens),
            (self.query_starts, starts),
            (self.block_tables, tables),
        ):
            buffer.copy_in(values)
            buffer.leave(len(values))
        return starts[-1]

    def _slot(self, request: RequestRows, position: int) -> int:
        return (
            request.blocks[position // self.block_size] * self.block_size
            + position % self.block_size
        )


def allocate_buffers(spec: EngineSpec, *, debug_padding: bool = False) -> StepBuffers:
    """Zeroed buffers for the widest step that `spec` allows. `debug_padding` poisons what no request owns."""
    device = spec.device.target.value
    tokens, requests = spec.scheduler.max_num_batched_tokens, spec.scheduler.max_num_seqs
    # Padding rows of a request at the length limit reach up to k positions past it.
    longest = spec.model.max_model_len + spec.num_speculative_tokens
    block_size, blocks = spec.kv_cache.block_size, spec.kv_cache.num_blocks
    width = -(-longest // block_size)

    def buffer(name: str, *shape: int, poison: int = 0, unread: int) -> StaticBuffer:
        zeros = torch.zeros(shape, dtype=torch.int64, device=device)
        return StaticBuffer(name, zeros, Padding(poison=poison, unread=unread), debug=debug_padding)

    return StepBuffers(
        token_ids=buffer(
            "token_ids", tokens, poison=spec.model.vocab_size - 1, unread=spec.model.vocab_size
        ),
        positions=buffer("positions", tokens, poison=longest - 1, unread=_NOWHERE),
        # Both lie in the scratch block.
        slots=buffer("slots", tokens, poison=block_size - 1, unread=blocks * block_size),
        block_tables=buffer("block_tables", requests, width, unread=blocks),
        context_lens=buffer("context_lens", requests, unread=_NOWHERE),
        query_starts=buffer("query_starts", requests + 1, unread=_NOWHERE),
        block_size=block_size,
    )


def allocate_cache(spec: EngineSpec, *, debug_padding: bool = False) -> torch.Tensor:
    """Zeroed keys and values: [layers, 2, blocks, block_size, kv_heads, head_dim]. Zeros, so that masked rows stay finite.

    With `debug_padding` they are large instead. Not NaN: a masked value is multiplied by an attention weight of 0, and
    0 times NaN is NaN, so attention may never meet one.
    """
    m, kv = spec.model, spec.kv_cache
    return torch.full(
        (
            m.num_hidden_layers,
            2,
            kv.num_blocks,
            kv.block_size,
            m.num_key_value_heads,
            m.head_dim,
        ),
        _LARGE if debug_padding else 0.0,
        dtype=getattr(torch, m.dtype.value),
        device=spec.device.target.value,
    )
