"""Passes over one row of logits on the host, compiled by numba: best token, mass, and a drawn token.

A row lies at `base` in a flat float32 array. Probabilities are 2**((x - shift) rate) over their sum, in float32, with
rate = log2(e) / temperature; sums of blocks of `BLOCK` entries are added in float64. A block stays in the first-level cache, and its loops are plain enough
to become vector code. Each signature is written out, and `CODE` compiles them all, or loads them: see `host_code`.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import boolean, float32, float64, int32, int64
from numba.extending import intrinsic

from graphspec.kernels.host_code import HostCode

CODE = HostCode(
    "verify",
    "graphspec.kernels.verify_cpu",
    "graphspec.kernels.verify_rows",
    "graphspec.kernels.verify_filters",
    "graphspec.kernels.verify_random",
    "graphspec.kernels.verify_values",
    "graphspec.kernels.host_code",
)
compiled = CODE.inner

BLOCK = 1024
PREFETCH = "llvm.prefetch.p0"
_LINE = 16  # Entries of a cache line.
_AHEAD = 2 * BLOCK
"""How far ahead a row is asked for. A block is a page, and the processor's own prefetching ends where a page does."""
LARGEST = np.float32(np.finfo(np.float32).max)
LOG2E = np.float32(1.44269504)
_ROUND = np.float32(12582912.0)
"""1.5 * 2**23: adding it to a small float leaves the nearest integer in the low bits."""
_C1, _C2, _C3, _C4, _C5 = (
    np.float32(c)
    for c in (0.69314700365, 0.24022242427, 0.05550733581, 0.00967151299, 0.00132647273)
)
"""2**r = 1 + C1 r + ... + C5 r**5 for |r| <= 0.5: the fit of least relative error, 1e-7 (2e-7 with float32's rounding)."""
_LOW, _HIGH = np.float32(-125), np.float32(120)
_SHIFT_AGAIN = 2.0 * BLOCK
"""More than a block at its largest entry can have."""

types: Any = numba.types
FLAT = types.Array(float32, 1, "C", readonly=True)
SUMS = float64[::1]
SCRATCH = float32[::1]
SUMS_IN_ANY_ORDER = {"reassoc", "contract", "nsz"}
"""A sum may be kept in several parts, as vector code needs; NaN and infinities keep their meaning."""


def built_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of compiled code that writes its own instructions."""
    made: Callable[..., Any] = intrinsic(function)
    return made


@built_in
def bits_of(typing_context: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return int32(float32), generate


@built_in
def float_of(typing_context: Any, value: Any) -> Any:
    """The float32 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(int32), generate


