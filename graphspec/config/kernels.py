"""The kernels section: which implementations of attention and experts the engine runs."""

import enum
from typing import Any, ClassVar

from graphspec.errors import Problem
from graphspec.fields import Rule, Stage, config_class, evolve, keyed
from graphspec.text import did_you_mean, show

ATTENTION_BACKENDS = (
    "CPU_ATTN",
    "CUTLASS_MLA",
    "FLASHINFER",
    "FLASHINFER_MLA",
    "FLASHINFER_MLA_SPARSE",
    "FLASHMLA",
    "FLASHMLA_SPARSE",
    "FLASH_ATTN",
    "FLASH_ATTN_DIFFKV",
    "FLASH_ATTN_MLA",
    "FLEX_ATTENTION",
    "PAGED",
    "ROCM_AITER_FA",
    "ROCM_AITER_MLA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_ATTN",
    "TORCH_SDPA",
    "TREE_ATTN",
    "TRITON_ATTN",
    "TRITON_MLA",
)
"""Attention backends by the names that engines use; PAGED is the reference engine's own op."""

AUTO = "auto"


class MoeBackend(enum.Enum):
    """Kernel of the experts' products."""

    AUTO = "auto"
    TRITON = "triton"
    DEEP_GEMM = "deep_gemm"
    CUTLASS = "cutlass"
    FLASHINFER_TRTLLM = "flashinfer_trtllm"
    FLASHINFER_CUTLASS = "flashinfer_cutlass"
    FLASHINFER_CUTEDSL = "flashinfer_cutedsl"
    MARLIN = "marlin"
    AITER = "aiter"


def _backend(section: Any) -> list[Problem]:
    return attention_backend_problems(section.attention_backend)


@config_class
class KernelConfig:
    """Implementations that change compiled code."""

    attention_backend: str | None = keyed(
        Stage.COMPILE, default=None, doc="Attention backend; none or auto: the engine's choice."
    )
    moe_backend: MoeBackend | None = keyed(
        Stage.COMPILE, default=None, doc="Experts' kernel; none: the engine's choice."
    )

    rules: ClassVar[tuple[Rule, ...]] = (_backend,)


def attention_backend_problems(name: str | None) -> list[Problem]:
    """What is wrong with an attention backend's name. Case does not matter, and auto means none."""
    if name is None or name.lower() == AUTO or name.upper() in ATTENTION_BACKENDS:
        return []
    return [
        Problem(
            where="attention_backend",
            found=show(name),
            wanted="the name of an attention backend, or auto",
            hint=did_you_mean(name, ATTENTION_BACKENDS),
        )
    ]


def canonical_kernels(section: KernelConfig) -> KernelConfig:
    """The section with the backend under its canonical name, so that two spellings of one engine have one key."""
    name = attention_backend_name(section.attention_backend)
    return section if name == section.attention_backend else evolve(section, attention_backend=name)


def attention_backend_name(name: str | None) -> str | None:
    """The canonical name: upper case, and None for auto.

    >>> attention_backend_name("flash_attn"), attention_backend_name("Auto")
    ('FLASH_ATTN', None)
    """
    return None if name is None or name.lower() == AUTO else name.upper()
