"""Drafts that form a tree: who may attend to whom, and which path the target keeps.

The rows of a request are its last token, row 0, and then its drafts in their order: draft i is row i + 1. A draft follows the
row of its parent, and -1 stands for row 0. Each parent comes before its children. Row r decides what follows it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from graphspec.errors import KernelError, Problem
from graphspec.kernels.verify import verify_drafts
from graphspec.kernels.verify_values import Sampling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


def check_tree(parents: Sequence[int]) -> None:
    """Raises `KernelError` for a draft whose parent does not come before it."""
    problems = [
        Problem(
            where=f"parents[{at}]",
            found=str(parent),
            wanted=f"-1, or a draft before it: at most {at - 1}",
        )
        for at, parent in enumerate(parents)
        if not -1 <= parent < at
    ]
    if problems:
        raise KernelError(problems)


def tree_depths(parents: Sequence[int]) -> list[int]:
    """By row, how far its position is behind that of row 0: the position embedding of a draft is that of its depth.

    >>> tree_depths([-1, -1, 0])
    [0, 1, 1, 2]
    """
    check_tree(parents)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return depths


def seen_rows(parents: Sequence[int]) -> "npt.NDArray[np.bool_]":
    """Whether row i attends to row j: numpy bool [drafts + 1, drafts + 1]. See `tree_mask`."""
    import numpy as np

    check_tree(parents)
    rows = len(parents) + 1
    # A row as the bits of one integer: 22 us for 63 drafts, and 170 us by rows of numpy.
    bits = [1]
    for at, parent in enumerate(parents):
        bits.append(bits[parent + 1] | 2 << at)
    size = -(-rows // 8)
    packed = np.frombuffer(b"".join(b.to_bytes(size, "little") for b in bits), dtype=np.uint8)
    seen: npt.NDArray[np.bool_] = np.unpackbits(
        packed.reshape(rows, size), axis=1, count=rows, bitorder="little"
    ).view(np.bool_)
    return seen


def tree_mask(parents: Sequence[int]) -> "torch.Tensor":
    """Whether row i attends to row j: bool [drafts + 1, drafts + 1]. To itself and to what it follows, and to no other
    draft; every row also attends to all of the request's context before row 0.

    For a chain this is the causal mask.
    """
    import torch

    return torch.from_numpy(seen_rows(parents))


def longest_path(parents: Sequence[int], drafts: Sequence[int], nexts: Sequence[int]) -> list[int]:
    """The drafts that the target keeps: indices along one path from row 0.

    `nexts` is the target's token after each row. A draft is kept if it is the token after its parent's row, and its parent
    is kept. Where siblings are equal, several paths are right, and the longest counts; of equally long ones the first.

    >>> longest_path([-1, -1, 1], [5, 6, 7], [6, 0, 7, 8])
    [1, 2]
    """
    check_tree(parents)
    depth = [0] * (len(parents) + 1)
    kept = [True] + [False] * len(parents)
    best = 0
    for at, parent in enumerate(parents):
        if kept[parent + 1] and drafts[at] == nexts[parent + 1]:
            kept[at + 1], depth[at + 1] = True, depth[parent + 1] + 1
            if depth[at + 1] > depth[best]:
                best = at + 1
    path = []
    while best:
        path.append(best - 1)
        best = parents[best - 1] + 1
    return path[::-1]


@attrs.frozen(kw_only=True)
class TreeVerdict:
    """What became of one request's tree.

    `kept` has the indices of accepted drafts, from the first on: their keys and values belong at the positions that follow
    row 0. `tokens` are these drafts and the target's token after them. `broken`: that row is no distribution, and gave no
    token.
    """

    kept: tuple[int, ...]
    tokens: tuple[int, ...]
    broken: bool = False


def verify_trees(
    logits: "torch.Tensor",
    drafts: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    vocab_size: int | None = None,
    implementation: str = "auto",
) -> list[TreeVerdict]:
    """The path that the target keeps of each request's tree, and one token of the target after it.

    logits: [rows, vocabulary] of all requests, one after another, each with one row more than drafts. `sampling`,
    `vocab_size` and `implementation` as for `verify_drafts`.

    Each row gets the target's own token, by the request's settings: the best one, or one that is sampled with the number of
    the request's seed and the row's position. Drafts are kept while they are that token. So the text is exactly what the
    target alone would write: token for token where it is greedy, and in distribution where it samples, whatever the drafts
    are, as long as they do not depend on the seed's numbers for these positions. Rows of one depth share a number, and only
    one row of a depth is on the path. For drafts that are sure this keeps as many as any lossless rule that asks one draft
    after another; for drafts sampled from a q that is known, `verify_drafts` over a chain keeps more.

    Raises `KernelError` for arguments that do not fit each other.
    """
    import torch

    sizes = [len(p) + 1 for p in parents]
    _check(logits, drafts, parents, sampling, sizes)
    owner = torch.repeat_interleave(
        torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64)
    )
    owner = owner.to(logits.device)
    depths = torch.tensor([d for p in parents for d in tree_depths(p)], dtype=torch.int64)
    by_row = {a.name: getattr(sampling, a.name)[owner] for a in attrs.fields(Sampling)}
    by_row["position"] = by_row["position"] + depths.to(logits.device)
    verdict = verify_drafts(
        logits,
        torch.empty(0, dtype=torch.int64, device=logits.device),
        torch.zeros(len(owner) + 1, dtype=torch.int64, device=logits.device),
        sampling=Sampling(**by_row),
        vocab_size=vocab_size,
        max_drafts=0,
        implementation=implementation,
    )
    nexts, broken = verdict.tokens[:, 0].tolist(), verdict.broken.tolist()
    results, first = [], 0
    for ids, tree, size in zip(drafts, parents, sizes, strict=True):
        results.append(
            verdict_on(ids, tree, nexts[first : first + size], broken[first : first + size])
        )
        first += size
    return results


def verdict_on(
    drafts: Sequence[int], parents: Sequence[int], nexts: Sequence[int], broken: Sequence[bool]
) -> TreeVerdict:
    """What becomes of one tree, where `nexts` has the target's token after each row, and `broken` says which rows have none.

    >>> verdict_on([5, 6, 7], [-1, -1, 1], [6, 0, 7, 8], [False] * 4).tokens
    (6, 7, 8)
    """
    # A padded draft is -1, and so is the token of a row that is broken: neither is ever equal to the other.
    tokens = [-2 if b else n for n, b in zip(nexts, broken, strict=True)]
    path = longest_path(parents, drafts, tokens)
    last = path[-1] + 1 if path else 0
    kept = [drafts[at] for at in path]
    return TreeVerdict(
        kept=tuple(path),
        tokens=tuple(kept if broken[last] else [*kept, nexts[last]]),
        broken=broken[last],
    )


def _check(
    logits: "torch.Tensor",
    drafts: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    sampling: Sampling,
    sizes: Sequence[int],
) -> None:
    problems = []
    if [len(d) for d in drafts] != [len(p) for p in parents]:
        problems.append(
            Problem(
                where="verify_trees(parents)",
                found=f"trees of {[len(p) for p in parents]} drafts",
                wanted=f"of {[len(d) for d in drafts]}",
            )
        )
    if logits.dim() != 2 or logits.shape[0] != sum(sizes):
        problems.append(
            Problem(
                where="verify_trees(logits)",
                found=str(list(logits.shape)),
                wanted=f"[{sum(sizes)}, vocabulary]: a row for each draft, and one more a request",
            )
        )
    if len(sizes) != sampling.temperature.shape[0]:
        problems.append(
            Problem(
                where="verify_trees(sampling)",
                found=f"{sampling.temperature.shape[0]} requests",
                wanted=str(len(sizes)),
            )
        )
    if problems:
        raise KernelError(problems)