@built_in
def ask(typing_context: Any, x: Any, at: Any) -> Any:
    """Asks for the cache line of x[at] and does not wait for it. `at` may lie behind the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(made.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        known = builder.module.globals.get(PREFETCH)
        function = known or ir.Function(builder.module, kind, PREFETCH)
        builder.call(function, [place, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(x, at), generate


# No reassociation here: it would cancel the rounding constant, which is the point of it.
@compiled(float32(float32), forceinline=True, fastmath={"contract"})
def exp2_32(a: Any) -> Any:
    """2**a to 2e-7 relative; 0 below -125, NaN for NaN. Above 120 it stays at 2**120."""
    b = _HIGH if a > _HIGH else a
    t = b + _ROUND
    r = b - (t - _ROUND)
    y = _C5 * r + _C4
    y = y * r + _C3
    y = y * r + _C2
    y = y * r + _C1
    y = y * r + np.float32(1)
    # Multiplied, not added to the exponent's bits: that could make a number of a NaN.
    scaled = y * float_of((bits_of(t) << np.int32(23)) + np.int32(0x3F800000))
    return np.float32(0) if a < _LOW else scaled


@compiled(int32(float32), forceinline=True)
def key_of(x: Any) -> Any:
    """An integer that orders as the float does."""
    b = bits_of(x)
    return b ^ ((b >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled(float32(int32), forceinline=True)
def float_of_key(key: Any) -> Any:
    """The float that `key_of` gives this integer for."""
    return float_of(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF)))


# Blocks are handed on as slices and walked from 0: for any other index numba asks in each turn whether it is negative, which
# keeps a loop from becoming vector code (measured: 3 to 8 times).
@compiled(types.UniTuple(float32, 2)(FLAT))
def top_of_block(x: Any) -> Any:
    """The largest of a block, and the largest magnitude of its bits as a float: NaN if there is one."""
    top, loudest = np.int32(-2147483648), np.int32(0)
    for j in range(x.shape[0]):
        bits = bits_of(x[j])
        size = bits & np.int32(0x7FFFFFFF)
        key = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
        top = max(top, key)
        loudest = max(loudest, size)
    return float_of_key(top), float_of(loudest)


@compiled(types.void(FLAT, int64))
def ask_block(x: Any, start: Any) -> None:
    """Asks for the block that is read after the next one."""
    for at in range(start + _AHEAD, start + _AHEAD + BLOCK, _LINE):
        ask(x, at)


@compiled(types.Tuple((int64, float32, boolean))(FLAT, int64, int64))
def best_of_row(x: Any, base: Any, vocab: Any) -> Any:
    """The lowest index of the largest entry, the entry, and whether the row is a distribution."""
    best, at, nan = np.float32(-np.inf), base, False
    for start in range(base, base + vocab, BLOCK):
        ask_block(x, start)
        top, loudest = top_of_block(x[start : min(start + BLOCK, base + vocab)])
        if np.isnan(loudest):
            nan = True
        elif top > best:
            best, at = top, start
    usable = not nan and -LARGEST <= best <= LARGEST
    if usable:
        while x[at] != best:
            at += 1
    return at - base, best, usable


@compiled(float32(FLAT, float32, float32), fastmath=SUMS_IN_ANY_ORDER)
def _mass_of(x: Any, shift: Any, rate: Any) -> Any:
    total = np.float32(0)
    for j in range(x.shape[0]):
        total += exp2_32((x[j] - shift) * rate)
    return total


@compiled(types.Tuple((float32, float64, boolean))(FLAT, int64, int64, float32, SUMS))
def mass_of_row(x: Any, base: Any, vocab: Any, rate: Any, sums: Any) -> Any:
    """Shift and mass of a row, and whether it is a distribution. `sums` gets the mass of each block.

    One pass: the shift is the largest entry of a block, and changes only where a later block outgrows it by so much that
    the rounding of exponents would show.
    """
    shift, total, known = np.float32(0), 0.0, False
    for block, start in enumerate(range(base, base + vocab, BLOCK)):
        stop = min(start + BLOCK, base + vocab)
        ask_block(x, start)
        part = np.float64(_mass_of(x[start:stop], shift, rate)) if known else 0.0
        if not known or part > _SHIFT_AGAIN or np.isnan(part):
            top, loudest = top_of_block(x[start:stop])
            if np.isnan(loudest) or top > LARGEST:
                return shift, total, False
            if top >= -LARGEST and (not known or top > shift):
                if known:
                    scale = np.float64(exp2_32((shift - top) * rate))
                    total *= scale
                    for b in range(block):
                        sums[b] *= scale
                shift, known = top, True
                part = np.float64(_mass_of(x[start:stop], shift, rate))
        sums[block] = part
        total += part
    return shift, total, known


@compiled(
    float32(FLAT, FLAT, float32, float32, float32, float32),
    fastmath=SUMS_IN_ANY_ORDER,
)
def _surplus_of(x: Any, q: Any, shift: Any, rate: Any, least: Any, scale: Any) -> Any:
    total = np.float32(0)
    for j in range(x.shape[0]):
        p = exp2_32((x[j] - shift) * rate) * scale
        left = (p if x[j] >= least else np.float32(0)) - q[j]
        total += left if left > np.float32(0) else np.float32(0)
    return total


@compiled(float64(FLAT, FLAT, int64, int64, int64, float32, float32, float32, float32, SUMS))
def surplus_of_row(
    x: Any,
    q: Any,
    base: Any,
    q_base: Any,
    vocab: Any,
    shift: Any,
    rate: Any,
    least: Any,
    scale: Any,
    sums: Any,
) -> Any:
    """The sum of max(scale 2**((x - shift) rate) - q, 0) over a row; `sums` gets that of each block."""
    total = 0.0
    for block, start in enumerate(range(0, vocab, BLOCK)):
        stop = min(start + BLOCK, vocab)
        ask_block(x, base + start)
        ask_block(q, q_base + start)
        xs, qs = x[base + start : base + stop], q[q_base + start : q_base + stop]
        part = np.float64(_surplus_of(xs, qs, shift, rate, least, scale))
        sums[block] = part
        total += part
    return total


@compiled(float32(FLAT, float32, float32, float32), fastmath=SUMS_IN_ANY_ORDER)
def _kept_of(x: Any, shift: Any, rate: Any, least: Any) -> Any:
    total = np.float32(0)
    for j in range(x.shape[0]):
        e = exp2_32((x[j] - shift) * rate)
        total += e if x[j] >= least else np.float32(0)
    return total


@compiled(float64(FLAT, int64, int64, float32, float32, float32, int64, SUMS))
def masses_of_row(
    x: Any, base: Any, vocab: Any, shift: Any, rate: Any, least: Any, without: Any, sums: Any
) -> Any:
    """The mass of a row's entries of at least `least` but the one `without`; `sums` gets that of each block."""
    total = 0.0
    for block, start in enumerate(range(0, vocab, BLOCK)):
        stop = min(start + BLOCK, vocab)
        if start <= without < stop:
            before, after = x[base + start : base + without], x[base + without + 1 : base + stop]
            part = np.float64(_kept_of(before, shift, rate, least))
            part += np.float64(_kept_of(after, shift, rate, least))
        else:
            part = np.float64(_kept_of(x[base + start : base + stop], shift, rate, least))
        sums[block] = part
        total += part
    return total


