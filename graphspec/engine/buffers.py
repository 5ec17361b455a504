"""Static buffers of a decode step: allocated once at the largest size, written in place, never replaced."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import torch

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.engine.block_pool import SCRATCH_BLOCK
from graphspec.engine.trees import rows_of_trees
from graphspec.errors import CaptureError, Problem
from graphspec.kernels.batch import Requests, Rows
from graphspec.kernels.registry import choose
from graphspec.resolve.spec import EngineSpec

_NOWHERE = 1 << 40
"""A position, length or row that no buffer has."""

_LARGE = 1e4
"""Within every float type, and far from what keys and values are."""


@attrs.frozen(kw_only=True)
class RequestRows:
    """One request's part of a step: its new tokens, the position of the first, and its blocks in order.

    `padding` rows at the end are computed and ignored; their keys and values go to the scratch block. `parents` are those of
    the tokens behind the first, where these are drafts that form a tree: a draft stands behind its parent, and sees no other
    branch. Empty for a chain.
    """

    tokens: Sequence[int]
    position: int
    blocks: Sequence[int]
    padding: int = 0
    parents: Sequence[int] = ()

    def one_by_one(self) -> Sequence["RequestRows"]:
        """Each token as a request of its own."""
        return [
            RequestRows(tokens=(token,), position=self.position + at, blocks=self.blocks)
            for at, token in enumerate(self.tokens)
        ]


def example_requests(
    spec: EngineSpec, count: int, rows: int, made: random.Random
) -> Sequence[RequestRows] | None:
    """`count` requests of `rows` random tokens, each in blocks of its own from the first on; None where there are too few.

    Rows that share the scratch block have to be equal then, or what they compute depends on their order.
    """
    each = -(-rows // spec.kv_cache.block_size)
    if count * each >= spec.kv_cache.num_blocks:
        return None
    return [
        RequestRows(
            tokens=[made.randrange(spec.model.vocab_size) for _ in range(rows)],
            position=0,
            blocks=range(1 + at * each, 1 + (at + 1) * each),
        )
        for at in range(count)
    ]


@attrs.frozen(kw_only=True, eq=False)
class StepBuffers:
    """Inputs of a step. The first rows are in use; what lies behind them is stale and not read. `prepare` is the kernel that
    makes the rows. `unseen` [rows, 1 + k] are the new tokens of its request that a row does not see, where drafts may form
    trees; else None."""

    token_ids: StaticBuffer
    positions: StaticBuffer
    slots: StaticBuffer
    block_tables: StaticBuffer
    context_lens: StaticBuffer
    query_starts: StaticBuffer
    unseen: StaticBuffer | None
    block_size: int
    prepare: Callable[[Requests, Rows], Rows]

    @property
    def all(self) -> Sequence[StaticBuffer]:
        """Every buffer."""
        held = (getattr(self, a.name) for a in attrs.fields(StepBuffers))
        return [one for one in held if isinstance(one, StaticBuffer)]

    def by_name(self) -> Mapping[str, torch.Tensor]:
        """Every tensor, by name."""
        return {buffer.name: buffer.tensor for buffer in self.all}

    def write(self, requests: Sequence[RequestRows]) -> int:
        """Copies a step in, and returns its number of rows. Raises `CaptureError` for more than the buffers hold."""
        width = self.block_tables.tensor.shape[1]
        self._check_blocks(requests)
        tables = [[*r.blocks, *[SCRATCH_BLOCK] * (width - len(r.blocks))] for r in requests]
        starts = [0, *itertools.accumulate(len(r.tokens) for r in requests)]
        padding = [r.padding for r in requests]
        self.block_tables.copy_in(_int64(tables))
        rows = starts[-1] + sum(padding)
        device = self.slots.tensor.device
        into = {}
        for name, count in (
            *(("token_ids", rows), ("positions", rows), ("slots", rows)),
            *(("context_lens", len(requests)), ("query_starts", len(requests) + 1)),
        ):
            buffer: StaticBuffer = getattr(self, name)
            buffer.leave(count)
            into[name] = buffer.tensor[:count]
        self.prepare(
            Requests(
                tokens=_int64([t for r in requests for t in r.tokens]).to(device),
                cu_tokens=_int64(starts).to(device),
                firsts=_int64([r.position for r in requests]).to(device),
                padding=_int64(padding).to(device),
                blocks=self.block_tables.tensor[: len(requests)],
                rows=rows,
                block_size=self.block_size,
                fill_token=int(self.token_ids.fill),
                fill_position=int(self.positions.fill),
                fill_slot=int(self.slots.fill),
            ),
            Rows(**into),
        )
        self.block_tables.leave(len(requests))
        self._write_trees(requests, rows)
        return rows

    def _write_trees(self, requests: Sequence[RequestRows], rows: int) -> None:
        """Positions of drafts by their depth, and what they do not see of the branches beside theirs."""
        if self.unseen is None:
            assert not any(r.parents for r in requests), "a tree, by a contract without them"
            return
        trees = rows_of_trees(
            [(r.position, len(r.tokens) + r.padding, r.parents) for r in requests],
            self.unseen.tensor.shape[1],
        )
        self.unseen.copy_in(trees.unseen)
        self.unseen.leave(rows)
        positions = self.positions.tensor
        positions.index_copy_(
            0, trees.rows.to(positions.device), trees.positions.to(positions.device)
        )

    def _check_blocks(self, requests: Sequence[RequestRows]) -> None:
        """A token past its request's blocks would be written to the scratch block, and be lost without a word."""
        width = self.block_tables.tensor.shape[1]
        problems = [
            Problem(
                where=f"request {at} of a step",
                found=f"{len(r.blocks)} blocks for positions below {r.position + len(r.tokens)}",
                wanted=f"a block of {self.block_size} slots for each position, and at most {width} blocks",
            )
            for at, r in enumerate(requests)
            if r.position + len(r.tokens) > len(r.blocks) * self.block_size or len(r.blocks) > width
        ]
        if problems:
            raise CaptureError(problems)


def _int64(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    # By way of numpy: torch takes each integer of a list apart.
    return torch.from_numpy(np.asarray(values, dtype=np.int64))


def allocate_buffers(spec: EngineSpec, *, debug_padding: bool = False) -> StepBuffers:
    """Zeroed buffers for the widest step that `spec` allows. `debug_padding` poisons what no request owns."""
    device = spec.device.target.value
    tokens, requests = spec.scheduler.max_num_batched_tokens, spec.scheduler.max_num_seqs
    # Padding rows of a request at the length limit reach up to k positions past it.
    longest = spec.model.max_model_len + spec.num_speculative_tokens
    block_size, blocks = spec.kv_cache.block_size, spec.kv_cache.num_blocks
    width = -(-longest // block_size)

    def buffer(
        name: str, *shape: int, poison: int = 0, unread: int, dtype: torch.dtype = torch.int64
    ) -> StaticBuffer:
        zeros = torch.zeros(shape, dtype=dtype, device=device)
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
        unseen=buffer("unseen", tokens, spec.uniform_decode_query_len, unread=1, dtype=torch.bool)
        if spec.drafts_in_trees
        else None,
        block_size=block_size,
        prepare=choose("batch", device=device).implementation.load(),
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
