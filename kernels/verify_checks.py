"""What verification refuses, all problems at once. Values are read only where they lie on the host: no device is waited for."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.errors import KernelError, Problem
from graphspec.kernels.verify_values import METHOD_CODES, FlyRule, Sampling

if TYPE_CHECKING:
    import torch


def on_host(tensor: "torch.Tensor") -> bool:
    """Whether looking at the values costs no wait for a device."""
    return tensor.device.type == "cpu"


def check_shapes(
    logits: "torch.Tensor",
    drafts: "torch.Tensor",
    cu_drafts: "torch.Tensor",
    draft_probs: "torch.Tensor | None",
    sampling: Sampling,
    methods: "torch.Tensor",
    vocab_size: int | None,
) -> None:
    """Raises `KernelError` for tensors that do not belong together."""
    problems = list(_shapes(logits, drafts, cu_drafts, draft_probs, sampling, methods, vocab_size))
    if problems:
        raise KernelError(problems)


def _shapes(
    logits: "torch.Tensor",
    drafts: "torch.Tensor",
    cu_drafts: "torch.Tensor",
    draft_probs: "torch.Tensor | None",
    sampling: Sampling,
    methods: "torch.Tensor",
    vocab_size: int | None,
) -> Iterator[Problem]:
    import torch

    ints, floats = (torch.int32, torch.int64), (torch.float32, torch.bfloat16, torch.float16)
    yield from _tensor("drafts", drafts, 1, ints)
    yield from _tensor("cu_drafts", cu_drafts, 1, ints)
    yield from _tensor("logits", logits, 2, floats)
    if drafts.dim() != 1 or cu_drafts.dim() != 1 or logits.dim() != 2:
        return
    total, requests = drafts.shape[0], cu_drafts.shape[0] - 1
    if requests < 0:
        yield Problem(
            where="cu_drafts",
            found="no entry",
            wanted="a 0, and the sum of drafts after each request",
        )
        return
    if logits.shape[0] != total + requests:
        yield Problem(
            where="logits",
            found=f"{logits.shape[0]} rows for {total} drafts of {requests} requests",
            wanted=f"{total + requests} rows: one for each draft, and one more for each request",
        )
    if draft_probs is not None:
        yield from _tensor("draft_probs", draft_probs, 2, (torch.float32,))
        if draft_probs.shape[0] != total:
            yield Problem(
                where="draft_probs",
                found=f"{draft_probs.shape[0]} rows",
                wanted=f"{total} rows, one for each draft",
            )
    columns = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "min_p": torch.float32,
        "seed": torch.int64,
        "position": torch.int64,
    }
    for name, dtype in columns.items():
        yield from _column(f"sampling.{name}", getattr(sampling, name), dtype, requests)
    yield from _column("methods", methods, torch.int8, requests)
    width = logits.shape[1]
    if width == 0 or (vocab_size is not None and not 1 <= vocab_size <= width):
        yield Problem(
            where="vocab_size",
            found=f"{vocab_size} for logits of {width} columns",
            wanted=f"from 1 to the {width} columns of the logits",
        )
    used = [drafts, cu_drafts, methods, sampling.temperature, draft_probs]
    elsewhere = {str(t.device) for t in used if t is not None} - {str(logits.device)}
    if elsewhere:
        yield Problem(
            where="logits",
            found=f"on {logits.device}, and other inputs on {', '.join(sorted(elsewhere))}",
            wanted="all on one device",
        )


def _tensor(
    where: str, tensor: "torch.Tensor", rank: int, dtypes: "tuple[torch.dtype, ...]"
) -> Iterator[Problem]:
    if tensor.dim() != rank or tensor.dtype not in dtypes:
        yield Problem(
            where=where,
            found=f"{tensor.dtype} of shape {list(tensor.shape)}",
            wanted=f"{' or '.join(map(str, dtypes))} of rank {rank}",
        )
    elif tensor.numel() > 1 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        yield Problem(
            where=where,
            found=f"stride {tensor.stride(-1)} between neighbours",
            wanted="neighbours of a row side by side",
            hint="pass tensor.contiguous()",
        )


def _column(
    where: str, tensor: "torch.Tensor", dtype: "torch.dtype", requests: int
) -> Iterator[Problem]:
    if tuple(tensor.shape) != (requests,) or tensor.dtype != dtype or not tensor.is_contiguous():
        yield Problem(
            where=where,
            found=f"{tensor.dtype} of shape {list(tensor.shape)}",
            wanted=f"{dtype} of shape [{requests}], contiguous",
        )


def check_values(
    drafts: "torch.Tensor",
    cu_drafts: "torch.Tensor",
    sampling: Sampling,
    methods: "torch.Tensor",
    max_drafts: int,
    fly: FlyRule | None,
    rates: Sequence[float],
) -> None:
    """Raises `KernelError` for numbers that mean nothing. Tensors on a device are left unread."""
    problems = [*_rates(rates), *_fly(fly)]
    if on_host(cu_drafts):
        problems += [*_lengths(cu_drafts, drafts.shape[0], max_drafts)]
        problems += [*_settings(sampling), *_methods(methods, max_drafts, fly, rates)]
    if problems:
        raise KernelError(problems)


def _lengths(cu_drafts: "torch.Tensor", total: int, max_drafts: int) -> Iterator[Problem]:
    sums = cu_drafts.tolist()
    lengths = [b - a for a, b in itertools.pairwise(sums)]
    if sums[0] != 0 or sums[-1] != total or min(lengths, default=0) < 0:
        yield Problem(
            where="cu_drafts",
            found=f"{sums[0]} to {sums[-1]} with steps from {min(lengths, default=0)}",
            wanted=f"0 to the {total} drafts, never falling",
        )
    elif max(lengths, default=0) > max_drafts:
        yield Problem(
            where="cu_drafts",
            found=f"a request with {max(lengths)} drafts",
            wanted=f"at most max_drafts ({max_drafts})",
        )


def _settings(sampling: Sampling) -> Iterator[Problem]:
    limits: dict[str, tuple[Callable[[float], bool], str]] = {
        "temperature": (lambda v: 0 <= v < math.inf, "0 (greedy) or a positive number"),
        "top_k": (lambda v: v >= 0, "0 (keep all) or more"),
        "top_p": (lambda v: 0 < v <= 1, "above 0, at most 1 (keep all)"),
        "min_p": (lambda v: 0 <= v <= 1, "from 0 (keep all) to 1"),
    }
    for name, (fits, wanted) in limits.items():
        for i, value in enumerate(getattr(sampling, name).tolist()):
            if not fits(value):
                yield Problem(where=f"sampling.{name}[{i}]", found=f"{value:g}", wanted=wanted)


def _methods(
    methods: "torch.Tensor", max_drafts: int, fly: FlyRule | None, rates: Sequence[float]
) -> Iterator[Problem]:
    used = set(methods.tolist())
    if not used <= set(METHOD_CODES.values()):
        yield Problem(
            where="methods",
            found=f"codes {sorted(used)}",
            wanted=f"codes {sorted(METHOD_CODES.values())} of METHOD_CODES",
        )
    if METHOD_CODES[RejectionSampleMethod.FLY] in used and fly is None:
        yield Problem(where="fly", found="nothing, and a request of method fly", wanted="a FlyRule")
    if METHOD_CODES[RejectionSampleMethod.SYNTHETIC] in used and len(rates) < max_drafts:
        yield Problem(
            where="synthetic_rates",
            found=f"{len(rates)} rates, and a request of method synthetic",
            wanted=f"one for each of {max_drafts} drafts",
        )


def _rates(rates: Sequence[float]) -> Iterator[Problem]:
    before = 1.0
    for i, rate in enumerate(rates):
        if not 0 <= rate <= before:
            yield Problem(
                where=f"synthetic_rates[{i}]",
                found=f"{rate:g} after {before:g}",
                wanted="from 0 to the rate before it",
            )
            return
        before = rate


def _fly(fly: FlyRule | None) -> Iterator[Problem]:
    if fly is None:
        return
    if fly.window < 1 or fly.entropy_top_k < 1 or not fly.entropy_threshold >= 0:
        yield Problem(
            where="fly",
            found=str(fly),
            wanted="window and entropy_top_k of 1 or more, entropy_threshold of 0 or more",
        )
