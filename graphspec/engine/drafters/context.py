"""`DraftContext`: what a drafter is made from."""

from collections.abc import Callable, Mapping

import attrs
import torch

from graphspec.config.model import ModelSpec
from graphspec.config.speculative import DraftSampleMethod
from graphspec.engine.drafters.protocol import Computed
from graphspec.engine.drafters.sampling import Draws
from graphspec.engine.weights import Weights
from graphspec.errors import Problem, SpecError
from graphspec.resolve.spec import EngineSpec, SpeculativeSpec

Export = Callable[[int, Mapping[str, torch.Tensor]], None]
"""Takes a request's id and its exported tensors by name."""


@attrs.frozen(kw_only=True, eq=False)
class DraftContext:
    """The contract, the target's weights, and what is asked of a drafter beyond them.

    `weights` are the target's: drafters share its embedding and head. `seed` makes the weights of heads that come without.
    `export` receives hidden states where the method exports them. With `debug_padding` what no request owns is poisoned.
    """

    spec: EngineSpec
    weights: Weights
    seed: int = 0
    export: Export | None = None
    debug_padding: bool = False

    @property
    def speculative(self) -> SpeculativeSpec:
        """The drafting section; a drafter is never made without one."""
        assert self.spec.speculative is not None
        return self.spec.speculative

    @property
    def model(self) -> ModelSpec:
        """The draft's model; only methods with one ask."""
        assert self.speculative.draft_model is not None
        return self.speculative.draft_model

    @property
    def device(self) -> str:
        """Where the drafter runs: the target's device."""
        return self.spec.device.target.value

    @property
    def dtype(self) -> torch.dtype:
        """Type of the draft's weights and activations."""
        dtype: torch.dtype = getattr(torch, self.model.dtype.value)
        return dtype

    @property
    def samples(self) -> bool:
        """Whether drafts of requests with a temperature are sampled, and not the best tokens."""
        verification = self.speculative.verification
        return (
            verification is not None
            and verification.draft_sample_method is DraftSampleMethod.PROBABILISTIC
        )

    @property
    def wants_margins(self) -> bool:
        """Whether the engine learns from drafts' margins which are kept: adaptive verification without a confidence head."""
        verification = self.speculative.verification
        return (
            verification is not None
            and verification.enable_adaptive_verification
            and self.speculative.speculator.adaptive_verification_uses_draft_logits
        )

    def draws(self, request: Computed) -> Draws:
        """What a request's drafts are collected in."""
        return Draws(request, self.samples, self.wants_margins)

    def depth(self, request: Computed) -> int:
        """Drafts to make: as wanted, within the length that the draft model is good for."""
        return max(0, min(request.wanted, self.spec.max_draft_len - len(request.tokens)))

    def stated(self, *names: str) -> object:
        """The first of the draft checkpoint's own fields that is there; None when none is."""
        extra = self.model.extra
        inner = extra.get("dflash_config"), extra.get("eagle_config"), extra
        for level in (level for level in inner if isinstance(level, Mapping)):
            for name in names:
                if level.get(name) is not None:
                    return level[name]
        return None

    def mask_token(self) -> int:
        """The token that stands for one not drafted yet. Raises `SpecError` where the checkpoint names none.

        There is no default: with another token than the trained one drafts are noise, and nothing would say so.
        """
        found = self.stated("mask_token_id", "ptd_token_id", "pard_token")
        if type(found) is int and 0 <= found < self.spec.model.vocab_size:
            return found
        raise SpecError(
            Problem(
                where="speculative.model",
                found=f"mask_token_id {found!r} in {self.model.source}",
                wanted=f"the token that parallel drafting was trained with, below {self.spec.model.vocab_size}",
                hint="the checkpoint's config.json names it mask_token_id, ptd_token_id or pard_token",
            )
        )

    def refuse(self, *fields: str) -> None:
        """Raises `SpecError` for fields of the draft checkpoint that are set and that the drafter does not follow."""
        problems = [
            Problem(
                where="speculative.model",
                found=f"{name} {self.stated(name)!r} in {self.model.source}",
                wanted="a checkpoint without it: the reference drafter has no such layer",
            )
            for name in fields
            if self.stated(name)
        ]
        if problems:
            raise SpecError(problems)
