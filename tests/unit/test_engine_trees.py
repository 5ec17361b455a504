"""The rows of trees in a step: where they stand, what they do not see, and where what was kept of them goes."""

import random

import pytest
import torch

from graphspec.engine.sampling import accept_greedy, accept_greedy_tree
from graphspec.engine.trees import Path, move_kept, rows_in_order, rows_of_trees
from graphspec.errors import KernelError
from graphspec.kernels.tree import seen_rows, tree_mask

BLOCK = 4


def test_rows_stand_at_their_depths_behind_the_rows_before_them():
    """A chunk of three rows, a tree with a row of padding, a chain, and a tree again."""
    rows = rows_of_trees([(0, 3, ()), (7, 5, (-1, -1, 0)), (9, 2, ()), (4, 2, (-1,))], 4)
    assert rows.rows.tolist() == [3, 4, 5, 6, 10, 11]
    assert rows.positions.tolist() == [7, 8, 8, 9, 4, 5]
    assert rows.unseen.shape == (12, 4)
    # The second draft does not see the first, the third not the second; who comes later is hidden anyway.
    assert rows.unseen[5].tolist() == [False, True, False, True]
    assert rows.unseen[6].tolist() == [False, False, True, False]
    assert not rows.unseen[[0, 1, 2, 7, 8, 9]].any()


def test_a_row_sees_itself_and_its_path():
    """Bits and mask are the same thing, for trees of more than one byte of rows."""
    made = random.Random(1)
    for size in (0, 1, 7, 8, 30, 70):
        parents = [made.randint(-1, at - 1) for at in range(size)]
        seen = seen_rows(parents)
        for row in range(size + 1):
            wanted, at = {row}, row
            while at:
                at = parents[at - 1] + 1
                wanted.add(at)
            assert set(seen[row].nonzero()[0].tolist()) == wanted
        assert torch.equal(tree_mask(parents), torch.from_numpy(seen))


def test_a_tree_whose_parent_comes_later_is_refused():
    """No mask is made of it."""
    with pytest.raises(KernelError, match="parents"):
        rows_of_trees([(0, 3, (1, -1))], 3)


def test_kept_drafts_move_to_the_slots_of_their_positions_and_nothing_else_changes():
    """Over the end of a block, where the place of one is the source of another, for several requests at once."""
    cache = torch.arange(2 * 2 * 9 * BLOCK * 2.0).view(2, 2, 9, BLOCK, 2)
    before = cache.clone()
    paths = [
        Path(position=2, blocks=(3, 7, 1), kept=(1, 2, 6)),
        Path(position=5, blocks=(8, 2), kept=(0, 1)),
        Path(position=0, blocks=(5,), kept=(2,)),
    ]
    move_kept(cache, paths)

    def slot(path, ahead):
        at = path.position + ahead
        return path.blocks[at // BLOCK], at % BLOCK

    changed = torch.zeros(9, BLOCK, dtype=torch.bool)
    for path in paths:
        for at, draft in enumerate(path.kept):
            to, source = slot(path, 1 + at), slot(path, 1 + draft)
            assert torch.equal(cache[:, :, to[0], to[1]], before[:, :, source[0], source[1]])
            changed[to] = True
    assert torch.equal(cache[:, :, ~changed], before[:, :, ~changed])


def test_rows_are_gathered_only_where_they_lie_apart():
    """A chain, and a tree whose first branch was kept, need no copy."""
    assert rows_in_order([(0, 4, None), (6, 3, (0, 1)), (10, 1, ())]) is None
    assert rows_in_order([(0, 2, None), (6, 2, (3,)), (12, 2, (0, 4))]) == [0, 1, 6, 10, 12, 13]


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_as_a_tree_gives_what_the_chain_gives(seed):
    """Drafts, tokens, margins and where a row is no distribution."""
    made = random.Random(seed)
    drafts = [made.randint(0, 1) for _ in range(made.randint(1, 5))]
    best = [made.randint(0, 1) for _ in range(len(drafts) + 1)]
    margins = [made.choice([0.5, 1.5, float("nan")]) for _ in best]
    chain = accept_greedy(drafts, best, margins)
    tree = accept_greedy_tree(drafts, range(-1, len(drafts) - 1), best, margins)
    assert tree.kept == tuple(range(tree.right))
    assert (tree.tokens, tree.margins, tree.broken) == (chain.tokens, chain.margins, chain.broken)
