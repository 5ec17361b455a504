"""The largest logit over a vocabulary that is split between ranks, by exchanging two numbers a row instead of the row."""

from typing import TYPE_CHECKING

import attrs

from graphspec.errors import KernelError, Problem

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

EXACT_IDS = 1 << 24
"""float32 counts every integer below it. Ids travel beside logits, as float32."""


@attrs.frozen(kw_only=True)
class Shard:
    """The part of a vocabulary that a rank has the logits of: `first` is the id of its first column, `vocab_size` the number
    of ids of the whole vocabulary; columns at and behind it are padding.

    `scale` multiplies logits and `soft_cap` bounds them, as in ``scale * cap * tanh(x / cap)``: neither moves the largest of
    a rank, and both are applied before ranks compare, as where logits are used whole. Raises `KernelError` for a scale that
    is not positive, which would make the largest the smallest, and for a vocabulary whose ids float32 cannot count.
    """

    first: int
    vocab_size: int
    scale: float = 1.0
    soft_cap: float | None = None

    def __attrs_post_init__(self) -> None:
        problems = []
        if not self.scale > 0:
            problems.append(
                Problem(
                    where="local argmax: scale",
                    found=str(self.scale),
                    wanted="a positive number: any other turns the largest into the smallest",
                )
            )
        if self.soft_cap is not None and not self.soft_cap > 0:
            problems.append(
                Problem(
                    where="local argmax: soft_cap",
                    found=str(self.soft_cap),
                    wanted="a positive number, or none",
                )
            )
        if not 0 < self.vocab_size <= EXACT_IDS:
            problems.append(
                Problem(
                    where="local argmax: vocab_size",
                    found=str(self.vocab_size),
                    wanted=f"1 to {EXACT_IDS}: ids travel as float32, which counts no further",
                    hint="switch speculative.use_local_argmax_reduction off",
                )
            )
        if problems:
            raise KernelError(problems)


def local_best(logits: "torch.Tensor", shard: Shard) -> "torch.Tensor":
    """Value and id of the largest logit of each row, over this rank's columns: float32 [rows, 2].

    logits: [rows, columns]. The first of equal columns wins. NaN never does. A rank with nothing but padding gives -inf.
    """
    import torch

    values = logits.to(torch.float32)
    if shard.soft_cap is not None:
        values = shard.soft_cap * torch.tanh(values / shard.soft_cap)
    values = values * shard.scale
    values = values.masked_fill(values.isnan(), -torch.inf)
    real = min(max(shard.vocab_size - shard.first, 0), values.shape[1])
    if not real:
        nothing = torch.tensor([-torch.inf, 0.0], device=values.device)
        return nothing.expand(values.shape[0], 2).contiguous()
    best, at = values[:, :real].max(dim=1)
    return torch.stack([best, (at + shard.first).to(torch.float32)], dim=1)


def best_of(gathered: "torch.Tensor") -> "torch.Tensor":
    """Ids of the largest logits, int64 [rows], from what every rank has found: float32 [ranks, rows, 2]. The first rank of
    equal ones wins, which has the lower ids."""
    import torch

    rank = gathered[:, :, 0].argmax(dim=0)
    return gathered[rank, torch.arange(gathered.shape[1], device=gathered.device), 1].to(
        torch.int64
    )


def argmax_over_ranks(
    logits: "torch.Tensor", shard: Shard, group: "ProcessGroup | None" = None
) -> "torch.Tensor":
    """Ids of the largest logits over all ranks, int64 [rows], the same on each. Every rank of the group must call it, with
    equally many rows. 8 bytes a row and rank travel."""
    import torch
    import torch.distributed as dist

    mine = local_best(logits, shard)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine, group=group)
    return best_of(torch.stack(parts))
