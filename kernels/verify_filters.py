"""What a row keeps, compiled by numba: the bounds of top-k, top-p and min-p, and the entropy of its largest.

A bound is found by a search over the bits of its value, and what is kept of equal entries is all of them.
"""

from typing import Any

import numpy as np
from numba import float32, float64, int32, int64

from graphspec.kernels.verify_rows import (
    BLOCK,
    FLAT,
    LARGEST,
    SCRATCH,
    SUMS,
    SUMS_IN_ANY_ORDER,
    best_of_row,
    compiled,
    exp2_32,
    float_of_key,
    key_of,
    top_of_block,
    types,
)

_WAYS = 7
"""Bounds that are tried in one pass over a row: three bits of the answer."""


@compiled(int32(FLAT, float32))
def _count_from(x: Any, least: Any) -> Any:
    count = np.int32(0)
    for j in range(x.shape[0]):
        count += np.int32(1) if x[j] >= least else np.int32(0)
    return count


@compiled(float32(FLAT, int64, int64, int64, float32))
def kth_largest(x: Any, base: Any, vocab: Any, k: Any, top: Any) -> Any:
    """The k-th largest entry of a row whose largest is `top`, exactly: a search over the bits of its value."""
    row = x[base : base + vocab]
    low, high = np.int64(key_of(np.float32(-np.inf))), np.int64(key_of(top))
    while low < high:
        middle = (low + high + 1) >> 1
        if _count_from(row, float_of_key(np.int32(middle))) >= k:
            low = middle
        else:
            high = middle - 1
    return float_of_key(np.int32(low))


@compiled(float32(FLAT, SCRATCH, float32), fastmath=SUMS_IN_ANY_ORDER)
def _part_from(x: Any, e: Any, least: Any) -> Any:
    total = np.float32(0)
    for j in range(x.shape[0]):
        total += e[j] if x[j] >= least else np.float32(0)
    return total


@compiled(float64(FLAT, SCRATCH, int64, int64, float32, SUMS))
def _mass_from(x: Any, e: Any, base: Any, vocab: Any, least: Any, tops: Any) -> Any:
    """The mass of a row's entries of at least `least`. `tops` has the largest of each block."""
    total = 0.0
    for block, start in enumerate(range(0, vocab, BLOCK)):
        if tops[block] >= least:
            stop = min(start + BLOCK, vocab)
            total += np.float64(_part_from(x[base + start : base + stop], e[start:stop], least))
    return total


@compiled(
    types.UniTuple(float32, _WAYS)(FLAT, SCRATCH, types.UniTuple(float32, _WAYS)),
    fastmath=SUMS_IN_ANY_ORDER,
)
def _parts_from(x: Any, e: Any, least: Any) -> Any:
    """`_part_from` for several bounds in one pass."""
    zero = np.float32(0)
    l0, l1, l2, l3, l4, l5, l6 = least
    s0, s1, s2, s3, s4, s5, s6 = zero, zero, zero, zero, zero, zero, zero
    for j in range(x.shape[0]):
        v, w = x[j], e[j]
        s0 += w if v >= l0 else zero
        s1 += w if v >= l1 else zero
        s2 += w if v >= l2 else zero
        s3 += w if v >= l3 else zero
        s4 += w if v >= l4 else zero
        s5 += w if v >= l5 else zero
        s6 += w if v >= l6 else zero
    return s0, s1, s2, s3, s4, s5, s6


