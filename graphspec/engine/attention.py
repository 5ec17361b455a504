"""Attention over the paged KV cache: one opaque operation, so that a whole step can be captured.

Outside, nobody reads lengths or block tables. Inside, the kernel does: on a CPU it reads them as numbers, on a GPU
it works on tensors of static shape.
"""

from typing import Any

import torch

SCHEMA = (
    "paged_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) cache, Tensor slots, Tensor block_tables, "
    "Tensor context_lens, Tensor query_starts, Tensor? unseen=None) -> Tensor"
)
_library = torch.library.Library("graphspec", "FRAGMENT")
_library.define(SCHEMA)


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    unseen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Writes `k` and `v` into the cache, then attends causally; returns [tokens, heads * head_dim].

    q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; cache: [2, blocks, block_size, kv_heads,
    head_dim]; slots: [tokens] int64, position in the cache of each new token; block_tables: [requests, width] int64;
    context_lens: [requests] int64, tokens of each request with the new ones; query_starts: [requests + 1] int64, first
    row of each request in q; unseen: [tokens, any] bool, the new tokens of its own request that a row does not attend to,
    of those before it in the order of slots: beside it in a tree of drafts.
    """
    out: torch.Tensor = torch.ops.graphspec.paged_attention.default(
        q, k, v, cache, slots, block_tables, context_lens, query_starts, unseen
    )
    return out


def _write(k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    for new, part in ((k, cache[0]), (v, cache[1])):
        part.view(-1, *part.shape[2:]).index_copy_(0, slots, new)


def attend_by_request(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    unseen: torch.Tensor | None = None,
) -> torch.Tensor:
    """The CPU kernel: requests of equal rows and similar context together, others one after another."""
    _write(k, v, cache, slots)
    starts, lens = query_starts.tolist(), context_lens.tolist()
    if unseen is not None and not bool(unseen.any()):
        unseen = None
    widest, count = max(lens), len(lens)
    uniform = starts == list(range(0, starts[-1] + 1, max(1, starts[1])))
    # Together each request pays for the longest context; that is worth it up to about twice the work.
    if uniform and widest * count <= 2 * sum(lens):
        return _attend(q, cache, block_tables, context_lens, widest, count, unseen)
    out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
    for request, context in enumerate(lens):
        first, last = starts[request], starts[request + 1]
        if last > first:
            one = slice(request, request + 1)
            beside = None if unseen is None else unseen[first:last]
            out[first:last] = _attend(
                q[first:last], cache, block_tables[one], context_lens[one], context, 1, beside
            )
    return out


def _attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    widest: int,
    count: int,
    unseen: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of `count` requests with equally many rows over contexts of at most `widest` tokens."""
    tokens, heads, head_dim = q.shape
    kv_heads, block_size = cache.shape[3], cache.shape[2]
    rows, shared = tokens // count, heads // kv_heads
    blocks = block_tables[:, : -(-widest // block_size)].reshape(-1)
    keys, values = (
        part.index_select(0, blocks).view(count, -1, kv_heads, head_dim)[:, :widest].transpose(1, 2)
        for part in (cache[0], cache[1])
    )
    # Heads that share a key head become rows of one product.
    grouped = q.view(count, rows, kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(
        grouped.reshape(count, kv_heads, shared * rows, head_dim), keys.transpose(2, 3)
    ).mul_(head_dim**-0.5)
    if rows > 1 or count > 1:
        positions = context_lens[:, None] - rows + torch.arange(rows)
        hidden = torch.arange(widest) > positions[:, :, None]
        if unseen is not None:
            hidden = hidden | _placed(unseen.view(count, rows, -1), context_lens - rows, widest)
        scores.view(count, kv_heads, shared, rows, widest).masked_fill_(
            hidden[:, None, None], float("-inf")
        )
    mixed = torch.matmul(torch.softmax(scores, dim=-1), values)
    return (
        mixed.view(count, kv_heads, shared, rows, head_dim)
        .permute(0, 3, 1, 2, 4)
        .reshape(tokens, heads * head_dim)
    )


def _placed(unseen: torch.Tensor, first: torch.Tensor, widest: int) -> torch.Tensor:
    """`unseen` [requests, rows, any] in columns of the context [requests, rows, widest], from column `first` [requests] on."""
    requests, rows, width = unseen.shape
    columns = first[:, None, None] + torch.arange(width)
    context = torch.zeros(requests, rows, widest + width, dtype=torch.bool)
    context.scatter_(2, columns.expand(requests, rows, width), unseen)
    return context[..., :widest]


def attend_static(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    unseen: torch.Tensor | None = None,
) -> torch.Tensor:
    """The GPU kernel: every shape static, nothing read by the host, so it can be captured.

    Each token attends over the whole width of its request's block table under a mask: plain torch operations, memory
    tokens x width x block_size x kv_heads x head_dim.
    """
    _write(k, v, cache, slots)
    tokens, heads, head_dim = q.shape
    kv_heads, block_size = cache.shape[3], cache.shape[2]
    rows = torch.arange(tokens, device=q.device)
    request = torch.searchsorted(query_starts[1:], rows, right=True)
    request = request.clamp_max(block_tables.shape[0] - 1)
    position = context_lens[request] - query_starts[request + 1] + rows
    table = block_tables[request]
    keys, values = (
        part[table].view(tokens, -1, kv_heads, head_dim).permute(0, 2, 1, 3)
        for part in (cache[0], cache[1])
    )
    grouped = q.view(tokens, kv_heads, heads // kv_heads, head_dim)
    scores = torch.matmul(grouped, keys.transpose(2, 3)) * head_dim**-0.5
    columns = torch.arange(table.shape[1] * block_size, device=q.device)
    seen = columns <= position[:, None]
    if unseen is not None:
        # Negative for tokens that the context had before.
        among_new = columns - (position + query_starts[request] - rows)[:, None]
        width = unseen.shape[1]
        beside = unseen.gather(1, among_new.clamp(0, width - 1))
        seen = seen & ~(beside & (among_new >= 0) & (among_new < width))
    scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), values).reshape(tokens, heads * head_dim)


def _shape_only(q: torch.Tensor, *others: Any) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[1] * q.shape[2])


_library.impl("paged_attention", attend_by_request, "CPU")
_library.impl("paged_attention", attend_static, "CUDA")
_library.impl("paged_attention", _shape_only, "Meta")
