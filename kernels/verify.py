"""Which drafts of a batch the target keeps, and its own token after them: the entry of all implementations.

One semantics, three implementations: `verify_reference` (plain torch in float64), `verify_cpu` (numba), `verify_triton`.
docs/verification.md has the rules, what is equal between them, and which random numbers are consumed where.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.errors import EnvironmentProblem, KernelError, Problem
from graphspec.kernels.registry import choose
from graphspec.kernels.verify_checks import check_shapes, check_values, on_host
from graphspec.kernels.verify_values import (
    METHOD_CODES,
    FlyRule,
    Sampling,
    Verdict,
    VerifyJob,
    conditional_rates,
)

if TYPE_CHECKING:
    import torch

IMPLEMENTATIONS = ("auto", "reference", "cpu", "triton")
_HOST = "graphspec.kernels.verify_cpu:verify"


def verify_drafts(
    logits: "torch.Tensor",
    drafts: "torch.Tensor",
    cu_drafts: "torch.Tensor",
    *,
    sampling: Sampling,
    methods: "RejectionSampleMethod | Sequence[RejectionSampleMethod] | torch.Tensor" = RejectionSampleMethod.STANDARD,
    draft_probs: "torch.Tensor | None" = None,
    fly: FlyRule | None = None,
    synthetic_rates: Sequence[float] | None = None,
    max_drafts: int | None = None,
    vocab_size: int | None = None,
    implementation: str = "auto",
) -> Verdict:
    """The accepted drafts of each request, and one token of the target after them.

    logits: [drafts + requests, vocabulary], float32, bfloat16 or float16. A request with n drafts has n + 1 rows, one
    after another: row i decides the i-th draft, the last one the token after all of them.
    drafts: int32 or int64 [drafts] of all requests, one after another. -1, or any id outside of the vocabulary, is a
    padded draft: it and what follows it is never accepted, and its row decides the request's last token.
    cu_drafts: int32 or int64 [requests + 1]: 0, then the sum of drafts after each request.
    sampling: temperature, filters, seed and position of each request. They apply to each of its rows.
    methods: for all requests, or one each; as a tensor, int8 [requests] of `METHOD_CODES`.
    draft_probs: float32 [drafts, draft vocabulary], the distribution that each draft was sampled from; None for drafts
    that were sure (greedy or looked up). The smaller vocabulary counts.
    fly: needed where a request's method is fly. synthetic_rates: chances that the first i drafts are all kept, needed
    where a request's method is synthetic.
    max_drafts: K of the verdict's [requests, K + 1] tokens. None takes the largest of the batch, and waits for the device.
    vocab_size: columns of the logits that count; None for all.

    Inputs are read only. Raises `KernelError` with every problem of the arguments, except of values that lie on a device.
    """
    requests = cu_drafts.shape[0] - 1 if cu_drafts.dim() == 1 else 0
    codes = method_codes(methods, requests, logits.device)
    check_shapes(logits, drafts, cu_drafts, draft_probs, sampling, codes, vocab_size)
    if max_drafts is None:
        max_drafts = int(cu_drafts.diff().max()) if requests else 0
    rates = tuple(synthetic_rates or ())
    check_values(drafts, cu_drafts, sampling, codes, max_drafts, fly, rates)
    vocab = min(vocab_size or logits.shape[1], logits.shape[1])
    if draft_probs is not None and draft_probs.shape[0]:
        vocab = min(vocab, draft_probs.shape[1])
    job = VerifyJob(
        logits=logits,
        drafts=drafts,
        cu_drafts=cu_drafts,
        draft_probs=draft_probs,
        sampling=sampling,
        methods=codes,
        fly=fly or FlyRule(window=1),
        chances=_chances(rates, max_drafts, logits),
        max_drafts=max_drafts,
        vocab=vocab,
    )
    return _run_of(implementation, logits)(job)


def method_codes(
    methods: "RejectionSampleMethod | Sequence[RejectionSampleMethod] | torch.Tensor",
    requests: int,
    device: "torch.device | str",
) -> "torch.Tensor":
    """Methods as the tensor that `verify_drafts` takes: int8 [requests]."""
    import torch

    if isinstance(methods, torch.Tensor):
        return methods
    if isinstance(methods, RejectionSampleMethod):
        methods = [methods] * requests
    return torch.tensor([METHOD_CODES[m] for m in methods], dtype=torch.int8, device=device)


def _chances(rates: Sequence[float], max_drafts: int, logits: "torch.Tensor") -> "torch.Tensor":
    import torch

    padded = [*conditional_rates(rates), *[0.0] * max_drafts][: max(max_drafts, 1)]
    return torch.tensor(padded or [0.0], dtype=torch.float64, device=logits.device)


def warm_verify(device: str = "cpu") -> float:
    """Loads what `auto` runs on this kind of device, so that no step does. Gives the seconds it took.

    On the host all there is to compile, for every shape and dtype of `verify_drafts`, is compiled, or loaded where
    `keep_host_code` has named who keeps compiled code, as a warmup does.
    """
    began = time.perf_counter()
    taken = choose("verify", device=device).implementation
    taken.load()
    if taken.home == _HOST:
        from graphspec.kernels.verify_rows import CODE

        CODE.ready()
    return time.perf_counter() - began


def _run_of(implementation: str, logits: "torch.Tensor") -> "Callable[[VerifyJob], Verdict]":
    if implementation == "auto":
        dtype = str(logits.dtype).removeprefix("torch.")
        return choose("verify", device=logits.device.type, dtype=dtype).implementation.load()
    if implementation not in IMPLEMENTATIONS:
        raise KernelError(
            Problem(
                where="implementation",
                found=implementation,
                wanted=f"one of {', '.join(IMPLEMENTATIONS)}",
            )
        )
    if implementation == "triton":
        # Also for tensors on the host, which Triton's interpreter takes.
        from graphspec.kernels.verify_triton import verify as triton

        return triton
    if not on_host(logits):
        raise KernelError(
            Problem(
                where="logits",
                found=f"on {logits.device}",
                wanted=f"on the host for {implementation}",
            )
        )
    if implementation == "reference":
        from graphspec.kernels.verify_reference import verify as reference

        return reference
    if importlib.util.find_spec("numba") is None:
        raise EnvironmentProblem(
            Problem(
                where="implementation cpu",
                found="no numba",
                wanted="the package numba",
                hint="pip install 'graphspec-engine[ngram]', or take implementation reference",
            )
        )
    from graphspec.kernels.verify_cpu import verify as cpu

    return cpu
