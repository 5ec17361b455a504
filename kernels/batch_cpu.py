"""The rows of a step on the host: whole columns at once, some twenty operations of numpy whatever the batch."""

import numpy as np

from graphspec.kernels.batch import Requests, Rows, rows_for


def prepare(requests: Requests, into: Rows | None = None) -> Rows:
    """What `graphspec.kernels.batch.prepare` gives, for tensors on the host."""
    made = rows_for(requests, into)
    r = requests
    firsts, padding = r.firsts.numpy(), r.padding.numpy()
    cu_tokens = r.cu_tokens.numpy()
    tokens = cu_tokens[1:] - cu_tokens[:-1]
    rows = tokens + padding
    starts, lens = made.query_starts.numpy(), made.context_lens.numpy()
    starts[0] = 0
    np.cumsum(rows, out=starts[1:])
    np.add(firsts, rows, out=lens)
    ids, positions, slots = (t.numpy() for t in (made.token_ids, made.positions, made.slots))
    ids[:], positions[:], slots[:] = r.fill_token, r.fill_position, r.fill_slot
    if not r.tokens.numel():
        return made
    # A token's row is its place among tokens, and the padding of the requests before its own; its position counts from
    # the first token of its request.
    among = np.arange(len(r.tokens))
    place = among + (starts[:-1] - cu_tokens[:-1]).repeat(tokens)
    at = among + (firsts - cu_tokens[:-1]).repeat(tokens)
    ids[place] = r.tokens.numpy()
    positions[place] = at
    block, inside = np.divmod(at, r.block_size)
    owner = np.arange(r.count).repeat(tokens)
    slots[place] = r.blocks.numpy()[owner, block] * r.block_size + inside
    return made
