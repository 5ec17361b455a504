"""Static buffers of a decode step: allocated once at the largest size, written in place, never replaced."""

from collections.abc import Mapping, Sequence

import attrs
import torch

from graphspec.resolve.spec import EngineSpec

SCRATCH_BLOCK = 0
"""Block that padding rows write to and read from. No request ever owns it."""


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

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    block_size: int

    def by_name(self) -> Mapping[str, torch.Tensor]:
        """Every tensor, by name."""
        names = [a.name for a in attrs.fields(StepBuffers) if a.name != "block_size"]
        return {name: getattr(self, name) for name in names}

    def write(self, requests: Sequence[RequestRows]) -> int:
        """Copies a step in, and returns its number of rows. Everything is checked against the buffers' sizes by copy_."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        lens: list[int] = []
        starts = [0]
        width = self.block_tables.shape[1]
        tables = []
        for r in requests:
            rows = len(r.tokens) + r.padding
            at = range(r.position, r.position + rows)
            ids.extend([*r.tokens, *[0] * r.padding])
            positions.extend(at)
            slots.extend(self._slot(r, p) for p in at[: len(r.tokens)])
            slots.extend([SCRATCH_BLOCK] * r.padding)
            lens.append(r.position + rows)
            starts.append(starts[-1] + rows)
            tables.append([*r.blocks, *[SCRATCH_BLOCK] * (width - len(r.blocks))])
        _copy(self.token_ids, ids)
        _copy(self.positions, positions)
        _copy(self.slots, slots)
        _copy(self.context_lens, lens)
        _copy(self.query_starts, starts)
        self.block_tables[: len(tables)].copy_(torch.tensor(tables, dtype=torch.int64))
        return starts[-1]

    def _slot(self, request: RequestRows, position: int) -> int:
        return (
            request.blocks[position // self.block_size] * self.block_size
            + position % self.block_size
        )


def _copy(buffer: torch.Tensor, values: Sequence[int]) -> None:
    buffer[: len(values)].copy_(torch.tensor(values, dtype=torch.int64))


def allocate_buffers(spec: EngineSpec) -> StepBuffers:
    """Zeroed buffers for the widest step that `spec` allows."""
    device = spec.device.target.value
    tokens, requests = spec.scheduler.max_num_batched_tokens, spec.scheduler.max_num_seqs
    # Padding rows of a request at the length limit reach up to k positions past it.
    longest = spec.model.max_model_len + spec.num_speculative_tokens
    width = -(-longest // spec.kv_cache.block_size)

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return StepBuffers(
        token_ids=zeros(tokens),
        positions=zeros(tokens),
        slots=zeros(tokens),
        block_tables=zeros(requests, width),
        context_lens=zeros(requests),
        query_starts=zeros(requests + 1),
        block_size=spec.kv_cache.block_size,
    )


def allocate_cache(spec: EngineSpec) -> torch.Tensor:
    """Zeroed keys and values: [layers, 2, blocks, block_size, kv_heads, head_dim]. Zeros, so that masked rows stay finite."""
    m, kv = spec.model, spec.kv_cache
    return torch.zeros(
        m.num_hidden_layers,
        2,
        kv.num_blocks,
        kv.block_size,
        m.num_key_value_heads,
        m.head_dim,
        dtype=getattr(torch, m.dtype.value),
        device=spec.device.target.value,
    )
