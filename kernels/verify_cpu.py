"""Verification on the host: one compiled function a request, several threads a batch, no buffer of all rows.

Why numba: torch's own operations make a pass over memory each (amax, subtract, exp, sum), and these rows are read once.
Threads are ours, because numba's thread pools may be entered by one Python thread at a time only.

Working memory: for each thread a vocabulary of float32, and twice its number of blocks; for logits that are not float32, one
float32 copy of a part of the batch, `COPY_BYTES` or the rows of one request.
"""

import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import numpy as np
import torch
from numba import boolean, float32, float64, int8, int32, int64, uint64

from graphspec.kernels.verify_filters import entropy_of_row, threshold_of_row
from graphspec.kernels.verify_random import ACCEPT, MULTIPLIERS, ROUNDS, SAMPLE, WEYL
from graphspec.kernels.verify_rows import (
    BLOCK,
    CODE,
    FLAT,
    LARGEST,
    LOG2E,
    SCRATCH,
    SUMS,
    best_of_row,
    compiled,
    draw,
    exp2_32,
    mass_of_row,
    mass_without,
    masses_of_row,
    surplus_of_row,
    types,
)
from graphspec.kernels.verify_values import METHOD_CODES, Verdict, VerifyJob

COPY_BYTES = 64 << 20
_STANDARD, _BLOCK, _FLY, _SYNTHETIC = sorted(METHOD_CODES.values())
_MASK, _32, _6, _26 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(6), np.uint64(26)
_M0, _M1 = (np.uint64(m) for m in MULTIPLIERS)
_W0, _W1 = (np.uint64(w) for w in WEYL)
_EVERYTHING = np.float32(-np.inf)


