"""The two attention kernels agree with plain attention and with each other."""

import pytest
import torch

from graphspec.engine.attention import attend_by_request, attend_static
from graphspec.engine.trees import rows_of_trees

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
KERNELS = [attend_by_request, attend_static]


def plain(q, keys, values, context):
    """Causal attention of one request in float64."""
    rows = q.shape[0]
    keys = keys.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    values = values.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * DIM**-0.5
    hidden = torch.arange(context) > torch.arange(context - rows, context)[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(rows, -1).float()


def batch(spans, seed=0):
    """Random requests as (context before, new rows), laid out over shuffled blocks."""
    torch.manual_seed(seed)
    blocks_each = max(-(-(before + rows) // BLOCK) for before, rows in spans)
    ids = torch.randperm(len(spans) * blocks_each) + 1
    tables = ids.view(len(spans), blocks_each)
    cache = torch.randn(2, len(spans) * blocks_each + 1, BLOCK, KV_HEADS, DIM)
    total = sum(rows for _, rows in spans)
    q, k, v = (
        torch.randn(total, HEADS, DIM),
        torch.randn(total, KV_HEADS, DIM),
        torch.randn(total, KV_HEADS, DIM),
    )
    slots, starts = [], [0]
    for r, (before, rows) in enumerate(spans):
        places = range(before, before + rows)
        slots.extend(int(tables[r, p // BLOCK]) * BLOCK + p % BLOCK for p in places)
        starts.append(starts[-1] + rows)
    lens = torch.tensor([before + rows for before, rows in spans])
    return q, k, v, cache, torch.tensor(slots), tables, lens, torch.tensor(starts)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "spans",
    [
        [(0, 1)],
        [(0, 7)],
        [(9, 5), (10, 5), (8, 5)],
        [(1, 3), (60, 3), (0, 3)],
        [(5, 1), (0, 9), (17, 4)],
        [(30, 1), (2, 1)],
    ],
)
def test_kernels_equal_plain_attention(kernel, spans):
    """Each kernel gives causal attention over the paged context, new tokens included."""
    q, k, v, cache, slots, tables, lens, starts = batch(spans)
    out = kernel(q, k, v, cache.clone(), slots, tables, lens, starts)
    written = cache.clone()
    for part, new in ((0, k), (1, v)):
        written[part].view(-1, KV_HEADS, DIM)[slots] = new
    for r, (before, rows) in enumerate(spans):
        context = before + rows
        first, last = int(starts[r]), int(starts[r + 1])
        keys, values = (
            written[part][tables[r]].reshape(-1, KV_HEADS, DIM)[:context] for part in (0, 1)
        )
        wanted = plain(q[first:last], keys, values, context)
        torch.testing.assert_close(out[first:last], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_new_keys_and_values_land_in_their_slots(kernel):
    """The cache afterwards differs from before in the given slots only."""
    q, k, v, cache, slots, tables, lens, starts = batch([(3, 2), (6, 2)])
    after = cache.clone()
    kernel(q, k, v, after, slots, tables, lens, starts)
    for part, new in ((0, k), (1, v)):
        flat = after[part].view(-1, KV_HEADS, DIM)
        assert torch.equal(flat[slots], new)
        untouched = torch.ones(flat.shape[0], dtype=torch.bool)
        untouched[slots] = False
        assert torch.equal(flat[untouched], cache[part].view(-1, KV_HEADS, DIM)[untouched])


TREES = [
    [(9, (-1, -1, 0, 0)), (3, (-1, 0, 1, 1))],
    [(9, (-1, -1, 0, 0)), (60, ())],
    [(0, (-1, -1, -1)), (17, (-1, 0, -1, 2)), (5, ())],
]
"""Requests as (context before, parents of drafts); those without drafts have a chain of nine rows."""


def path_to(parents, row):
    path = [row]
    while row:
        row = parents[row - 1] + 1
        path.append(row)
    return path[::-1]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("trees", TREES)
def test_a_row_of_a_tree_attends_to_its_context_and_its_path(kernel, trees):
    """Each gives what it gives alone behind its context and its path; requests without a tree are causal, also longer ones."""
    spans = [(before, len(parents) + 1 if parents else 9) for before, parents in trees]
    q, k, v, cache, slots, tables, lens, starts = batch(spans)
    rows = [
        (before, count, parents) for (before, count), (_, parents) in zip(spans, trees, strict=True)
    ]
    unseen = rows_of_trees(rows, 5).unseen
    out = kernel(q, k, v, cache.clone(), slots, tables, lens, starts, unseen)
    written = cache.clone()
    for part, new in ((0, k), (1, v)):
        written[part].view(-1, KV_HEADS, DIM)[slots] = new
    for r, (before, count, parents) in enumerate(rows):
        keys, values = (written[part][tables[r]].reshape(-1, KV_HEADS, DIM) for part in (0, 1))
        for row in range(count):
            path = path_to(parents, row) if parents else range(row + 1)
            seen = [*range(before), *(before + other for other in path)]
            mine = int(starts[r]) + row
            wanted = plain(q[mine : mine + 1], keys[seen], values[seen], len(seen))
            torch.testing.assert_close(out[mine : mine + 1], wanted, rtol=1e-5, atol=1e-5)
