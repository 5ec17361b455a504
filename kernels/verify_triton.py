"""Verification on the device, in Triton, by the rules of `verify_reference`.

Two kernels. `look` gives each program one row of logits: best token, mass, what the filters keep, entropy, and the chance
of the row's draft. `decide` gives each program one request: how many drafts are kept, and the token after them, drawn in two
passes over its row. Both walk the vocabulary in tiles, with 64-bit offsets of rows. Nothing is read back to the host.

Probabilities are float32, sums of tiles are added in float64. Working memory beside the verdict: 25 bytes a row of logits.
Integers and pointers are not specialised on, so that no batch meets a kernel that was not compiled ahead: see `variants`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from graphspec.kernels.verify_random import ACCEPT, SAMPLE
from graphspec.kernels.verify_values import METHOD_CODES, Verdict, VerifyJob

TILE = 2048
WARPS = 8
# ptxas would spill on sm_90 to fit a third block on a multiprocessor; this lets it have the registers of two.
REGISTERS = 128
_STANDARD, _BLOCK, _FLY, _SYNTHETIC = (tl.constexpr(c) for c in sorted(METHOD_CODES.values()))
_ACCEPT, _SAMPLE = tl.constexpr(ACCEPT), tl.constexpr(SAMPLE)
_LARGEST = tl.constexpr(3.4028234663852886e38)
_LOG2E = tl.constexpr(1.4426950408889634)
_NO_INDEX = tl.constexpr(0x7FFFFFFF)

_LOOK = (
    *("logits", "drafts", "cu_drafts"),
    *("methods", "temperature", "rate", "top_k", "top_p", "below_top"),
    *("best", "top", "least", "mass", "chance", "entropy", "usable"),
    *("stride", "vocab", "fly_top_k"),
)
_DECIDE = (
    *("logits", "draft_probs", "drafts", "cu_drafts"),
    *("methods", "temperature", "rate", "seed", "position", "chances"),
    *("best", "top", "least", "mass", "chance", "entropy", "usable"),
    *("tokens", "counts", "broken"),
    *("stride", "q_stride", "vocab", "width", "window", "threshold"),
)
_TYPES = {
    **dict.fromkeys(("drafts", "cu_drafts", "seed", "position"), "*i64"),
    **dict.fromkeys(("top_k", "best", "tokens", "counts"), "*i32"),
    **dict.fromkeys(("methods", "usable", "broken"), "*i8"),
    **dict.fromkeys(("temperature", "rate", "top_p", "below_top", "draft_probs"), "*fp32"),
    **dict.fromkeys(("top", "least", "mass", "chance", "entropy"), "*fp32"),
    **dict.fromkeys(("stride", "q_stride", "vocab", "width", "window", "fly_top_k"), "i32"),
    "chances": "*fp64",
    "threshold": "fp32",
}
_LOGITS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


# Loops repeat the load of a tile, because the interpreter takes milliseconds for each call of a function (measured).


@triton.jit
def _key_of(x):
    """An integer that orders as the float does."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float_of_key(key):
    """The float that `_key_of` gives this integer for."""
    key = key.to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _kth_largest(row, vocab, k, top, TILE: tl.constexpr):
    """The k-th largest of a row whose largest is `top`, exactly: a search over the bits of its value."""
    low = _key_of(tl.full((), -float("inf"), tl.float32)).to(tl.int64)
    high = _key_of(top).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        key = middle.to(tl.int32)
        edge = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        count = 0
        for start in range(0, vocab, TILE):
            at = start + tl.arange(0, TILE)
            x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
            count += tl.sum(((x >= edge) & (at < vocab)).to(tl.int32), axis=0)
        enough = count >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return _float_of_key(low)


