"""Weights of a Llama-type decoder from a GGUF file or a Hugging Face folder, in the layout the units take."""

import glob
import os
from collections.abc import Callable, Mapping
from functools import cached_property

import attrs
import torch

from graphspec.config.device import DeviceConfig
from graphspec.config.model import ModelSpec
from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.checkpoint import locate_checkpoint
from graphspec.resolve.gguf_header import read_gguf_header

Reader = Callable[[str], torch.Tensor]
ShapedReader = Callable[..., torch.Tensor]
"""Takes a tensor's name and the shape that it must have."""


@attrs.frozen(kw_only=True, eq=False)
class LayerWeights:
    """One layer. `w_qkv`: [(heads + 2 kv_heads) * head_dim, hidden]; `w_gate_up`: [2 intermediate, hidden].

    The four matrices are laid out as `for_products` leaves them.
    """

    attention_norm: torch.Tensor
    w_qkv: torch.Tensor
    w_o: torch.Tensor
    mlp_norm: torch.Tensor
    w_gate_up: torch.Tensor
    w_down: torch.Tensor

    @cached_property
    def for_units(self) -> "LayerWeights":
        """The same memory, with the matrices in the shape that compiled units take."""
        made = {name: unit_view(getattr(self, name)) for name in _MATRICES}
        return attrs.evolve(self, **made)


_MATRICES = ("w_qkv", "w_o", "w_gate_up", "w_down")
_LAYER_TENSORS = tuple(a.name for a in attrs.fields(LayerWeights))


@attrs.frozen(kw_only=True, eq=False)
class Weights:
    """The whole model. `w_head` is `embedding` itself where the two are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    w_head: torch.Tensor

    @cached_property
    def unit_layers(self) -> tuple[LayerWeights, ...]:
        """The layers as compiled units take them."""
        return tuple(layer.for_units for layer in self.layers)

    @cached_property
    def head_for_units(self) -> torch.Tensor:
        """The same memory as `w_head`, in the shape that compiled units take."""
        return unit_view(self.w_head)

    @cached_property
    def by_name(self) -> Mapping[str, torch.Tensor]:
        """Every tensor, by name. Made once: the tensors are never replaced, and each replay asks."""
        named = {
            f"layers.{at}.{name}": getattr(layer, name)
            for at, layer in enumerate(self.layers)
            for name in _LAYER_TENSORS
        }
        return {
            **named,
            "embedding": self.embedding,
            "final_norm": self.final_norm,
            "w_head": self.w_head,
        }


def for_products(weight: torch.Tensor) -> torch.Tensor:
    """A matrix [out, in] laid out for x @ weight.T: on a CPU column after column, elsewhere as it is.

    Over this model's weights, one row takes 29 ms either way on a CPU, but 5 rows 41 instead of 49 ms, 8 rows 52 instead of
    61 and 40 rows 92 instead of 106 (MKL, 2 threads, quiet). oneDNN's packed layout takes 38, 42 and 90 ms, and 47 for one.
    """
    return weight.t().contiguous().t() if weight.device.type == "cpu" else weight


def unit_view(weight: torch.Tensor) -> torch.Tensor:
    """A matrix [out, in] as units take it, which is contiguous: on a CPU [in, out]."""
    return weight.t() if weight.device.type == "cpu" else weight


def load_weights(model: ModelSpec, device: DeviceConfig) -> Weights:
    """Reads every tensor, checks its shape against the spec, and fuses q/k/v and gate/up."""
    path = locate_checkpoint(model.source)
    raw = open_safetensors(path) if os.path.isdir(path) else _gguf(path, model)
    dtype, target = getattr(torch, model.dtype.value), device.target.value

    def read(name: str, *shape: int) -> torch.Tensor:
        tensor = raw(name)
        if tuple(tensor.shape) != shape:
            raise wrong_shape(path, name, tuple(tensor.shape), shape)
        return tensor.to(device=target, dtype=dtype)

    width = model.hidden_size
    embedding = read("model.embed_tokens.weight", model.vocab_size, width)
    if model.tie_word_embeddings:
        # One copy in memory: to look up a few rows column by column costs less than the product gains.
        embedding = for_products(embedding)
    return Weights(
        embedding=embedding,
        layers=tuple(
            read_layer(read, model, f"model.layers.{at}.") for at in range(model.num_hidden_layers)
        ),
        final_norm=read("model.norm.weight", width),
        w_head=embedding
        if model.tie_word_embeddings
        else for_products(read("lm_head.weight", model.vocab_size, width)),
    )


def read_layer(
    read: ShapedReader,
    model: ModelSpec,
    prefix: str,
    *,
    inputs: int | None = None,
    norm: bool = True,
) -> LayerWeights:
    """One layer, by the Hugging Face names below `prefix`.

    `inputs` is the width of what q, k and v are made from, where it is not the residual stream's. Without `norm` the layer
    has no norm before its attention, and `attention_norm` is ones.
    """
    width, inner = model.hidden_size, model.intermediate_size
    q_rows, kv_rows = (
        model.num_attention_heads * model.head_dim,
        model.num_key_value_heads * model.head_dim,
    )
    across = inputs or width
    mlp_norm = read(prefix + "post_attention_layernorm.weight", width)
    return LayerWeights(
        attention_norm=read(prefix + "input_layernorm.weight", width)
        if norm
        else torch.ones_like(mlp_norm),
        w_qkv=for_products(
            torch.cat(
                (
                    read(prefix + "self_attn.q_proj.weight", q_rows, across),
                    read(prefix + "self_attn.k_proj.weight", kv_rows, across),
                    read(prefix + "self_attn.v_proj.weight", kv_rows, across),
                )
            )
        ),
        w_o=for_products(read(prefix + "self_attn.o_proj.weight", width, q_rows)),
        mlp_norm=mlp_norm,
        w_gate_up=for_products(
            torch.cat(
                (
                    read(prefix + "mlp.gate_proj.weight", inner, width),
                    read(prefix + "mlp.up_proj.weight", inner, width),
                )
            )
        ),
        w_down=for_products(read(prefix + "mlp.down_proj.weight", width, inner)),
    )


def wrong_shape(
    path: str, name: str, found: tuple[int, ...], wanted: tuple[int, ...]
) -> EnvironmentProblem:
    """The problem of a tensor in another shape than the model facts say."""
    return EnvironmentProblem(
        Problem(
            where=f"{path}: tensor {name}",
            found=f"shape {found}",
            wanted=f"shape {wanted}, as the model facts say",
            hint="hf_overrides must describe the weights that are there; or the checkpoint is damaged",
        )
    )


def _absent(path: str, name: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        Problem(
            where=path,
            found=f"no tensor {name}",
            wanted="every tensor of a Llama-type decoder",
            hint="fetch the checkpoint again, or name another in model.source",
        )
    )


_GGUF_NAMES: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""Hugging Face name, without its layer prefix -> GGUF name, without its block prefix."""


