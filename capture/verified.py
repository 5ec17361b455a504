"""`Verified`: how a replay compared with an eager run of the same step."""

from collections.abc import Sequence

import attrs
import torch

from graphspec.capture.keys import CaptureKey

_TOLERANCE = 1e-4


@attrs.frozen(kw_only=True)
class Verified:
    """How one replay compared with the eager run: equal to the bit, within tolerance, or not."""

    key: CaptureKey
    max_difference: float
    agrees: bool


def compare_outputs(
    key: CaptureKey, eager: Sequence[torch.Tensor], replayed: Sequence[torch.Tensor]
) -> Verified:
    """Floats agree within 1e-4, relative and absolute; all else must be equal."""
    worst, agrees = 0.0, True
    for alone, again in zip(eager, replayed, strict=True):
        if alone.is_floating_point():
            worst = max(worst, float((alone - again).abs().max()))
            agrees = agrees and torch.allclose(alone, again, rtol=_TOLERANCE, atol=_TOLERANCE)
        else:
            agrees = agrees and torch.equal(alone, again)
    return Verified(key=key, max_difference=worst, agrees=agrees)
