"""How drafts are verified, with every default settled."""

import math

from graphspec.config.speculative import (
    DraftSampleMethod,
    RejectionSampleMethod,
    SpeculativeConfig,
)
from graphspec.fields import Stage, config_class, keyed, unkeyed

_SAMPLING = "decides which drafts are kept, on the logits that a graph gave; the graph is the same"
_WINDOW, _THRESHOLD, _TOP_K = 6, 0.3, 3


@config_class
class VerificationSpec:
    """The rules of verification. Values of methods that are not chosen are None."""

    rejection_sample_method: RejectionSampleMethod = unkeyed(
        doc="How drafts are verified.", reason=_SAMPLING
    )
    draft_sample_method: DraftSampleMethod = keyed(Stage.CAPTURE, doc="How drafts are drawn.")
    synthetic_acceptance_rates: tuple[float, ...] | None = unkeyed(
        default=None,
        doc="synthetic: probability that the first i drafts are all kept, one for each of k.",
        reason=_SAMPLING,
    )
    fly_window_size: int | None = unkeyed(
        default=None,
        doc="fly: drafts after a deferred rejection that must all be kept.",
        reason=_SAMPLING,
    )
    fly_entropy_threshold: float | None = unkeyed(
        default=None, doc="fly: entropy in nats for a deferral.", reason=_SAMPLING
    )
    fly_entropy_top_k: int | None = unkeyed(
        default=None, doc="fly: most likely tokens that count.", reason=_SAMPLING
    )
    enable_adaptive_verification: bool = keyed(
        Stage.CAPTURE, default=False, doc="Whether only promising drafts are verified."
    )
    use_heterogeneous_vocab: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether drafts are mapped between vocabularies."
    )


def verification_spec(section: SpeculativeConfig, k: int) -> VerificationSpec:
    """The section's verification with defaults for depth k."""
    method = section.rejection_sample_method
    rates = section.synthetic_acceptance_rates
    if section.synthetic_acceptance_length is not None:
        rates = rates_of_length(section.synthetic_acceptance_length, k)
    fly = method is RejectionSampleMethod.FLY
    return VerificationSpec(
        rejection_sample_method=method,
        draft_sample_method=section.draft_sample_method,
        synthetic_acceptance_rates=rates,
        fly_window_size=(section.fly_window_size or min(_WINDOW, k - 1)) if fly else None,
        fly_entropy_threshold=_given(section.fly_entropy_threshold, _THRESHOLD) if fly else None,
        fly_entropy_top_k=(section.fly_entropy_top_k or _TOP_K) if fly else None,
        enable_adaptive_verification=section.enable_adaptive_verification,
        use_heterogeneous_vocab=section.use_heterogeneous_vocab,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def rates_of_length(length: float, k: int) -> tuple[float, ...]:
    """Acceptance rates whose steps give `length` tokens in the mean, with the least variance, for k drafts.

    >>> rates_of_length(2.5, 4)
    (1.0, 0.5, 0.0, 0.0)
    """
    drafts = length - 1
    whole = math.floor(drafts)
    rates = [1.0] * whole + [drafts - whole] + [0.0] * k
    return tuple(rates[:k])
