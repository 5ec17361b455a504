"""The reference program for Llama-type decoders: three compiled units, used by every layer alike.

A layer is: attention input (norm, q/k/v projection, rotary embedding), attention over the paged cache, attention output (output
projection, residual, norm, MLP, residual). After the last layer comes the head (norm, logits).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.capture.keys import EVERY_KIND, GraphKind, GraphMode, Phase
from graphspec.config.device import Target
from graphspec.errors import Problem, SpecError
from graphspec.keys.scope import Scope
from graphspec.resolve.spec import EngineSpec

_MODULES = ("graphspec.engine.llama",)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] over its root mean square, times weight [H]; computed in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, head_dim], first half against second half (the Hugging Face layout)."""
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def _product(spec: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """x [T, in] and a weight as `weights.unit_view` gives it -> x @ weight.T [T, out]."""
    return torch.mm if spec.device.target.value == "cpu" else F.linear


def build_attention_input(spec: Any) -> Callable[..., Any]:
    """hidden [T, H] -> q [T, heads, D], k and v [T, kv_heads, D], rotated to their positions."""
    model = spec.model
    eps, theta, dim = model.rms_norm_eps, model.rope_theta, model.head_dim
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    product = _product(spec)

    def attention_input(
        hidden: torch.Tensor, positions: torch.Tensor, norm: torch.Tensor, w_qkv: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        qkv = product(rms_norm(hidden, norm, eps), w_qkv).unflatten(1, (heads + 2 * kv_heads, dim))
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=hidden.device) / dim
        angles = positions.float()[:, None] * (theta**-exponents)
        cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
        rotated = _rotate(q, cos, sin), _rotate(k, cos, sin)
        return tuple(part.contiguous() for part in (*rotated, v))

    return attention_input


def build_attention_output(spec: Any) -> Callable[..., Any]:
    """Attention result [T, heads * D] and residual [T, H] -> hidden [T, H] after the MLP."""
    eps, product = spec.model.rms_norm_eps, _product(spec)

    def attention_output(
        attended: torch.Tensor,
        residual: torch.Tensor,
        w_o: torch.Tensor,
        norm: torch.Tensor,
        w_gate_up: torch.Tensor,
        w_down: torch.Tensor,
    ) -> torch.Tensor:
        hidden = residual + product(attended, w_o)
        gate, up = product(rms_norm(hidden, norm, eps), w_gate_up).chunk(2, dim=-1)
        return (hidden + product(F.silu(gate) * up, w_down)).contiguous()

    return attention_output


def build_head(spec: Any) -> Callable[..., Any]:
    """hidden [T, H] -> logits [T, V]."""
    eps, product = spec.model.rms_norm_eps, _product(spec)

    def head(hidden: torch.Tensor, norm: torch.Tensor, w_head: torch.Tensor) -> torch.Tensor:
        return product(rms_norm(hidden, norm, eps), w_head).contiguous()

    return head


class LlamaProgram:
    """Lists the units of a Llama-type decoder, and starts an executor that runs them."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    @property
    def captures(self) -> frozenset[GraphKind]:
        """Whole steps and pieces of the target, and the draft phase where the method's drafter has passes for a graph."""
        from graphspec.engine.drafters.making import captures_drafts

        if captures_drafts(self.spec):
            return EVERY_KIND
        return EVERY_KIND - {(Phase.DRAFT, GraphMode.FULL)}

    def units(self) -> Sequence[CompileUnit]:
        """The three units, each with a dynamic token dimension."""
        m = self.spec.model
        dtype = m.dtype.value
        tokens = DynamicDim(name="tokens", maximum=self.spec.scheduler.max_num_batched_tokens)
        qkv_rows = (m.num_attention_heads + 2 * m.num_key_value_heads) * m.head_dim
        attended = m.num_attention_heads * m.head_dim
        width, inner = m.hidden_size, m.intermediate_size

        def tensor(name: str, *shape: int | DynamicDim, kind: str = dtype) -> TensorInput:
            return TensorInput(name=name, shape=shape, dtype=kind)

        def matrix(name: str, out: int, across: int) -> TensorInput:
            # As `weights.unit_view` gives it.
            on_cpu = self.spec.device.target is Target.CPU
            return tensor(name, *((across, out) if on_cpu else (out, across)))

        hidden = tensor("hidden", tokens, width)
        return (
            CompileUnit(
                name="attention_input",
                scope=Scope(
                    (
                        "model.rms_norm_eps",
                        "model.rope_theta",
                        "model.head_dim",
                        "model.num_attention_heads",
                        "model.num_key_value_heads",
                        "device.target",
                    )
                ),
                modules=_MODULES,
                build=build_attention_input,
                inputs=(
                    hidden,
                    tensor("positions", tokens, kind="int64"),
                    tensor("norm", width),
                    matrix("w_qkv", qkv_rows, width),
                ),
            ),
            CompileUnit(
                name="attention_output",
                scope=Scope(("model.rms_norm_eps", "device.target")),
                modules=_MODULES,
                build=build_attention_output,
                inputs=(
                    tensor("attended", tokens, attended),
                    tensor("residual", tokens, width),
                    matrix("w_o", width, attended),
                    tensor("norm", width),
                    matrix("w_gate_up", 2 * inner, width),
                    matrix("w_down", width, inner),
                ),
            ),
            CompileUnit(
                name="head",
                scope=Scope(("model.rms_norm_eps", "device.target")),
                modules=_MODULES,
                build=build_head,
                inputs=(hidden, tensor("norm", width), matrix("w_head", m.vocab_size, width)),
            ),
        )

    def start(self, artifacts: Mapping[str, Any]) -> Any:
        """An executor that runs decode steps with these artifacts. Reads the weights."""
        from graphspec.engine.executor import Executor
        from graphspec.engine.weights import load_weights

        return Executor(self.spec, load_weights(self.spec.model, self.spec.device), artifacts)


def program(spec: EngineSpec) -> LlamaProgram:
    """The program for `spec`. Raises `SpecError` for what this reference does not cover."""
    m, problems = spec.model, []
    covered = (
        ("model.architecture", m.architecture, "llama"),
        ("model.rope_type", m.rope_type, "default"),
        ("model.hidden_act", m.hidden_act, "silu"),
        ("model.attention_bias", m.attention_bias, False),
        ("model.mlp_bias", m.mlp_bias, False),
        ("parallel.tensor_parallel_size", spec.parallel.tensor_parallel_size, 1),
        ("parallel.data_parallel_size", spec.parallel.data_parallel_size, 1),
    )
    for where, found, wanted in covered:
        if found != wanted:
            problems.append(
                Problem(
                    where=where,
                    found=repr(found),
                    wanted=f"{wanted!r}: the reference program for Llama-type decoders has no other",
                    hint="name your engine's own factory under `program`",
                )
            )
    if problems:
        raise SpecError(problems)
    return LlamaProgram(spec)