def _of(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C", readonly=True)


@compiled(types.UniTuple(uint64, 2)(int64, int64, int64))
def philox_words(seed: Any, position: Any, purpose: Any) -> Any:
    """The first two words of `verify_random.words`."""
    place, key = np.uint64(position), np.uint64(seed)
    c0, c1, c2, c3 = place & _MASK, place >> _32, np.uint64(purpose), np.uint64(0)
    k0, k1 = key & _MASK, key >> _32
    for _ in range(ROUNDS):
        left, right = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (right >> _32) ^ c1 ^ k0,
            right & _MASK,
            (left >> _32) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1


@CODE.entry(float64(int64, int64))
def accept_number(seed: Any, position: Any) -> Any:
    """`verify_random.accept_uniform`."""
    return (np.float64(philox_words(seed, position, ACCEPT)[0]) + 0.5) * 2.0**-32


@CODE.entry(float64(int64, int64))
def sample_number(seed: Any, position: Any) -> Any:
    """`verify_random.sample_uniform`."""
    high, low = philox_words(seed, position, SAMPLE)
    return (np.float64((high >> _6) << _26 | low >> _6) + 0.5) * 2.0**-52


@compiled(
    types.Tuple((float32, float32, float64, boolean))(
        FLAT, int64, int64, float32, int64, float32, float32, SCRATCH, SUMS
    ),
)
def _distribution(
    x: Any, base: Any, vocab: Any, rate: Any, top_k: Any, top_p: Any, below: Any, e: Any, sums: Any
) -> Any:
    """Shift, least logit that is kept, and mass of a row; and whether it is a distribution."""
    if 0 < top_k < vocab or top_p < 1 or below > _EVERYTHING:
        _, top, usable = best_of_row(x, base, vocab)
        if not usable:
            return top, _EVERYTHING, 0.0, False
        least, mass = threshold_of_row(x, base, vocab, rate, top, top_k, top_p, below, e, sums)
        return top, least, mass, True
    shift, mass, usable = mass_of_row(x, base, vocab, rate, sums)
    return shift, _EVERYTHING, mass, usable


@compiled(boolean(boolean[::1], int64, int64, int64))
def _followed(native: Any, i: Any, window: Any, n: Any) -> Any:
    """Whether the next `window` drafts are there, and each is accepted on its own."""
    if i + window >= n:
        return False
    for j in range(i + 1, i + 1 + window):  # noqa: SIM110 - numba has no generators here
        if not native[j]:
            return False
    return True


# What a request has: flat logits, row stride, first row; flat q, its stride and first row (or -1); its drafts.
_REQUEST = (FLAT, int64, int64, FLAT, int64, int64, _of(int64), int64)
# How it is verified: method, rate, top_k, top_p, below_top, seed, position; FLy's window, threshold, top_k; chances.
_RULES = (
    int64,
    float32,
    int64,
    float32,
    float32,
    int64,
    int64,
    int64,
    float64,
    int64,
    _of(float64),
)


@compiled(types.Tuple((int64, boolean))(*_REQUEST, *_RULES, int32[::1], SCRATCH, SUMS))
def _greedy(
    x: Any,
    stride: Any,
    first: Any,
    q: Any,
    q_stride: Any,
    q_first: Any,
    drafts: Any,
    vocab: Any,
    method: Any,
    rate: Any,
    top_k: Any,
    top_p: Any,
    below: Any,
    seed: Any,
    position: Any,
    window: Any,
    threshold: Any,
    fly_top_k: Any,
    chances: Any,
    tokens: Any,
    e: Any,
    sums: Any,
) -> Any:
    """Tokens of a request at temperature 0 and whether it ended at a broken row; see `verify_reference.decide`."""
    n, broken = len(drafts), False
    best = np.empty(n + 1, dtype=np.int64)
    native = np.zeros(n + 1, dtype=np.bool_)
    kept = 0
    for i in range(n + 1):
        best[i], _, usable = best_of_row(x, (first + i) * stride, vocab)
        if not usable:
            n, broken = i, True
            break
        if i < n:
            native[i] = drafts[i] == best[i]
            if method == _SYNTHETIC:
                native[i] = accept_number(seed, position + i) < chances[i]
            if not native[i] and method != _FLY:
                break
    while kept < n:
        if not native[kept]:
            if method != _FLY or not _followed(native, kept, window, n):
                break
            base = (first + kept) * stride
            shift, mass, _ = mass_of_row(x, base, vocab, LOG2E, sums)
            possible = x[base + drafts[kept]] > _EVERYTHING
            h = entropy_of_row(x, base, vocab, LOG2E, shift, _EVERYTHING, mass, fly_top_k)
            if not possible or h < threshold:
                break
        kept += 1
    # A loop: numba compiles four seconds of error texts for an assignment of slices.
    for i in range(kept):
        tokens[i] = drafts[i]
    if kept == n and broken:
        return kept, True
    tokens[kept] = best[kept]
    return kept + 1, False


@compiled(
    types.Tuple((int64, float64))(
        FLAT, int64, int64, FLAT, int64, int64, int64, int64, float32, int64, int64,
        float32[::1], float32[::1], float64[::1], float64[::1], float64[::1], SUMS,
    ),
)  # fmt: skip
def _block_kept(
    x: Any,
    stride: Any,
    first: Any,
    q: Any,
    q_stride: Any,
    q_first: Any,
    n: Any,
    vocab: Any,
    rate: Any,
    seed: Any,
    position: Any,
    shift: Any,
    least: Any,
    mass: Any,
    p: Any,
    qs: Any,
    sums: Any,
) -> Any:
    """How many drafts block verification keeps, and the weight after them; see `verify_reference._block`."""
    kept, weight, w = 0, 1.0, 1.0
    for i in range(n):
        w = min(1.0, w * p[i] / qs[i]) if qs[i] > 0 else 0.0
        chance = w
        if i + 1 < n:
            j = i + 1
            left = w * (1 - p[j])
            if q_first >= 0:
                base, q_base = (first + j) * stride, (q_first + j) * q_stride
                scale = np.float32(w / mass[j])
                left = surplus_of_row(
                    x, q, base, q_base, vocab, shift[j], rate, least[j], scale, sums
                )
            chance = left / (left + 1 - w) if left + 1 - w > 0 else 1.0
        if accept_number(seed, position + i) <= chance:
            kept, weight = i + 1, w
    return kept, weight


@compiled(
    int64(
        FLAT, FLAT, int64, int64, int64, int64, float32, float32, float32, float64, float64, boolean, float64, SUMS
    ),
)  # fmt: skip
def _drawn(
    x: Any,
    q: Any,
    base: Any,
    q_base: Any,
    without: Any,
    vocab: Any,
    shift: Any,
    rate: Any,
    least: Any,
    mass: Any,
    weight: Any,
    fresh: Any,
    u: Any,
    sums: Any,
) -> Any:
    """The token after the accepted drafts. `without` is the rejected draft or -1, `q_base` its row of q or -1; `fresh` says
    that `sums` are those of this row."""
    total, scale = 0.0, np.float32(weight / mass)
    if q_base >= 0:
        without, fresh = -1, False
        total = surplus_of_row(x, q, base, q_base, vocab, shift, rate, least, scale, sums)
    elif without >= 0 and fresh:
        fresh = False
        total = mass_without(x, base, vocab, shift, rate, without, sums)
    elif without >= 0:
        total = masses_of_row(x, base, vocab, shift, rate, least, without, sums)
    if not total > 0:
        q_base, without, total = -1, -1, mass
        if not fresh:
            total = masses_of_row(x, base, vocab, shift, rate, least, without, sums)
    return draw(x, q, base, q_base, vocab, shift, rate, least, scale, without, sums, total, u)


@compiled(types.Tuple((int64, boolean))(*_REQUEST, *_RULES, int32[::1], SCRATCH, SUMS))
def _sampled(  # noqa: PLR0912 - the rules of one request; numba would compile each part several times
    x: Any,
    stride: Any,
    first: Any,
    q: Any,
    q_stride: Any,
    q_first: Any,
    drafts: Any,
    vocab: Any,
    method: Any,
    rate: Any,
    top_k: Any,
    top_p: Any,
    below: Any,
    seed: Any,
    position: Any,
    window: Any,
    threshold: Any,
    fly_top_k: Any,
    chances: Any,
    tokens: Any,
    e: Any,
    sums: Any,
) -> Any:
    """Tokens of a request that samples, and whether it ended at a broken row; see `verify_reference.decide`."""
    n, broken = len(drafts), False
    shift, least = np.empty(n + 1, dtype=np.float32), np.empty(n + 1, dtype=np.float32)
    mass, p, qs = np.empty(n + 1), np.zeros(n + 1), np.ones(n + 1)
    native, fresh = np.zeros(n + 1, dtype=np.bool_), -1
    for i in range(n + 1):
        base = (first + i) * stride
        shift[i], least[i], mass[i], usable = _distribution(
            x, base, vocab, rate, top_k, top_p, below, e, sums
        )
        if not usable:
            n, broken = i, True
            break
        if i < n:
            at = x[base + drafts[i]]
            if at >= least[i]:
                p[i] = np.float64(exp2_32((at - shift[i]) * rate)) / mass[i]
            if q_first >= 0:
                qs[i] = q[(q_first + i) * q_stride + drafts[i]]
        # The row whose sums of blocks are known: the last that was looked at, which mostly is the one to draw from.
        fresh = i if least[i] == _EVERYTHING else -1
        if i < n:
            if method == _SYNTHETIC:
                native[i] = accept_number(seed, position + i) < chances[i]
            elif method != _BLOCK:
                native[i] = qs[i] > 0 and accept_number(seed, position + i) * qs[i] < p[i]
            if not native[i] and method in (_STANDARD, _SYNTHETIC):
                break
    kept, weight = 0, 1.0
    if method == _BLOCK:
        kept, weight = _block_kept(
            x, stride, first, q, q_stride, q_first, n, vocab, rate, seed, position, shift, least, mass, p, qs, sums
        )  # fmt: skip
        # Sums of other rows may have taken the place of the last one's.
        fresh = fresh if q_first < 0 else -1
    else:
        while kept < n:
            if not native[kept]:
                if method != _FLY or not _followed(native, kept, window, n):
                    break
                i, base = kept, (first + kept) * stride
                at = x[base + drafts[i]]
                if not (at > _EVERYTHING and at >= least[i] and qs[i] > 0):
                    break
                h = entropy_of_row(x, base, vocab, rate, shift[i], least[i], mass[i], fly_top_k)
                if h < threshold:
                    break
            kept += 1
    for j in range(kept):
        tokens[j] = drafts[j]
    if kept == n and broken:
        return kept, True
    tokens[kept] = _drawn(
        x, q, (first + kept) * stride, (q_first + kept) * q_stride if kept < n and q_first >= 0 else -1,
        drafts[kept] if kept < n else -1, vocab, shift[kept], rate, least[kept], mass[kept], weight,
        fresh == kept, sample_number(seed, position + kept), sums,
    )  # fmt: skip
    return kept + 1, False


@CODE.entry(
    types.void(
        int64, int64, int64, int64,
        FLAT, int64, FLAT, int64,
        _of(int64), _of(int64), int64,
        _of(int8), _of(float32), _of(float32), _of(int32), _of(float32), _of(float32), _of(int64), _of(int64),
        int64, float64, int64, _of(float64),
        int32[:, ::1], int32[::1], boolean[::1],
    ),
)  # fmt: skip
def _run(
    low: Any,
    high: Any,
    step: Any,
    first_row: Any,
    x: Any,
    stride: Any,
    q: Any,
    q_stride: Any,
    drafts: Any,
    cu: Any,
    vocab: Any,
    methods: Any,
    temperature: Any,
    rate: Any,
    top_k: Any,
    top_p: Any,
    below: Any,
    seed: Any,
    position: Any,
    window: Any,
    threshold: Any,
    fly_top_k: Any,
    chances: Any,
    tokens: Any,
    counts: Any,
    broken: Any,
) -> None:
    """Requests `low`, `low + step`, ... below `high`; `x` begins with row `first_row`."""
    e = np.empty(vocab, dtype=np.float32)
    sums = np.empty((vocab + BLOCK - 1) // BLOCK)
    for r in range(low, high, step):
        start, end = cu[r], cu[r]
        while end < cu[r + 1] and 0 <= drafts[end] < vocab:
            end += 1
        rows = (x, stride, start + r - first_row, q, q_stride, start if q_stride > 0 else -1)
        rules = (methods[r], rate[r], top_k[r], top_p[r], below[r], seed[r], position[r], window, threshold, fly_top_k)  # fmt: skip
        if temperature[r] > 0:
            counts[r], broken[r] = _sampled(
                *rows, drafts[start:end], vocab, *rules, chances, tokens[r], e, sums
            )
        else:
            counts[r], broken[r] = _greedy(
                *rows, drafts[start:end], vocab, *rules, chances, tokens[r], e, sums
            )


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """All that lies between the first and the last entry, as one array: rows may be wider than what is used of them."""
    rows, width = tensor.shape
    reach = (rows - 1) * tensor.stride(0) + width if rows else 0
    return tensor.detach().as_strided((reach,), (1,)).numpy()


def _parts(job: VerifyJob) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Ranges of requests with their logits in float32."""
    cu = job.cu_drafts.tolist()
    if job.logits.dtype == torch.float32:
        yield 0, job.requests, job.logits
        return
    most = max(1, COPY_BYTES // (4 * job.vocab))
    low = 0
    while low < job.requests:
        high = low + 1
        while high < job.requests and cu[high + 1] - cu[low] + high + 1 - low <= most:
            high += 1
        rows = job.logits[cu[low] + low : cu[high] + high, : job.vocab]
        yield low, high, rows.to(torch.float32)
        low = high


@functools.cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="graphspec-verify")


def verify(job: VerifyJob) -> Verdict:
    """The batch, on as many threads as torch uses. The same bits on any number of them."""
    run = CODE.ready()["_run"]
    verdict = job.nothing_yet()
    s, fly = attrs.asdict(job.sampling, recurse=False), job.fly
    numbers = {name: tensor.numpy() for name, tensor in s.items()}
    below = (s["temperature"].double() * s["min_p"].double().log()).nan_to_num(nan=-torch.inf)
    rate = (float(np.log2(np.e)) / s["temperature"].double()).clamp(max=float(LARGEST)).float()
    probs = job.draft_probs
    dense = probs is not None and probs.shape[0] > 0
    q = _flat(probs) if dense and probs is not None else np.zeros(0, dtype=np.float32)
    q_stride = probs.stride(0) if dense and probs is not None else 0
    shared = (
        job.drafts.long().numpy(), job.cu_drafts.long().numpy(), job.vocab,
        job.methods.numpy(), numbers["temperature"], rate.numpy(), numbers["top_k"], numbers["top_p"],
        below.float().numpy(), numbers["seed"], numbers["position"],
        fly.window, fly.entropy_threshold, fly.entropy_top_k, job.chances.numpy(),
        verdict.tokens.numpy(), verdict.counts.numpy(), verdict.broken.numpy(),
    )  # fmt: skip
    for low, high, logits in _parts(job):
        first = 0 if logits is job.logits else int(job.cu_drafts[low]) + low
        rows = (first, _flat(logits), logits.stride(0), q, q_stride)
        count = min(torch.get_num_threads(), high - low)
        if count <= 1:
            run(low, high, 1, *rows, *shared)
            continue
        pool = _threads(os.getpid(), count)
        running = [pool.submit(run, low + t, high, count, *rows, *shared) for t in range(count)]
        for future in running:
            future.result()
    return verdict
