"""The reference specs of the golden keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphspec.resolve.spec import EngineSpec
from support.specs import plain_spec
from support.speculative import resolved_case

TABLE = [[1, 2, 2], [3, 4, 1]]
SPECS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {},
    "no speculation on two CUDA devices": {
        "speculative": None,
        "parallel": {"tensor_parallel_size": 2},
        "device": {"target": "cuda"},
        "compilation": {"cudagraph_mode": "FULL"},
    },
    "ngram with a table on runner v1": {
        "speculative": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "num_speculative_tokens_per_batch_size": TABLE,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        },
        "compilation": {"runner": "v1"},
        "device": {"isa": "x86-64-v3"},
    },
}
DRAFTED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "eagle3 with every section": (
        "eagle3",
        {
            "kv_cache": {"connector": {"name": "c"}},
            "kernels": {"attention_backend": "flash_attn", "moe_backend": "triton"},
            "lora": {"max_loras": 2},
            "watermark": {"key": 7, "algorithm": "dual_key_gumbel"},
            "compilation": {"runner": {"full_graphs_per_k": True, "central_trimming": False}},
        },
    ),
    "dspark, whose graphs hold k": ("dspark", {}),
    "several MTP modules": ("mtp multi-module", {}),
}
"""Cases of `support.speculative` with a draft model, and what stands beside their section."""

NAMES = (*SPECS, *DRAFTED)


def golden_spec(name: str, folder: Path) -> EngineSpec:
    """One of them; `folder` is for the checkpoint of those that have no draft."""
    if name in SPECS:
        return plain_spec(folder, **SPECS[name])
    case, sections = DRAFTED[name]
    return resolved_case(case, **sections)
