"""Calls on a tensor of six numbers that no graph can repeat, each with what names it, and their legal neighbours."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

_library = torch.library.Library("graphspec_tape_test", "DEF")
_library.define("read_inside(Tensor x) -> Tensor")
_library.define("grow(Tensor x) -> Tensor")
_library.define("more(Tensor x) -> Tensor[]")
grown: list[None] = []


def _read_inside(x: torch.Tensor) -> torch.Tensor:
    # What a GPU kernel does: it reads its inputs as it pleases, and its output has a static shape.
    return torch.full((2,), float(sum(x.tolist())) + x[0].item())


def _grow(x: torch.Tensor) -> torch.Tensor:
    grown.append(None)
    return x.new_ones(len(grown))


def _more(x: torch.Tensor) -> list[torch.Tensor]:
    grown.append(None)
    return [x + 1 for _ in grown]


_library.impl("read_inside", _read_inside, "CompositeExplicitAutograd")
_library.impl("grow", _grow, "CompositeExplicitAutograd")
_library.impl("more", _more, "CompositeExplicitAutograd")
ops = torch.ops.graphspec_tape_test


ILLEGAL: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "item": (lambda x: x[0, 0].item(), "item"),
    "tolist": (lambda x: x.tolist(), "tolist"),
    "numpy": (lambda x: x.numpy(), "numpy"),
    "array": (lambda x: x.__array__(), "__array__"),
    "float": (lambda x: float(x[0, 0]), "__float__"),
    "int": (lambda x: int(x[0, 0]), "__int__"),
    "bool": (lambda x: bool(x[0, 0] > 0), "__bool__"),
    "branch": (lambda x: x if (x > 0).any() else x + 1, "__bool__"),
    "index by tensor": (lambda x: [1, 2][x[0, 0].long() - 1], "__index__"),
    "format": (lambda x: f"{x[0, 0]:.2f}", "_local_scalar_dense"),
    "print": (str, "__repr__"),
    "cpu": (lambda x: x.cpu(), "cpu"),
    "dlpack": (torch.from_dlpack, "__dlpack__"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "slice by tensor": (lambda x: x[: x[0, 0].long()], "_local_scalar_dense"),
    "nonzero": (torch.nonzero, "nonzero"),
    "where": (lambda x: torch.where(x > 2), "nonzero"),
    "masked_select": (lambda x: torch.masked_select(x, x > 2), "masked_select"),
    "boolean index": (lambda x: x[x > 2], "index"),
    "write by mask": (lambda x: x.index_put_((x > 2,), torch.zeros(4)), "index_put_"),
    "write one value by mask": (lambda x: x.index_put_((x > 2,), x[0, 0]), "index_put_"),
    "unique": (torch.unique, "unique"),
    "repeat": (lambda x: torch.repeat_interleave(x, x[:, 0].long(), dim=0), "repeat_interleave"),
    "tensor from values": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), "lift_fresh"),
    "new_tensor": (lambda x: x.new_tensor([1.0]), "lift_fresh"),
    "rand": (lambda x: torch.rand(3), "rand"),
    "normal_": (lambda x: torch.empty(3).normal_(), "normal_"),
    "dropout": (lambda x: F.dropout(x, 0.5), "bernoulli_"),
    "own generator": (lambda x: torch.rand(3, generator=torch.Generator()), "rand"),
    "attention dropout": (
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None],
                                                 dropout_p=0.5), "bernoulli_",
    ),
}  # fmt: skip


LEGAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "index by whole numbers": lambda x: [x[(x[:, 0] > 2).long()]],
    "write by whole numbers": lambda x: [x.clone().index_put_((x[:, 0].long() % 2,), x[0])],
    "gather": lambda x: [x.gather(1, (x > 2).long())],
    "where": lambda x: [torch.where(x > 2, x, -x)],
    "masked fill": lambda x: [x.masked_fill(x > 2, 0.0)],
    "attention": lambda x: [
        F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    ],
    "dropout off": lambda x: [F.dropout(x, 0.5, training=False)],
    "repeat to a stated size": lambda x: [
        torch.repeat_interleave((x[:, 0] > 2).long() + 1, output_size=3)
    ],
    "full": lambda x: [x + torch.full((3,), 2.0)],
    "views": lambda x: [x.t().reshape(-1)[2:], x.view(6)[::2] * 2],
    "view written through": lambda x: [_doubled_first_column(x)],
    "opaque operation": lambda x: [ops.read_inside(x.view(-1))],
    "several outputs": lambda x: list(x.sort(dim=1)),
    "same output twice": lambda x: [x + 1] * 2,
}


def _doubled_first_column(x: torch.Tensor) -> torch.Tensor:
    made = x + 0
    made[:, 0].mul_(2)
    return made
