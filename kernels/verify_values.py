"""What verification is given and what it gives: values around tensors, without torch until one is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from graphspec.config.speculative import RejectionSampleMethod

if TYPE_CHECKING:
    import torch

METHOD_CODES = {
    RejectionSampleMethod.STANDARD: 0,
    RejectionSampleMethod.BLOCK: 1,
    RejectionSampleMethod.FLY: 2,
    RejectionSampleMethod.SYNTHETIC: 3,
}
"""How a method is written in a tensor of methods."""


@attrs.frozen(kw_only=True, eq=False)
class Sampling:
    """How each request samples, as tensors of shape [requests] on one device.

    temperature: float32; 0 is greedy. top_k: int32; 0 keeps all. top_p: float32 in (0, 1]; 1 keeps all. min_p: float32 in
    [0, 1]; 0 keeps all. seed: int64. position: int64, the place in the request's sequence of the token that its first row
    decides; random numbers belong to a seed and a place.
    """

    temperature: "torch.Tensor"
    top_k: "torch.Tensor"
    top_p: "torch.Tensor"
    min_p: "torch.Tensor"
    seed: "torch.Tensor"
    position: "torch.Tensor"

    @classmethod
    def of(
        cls,
        *,
        temperature: Sequence[float],
        seed: Sequence[int] = (),
        position: Sequence[int] = (),
        top_k: Sequence[int] = (),
        top_p: Sequence[float] = (),
        min_p: Sequence[float] = (),
        device: str = "cpu",
    ) -> "Sampling":
        """From lists with one entry a request. An empty list stands for seed 0, position 0, and filters that keep all."""
        import torch

        n = len(temperature)

        def column(values: Sequence[float], default: float, dtype: "torch.dtype") -> "torch.Tensor":
            return torch.tensor(list(values) or [default] * n, dtype=dtype, device=device)

        return cls(
            temperature=column(temperature, 0, torch.float32),
            top_k=column(top_k, 0, torch.int32),
            top_p=column(top_p, 1, torch.float32),
            min_p=column(min_p, 0, torch.float32),
            seed=column(seed, 0, torch.int64),
            position=column(position, 0, torch.int64),
        )


@attrs.frozen(kw_only=True)
class FlyRule:
    """When FLy (arXiv 2511.22972) keeps a draft that the standard rule rejects.

    The entropy of the row's `entropy_top_k` most likely tokens is at least `entropy_threshold` (nats, not renormalised),
    and each of the `window` drafts after it is kept by the standard rule.
    """

    window: int
    entropy_threshold: float = 0.3
    entropy_top_k: int = 3


@attrs.frozen(kw_only=True, eq=False)
class Verdict:
    """What became of a batch's drafts.

    tokens: int32 [requests, K + 1]; each row holds the accepted drafts, then one token of the target, then -1.
    counts: int32 [requests]; how many of them are tokens, so accepted drafts + 1.
    broken: bool [requests]; True where verification came to a row of logits that is no distribution (a NaN, a +inf, or
    nothing above -inf). Such a row gives no token: the request has its accepted drafts alone, so `counts` may be 0.
    """

    tokens: "torch.Tensor"
    counts: "torch.Tensor"
    broken: "torch.Tensor"


@attrs.frozen(kw_only=True, eq=False)
class VerifyJob:
    """The checked arguments of one verification, as each implementation takes them.

    `methods` is int8 [requests] of `METHOD_CODES`; `chances` float64 [>= K], the conditional rates of synthetic
    acceptance; `vocab` the number of columns that count; K is `max_drafts`.
    """

    logits: "torch.Tensor"
    drafts: "torch.Tensor"
    cu_drafts: "torch.Tensor"
    draft_probs: "torch.Tensor | None"
    sampling: Sampling
    methods: "torch.Tensor"
    fly: FlyRule
    chances: "torch.Tensor"
    max_drafts: int
    vocab: int

    @property
    def requests(self) -> int:
        """How many requests the batch has."""
        return self.cu_drafts.shape[0] - 1

    def nothing_yet(self) -> Verdict:
        """A verdict of the right shape without tokens, for an implementation to fill."""
        import torch

        n, device = self.requests, self.logits.device
        return Verdict(
            tokens=torch.full((n, self.max_drafts + 1), -1, dtype=torch.int32, device=device),
            counts=torch.zeros(n, dtype=torch.int32, device=device),
            broken=torch.zeros(n, dtype=torch.bool, device=device),
        )


def conditional_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """Chance that a draft is kept if all before it are, from chances that it and all before it are.

    >>> conditional_rates((0.8, 0.4, 0.0, 0.0))
    (0.8, 0.5, 0.0, 0.0)
    """
    before = (1.0, *rates)
    return tuple(rate / b if b > 0 else 0.0 for rate, b in zip(rates, before, strict=False))
