"""Chance that a draft is kept, learned while serving: one logistic curve for each place among a request's drafts."""

import math
from collections.abc import Iterable, Sequence
from typing import Self

import attrs

from graphspec.errors import KernelError, Problem

MARGIN_CAP = 40.0
STEPS_BETWEEN_REFITS = 100
LEAST_OBSERVATIONS = 50
RIDGE = 1e-3
UNCENSORED_REFITS = 3
_START = (0.0, 1.5)


def margin_of(largest: float, second: float) -> float:
    """What the curve sees of a draft: how far the draft model's best logit lies above the next, 0 to 40; a tie is 0.

    A second logit of -inf is the cap; two equal infinities are a tie.
    """
    if largest == second:
        return 0.0
    return min(max(largest - second, 0.0), MARGIN_CAP)


def _sigmoid(x: float) -> float:
    # Of the two forms, the one whose exponential cannot overflow.
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


@attrs.frozen(kw_only=True)
class Curve:
    """P(kept | margin) = sigmoid(slope * margin + offset), and what has been seen since its last refit.

    The sums are the gradient and the (negative) Hessian of the log-likelihood at these coefficients: over observations with
    residual r = kept - p and weight v = p (1 - p), `residual` and `residual_margin` sum r and r m; `weight`, `weight_margin`
    and `weight_square` sum v, v m and v m m.
    """

    slope: float = _START[0]
    offset: float = _START[1]
    count: int = 0
    residual: float = 0.0
    residual_margin: float = 0.0
    weight: float = 0.0
    weight_margin: float = 0.0
    weight_square: float = 0.0

    def chance(self, margin: float) -> float:
        """Chance that a draft of this margin is kept."""
        return _sigmoid(self.slope * margin + self.offset)

    def seen(self, margin: float, kept: bool) -> Self:
        """With one more observation."""
        p = self.chance(margin)
        r, v = kept - p, p * (1 - p)
        return attrs.evolve(
            self,
            count=self.count + 1,
            residual=self.residual + r,
            residual_margin=self.residual_margin + r * margin,
            weight=self.weight + v,
            weight_margin=self.weight_margin + v * margin,
            weight_square=self.weight_square + v * margin * margin,
        )

    def refitted(self) -> Self:
        """After one Newton step, (H + ridge I)^-1 times the gradient, with nothing seen.

        With fewer than 50 observations nothing changes, and they wait for more. A step to a negative slope is not taken: a
        surer draft would count as a worse one. What was seen is forgotten also then.
        """
        if self.count < LEAST_OBSERVATIONS:
            return self
        a, b, d = self.weight_square + RIDGE, self.weight_margin, self.weight + RIDGE
        determinant = a * d - b * b
        slope = self.slope + (d * self.residual_margin - b * self.residual) / determinant
        offset = self.offset + (a * self.residual - b * self.residual_margin) / determinant
        if slope < 0:
            slope, offset = self.slope, self.offset
        return type(self)(slope=slope, offset=offset)


@attrs.frozen(kw_only=True)
class AcceptanceModel:
    """A curve for each place among the drafts, and how many steps and refits there were."""

    curves: tuple[Curve, ...]
    steps: int = 0
    refits: int = 0

    @classmethod
    def fresh(cls, drafts: int) -> Self:
        """For at most `drafts` drafts a request, before anything was seen."""
        return cls(curves=(Curve(),) * drafts)

    @property
    def full_blocks(self) -> bool:
        """Whether to verify all drafts: a model that chooses what it learns from would first have to have learned."""
        return self.refits < UNCENSORED_REFITS

    def confidences(self, margins: Sequence[float]) -> list[float]:
        """Chance of each draft of a request that it is kept if those before it are."""
        return [c.chance(m) for c, m in zip(self.curves, margins, strict=False)]

    def after_step(self, outcomes: Iterable[tuple[Sequence[float], int, int]]) -> Self:
        """After a step: for each request its margins, how many drafts were verified, and how many of them were kept.

        Drafts up to the first rejected one were reached, and they alone say something. Every 100th step the curves are
        refitted, each for itself. Raises `KernelError` for more kept than verified, or more verified than drafted.
        """
        curves = list(self.curves)
        for margins, verified, kept in outcomes:
            if not 0 <= kept <= verified <= min(len(margins), len(curves)):
                raise KernelError(
                    Problem(
                        where="outcome of a step",
                        found=f"{kept} kept of {verified} verified of {len(margins)} drafts",
                        wanted=f"kept <= verified <= drafts <= {len(curves)}",
                    )
                )
            for at in range(min(kept + 1, verified)):
                curves[at] = curves[at].seen(margins[at], at < kept)
        steps = self.steps + 1
        if steps % STEPS_BETWEEN_REFITS:
            return attrs.evolve(self, curves=tuple(curves), steps=steps)
        return attrs.evolve(
            self, curves=tuple(c.refitted() for c in curves), steps=steps, refits=self.refits + 1
        )

    def averaged(self, coefficients: Sequence[Sequence[tuple[float, float]]]) -> Self:
        """With the mean of every rank's `coefficients`, in the order of ranks, so that all ranks deal budgets alike: ranks
        whose steps have different shapes wait for each other for ever. To be called after a refit, when no curve has seen
        anything at its own coefficients."""
        means = [
            [math.fsum(values) / len(values) for values in zip(*curves, strict=True)]
            for curves in zip(*coefficients, strict=True)
        ]
        return attrs.evolve(
            self, curves=tuple(Curve(slope=slope, offset=offset) for slope, offset in means)
        )

    @property
    def coefficients(self) -> list[tuple[float, float]]:
        """Slope and offset of each curve: what ranks exchange."""
        return [(c.slope, c.offset) for c in self.curves]
