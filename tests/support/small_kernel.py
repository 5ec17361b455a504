"""A small Triton kernel, compiled for GPUs that are not here: it reduces, so that several warps need shared memory."""

import functools
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCK = 256


@triton.jit
def add_up(x, out, rows, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < rows, other=0.0), axis=0))


@functools.cache
def compiled(number: int) -> Any:
    """The kernel as Triton compiles it for a compute capability, 90 for 9.0. Triton's own cache keeps it for the next run."""
    source = ASTSource(
        add_up,
        {"x": "*fp32", "out": "*fp32", "rows": "i32", "BLOCK": "constexpr"},
        {(3,): BLOCK},
        {},
    )
    return triton.compile(source, target=GPUTarget("cuda", number, 32), options={"num_warps": 4})


def cubin(number: int) -> bytes:
    """The binary that a driver would load."""
    return bytes(compiled(number).asm["cubin"])
