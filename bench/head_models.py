"""Draft heads as functions of their weights, as the engine computes them, with parameters that train well.

States after the final norm have dimensions of very different size. So parameters are kept in units in which each input and
output has variance 1, and `weights()` turns them into the engine's, by the tensor names that it reads.
"""

import math

import attrs
import torch
from torch import nn
from torch.nn import functional as F


@attrs.frozen(kw_only=True)
class Shape:
    """Sizes of an EAGLE head's layer; `width` is the target's."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float


class EagleHead(nn.Module):
    """fc over (embedding of the next token, state), then one decoder layer without a norm before its attention.

    `scale` [H]: size of each dimension of the target's states; `embedded`: size of its embeddings' entries.
    """

    def __init__(self, shape: Shape, scale: torch.Tensor, embedded: float, seed: int) -> None:
        super().__init__()
        self.shape = s = shape
        made = torch.Generator().manual_seed(seed)
        self.register_buffer("scale", scale.clone())
        self.register_buffer("embedded", torch.tensor(embedded))

        def matrix(rows: int, columns: int, size: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn((rows, columns), generator=made) * size * columns**-0.5)

        # What the state says of the next one is mostly the state itself, so training starts from there.
        fc = torch.cat((matrix(s.width, s.width, 0.5).data, 0.5 * torch.eye(s.width)), 1)
        self.fc = nn.Parameter(fc)
        self.q = matrix(s.heads * s.head_dim, s.width)
        self.k = matrix(s.kv_heads * s.head_dim, s.width)
        self.v = matrix(s.kv_heads * s.head_dim, s.width)
        self.o = matrix(s.width, s.heads * s.head_dim, 0.3)
        self.norm = nn.Parameter(torch.ones(s.width))
        self.gate = matrix(s.inner, s.width)
        self.up = matrix(s.inner, s.width)
        self.down = matrix(s.width, s.inner, 0.3)

    def weights(self) -> dict[str, torch.Tensor]:
        """The head's tensors by their public names."""
        out = self.scale
        read = torch.cat((self.embedded.expand_as(out), out))
        mean = out.square().mean().sqrt()
        p = "layers.0."
        return {
            "fc.weight": out[:, None] * self.fc / read,
            p + "self_attn.q_proj.weight": self.q / out,
            p + "self_attn.k_proj.weight": self.k / out,
            p + "self_attn.v_proj.weight": self.v / out,
            p + "self_attn.o_proj.weight": out[:, None] * self.o,
            p + "post_attention_layernorm.weight": self.norm * mean / out,
            p + "mlp.gate_proj.weight": self.gate,
            p + "mlp.up_proj.weight": self.up,
            p + "mlp.down_proj.weight": out[:, None] * self.down,
        }

    def forward(
        self, embedded: torch.Tensor, states: torch.Tensor, passes: int
    ) -> list[torch.Tensor]:
        """See `eagle_passes`, on the parameters as they are."""
        return eagle_passes(self.weights(), self.shape, embedded, states, passes)


