"""n-gram drafting on the device, in Triton, by the rule of `propose_ngram`.

Two kernels. `scan` gives each program a tile of positions of one row; every position counts how many tokens before it
equal the row's last ones, and the tile keeps its best position as one packed number, so that one maximum is both rules:
longest first, then earliest (or latest). `finalize` takes the best of a row's tiles and copies what followed. Memory
beside the output: 8 bytes for each 1024 tokens of a row.

Integers are not specialised on, neither for being 1 nor for being divisible by 16, and neither are pointers: a step
whose batch is 1 or whose buffer begins elsewhere runs what was compiled ahead. `variants` has all there is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
import triton
import triton.language as tl

from graphspec.errors import KernelError, Problem
from graphspec.kernels.ngram import Tie

TILE = 1024
WIDTH = 32

_SCAN = ("tokens", "lengths", "scores", "stride", "tiles", "min_n", "max_n")
_FINALIZE = (
    *("tokens", "lengths", "sampled", "scores", "drafts", "counts"),
    *("stride", "tiles", "width", "k", "max_model_len"),
)
_INT32, _IDS, _SCORES = "i32", "*i32", "*i64"
_TYPES = {
    **dict.fromkeys(("tokens", "lengths", "sampled", "drafts", "counts"), _IDS),
    **dict.fromkeys(("stride", "tiles", "min_n", "max_n", "width", "k", "max_model_len"), _INT32),
    "scores": _SCORES,
}


@triton.jit(do_not_specialize=_SCAN, do_not_specialize_on_alignment=_SCAN)
def scan(
    tokens, lengths, scores, stride, tiles, min_n, max_n, LATEST: tl.constexpr, TILE: tl.constexpr
):
    """Writes each tile's best place: (matched tokens << 32) | rank of the place, 0 where nothing matches."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    length = tl.load(lengths + row)
    context = tokens + row * stride
    # A place is named by the position behind it, where its drafts begin: the last token itself is at length - 1.
    ends = tile * TILE + tl.arange(0, TILE)
    alive = (ends >= 1) & (ends < length)
    matched = tl.zeros([TILE], tl.int32)
    behind = context + ends
    if tile * TILE < length:
        for i in range(1, max_n + 1):
            alive = alive & (ends >= i)
            wanted = tl.load(context + length - i, mask=length >= i, other=0)
            alive = alive & (tl.load(behind - i, mask=alive, other=0) == wanted)
            matched += alive.to(tl.int32)
    rank = ends if LATEST else 0x7FFFFFFF - ends
    score = (matched.to(tl.int64) << 32) | rank.to(tl.int64)
    best = tl.max(tl.where(matched >= min_n, score, 0), axis=0)
    tl.store(scores + row * tiles + tile, best)