def _gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return _GGUF_NAMES[name]
    at, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{at}.{_GGUF_NAMES[rest]}"


def _gguf(path: str, model: ModelSpec) -> Reader:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    header = read_gguf_header(path)
    # As a plain array: a memmap's own bookkeeping on each slice took a quarter of the dequantisation.
    data = np.memmap(path, mode="r", dtype=np.uint8).view(np.ndarray)
    heads = {
        "attn_q.weight": model.num_attention_heads,
        "attn_k.weight": model.num_key_value_heads,
    }

    def read(name: str) -> torch.Tensor:
        info = header.tensors.get(_gguf_name(name))
        if info is None:
            raise _absent(path, _gguf_name(name))
        kind = GGMLQuantizationType(info.kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = info.shape[-1] // block * block_bytes
        rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        raw = data[info.offset_bytes : info.offset_bytes + rows * row_bytes]
        if raw.size != rows * row_bytes:
            raise _absent(path, f"{info.name} in full: the file ends before it does")
        values = dequantize(raw.reshape(rows, row_bytes), kind)
        # Unquantised tensors come back as views of the read-only file; torch tensors must be writable.
        tensor = torch.from_numpy(np.require(values, requirements="W")).view(*info.shape)
        groups = heads.get(info.name.split(".", 2)[-1])
        return tensor if groups is None else _half_split(tensor, groups)

    return read


def _half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a q or k projection from GGUF's order to Hugging Face's.

    llama.cpp rotates neighbouring pairs of a head, and its converter interleaves the rows for it; here the first half
    of a head rotates against the second.
    """
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def open_safetensors(folder: str) -> Reader:
    """Reads tensors by name from all safetensors files of a folder."""
    from safetensors import safe_open

    files = sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if not files:
        raise _absent(folder, "files (*.safetensors)")
    opened = [safe_open(file, framework="pt") for file in files]
    # file.keys() is not a dict's: safetensors' handle has no iteration of its own.
    where = {name: file for file in opened for name in list(file.keys())}

    def read(name: str) -> torch.Tensor:
        if name not in where:
            raise _absent(folder, name)
        tensor: torch.Tensor = where[name].get_tensor(name)
        return tensor

    return read
