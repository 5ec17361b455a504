"""Trees of drafts: the mask equals paths run alone, and what is kept is what the target alone would write."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from graphspec.errors import KernelError
from graphspec.kernels.tree import longest_path, tree_depths, tree_mask, verify_trees
from graphspec.kernels.verify_values import Sampling

TREE = [-1, -1, 0, 0, 1, 2]
"""Two drafts after the last token; two after the first of them, one after the second; one more below the third."""


def random_tree(rng, size):
    return [rng.randint(-1, at - 1) for at in range(size)]


def path_to(parents, row):
    path = [row]
    while row:
        row = parents[row - 1] + 1
        path.append(row)
    return path[::-1]


def test_the_mask_by_hand():
    """Row 4 is draft 3, which follows draft 0."""
    mask = tree_mask(TREE)
    assert mask[4].nonzero().flatten().tolist() == [0, 1, 4]
    assert mask[6].nonzero().flatten().tolist() == [0, 1, 3, 6]
    assert tree_depths(TREE) == [0, 1, 1, 2, 2, 2, 3]


def test_the_mask_of_a_chain_is_causal():
    """A chain is a tree."""
    assert torch.equal(tree_mask([-1, 0, 1]), torch.ones(4, 4, dtype=torch.bool).tril())
    assert tree_mask([]).tolist() == [[True]]


@pytest.mark.parametrize("seed", range(10))
def test_attention_under_the_mask_equals_each_path_alone(seed):
    """What a row sees through the mask is its path, at the positions of their depths."""
    rng = random.Random(seed)
    parents = random_tree(rng, rng.randint(1, 9))
    rows, context = len(parents) + 1, 3
    made = torch.Generator().manual_seed(seed)
    # A stand-in for rotary embeddings: keys depend on where a row stands.
    at = torch.tensor([*range(-context, 0), *tree_depths(parents)], dtype=torch.float64)
    q, k, v = torch.randn(3, context + rows, 4, generator=made, dtype=torch.float64)
    k = k + torch.sin(at)[:, None]
    q = q + torch.cos(at)[:, None]

    def attend(queries, keys, values, mask):
        scores = (queries @ keys.T).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ values

    mask = torch.cat([torch.ones(rows, context, dtype=torch.bool), tree_mask(parents)], dim=1)
    together = attend(q[context:], k, v, mask)
    for row in range(rows):
        path = [*range(context), *(context + r for r in path_to(parents, row))]
        causal = torch.ones(len(path), len(path), dtype=torch.bool).tril()
        alone = attend(q[path], k[path], v[path], causal)[-1]
        torch.testing.assert_close(together[row], alone)


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1], [-1, 0, 3]])
def test_a_parent_that_does_not_come_first_is_refused(parents):
    """Also one that is a draft's own child."""
    for function in (tree_mask, tree_depths):
        with pytest.raises(KernelError, match="parents"):
            function(parents)


def test_the_longest_path_that_matches_is_kept():
    """Equal siblings make several paths; the first of the longest counts."""
    assert longest_path([-1, -1, 1], [5, 5, 6], [5, 0, 6, 0]) == [1, 2]
    assert longest_path([-1, -1], [5, 5], [5, 0, 0]) == [0]
    assert longest_path([-1, 0], [5, 6], [4, 6, 0]) == []
    assert longest_path([], [], [3]) == []


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_path_is_that_of_all_paths(seed):
    """Against every path of the tree, over three tokens, so that siblings are often equal."""
    rng = random.Random(seed)
    parents = random_tree(rng, rng.randint(0, 8))
    drafts = [rng.randint(0, 2) for _ in parents]
    nexts = [rng.randint(0, 2) for _ in range(len(parents) + 1)]
    paths = [path_to(parents, row) for row in range(len(parents) + 1)]
    right = [p for p in paths if all(drafts[b - 1] == nexts[a] for a, b in itertools.pairwise(p))]
    longest = max(len(p) for p in right)
    first = next(p for p in right if len(p) == longest)
    assert longest_path(parents, drafts, nexts) == [r - 1 for r in first[1:]]


def target_logits(context):
    """A target over four tokens that knows its whole context: the same for the same text, however it came about."""
    made = torch.Generator().manual_seed(hash(tuple(context)) % 2**31)
    return torch.randn(4, generator=made)


def logits_of(context, parents, drafts):
    rows = []
    for row in range(len(parents) + 1):
        text = [*context, *(drafts[r - 1] for r in path_to(parents, row)[1:])]
        rows.append(target_logits(text))
    return torch.stack(rows)


@pytest.mark.parametrize("seed", range(25))
def test_greedy_text_is_what_the_target_alone_writes(seed):
    """Token for token, and as far as any path of the tree agrees with it."""
    rng = random.Random(seed)
    parents = random_tree(rng, rng.randint(0, 12))
    drafts = [rng.randint(0, 3) for _ in parents]
    context = [rng.randint(0, 3)]
    (verdict,) = verify_trees(
        logits_of(context, parents, drafts),
        [drafts],
        [parents],
        sampling=Sampling.of(temperature=[0.0]),
        implementation="reference",
    )
    alone = list(context)
    for _ in range(14):
        alone.append(int(target_logits(alone).argmax()))
    written = alone[1:]
    assert list(verdict.tokens) == written[: len(verdict.tokens)]
    agreeing = (
        len(p) - 1
        for p in (path_to(parents, row) for row in range(len(parents) + 1))
        if [drafts[r - 1] for r in p[1:]] == written[: len(p) - 1]
    )
    assert len(verdict.kept) == max(agreeing) == len(verdict.tokens) - 1