def eagle_passes(
    weights: dict[str, torch.Tensor],
    shape: Shape,
    embedded: torch.Tensor,
    states: torch.Tensor,
    passes: int,
) -> list[torch.Tensor]:
    """Outputs [B, T, H] of draft passes 1, 2, ..: row p of pass j is what the head gives there as its j-th draft.

    embedded, states: [B, T, H], the embedding of token p + 1 and the target's state at p. Pass j reads in place of the state
    what pass j - 1 gave at p - 1. Of the keys before it, the last j - 1 are those of passes j - 1, .., 1, all others are of
    true states: what the engine's cache holds when it makes draft j. Rows p < j - 1 of pass j mean nothing.
    """
    s, p = shape, "layers.0."
    count, length, _ = embedded.shape
    turn = turns(length, s.head_dim, s.theta)
    w_o, w_down = weights[p + "self_attn.o_proj.weight"], weights[p + "mlp.down_proj.weight"]
    norm = weights[p + "post_attention_layernorm.weight"]
    rows = torch.arange(length)
    known: list[tuple[torch.Tensor, torch.Tensor]] = []
    outputs: list[torch.Tensor] = []
    for at in range(passes):
        features = states if at == 0 else later(outputs[-1], 1, dim=1)
        x = F.linear(torch.cat((embedded, features), -1), weights["fc.weight"])

        def heads(name: str, number: int, x: torch.Tensor = x) -> torch.Tensor:
            made = F.linear(x, weights[f"{p}self_attn.{name}_proj.weight"])
            return made.view(count, length, number, s.head_dim).transpose(1, 2)

        q = rotated(heads("q", s.heads), turn) * s.head_dim**-0.5
        k, v = rotated(heads("k", s.kv_heads), turn), heads("v", s.kv_heads)
        shared = s.heads // s.kv_heads
        known.append((k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)))
        keys, values = known[0]
        scores = torch.matmul(q, keys.transpose(2, 3))
        scores = scores.masked_fill(rows > rows[:, None] - at, -math.inf)
        # The drafts' own rows: one key of each pass since.
        others = [
            (later(known[i][0], at - i), later(known[i][1], at - i), at - i)
            for i in range(1, at + 1)
        ]
        near = [
            (q * key).sum(-1).masked_fill(rows < back, -math.inf)[..., None]
            for key, _, back in others
        ]
        chances = torch.softmax(torch.cat((scores, *near), -1), -1)
        mixed = torch.matmul(chances[..., :length], values)
        for i, (_, value, _) in enumerate(others):
            mixed = mixed + chances[..., length + i, None] * value
        hidden = x + F.linear(mixed.transpose(1, 2).flatten(2), w_o)
        normed = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + s.eps) * norm
        gate = F.silu(F.linear(normed, weights[p + "mlp.gate_proj.weight"]))
        up = F.linear(normed, weights[p + "mlp.up_proj.weight"])
        outputs.append(hidden + F.linear(gate * up, w_down))
    return outputs


def later(x: torch.Tensor, rows: int, dim: int = 2) -> torch.Tensor:
    """What stands at p - `rows` moved to p; zeros come in."""
    if rows == 0:
        return x
    kept = x.narrow(dim, 0, x.shape[dim] - rows)
    return torch.cat((torch.zeros_like(x.narrow(dim, 0, rows)), kept), dim)


def turns(length: int, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, head_dim / 2]."""
    steps = torch.arange(head_dim // 2, dtype=torch.float32) / (head_dim // 2)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * theta**-steps
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of [B, heads, T, D], first half against second half."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class MedusaHeads(nn.Module):
    """Heads of residual blocks and a square map in front of the target's own matrix.

    A head with a matrix of its own has 28 million weights; what it learns beyond the target's is that it reads the state
    otherwise, and a map of 576 x 576 says that too.
    """

    def __init__(self, heads: int, blocks: int, scale: torch.Tensor) -> None:
        super().__init__()
        width = scale.shape[0]
        self.blocks = blocks
        self.register_buffer("scale", scale.clone())
        # All begin as the identity: each head then drafts the next token, and learns to look further.
        self.linear = nn.Parameter(torch.zeros(heads, blocks, width, width))
        self.bias = nn.Parameter(torch.zeros(heads, blocks, width))
        self.map = nn.Parameter(torch.eye(width).expand(heads, width, width).clone())

    def weights(self) -> dict[str, torch.Tensor]:
        """The heads' tensors by their public names, and ``N.map.weight``."""
        named, out = {}, self.scale
        for n in range(len(self.map)):
            for b in range(self.blocks):
                named[f"{n}.{b}.linear.weight"] = self.linear[n, b] / out
                named[f"{n}.{b}.linear.bias"] = self.bias[n, b]
            named[f"{n}.map.weight"] = out[:, None] * self.map[n] / out
        return named

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        """[N, H] -> for each head [N, H], what the target's matrix scores."""
        return medusa_states(self.weights(), len(self.map), self.blocks, states)


def medusa_states(
    weights: dict[str, torch.Tensor], heads: int, blocks: int, states: torch.Tensor
) -> list[torch.Tensor]:
    """Each head's output of states [N, H]."""
    made = []
    for n in range(heads):
        x = states
        for b in range(blocks):
            x = x + F.silu(
                F.linear(x, weights[f"{n}.{b}.linear.weight"], weights[f"{n}.{b}.linear.bias"])
            )
        made.append(F.linear(x, weights[f"{n}.map.weight"]))
    return made
