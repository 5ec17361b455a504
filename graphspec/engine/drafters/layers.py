"""A draft's decoder layers with a paged cache of their own, over the block ids of the target's."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs
import torch
from torch.nn import functional as F

from graphspec.config.device import DeviceConfig
from graphspec.config.model import ModelSpec
from graphspec.engine.attention import paged_attention
from graphspec.engine.buffers import StepBuffers, allocate_cache
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.llama import build_attention_output, rms_norm
from graphspec.engine.weights import LayerWeights
from graphspec.errors import Problem, SpecError
from graphspec.fields import evolve


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """The rows of one pass: views of static buffers, so that a pass over them has fixed addresses."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor

    @classmethod
    def of(cls, buffers: StepBuffers, rows: int, requests: int) -> "Rows":
        """The first `rows` rows, of the first `requests` requests."""
        return cls(
            ids=buffers.token_ids.tensor[:rows],
            positions=buffers.positions.tensor[:rows],
            slots=buffers.slots.tensor[:rows],
            block_tables=buffers.block_tables.tensor[:requests],
            context_lens=buffers.context_lens.tensor[:requests],
            query_starts=buffers.query_starts.tensor[: requests + 1],
        )


@attrs.frozen(kw_only=True, eq=False)
class HeadNorms:
    """Norms of each query and key head, of Qwen3's layers: [head_dim] each."""

    q: torch.Tensor
    k: torch.Tensor


@attrs.frozen(kw_only=True)
class _View:
    """What the target's pieces read of a spec, with the draft's model in it."""

    model: ModelSpec
    device: DeviceConfig


class DraftLayers:
    """Llama layers, with Qwen3's head norms where `norms` are given. `cache`: [layers, 2, blocks, block_size, kv_heads, D]."""

    def __init__(
        self,
        context: DraftContext,
        layers: Sequence[LayerWeights],
        norms: Sequence[HeadNorms] = (),
    ) -> None:
        refuse_other_layers(context)
        self.model, self.weights, self._norms = context.model, layers, norms
        self.cache = allocate_cache(
            evolve(context.spec, model=evolve(context.model, num_hidden_layers=len(layers))),
            debug_padding=context.debug_padding,
        )
        self._finish = build_attention_output(_View(model=self.model, device=context.spec.device))

    def run(
        self, hidden: torch.Tensor, rows: Rows, first_input: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Residual stream [T, H] -> the last layer's [T, H]. Writes keys and values at the rows' slots.

        `first_input` [T, any] is what the first layer's attention reads instead of the normed residual stream.
        """
        for at in range(len(self.weights)):
            hidden = self.layer(at, hidden, rows, first_input if at == 0 else None)
        return hidden

    def layer(
        self, at: int, hidden: torch.Tensor, rows: Rows, given: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One layer; `given` is its attention's input, where that is not the normed residual stream."""
        w = self.weights[at].for_units
        x = rms_norm(hidden, w.attention_norm, self.model.rms_norm_eps) if given is None else given
        q, k, v = self.project(at, x, rows.positions)
        attended = paged_attention(
            q,
            k,
            v,
            self.cache[at],
            rows.slots,
            rows.block_tables,
            rows.context_lens,
            rows.query_starts,
        )
        out: torch.Tensor = self._finish(attended, hidden, w.w_o, w.mlp_norm, w.w_gate_up, w.w_down)
        return out

    def project(
        self, at: int, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Input of one attention [T, in] -> q [T, heads, D], k and v [T, kv_heads, D], rotated to their positions."""
        m = self.model
        heads, kv_heads = m.num_attention_heads, m.num_key_value_heads
        qkv = F.linear(x, self.weights[at].w_qkv).unflatten(1, (heads + 2 * kv_heads, m.head_dim))
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        if self._norms:
            q = rms_norm(q, self._norms[at].q, m.rms_norm_eps)
            k = rms_norm(k, self._norms[at].k, m.rms_norm_eps)
        turn = self._turns(positions)
        return rotated(q, turn), rotated(k, turn), v.contiguous()

    def store(self, at: int, x: torch.Tensor, rows: Rows) -> None:
        """Keys and values of one layer's attention input [T, in] into the cache, without a query."""
        _, k, v = self.project(at, x, rows.positions)
        for new, part in ((k, self.cache[at, 0]), (v, self.cache[at, 1])):
            part.view(-1, *part.shape[2:]).index_copy_(0, rows.slots, new)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache and weights, by name."""
        return {"cache": self.cache, **self._named}

    @cached_property
    def _named(self) -> Mapping[str, torch.Tensor]:
        """The weights. Made once: they are never replaced, and each replay asks."""
        weights = {
            f"layers.{at}.{name}": tensor
            for at, layer in enumerate(self.weights)
            for name, tensor in attrs.asdict(layer, recurse=False).items()
        }
        norms = {
            f"layers.{at}.{name}_norm": tensor
            for at, norm in enumerate(self._norms)
            for name, tensor in attrs.asdict(norm, recurse=False).items()
        }
        return {**weights, **norms}

    def _turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Unit numbers that each half dimension turns by: [T, D / 2], complex."""
        half = self.model.head_dim // 2
        steps = torch.arange(half, dtype=torch.float32, device=positions.device) / half
        angles = positions.float()[:, None] * self.model.rope_theta**-steps
        return torch.polar(torch.ones_like(angles), angles)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [T, heads, D], first half against second half, as products of complex numbers."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.complex(first, second) * turn[:, None, :]
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


def refuse_other_layers(context: DraftContext) -> None:
    """Raises `SpecError` with every fact of the draft's model that its layers here do not follow."""
    m, kinds = context.model, context.stated("layer_types")
    special = set(kinds) - {"full_attention"} if isinstance(kinds, tuple | list) else set()
    tensor_parallel = context.speculative.draft_parallel.tensor_parallel_size
    covered = (
        ("speculative.model: rope_type", m.rope_type, "default"),
        ("speculative.model: hidden_act", m.hidden_act, "silu"),
        ("speculative.model: attention_bias", m.attention_bias, False),
        ("speculative.model: mlp_bias", m.mlp_bias, False),
        ("speculative.model: experts", m.num_experts, 0),
        ("speculative.model: quantization", m.quantization, None),
        ("speculative.model: layer_types", sorted(special) or None, None),
        ("speculative.draft_tensor_parallel_size", tensor_parallel, 1),
    )
    problems = [
        Problem(
            where=where,
            found=repr(found),
            wanted=f"{wanted!r}: the reference drafters have no other",
            hint="speculative.method custom_class runs a drafter of your own",
        )
        for where, found, wanted in covered
        if found != wanted
    ]
    if problems:
        raise SpecError(problems)