def exact_target(context):
    rng = random.Random(str(context))
    weights = [rng.randint(0, 5) for _ in range(3)]
    weights[rng.randint(0, 2)] += 1
    return [Fraction(w, sum(weights)) for w in weights]


@pytest.mark.parametrize("seed", range(12))
def test_sampled_text_has_exactly_the_targets_distribution(seed):
    """Over every outcome of every row, in fractions: the first three tokens are distributed as the target's, where a shorter
    verdict goes on with the target alone. Trees with equal siblings and with tokens of no chance included."""
    rng = random.Random(seed)
    parents = random_tree(rng, 4)
    drafts = [rng.randint(0, 2) for _ in parents]
    texts = [tuple(drafts[r - 1] for r in path_to(parents, row)[1:]) for row in range(5)]
    found = Counter()
    for nexts in itertools.product(range(3), repeat=5):
        # Rows with equal text decide one position of one text, by one number: they agree.
        if any(
            a != b and texts[i] == texts[j]
            for (i, a), (j, b) in itertools.combinations(enumerate(nexts), 2)
        ):
            continue
        distinct = dict(zip(texts, nexts, strict=True))
        chance = math.prod(exact_target(t)[n] for t, n in distinct.items())
        path = longest_path(parents, drafts, nexts)
        last = path[-1] + 1 if path else 0
        found[(*(drafts[at] for at in path), nexts[last])] += chance
    emitted = Counter()
    for text, chance in found.items():
        for more in itertools.product(range(3), repeat=max(0, 3 - len(text))):
            whole = (*text, *more)
            rest = math.prod(exact_target(whole[:i])[whole[i]] for i in range(len(text), 3))
            emitted[whole[:3]] += chance * rest
    for whole in itertools.product(range(3), repeat=3):
        wanted = math.prod(exact_target(whole[:i])[whole[i]] for i in range(3))
        assert emitted[whole] == wanted, whole


def test_sampled_drafts_are_kept_as_often_as_the_target_says_them():
    """2000 seeds: a draft of chance p is kept in a share of p, within 4 standard deviations, which are less than 5%; so a
    share that is 10% off would be found."""
    n = 2000
    logits = torch.tensor([[0.0, 1.0, -1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 2.0]])
    verdicts = verify_trees(
        logits.repeat(n, 1),
        [[1, 0]] * n,
        [[-1, -1]] * n,
        sampling=Sampling.of(temperature=[1.0] * n, seed=list(range(n))),
        implementation="reference",
    )
    p = logits[0].softmax(-1).tolist()
    for draft, token in ((0, 1), (1, 0)):
        kept = sum(v.kept == (draft,) for v in verdicts) / n
        deviation = math.sqrt(p[token] * (1 - p[token]) / n)
        assert abs(kept - p[token]) < 4 * deviation < 0.05 < abs(kept - p[token] - 0.1)


def test_requests_of_a_batch_do_not_see_each_other():
    """Greedy and sampled trees of several sizes together give what each gives alone."""
    rng = random.Random(3)
    trees = [random_tree(rng, size) for size in (3, 0, 6, 1)]
    drafts = [[rng.randint(0, 3) for _ in t] for t in trees]
    logits = [logits_of([at], t, d) for at, (t, d) in enumerate(zip(trees, drafts, strict=True))]
    temperature, seed, position = [0.0, 1.0, 0.7, 1.0], [0, 5, 6, 7], [3, 4, 5, 6]

    def run(some):
        return verify_trees(
            torch.cat([logits[i] for i in some]),
            [drafts[i] for i in some],
            [trees[i] for i in some],
            sampling=Sampling.of(
                temperature=[temperature[i] for i in some],
                seed=[seed[i] for i in some],
                position=[position[i] for i in some],
            ),
            implementation="reference",
        )

    assert run(range(4)) == [run([i])[0] for i in range(4)]


def test_a_row_that_is_no_distribution_ends_the_path_without_a_token():
    """And one off the path does not matter."""
    logits = torch.zeros(3, 4)
    logits[0, 2] = logits[1, 1] = 9.0
    logits[2] = torch.nan
    greedy = {"sampling": Sampling.of(temperature=[0.0]), "implementation": "reference"}
    (off,) = verify_trees(logits, [[2, 1]], [[-1, -1]], **greedy)
    assert (off.kept, off.tokens, off.broken) == ((0,), (2, 1), False)
    (on,) = verify_trees(logits, [[2, 1]], [[-1, 0]], **greedy)
    assert (on.kept, on.tokens, on.broken) == ((0, 1), (2, 1), True)


def test_a_padded_draft_is_never_kept():
    """-1 is no token, also after a row that gave none."""
    logits = torch.full((2, 4), torch.nan)
    greedy = {"sampling": Sampling.of(temperature=[0.0]), "implementation": "reference"}
    (verdict,) = verify_trees(logits, [[-1]], [[-1]], **greedy)
    assert (verdict.kept, verdict.tokens, verdict.broken) == ((), (), True)


def test_arguments_that_do_not_fit_are_named():
    """All of them at once."""
    with pytest.raises(KernelError) as raised:
        verify_trees(
            torch.zeros(5, 4), [[1, 2]], [[-1]], sampling=Sampling.of(temperature=[0.0, 0.0])
        )
    assert len(raised.value.problems) == 3
