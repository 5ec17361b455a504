"""The head that turns a draft's hidden states into logits, as it is or quantised.

Quantised forms are exact emulations: weights take the values that the narrow type can hold, and products are float32. They
show what the narrow type does to drafts, on a machine that has no kernel for it.
"""

from collections.abc import Mapping
from typing import Protocol

import attrs
import torch
from torch.nn import functional as F

from graphspec.config.speculative import HeadQuantization
from graphspec.errors import Problem, SpecError

_E4M3_MAX, _E2M1_MAX = 448.0, 6.0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NVFP4_BLOCK = 16


class Scorer(Protocol):
    """Hidden states to logits."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32."""
        ...

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Weights, by name."""
        ...


@attrs.frozen(eq=False)
class PlainScorer:
    """weight: [V, H], the target's own where the head is shared."""

    weight: torch.Tensor

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32."""
        return F.linear(hidden, self.weight).float().contiguous()

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight."""
        return {"head": self.weight}


@attrs.frozen(eq=False)
class Fp8Scorer:
    """weight: [V, H] float8 e4m3; scale: [V] float32, one a row. Each token's activations get a scale of their own."""

    weight: torch.Tensor
    scale: torch.Tensor

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32: (quantised hidden @ quantised weight.T) * token scale * row scale."""
        narrow, token = to_fp8(hidden)
        return F.linear(narrow.float(), self.weight.float()) * token[:, None] * self.scale

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Weight and scales."""
        return {"head": self.weight, "head_scale": self.scale}


@attrs.frozen(eq=False)
class Nvfp4Scorer:
    """codes: [V, H] uint8, each a 4-bit e2m1 number with its sign in bit 3; scales: [V, H / 16] e4m3; whole: float32.

    A weight is e2m1 value * block scale * `whole`. Activations stay as they are. `numbers` [16] are the values of the codes:
    a tensor that is there before a pass, since a captured one may not copy constants from the host.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    whole: torch.Tensor
    numbers: torch.Tensor

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V] float32."""
        weight = from_nvfp4(self.codes, self.scales, self.whole, self.numbers)
        return F.linear(hidden.float(), weight).contiguous()

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Codes and scales."""
        return {
            "head": self.codes,
            "head_scales": self.scales,
            "head_whole": self.whole,
            "head_numbers": self.numbers,
        }


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [N, H] -> e4m3 [N, H] and scales [N] float32, the largest of each row at the type's largest."""
    wide = x.float()
    scale = (wide.abs().amax(-1) / _E4M3_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    # A cast beyond the largest gives NaN, and rounding of the division can reach just beyond it.
    narrow = (wide / scale[:, None]).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return narrow, scale


def to_nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[V, H] -> codes, block scales and the whole scale of `Nvfp4Scorer`. H is a multiple of 16.

    Two levels, as in the format: the whole scale puts the largest block scale at e4m3's largest, and a block's scale puts
    its largest weight at e2m1's. Ties between two codes go to the even one.
    """
    blocks = weight.float().unflatten(-1, (-1, NVFP4_BLOCK))
    whole = (blocks.abs().amax() / (_E4M3_MAX * _E2M1_MAX)).clamp_min(1e-30)
    wanted = blocks.abs().amax(-1) / (_E2M1_MAX * whole)
    scales = wanted.clamp(max=_E4M3_MAX).to(torch.float8_e4m3fn)
    unit = scales.float() * whole
    shares = torch.where(unit[..., None] > 0, blocks / unit[..., None].clamp_min(1e-38), 0.0)
    codes = nearest_e2m1(shares.abs()) | ((shares < 0).to(torch.uint8) << 3)
    return codes.flatten(-2), scales, whole


def nearest_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest e2m1 numbers of x >= 0; halfway between two, the even code."""
    values = torch.tensor(_E2M1, device=x.device)
    middles = (values[1:] + values[:-1]) / 2
    # Below an even code the middle belongs to it, below an odd one to the code before.
    up = torch.bucketize(x, middles, right=True)
    down = torch.bucketize(x, middles, right=False)
    return torch.where(up % 2 == 0, up, down).to(torch.uint8)


def e2m1_numbers(device: str | torch.device) -> torch.Tensor:
    """The value of each code [16] float32, those with the sign bit in the second half."""
    return torch.tensor((*_E2M1, *(-v for v in _E2M1)), device=device)


def from_nvfp4(
    codes: torch.Tensor, scales: torch.Tensor, whole: torch.Tensor, numbers: torch.Tensor
) -> torch.Tensor:
    """The weights [V, H] float32 that codes and scales stand for."""
    blocks = numbers[codes.int()].unflatten(-1, (-1, NVFP4_BLOCK))
    weights: torch.Tensor = (blocks * (scales.float() * whole)[..., None]).flatten(-2)
    return weights


def scorer(weight: torch.Tensor, quantization: HeadQuantization | None) -> Scorer:
    """A head over `weight` [V, H]; a quantised one is a copy, so that the target's stays as it is."""
    if quantization is HeadQuantization.FP8:
        return Fp8Scorer(*to_fp8(weight))
    if quantization is HeadQuantization.NVFP4:
        if weight.shape[1] % NVFP4_BLOCK:
            raise SpecError(
                Problem(
                    where="speculative.draft_lm_head_quantization",
                    found=f"nvfp4 for a head over {weight.shape[1]} hidden dimensions",
                    wanted=f"a multiple of {NVFP4_BLOCK}, the dimensions that share a scale",
                    hint="fp8 has one scale a row and takes any width",
                )
            )
        return Nvfp4Scorer(*to_nvfp4(weight), e2m1_numbers(weight.device))
    return PlainScorer(weight)
