"""Graphs of Dynamo's keyed but not compiled, and small models whose graphs are."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from graphspec.cache.dynamo.graph import Lifted, NotStorableError
from graphspec.cache.dynamo.key import graph_factors, graph_key
from graphspec.cache.dynamo.load import lift_for_inference
from graphspec.cache.dynamo.trace import trace_graph
from graphspec.cache.units import EntryKey

WIDTH = 8


@attrs.frozen(kw_only=True)
class KeyedGraph:
    """What the backend would have looked up: a key, or the reason why there is none."""

    text: Sequence[str] = ()
    key: EntryKey | None = None
    reason: str = ""
    lifted: Lifted | None = None
    written: Sequence[int] = ()


def graphs_of(
    function: Callable[..., Any], *inputs: Any, dynamic: bool | None = False, trace: bool = False
) -> Sequence[KeyedGraph]:
    """The graphs of one call through torch.compile, in order. They run as they are, and nothing is compiled.

    With `trace` they are traced too, which is where some can be told not to be storable.
    """
    found: list[KeyedGraph] = []

    def backend(gm: Any, arguments: Sequence[Any], **given: Any) -> Callable[..., Any]:
        try:
            lifted = lift_for_inference(gm, arguments)
            written = trace_graph(lifted).written if trace else ()
        except NotStorableError as error:
            found.append(KeyedGraph(reason=str(error)))
        else:
            key = graph_key(graph_factors(lifted))
            found.append(KeyedGraph(text=lifted.text, key=key, lifted=lifted, written=written))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found


def graph_of(
    function: Callable[..., Any], *inputs: Any, dynamic: bool | None = False, trace: bool = False
) -> KeyedGraph:
    """The one graph of a call."""
    (graph,) = graphs_of(function, *inputs, dynamic=dynamic, trace=trace)
    return graph


class Block(nn.Module):
    """x [rows, 8] -> x + relu of a normalised, projected x: a graph with weights, a buffer and constants."""

    def __init__(self, scale: float = 0.5, eps: float = 1e-5, drop: float = 0.25) -> None:
        super().__init__()
        self.scale = scale
        self.norm = nn.LayerNorm(WIDTH, eps=eps)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)
        self.register_buffer("shift", torch.linspace(-1, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.project(self.norm(x)) * self.scale + self.shift)
        return x + self.drop(hidden)


def block(seed: int = 0, **arguments: float) -> Block:
    """A block for inference with weights of its own."""
    torch.manual_seed(seed)
    made = Block(**arguments).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape))
    return made


class Halved(nn.Module):
    """One block before and one after a graph break, both with the same graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(1), block(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.first(x)
        torch._dynamo.graph_break()
        return self.second(between)


def rows_summed(x: torch.Tensor, count: int) -> tuple[Any, ...]:
    """A reduction over a dynamic dimension, a number of the caller's as a size, a size and an input as outputs."""
    return x.sum(0) * count, torch.arange(count), x.shape[0] * 2 + 1, x


def halve(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Halves the cache that it is given, and reads it and a row after that."""
    cache.mul_(0.5)
    return torch.softmax(cache, dim=-1) + row


class Attention(nn.Module):
    """x [batch, length, 32] -> x + causal attention of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, 4, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def branched(x: torch.Tensor) -> torch.Tensor:
    """One of two graphs by what the data is, and a constant tensor."""
    chosen = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2.5, (x,))
    return chosen * torch.tensor([1.0, 2.0, 3.0, 4.0])


def shared_outputs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of an input and of each other."""
    y = x + 1
    return x.view(-1), y, y.t(), y[0]


def softened(x: torch.Tensor) -> torch.Tensor:
    """What autocast converts here and there."""
    return torch.softmax(x @ x.t(), dim=-1) @ x