@triton.jit
def _mass_from(row, vocab, top, rate, least, TILE: tl.constexpr):
    mass = tl.zeros((), tl.float64)
    for start in range(0, vocab, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        e = tl.where(x >= least, tl.exp2((x - top) * rate), 0.0)
        mass += tl.sum(e, axis=0).to(tl.float64)
    return mass


@triton.jit
def _entropy(row, vocab, top, rate, least, mass, k, TILE: tl.constexpr):
    """-sum p ln p over the k largest, with p = 2**((x - top) rate) / mass, and 0 below `least`."""
    k = tl.minimum(k, vocab)
    edge = _kth_largest(row, vocab, k, top, TILE)
    total = tl.zeros((), tl.float32)
    above = 0
    for start in range(0, vocab, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        larger = x > edge
        above += tl.sum(larger.to(tl.int32), axis=0)
        p = tl.exp2((x - top) * rate) / mass
        term = tl.where(larger & (x >= least) & (p > 0), -p * tl.log(tl.maximum(p, 1e-37)), 0.0)
        total += tl.sum(term, axis=0)
    p = tl.exp2((edge - top) * rate) / mass
    counts = (edge >= least) & (edge >= -_LARGEST) & (p > 0)
    return total + tl.where(counts, (k - above) * -p * tl.log(tl.maximum(p, 1e-37)), 0.0)


@triton.jit(do_not_specialize=_LOOK, do_not_specialize_on_alignment=_LOOK)
def look(
    logits,
    drafts,
    cu_drafts,
    methods,
    temperature,
    rate,
    top_k,
    top_p,
    below_top,
    best,
    top,
    least,
    mass,
    chance,
    entropy,
    usable,
    stride,
    vocab,
    fly_top_k,
    TILE: tl.constexpr,
):
    """What there is to know of row i of request r."""
    r, i = tl.program_id(0), tl.program_id(1)
    first = tl.load(cu_drafts + r)
    count = tl.load(cu_drafts + r + 1) - first
    if i > count:
        return
    at_row = first + r + i
    row = logits + at_row * stride
    sampled = tl.load(temperature + r) > 0
    speed = tl.where(sampled, tl.load(rate + r), _LOG2E)

    peak = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float64)
    where = 0
    nans = 0
    for start in range(0, vocab, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        nans += tl.sum((x != x).to(tl.int32), axis=0)
        x = tl.where(x != x, -float("inf"), x)
        tallest = tl.max(x, axis=0)
        index = tl.min(tl.where(x == tallest, at, _NO_INDEX), axis=0)
        where = tl.where(tallest > peak, index, where)
        before = peak
        peak = tl.maximum(peak, tallest)
        shift = tl.where(peak >= -_LARGEST, peak, 0.0)
        shift = tl.minimum(shift, _LARGEST)
        total *= tl.where(before >= -_LARGEST, tl.exp2((before - shift) * speed), 0.0)
        total += tl.sum(tl.exp2((x - shift) * speed), axis=0).to(tl.float64)
    fine = (nans == 0) & (peak >= -_LARGEST) & (peak <= _LARGEST)
    tl.store(usable + at_row, fine.to(tl.int8))
    tl.store(best + at_row, where)
    if not fine:
        return

    floor = tl.full((), -float("inf"), tl.float32)
    if sampled:
        k, share, below = tl.load(top_k + r), tl.load(top_p + r), tl.load(below_top + r)
        floor = peak + below
        if (k > 0) & (k < vocab):
            floor = tl.maximum(floor, _kth_largest(row, vocab, k, peak, TILE))
        if floor > -float("inf"):
            total = _mass_from(row, vocab, peak, speed, floor, TILE)
        if share < 1:
            wanted = share.to(tl.float64) * total
            # Nothing is below the least finite logit but what is masked, which has no mass.
            low = _key_of(tl.maximum(floor, -_LARGEST)).to(tl.int64)
            high = _key_of(peak).to(tl.int64)
            while low < high:
                middle = (low + high + 1) >> 1
                key = middle.to(tl.int32)
                edge = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
                kept = tl.zeros((), tl.float64)
                for start in range(0, vocab, TILE):
                    at = start + tl.arange(0, TILE)
                    x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
                    e = tl.where(x >= edge, tl.exp2((x - peak) * speed), 0.0)
                    kept += tl.sum(e, axis=0).to(tl.float64)
                low = tl.where(kept >= wanted, middle, low)
                high = tl.where(kept >= wanted, high, middle - 1)
            floor = _float_of_key(low)
            total = _mass_from(row, vocab, peak, speed, floor, TILE)
    weight = total.to(tl.float32)
    tl.store(top + at_row, peak)
    tl.store(least + at_row, floor)
    tl.store(mass + at_row, weight)

    draft = tl.load(drafts + first + i, mask=i < count, other=-1)
    inside = (draft >= 0) & (draft < vocab)
    x = tl.load(row + draft, mask=inside, other=-float("inf")).to(tl.float32)
    p = tl.where(inside & (x >= floor), tl.exp2((x - peak) * speed) / weight, 0.0)
    # A masked draft is -1 to FLy, which may not pass it, however unlikely an unmasked one is.
    tl.store(chance + at_row, tl.where((x > -float("inf")) & (x >= floor), p, -1.0))
    if (tl.load(methods + r) == _FLY) & inside:
        h = _entropy(row, vocab, peak, speed, floor, weight, fly_top_k, TILE)
        tl.store(entropy + at_row, h)


@triton.jit
def _word(seed, place, PURPOSE: tl.constexpr):
    """The first two words of `verify_random.words`."""
    low = (place & 0xFFFFFFFF).to(tl.uint32)
    high = ((place >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = (place & 0).to(tl.uint32)
    a, b, _, _ = tl.philox(seed, low, high, zero + PURPOSE, zero)
    return a, b


@triton.jit
def _accept_number(seed, place):
    """`verify_random.accept_uniform`."""
    a, _ = _word(seed, place, _ACCEPT)
    return (a.to(tl.float64) + 0.5) * 2.3283064365386963e-10


@triton.jit
def _sample_number(seed, place):
    """`verify_random.sample_uniform`."""
    a, b = _word(seed, place, _SAMPLE)
    bits = ((a >> 6).to(tl.int64) << 26) | (b >> 6).to(tl.int64)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _weights(row, q_row, start, vocab, top, rate, least, scale, without, dense, TILE: tl.constexpr):
    """A tile of max(scale p - q, 0), or of the unscaled p without one token where `dense` is not set."""
    at = start + tl.arange(0, TILE)
    x = tl.load(row + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    kept = (x >= least) & (at < vocab) & (at != without)
    w = tl.where(kept, tl.exp2((x - top) * rate), 0.0)
    q = tl.load(q_row + at, mask=dense & (at < vocab), other=0.0)
    left = tl.where(dense, w * scale - q, w)
    return tl.where(left > 0, left, 0.0)


@triton.jit
def _total(row, q_row, vocab, top, rate, least, scale, without, dense, TILE: tl.constexpr):
    """The sum of a row's weights, and where its last tile of positive weight begins."""
    total = tl.zeros((), tl.float64)
    last = 0
    for start in range(0, vocab, TILE):
        w = _weights(row, q_row, start, vocab, top, rate, least, scale, without, dense, TILE)
        part = tl.sum(w, axis=0)
        last = tl.where(part > 0, start, last)
        total += part.to(tl.float64)
    return total, last


@triton.jit(do_not_specialize=_DECIDE, do_not_specialize_on_alignment=_DECIDE)
def decide(
    logits,
    draft_probs,
    drafts,
    cu_drafts,
    methods,
    temperature,
    rate,
    seed,
    position,
    chances,
    best,
    top,
    least,
    mass,
    chance,
    entropy,
    usable,
    tokens,
    counts,
    broken,
    stride,
    q_stride,
    vocab,
    width,
    window,
    threshold,
    TILE: tl.constexpr,
):
    """Tokens of request r. `q_stride` is 0 where drafts were sure."""
    r = tl.program_id(0)
    first = tl.load(cu_drafts + r)
    count = (tl.load(cu_drafts + r + 1) - first).to(tl.int32)
    rows = first + r
    method = tl.load(methods + r)
    sampled = tl.load(temperature + r) > 0
    speed, key, place = tl.load(rate + r), tl.load(seed + r), tl.load(position + r)
    has_q = q_stride > 0

    n = count
    for back in range(count):
        i = count - 1 - back
        draft = tl.load(drafts + first + i)
        wrong = (draft < 0) | (draft >= vocab) | (tl.load(usable + rows + i) == 0)
        n = tl.where(wrong, i, n)
    ends_broken = tl.load(usable + rows + n) == 0

    kept = n
    weight = tl.full((), 1.0, tl.float64)
    if sampled & (method == _BLOCK):
        kept = 0
        w = tl.full((), 1.0, tl.float64)
        for i in range(n):
            draft = tl.load(drafts + first + i)
            q = tl.load(draft_probs + (first + i) * q_stride + draft, mask=has_q, other=1.0)
            p = tl.maximum(tl.load(chance + rows + i), 0.0).to(tl.float64)
            divisor = tl.where(q > 0, q, 1.0).to(tl.float64)
            w = tl.where(q > 0, tl.minimum(w * p / divisor, 1.0), 0.0)
            passes = w
            if i + 1 < n:
                following = rows + i + 1
                left = w * (1 - tl.maximum(tl.load(chance + following), 0.0))
                if has_q:
                    scale = (w / tl.load(mass + following)).to(tl.float32)
                    left, _ = _total(
                        logits + following * stride,
                        draft_probs + (first + i + 1) * q_stride,
                        vocab,
                        tl.load(top + following),
                        speed,
                        tl.load(least + following),
                        scale,
                        -1,
                        True,
                        TILE,
                    )
                passes = tl.where(left + 1 - w > 0, left / tl.maximum(left + 1 - w, 1e-300), 1.0)
            accepted = _accept_number(key, place + i) <= passes
            kept = tl.where(accepted, i + 1, kept)
            weight = tl.where(accepted, w, weight)
    else:
        # From the last draft to the first, so that the drafts after a rejected one are known: the first failure stays.
        followed = 0
        for back in range(n):
            i = n - 1 - back
            draft = tl.load(drafts + first + i)
            q = tl.load(draft_probs + (first + i) * q_stride + draft, mask=has_q, other=1.0)
            stored = tl.load(chance + rows + i)
            u = _accept_number(key, place + i)
            likely = u * q.to(tl.float64) < tl.maximum(stored, 0.0)
            native = tl.where(sampled, (q > 0) & likely, draft == tl.load(best + rows + i))
            native = tl.where(method == _SYNTHETIC, u < tl.load(chances + i), native)
            deferred = (method == _FLY) & (i + window < n) & (followed >= window)
            deferred = deferred & (stored >= 0) & ((q > 0) | (sampled == 0))
            deferred = deferred & (tl.load(entropy + rows + i) >= threshold)
            kept = tl.where(native | deferred, kept, i)
            followed = tl.where(native, followed + 1, 0)

    for i in range(kept):
        tl.store(tokens + r.to(tl.int64) * width + i, tl.load(drafts + first + i).to(tl.int32))
    stops = (kept == n) & ends_broken
    tl.store(counts + r, tl.where(stops, kept, kept + 1))
    tl.store(broken + r, stops.to(tl.int8))
    if stops:
        return
    last_row = rows + kept
    token = tl.load(best + last_row)
    if sampled:
        row = logits + last_row * stride
        q_row = draft_probs + (first + kept) * q_stride
        rejected = kept < n
        dense = rejected & has_q
        without = tl.load(drafts + first + kept, mask=rejected & (q_stride == 0), other=-1).to(
            tl.int32
        )
        peak, floor = tl.load(top + last_row), tl.load(least + last_row)
        scale = (weight / tl.load(mass + last_row)).to(tl.float32)
        total, last = _total(row, q_row, vocab, peak, speed, floor, scale, without, dense, TILE)
        if not total > 0:
            dense = rejected & (not rejected)
            without = tl.full((), -1, tl.int32)
            total, last = _total(row, q_row, vocab, peak, speed, floor, scale, without, dense, TILE)
        wanted = _sample_number(key, place + kept) * total
        before = tl.zeros((), tl.float64)
        found = 0
        for start in range(0, vocab, TILE):
            if found == 0:
                w = _weights(
                    row, q_row, start, vocab, peak, speed, floor, scale, without, dense, TILE
                )
                part = tl.sum(w, axis=0).to(tl.float64)
                if (start == last) | (before + part > wanted):
                    at = start + tl.arange(0, TILE)
                    sums = before + tl.cumsum(w.to(tl.float64), axis=0)
                    index = tl.min(tl.where((sums > wanted) & (w > 0), at, _NO_INDEX), axis=0)
                    final = tl.max(tl.where(w > 0, at, 0), axis=0)
                    token = tl.where(index == _NO_INDEX, final, index)
                    found = 1
                before += part
    tl.store(tokens + r.to(tl.int64) * width + kept, token)


def verify(job: VerifyJob) -> Verdict:
    """The batch on the device of its tensors. Launches two kernels, reads nothing back."""
    s, device, requests = job.sampling, job.logits.device, job.requests
    verdict = job.nothing_yet()
    if not requests:
        return verdict
    rows = job.logits.shape[0]
    temperature = s.temperature.double()
    rate = (1.4426950408889634 / temperature).clamp(max=3.4028234663852886e38).float()
    below = (temperature * s.min_p.double().log()).nan_to_num(nan=-torch.inf).float()
    best = torch.empty(rows, dtype=torch.int32, device=device)
    top, least, mass, chance, entropy = torch.zeros((5, rows), dtype=torch.float32, device=device)
    usable = torch.empty(rows, dtype=torch.int8, device=device)
    broken = torch.empty(requests, dtype=torch.int8, device=device)
    drafts, cu = job.drafts.long(), job.cu_drafts.long()
    dense = job.draft_probs is not None and job.draft_probs.shape[0] > 0
    q = job.draft_probs if dense else top
    found = (best, top, least, mass, chance, entropy, usable)
    look[(requests, job.max_drafts + 1)](
        *(job.logits, drafts, cu),
        *(job.methods, s.temperature, rate, s.top_k, s.top_p, below),
        *found,
        *(job.logits.stride(0), job.vocab, job.fly.entropy_top_k),
        TILE=TILE,
        **_options(),
    )
    decide[(requests,)](
        *(job.logits, q, drafts, cu),
        *(job.methods, s.temperature, rate, s.seed, s.position, job.chances),
        *found,
        *(verdict.tokens, verdict.counts, broken),
        *(job.logits.stride(0), q.stride(0) if dense and q is not None else 0, job.vocab),
        *(job.max_drafts + 1, job.fly.window, float(job.fly.entropy_threshold)),
        TILE=TILE,
        **_options(),
    )
    return Verdict(tokens=verdict.tokens, counts=verdict.counts, broken=broken.bool())


def _options() -> Mapping[str, int]:
    """How the kernels are launched. AMD's compiler knows no bound on registers."""
    bound = {} if torch.version.hip is not None else {"maxnreg": REGISTERS}
    return {"num_warps": WARPS, **bound}


def variants() -> Sequence[Mapping[str, Any]]:
    """Everything that `verify` can launch: name, kernel, signature, constexprs, options."""
    return [
        {
            "name": f"verify_{name}_{pointer.removeprefix('*')}",
            "kernel": kernel,
            "signature": {a: pointer if a == "logits" else _TYPES[a] for a in arguments},
            "constexprs": {"TILE": TILE},
            "options": {"num_warps": WARPS, "maxnreg": REGISTERS},
        }
        for name, kernel, arguments in (("look", look, _LOOK), ("decide", decide, _DECIDE))
        for pointer in _LOGITS.values()
    ]