@compiled(float64(FLAT, int64, int64, float32, float32, int64, SUMS))
def mass_without(
    x: Any, base: Any, vocab: Any, shift: Any, rate: Any, without: Any, sums: Any
) -> Any:
    """The mass of a row but for one entry, from the `sums` that `mass_of_row` left: one block is summed again."""
    start = without - without % BLOCK
    stop = min(start + BLOCK, vocab)
    before, after = x[base + start : base + without], x[base + without + 1 : base + stop]
    part = np.float64(_mass_of(before, shift, rate)) + np.float64(_mass_of(after, shift, rate))
    sums[start // BLOCK] = part
    total = 0.0
    for block in range((vocab + BLOCK - 1) // BLOCK):
        total += sums[block]
    return total


@compiled(
    int64(
        FLAT,
        FLAT,
        int64,
        int64,
        int64,
        float32,
        float32,
        float32,
        float32,
        int64,
        SUMS,
        float64,
        float64,
    ),
)
def draw(
    x: Any,
    q: Any,
    base: Any,
    q_base: Any,
    vocab: Any,
    shift: Any,
    rate: Any,
    least: Any,
    scale: Any,
    without: Any,
    sums: Any,
    total: Any,
    u: Any,
) -> Any:
    """The first token at which the sum of weights exceeds the part `u` of their total.

    Weights are those of `surplus_of_row` where `q_base` is 0 or more, else those of `masses_of_row`.
    """
    wanted, before, block, blocks = u * total, np.float64(0), 0, (vocab + BLOCK - 1) // BLOCK
    last = 0
    for b in range(blocks):
        if sums[b] > 0:
            last = b
    while block < last and before + sums[block] <= wanted:
        before += sums[block]
        block += 1
    token = -1
    for j in range(block * BLOCK, min((block + 1) * BLOCK, vocab)):
        v = x[base + j]
        p = exp2_32((v - shift) * rate) if v >= least and j != without else np.float32(0)
        weight = np.float64(p)
        if q_base >= 0:
            left = p * scale - q[q_base + j]
            weight = np.float64(left) if left > np.float32(0) else np.float64(0)
        if weight > 0:
            token = j
            before += weight
            if before > wanted:
                break
    # A weight that vector code rounds to something and scalar code to nothing: the best token is always a token.
    return token if token >= 0 else best_of_row(x, base, vocab)[0]
