"""Trees of drafts in a step: where their rows stand, what they do not see, and where the keys and values of the kept ones go.

Row 0 of a request is its last token, and each draft is a row behind it. Rows take the slots behind one another, in their
order, while their positions are those of their depths. So what is kept of a tree may lie apart, and is moved together.
"""

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from graphspec.kernels.tree import seen_rows, tree_depths


@attrs.frozen(kw_only=True, eq=False)
class TreeRows:
    """unseen [rows of the step, width] bool: the new tokens of its request that a row does not see; `rows` [drafts and roots]
    int64 are those of trees, `positions` int64 where they stand."""

    unseen: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor


def rows_of_trees(requests: Sequence[tuple[int, int, Sequence[int]]], width: int) -> TreeRows:
    """The rows of a step of `requests`, each with its first position, its number of rows, padding included, and the parents
    of its drafts; empty for a request without a tree, whose rows see all before them."""
    unseen = np.zeros((sum(rows for _, rows, _ in requests), width), dtype=np.bool_)
    at: list[int] = []
    positions: list[int] = []
    first = 0
    for position, rows, parents in requests:
        if parents:
            mine = len(parents) + 1
            unseen[first : first + mine, :mine] = ~seen_rows(parents)
            at += range(first, first + mine)
            positions += [position + depth for depth in tree_depths(parents)]
        first += rows
    return TreeRows(
        unseen=torch.from_numpy(unseen),
        rows=torch.tensor(at, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
    )


def rows_in_order(
    requests: Sequence[tuple[int, int, Sequence[int] | None]],
) -> Sequence[int] | None:
    """Rows of a step in the order of positions, one request after another: of each its first row, how many of its positions
    there are, and the drafts kept of a tree, or None for a chain. None where all of a request's lie behind its first already.

    >>> rows_in_order([(0, 2, None), (5, 3, (1, 4))])
    [0, 1, 5, 7, 10]
    >>> rows_in_order([(0, 2, None), (5, 3, (0, 1))])
    """
    in_order = [
        (first, range(count) if kept is None else [0, *(draft + 1 for draft in kept)][:count])
        for first, count, kept in requests
    ]
    if all(list(rows) == list(range(len(rows))) for _, rows in in_order):
        return None
    return [first + row for first, rows in in_order for row in rows]


@attrs.frozen(kw_only=True)
class Path:
    """The drafts that were kept of one request's tree. `position` is that of row 0, whose slot the drafts' lie behind."""

    position: int
    blocks: Sequence[int]
    kept: Sequence[int]


def move_kept(cache: torch.Tensor, paths: Sequence[Path]) -> None:
    """Moves keys and values of kept drafts to the slots of their positions, in every layer.

    cache: [layers, 2, blocks, block_size, ...]. Keys are rotated by position already, so they are right as they are.
    """
    size, sources, targets = cache.shape[3], [], []
    for path in paths:
        for at, draft in enumerate(path.kept):
            if draft != at:
                sources.append(_slot(path, 1 + draft, size))
                targets.append(_slot(path, 1 + at, size))
    if sources:
        slots = cache.flatten(2, 3)
        # All are read before any is written: one draft's slot may be another's source.
        moved = slots[:, :, torch.tensor(sources, device=cache.device)]
        slots[:, :, torch.tensor(targets, device=cache.device)] = moved


def _slot(path: Path, ahead: int, size: int) -> int:
    block, inside = divmod(path.position + ahead, size)
    return path.blocks[block] * size + inside
