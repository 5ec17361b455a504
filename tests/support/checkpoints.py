"""Small checkpoints made on the spot: a config.json, and weights that depend on nothing but their names."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TINY: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> Path:
    """Writes config.json and model.safetensors into `folder`, and returns it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for at in range(config["num_hidden_layers"]):
        p = f"model.layers.{at}."
        shapes |= {
            p + "input_layernorm.weight": (width,),
            p + "post_attention_layernorm.weight": (width,),
            p + "self_attn.q_proj.weight": (q, width),
            p + "self_attn.k_proj.weight": (kv, width),
            p + "self_attn.v_proj.weight": (kv, width),
            p + "self_attn.o_proj.weight": (width, q),
            p + "mlp.gate_proj.weight": (inner, width),
            p + "mlp.up_proj.weight": (inner, width),
            p + "mlp.down_proj.weight": (width, inner),
        }

    def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        made = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=made)
        return 1 + 0.1 * values if len(shape) == 1 else values * shape[-1] ** -0.5

    save_file({n: tensor(n, s) for n, s in shapes.items()}, folder / "model.safetensors")
    return folder
