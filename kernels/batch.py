"""From requests to the rows of a step: tokens, positions, slots in the cache, lengths and starts. The plain reference."""

from typing import TYPE_CHECKING

import attrs

from graphspec.errors import KernelError, Problem

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True, eq=False)
class Requests:
    """What a step runs, by request. All tensors are int64 on one device.

    tokens: [tokens], those of all requests, one after another; cu_tokens: [requests + 1], 0, then their sums. firsts:
    [requests], the position of each one's first token. padding: [requests], rows to add behind its tokens, which are
    computed and ignored. blocks: [requests, width], the blocks of each in order, each of `block_size` slots; a request's
    blocks reach over its tokens. `rows` is the number of tokens and padding rows together. `fill_token`, `fill_position` and
    `fill_slot` are what padding rows hold.
    """

    tokens: "torch.Tensor"
    cu_tokens: "torch.Tensor"
    firsts: "torch.Tensor"
    padding: "torch.Tensor"
    blocks: "torch.Tensor"
    rows: int
    block_size: int
    fill_token: int = 0
    fill_position: int = 0
    fill_slot: int = 0

    @property
    def count(self) -> int:
        """How many requests there are."""
        return int(self.firsts.shape[0])


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """What a step reads. token_ids, positions, slots: [rows]; context_lens: [requests], the position behind each one's last
    row; query_starts: [requests + 1], where the rows of each begin. All int64."""

    token_ids: "torch.Tensor"
    positions: "torch.Tensor"
    slots: "torch.Tensor"
    context_lens: "torch.Tensor"
    query_starts: "torch.Tensor"


def rows_for(requests: Requests, into: Rows | None) -> Rows:
    """Where the rows of `requests` go: `into`, or new tensors. Raises `KernelError` for shapes or types that do not fit."""
    import torch

    if into is not None:
        _check(requests, into)
        return into
    device, count = requests.tokens.device, requests.count

    def empty(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int64, device=device)

    made = Rows(
        token_ids=empty(requests.rows),
        positions=empty(requests.rows),
        slots=empty(requests.rows),
        context_lens=empty(count),
        query_starts=empty(count + 1),
    )
    _check(requests, made)
    return made


def prepare(requests: Requests, into: Rows | None = None) -> Rows:
    """The rows of a step, written into `into` where that is given. A token at position p of a request is at slot
    ``blocks[p // block_size] * block_size + p % block_size``. Raises `KernelError` for tensors of other shapes or types; on
    a device it waits for every value."""
    made = rows_for(requests, into)
    r = requests
    row = 0
    made.query_starts[0] = 0
    for at in range(r.count):
        first, end = int(r.cu_tokens[at]), int(r.cu_tokens[at + 1])
        for i in range(end - first):
            position = int(r.firsts[at]) + i
            block = int(r.blocks[at, position // r.block_size])
            made.token_ids[row] = r.tokens[first + i]
            made.positions[row] = position
            made.slots[row] = block * r.block_size + position % r.block_size
            row += 1
        for _ in range(int(r.padding[at])):
            made.token_ids[row] = r.fill_token
            made.positions[row] = r.fill_position
            made.slots[row] = r.fill_slot
            row += 1
        made.query_starts[at + 1] = row
        made.context_lens[at] = int(r.firsts[at]) + row - int(made.query_starts[at])
    return made


def _check(requests: Requests, rows: Rows) -> None:
    import torch

    r, count, tokens = requests, requests.count, requests.tokens.numel()
    width = r.blocks.shape[-1] if r.blocks.dim() else 0
    wanted = (
        ("tokens", r.tokens, (tokens,)),
        ("cu_tokens", r.cu_tokens, (count + 1,)),
        ("firsts", r.firsts, (count,)),
        ("padding", r.padding, (count,)),
        ("blocks", r.blocks, (count, width)),
        ("token_ids", rows.token_ids, (r.rows,)),
        ("positions", rows.positions, (r.rows,)),
        ("slots", rows.slots, (r.rows,)),
        ("context_lens", rows.context_lens, (count,)),
        ("query_starts", rows.query_starts, (count + 1,)),
    )
    device = r.tokens.device
    problems = [
        Problem(
            where=f"prepare({name})",
            found=f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}",
            wanted=f"torch.int64 {list(shape)} on {device}, contiguous",
        )
        for name, tensor, shape in wanted
        if tensor.shape != shape
        or tensor.dtype != torch.int64
        or tensor.device != device
        or not tensor.is_contiguous()
    ]
    if r.rows < tokens or r.block_size < 1:
        problems.append(
            Problem(
                where="prepare",
                found=f"{r.rows} rows for {tokens} tokens, blocks of {r.block_size}",
                wanted="a row for each token, and blocks of at least one slot",
            )
        )
    if problems:
        raise KernelError(problems)
