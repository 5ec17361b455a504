"""The rows of a step on the device, in Triton: one program for each request, and no value read back to the host.

How many tokens and how much padding a request has may be known on the device only. Nothing is specialised on, so that a
batch of one request runs the same code as any other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from graphspec.kernels.batch import Requests, Rows, rows_for

TILE = 128

_TENSORS = (
    *("tokens", "cu_tokens", "firsts", "padding", "blocks"),
    *("token_ids", "positions", "slots", "context_lens", "query_starts"),
)
_NUMBERS = ("requests", "width", "block_size", "fill_token", "fill_position", "fill_slot")
_ARGUMENTS = (*_TENSORS, *_NUMBERS)


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def expand(
    tokens,
    cu_tokens,
    firsts,
    padding,
    blocks,
    token_ids,
    positions,
    slots,
    context_lens,
    query_starts,
    requests,
    width,
    block_size,
    fill_token,
    fill_position,
    fill_slot,
    TILE: tl.constexpr,
):
    """Writes the rows of one request, its length, and where its rows begin."""
    request = tl.program_id(0)
    before = tl.zeros([TILE], tl.int64)
    for first in range(0, request, TILE):
        others = first + tl.arange(0, TILE)
        before += tl.load(padding + others, mask=others < request, other=0)
    begin = tl.load(cu_tokens + request)
    real = tl.load(cu_tokens + request + 1) - begin
    rows = real + tl.load(padding + request)
    start = begin + tl.sum(before, axis=0)
    position = tl.load(firsts + request)
    tl.store(query_starts + request, start)
    tl.store(context_lens + request, position + rows)
    if request == requests - 1:
        tl.store(query_starts + requests, start + rows)
    table = blocks + request.to(tl.int64) * width
    for first in range(0, rows, TILE):
        row = first + tl.arange(0, TILE)
        is_real = row < real
        at = position + row
        token = tl.load(tokens + begin + row, mask=is_real, other=0)
        block = tl.load(table + at // block_size, mask=is_real, other=0)
        slot = block * block_size + at % block_size
        inside = row < rows
        tl.store(token_ids + start + row, tl.where(is_real, token, fill_token), mask=inside)
        tl.store(positions + start + row, tl.where(is_real, at, fill_position), mask=inside)
        tl.store(slots + start + row, tl.where(is_real, slot, fill_slot), mask=inside)


def prepare(requests: Requests, into: Rows | None = None) -> Rows:
    """What `graphspec.kernels.batch.prepare` gives, for tensors on a GPU."""
    made = rows_for(requests, into)
    r = requests
    if not r.count:
        made.query_starts.zero_()
        return made
    expand[(r.count,)](
        *(r.tokens, r.cu_tokens, r.firsts, r.padding, r.blocks),
        *(made.token_ids, made.positions, made.slots, made.context_lens, made.query_starts),
        *(r.count, r.blocks.shape[1], r.block_size, r.fill_token, r.fill_position, r.fill_slot),
        TILE=TILE,
    )
    return made


def variants() -> Sequence[Mapping[str, Any]]:
    """Everything that `prepare` can launch: name, kernel, signature, constexprs."""
    return [
        {
            "name": "batch_expand",
            "kernel": expand,
            "signature": {**dict.fromkeys(_TENSORS, "*i64"), **dict.fromkeys(_NUMBERS, "i32")},
            "constexprs": {"TILE": TILE},
        }
    ]