@compiled(
    float32(FLAT, SCRATCH, int64, int64, float32, float32, float64, SUMS),
)
def _nucleus(
    x: Any, e: Any, base: Any, vocab: Any, least: Any, top: Any, wanted: Any, tops: Any
) -> Any:
    """The largest bound from `least` to `top` whose entries have the mass `wanted`: a search over the bits of its value,
    three bits a pass."""
    low: Any = np.int64(key_of(least))
    high: Any = np.int64(key_of(top))
    while low < high:
        step: Any = max((high - low + _WAYS) // (_WAYS + 1), 1)
        bounds = (
            float_of_key(np.int32(min(low + step, high))),
            float_of_key(np.int32(min(low + 2 * step, high))),
            float_of_key(np.int32(min(low + 3 * step, high))),
            float_of_key(np.int32(min(low + 4 * step, high))),
            float_of_key(np.int32(min(low + 5 * step, high))),
            float_of_key(np.int32(min(low + 6 * step, high))),
            float_of_key(np.int32(min(low + 7 * step, high))),
        )
        m0, m1, m2, m3, m4, m5, m6 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for block, start in enumerate(range(0, vocab, BLOCK)):
            if tops[block] >= bounds[0]:
                stop = min(start + BLOCK, vocab)
                parts = _parts_from(x[base + start : base + stop], e[start:stop], bounds)
                m0 += np.float64(parts[0])
                m1 += np.float64(parts[1])
                m2 += np.float64(parts[2])
                m3 += np.float64(parts[3])
                m4 += np.float64(parts[4])
                m5 += np.float64(parts[5])
                m6 += np.float64(parts[6])
        enough: Any = np.int64(0)
        for mass in (m0, m1, m2, m3, m4, m5, m6):
            if mass < wanted:
                break
            enough += 1
        if enough < _WAYS:
            high = min(low + (enough + 1) * step, high) - 1
        low = min(low + enough * step, high)
    return float_of_key(np.int32(low))


@compiled(
    types.Tuple((float32, float64))(
        FLAT, int64, int64, float32, float32, int64, float32, float32, SCRATCH, SUMS
    ),
)
def threshold_of_row(
    x: Any,
    base: Any,
    vocab: Any,
    rate: Any,
    top: Any,
    top_k: Any,
    top_p: Any,
    below_top: Any,
    e: Any,
    tops: Any,
) -> Any:
    """The least logit that min-p, top-k and top-p keep, and the mass of what they keep, relative to `top`.

    `below_top` is how far below the largest logit min-p keeps. `e` is scratch of the vocabulary's size, `tops` of its blocks.
    """
    least = top + below_top
    if 0 < top_k < vocab:
        least = max(least, kth_largest(x, base, vocab, top_k, top))
    mass = 0.0
    for block, start in enumerate(range(0, vocab, BLOCK)):
        stop = min(start + BLOCK, vocab)
        row, mine = x[base + start : base + stop], e[start:stop]
        for j in range(row.shape[0]):
            mine[j] = exp2_32((row[j] - top) * rate)
        tops[block] = np.float64(top_of_block(row)[0])
        if tops[block] >= least:
            mass += np.float64(_part_from(row, mine, least))
    if top_p < 1:
        # Entries so small that all of them together are half of what top-p leaves out cannot be where it ends.
        small = 0.5 * (1 - np.float64(top_p)) * mass / vocab
        low = np.float32(top + np.float32(np.log2(small)) / rate)
        least = _nucleus(
            x, e, base, vocab, max(least, min(low, top)), top, np.float64(top_p) * mass, tops
        )
        mass = _mass_from(x, e, base, vocab, least, tops)
    return least, mass


@compiled(float64(float32, float32, float32, float64))
def _entropy_term(x: Any, shift: Any, rate: Any, mass: Any) -> Any:
    p = np.float64(exp2_32((x - shift) * rate)) / mass
    return -p * np.log(p) if p > 0 else 0.0


@compiled(float64(FLAT, int64, int64, float32, float32, float32, float64, int64))
def entropy_of_row(
    x: Any, base: Any, vocab: Any, rate: Any, shift: Any, least: Any, mass: Any, top_k: Any
) -> Any:
    """-sum p ln p over the `top_k` largest of a row, with p = 2**((x - shift) rate) / mass, and 0 below `least`."""
    k = min(top_k, vocab)
    _, top, _ = best_of_row(x, base, vocab)
    edge = kth_largest(x, base, vocab, k, top)
    total, above = 0.0, 0
    for j in range(base, base + vocab):
        if x[j] > edge:
            above += 1
            if x[j] >= least:
                total += _entropy_term(x[j], shift, rate, mass)
    if edge >= least and edge >= -LARGEST:
        total += (k - above) * _entropy_term(edge, shift, rate, mass)
    return total
