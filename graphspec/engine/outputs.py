"""What a step of the target returns, and in which order a captured one returns it."""

from collections.abc import Sequence

import attrs
import torch

from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True, eq=False)
class StepOutputs:
    """Results of a step.

    For each row asked for: `best`, the best token id [rows] int64; `value`, its logit [rows]; `margin`, how far the second
    best lies below [rows]; `logits` [rows, vocabulary]. For every row of the step, where the contract asks: `hidden`
    [rows, hidden_size] after the final norm; `aux` [rows, layers * hidden_size], outputs of `aux_layers` side by side.
    """

    best: torch.Tensor
    value: torch.Tensor
    margin: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    aux: torch.Tensor | None = None

    def flat(self) -> Sequence[torch.Tensor]:
        """The tensors that there are, in order: what a graph holds."""
        return [t for t in attrs.astuple(self, recurse=False) if t is not None]


def unflat(spec: EngineSpec, tensors: Sequence[torch.Tensor]) -> StepOutputs:
    """The outputs of a step of `spec` from `StepOutputs.flat`."""
    best, value, margin, logits, *more = tensors
    left = iter(more)
    return StepOutputs(
        best=best,
        value=value,
        margin=margin,
        logits=logits,
        hidden=next(left) if spec.uses_target_hidden_states else None,
        aux=next(left) if spec.uses_aux_hidden_states else None,
    )


def aux_layers(spec: EngineSpec) -> tuple[int, ...]:
    """Layers whose outputs a step returns: as the contract names them, else an early, a middle and a late one.

    The choice for a drafter that names none is that of EAGLE-3 (Li et al. 2025, arXiv 2503.01840): low, middle and high
    level features.
    """
    if not spec.uses_aux_hidden_states:
        return ()
    last = spec.model.num_hidden_layers - 1
    named = spec.aux_hidden_state_layer_ids
    return named or tuple(sorted({min(2, last), (last + 1) // 2, max(0, last - 2)}))