@triton.jit(do_not_specialize=_FINALIZE, do_not_specialize_on_alignment=_FINALIZE)
def finalize(
    tokens,
    lengths,
    sampled,
    scores,
    drafts,
    counts,
    stride,
    tiles,
    width,
    k,
    max_model_len,
    LATEST: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Writes a row's drafts, -1 past their count, and the count."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    best = tl.zeros([TILE], tl.int64)
    for first in range(0, tiles, TILE):
        at = first + tl.arange(0, TILE)
        best = tl.maximum(best, tl.load(scores + row * tiles + at, mask=at < tiles, other=0))
    score = tl.max(best, axis=0)
    rank = (score & 0x7FFFFFFF).to(tl.int32)
    end = rank if LATEST else 0x7FFFFFFF - rank
    count = tl.minimum(tl.minimum(k, max_model_len - length), length - end)
    count = tl.where((score > 0) & (tl.load(sampled + row) > 0), tl.maximum(count, 0), 0)
    tl.store(counts + row, count)
    for first in range(0, width, WIDTH):
        column = first + tl.arange(0, WIDTH)
        draft = tl.load(tokens + row * stride + end + column, mask=column < count, other=-1)
        tl.store(drafts + row * width + column, draft, mask=column < width)


@attrs.frozen(kw_only=True)
class NgramDrafts:
    """drafts: [rows, K] int32, -1 past each row's count; counts: [rows] int32."""

    drafts: torch.Tensor
    counts: torch.Tensor


def propose_ngram_gpu(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    *,
    min_n: int,
    max_n: int,
    k: int,
    max_model_len: int,
    width: int | None = None,
    sampled: torch.Tensor | None = None,
    tie: Tie = "earliest",
) -> NgramDrafts:
    """Drafts for every row of `tokens` [rows, columns] int32, of which the first `lengths` [rows] int32 are its context.

    `sampled` [rows] int32 is how many tokens each row sampled in this step: none, no drafts. `width` is K, the columns
    of the output, and `k` at most that; by default they are equal. Nothing is read back to the host, so a step that
    contains the call can be captured if it is given the same `k`. Ids are compared and nothing else; the host cannot
    know lengths, which the caller keeps within the columns. Raises `KernelError` for tensors of another kind.
    """
    width = k if width is None else width
    _check(tokens, lengths, sampled, min_n=min_n, max_n=max_n, k=k, width=width)
    rows, columns = tokens.shape
    latest = tie == "latest"
    tiles = max(1, triton.cdiv(columns, TILE))
    scores = torch.empty((rows, tiles), dtype=torch.int64, device=tokens.device)
    drafts = torch.empty((rows, width), dtype=torch.int32, device=tokens.device)
    counts = torch.empty(rows, dtype=torch.int32, device=tokens.device)
    if rows:
        stride = tokens.stride(0)
        scan[(rows, tiles)](
            tokens, lengths, scores, stride, tiles, min_n, max_n, LATEST=latest, TILE=TILE
        )
        finalize[(rows,)](
            *(tokens, lengths, lengths if sampled is None else sampled, scores, drafts, counts),
            *(stride, tiles, width, k, max_model_len),
            LATEST=latest,
            TILE=TILE,
            WIDTH=WIDTH,
        )
    return NgramDrafts(drafts=drafts, counts=counts)


def variants() -> Sequence[Mapping[str, Any]]:
    """Everything that `propose_ngram_gpu` can launch: name, kernel, signature, constexprs."""
    return [
        {
            "name": f"ngram_{name}_{tie}",
            "kernel": kernel,
            "signature": {argument: _TYPES[argument] for argument in arguments},
            "constexprs": {"LATEST": tie == "latest", **sizes},
        }
        for name, kernel, arguments, sizes in (
            ("scan", scan, _SCAN, {"TILE": TILE}),
            ("finalize", finalize, _FINALIZE, {"TILE": TILE, "WIDTH": WIDTH}),
        )
        for tie in ("earliest", "latest")
    ]


def _check(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    sampled: torch.Tensor | None,
    *,
    min_n: int,
    max_n: int,
    k: int,
    width: int,
) -> None:
    problems = []
    rows = tokens.shape[0] if tokens.ndim else 0
    if tokens.dtype != torch.int32 or tokens.ndim != 2 or tokens.stride(-1) != 1:
        problems.append(
            Problem(
                where="propose_ngram_gpu(tokens)",
                found=f"{tokens.dtype} {list(tokens.shape)}, strides {tokens.stride()}",
                wanted="torch.int32 [rows, columns] whose columns lie side by side",
            )
        )
    for name, given in (("lengths", lengths), ("sampled", sampled)):
        if given is not None and (
            given.dtype != torch.int32 or given.shape != (rows,) or not given.is_contiguous()
        ):
            problems.append(
                Problem(
                    where=f"propose_ngram_gpu({name})",
                    found=f"{given.dtype} {list(given.shape)}",
                    wanted=f"torch.int32 [{rows}], contiguous",
                )
            )
    if not 1 <= min_n <= max_n:
        problems.append(
            Problem(
                where="propose_ngram_gpu(min_n, max_n)",
                found=f"{min_n}, {max_n}",
                wanted="1 <= min_n <= max_n",
            )
        )
    if not 0 <= k <= width:
        problems.append(
            Problem(where="propose_ngram_gpu(k)", found=str(k), wanted=f"0 to width ({width})")
        )
    if problems:
        raise KernelError(problems)
