"""What the drafters with a model have in common: the network that they run, and the buffers that it reads."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import torch

from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.engine.buffers import RequestRows, StepBuffers, allocate_buffers
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.layers import Rows
from graphspec.engine.drafters.protocol import Computed, TargetStep
from graphspec.fields import evolve

_LARGE = 1e4
"""Unlike any state, and within every float type."""


@attrs.frozen(kw_only=True, eq=False)
class Output:
    """What a pass gives for each row. `scored` [T, H] goes to the head; `carried` [T, H] is what the next pass reads in
    place of the target's features, None for networks that read none."""

    scored: torch.Tensor
    carried: torch.Tensor | None = None


class Network(Protocol):
    """A draft model or head, as a function of rows. Ids that it takes are the target's.

    `shift`: how many tokens ahead of a row's position its token lies. 0: the row at position p reads token p; 1: it reads
    the target's state at p and token p + 1. `to_target` [draft vocabulary] maps the ids that it scores; None: they are the
    target's.
    """

    shift: int
    to_target: torch.Tensor | None

    def features(self, step: TargetStep) -> torch.Tensor | None:
        """What the rows of a target's step [rows, F] give the network to read; None: nothing."""
        ...

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """One pass. Writes draft keys and values at the rows' slots."""
        ...

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, draft vocabulary] float32."""
        ...

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Caches and weights."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class Bench:
    """Static buffers of draft passes, apart from the target's: its rows stay readable while drafts are made.

    `features` [requests * width, F] holds what the rows of a uniform pass read of the target or of the pass before.
    """

    buffers: StepBuffers
    features: StaticBuffer | None

    @classmethod
    def allocate(
        cls, context: DraftContext, *, width: int = 1, alone: bool = False, more: int = 1
    ) -> "Bench":
        """For the widest pass: every row of a target's step and `more` a request, or `width` rows of each request.

        With `alone` each row is a request of its own to attention.
        """
        spec = context.spec
        requests = spec.scheduler.max_num_seqs
        rows = max(spec.scheduler.max_num_batched_tokens + requests * more, requests * width)
        limits = evolve(
            spec.scheduler,
            max_num_batched_tokens=rows,
            max_num_seqs=requests * width if alone else requests,
        )
        features = None
        if context.speculative.speculator.uses_target_hidden_states:
            zeros = torch.zeros(
                requests * width,
                context.model.hidden_size,
                dtype=context.dtype,
                device=context.device,
            )
            padding = Padding(poison=_LARGE, unread=_LARGE)
            features = StaticBuffer("draft.features", zeros, padding, debug=context.debug_padding)
        return cls(
            buffers=allocate_buffers(
                evolve(spec, scheduler=limits), debug_padding=context.debug_padding
            ),
            features=features,
        )

    def write(self, requests: Sequence[RequestRows]) -> Rows:
        """Copies the rows of a pass in."""
        return Rows.of(self.buffers, self.buffers.write(requests), len(requests))

    def write_features(self, features: torch.Tensor | None, bucket: int) -> None:
        """Copies features [rows, F] in, and pads them to `bucket` rows. Nothing for networks that read none."""
        if self.features is not None and features is not None:
            self.features.copy_in(features)
            self.features.pad(len(features), bucket)
            self.features.leave(bucket)

    def fill_features(self, seed: int | None) -> None:
        """Random features, for an example; zeros without a seed."""
        if self.features is not None:
            tensor = self.features.tensor.zero_()
            if seed is not None:
                made = torch.Generator().manual_seed(seed)
                tensor.copy_(torch.randn(tensor.shape, generator=made))

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every buffer."""
        named = {f"draft.{name}": t for name, t in self.buffers.by_name().items()}
        if self.features is not None:
            named[self.features.name] = self.features.tensor
        return named


def kept_rows(request: Computed, end: int, shift: int) -> RequestRows:
    """Rows of a request's positions from the first that the step computed up to and without `end`."""
    return RequestRows(
        tokens=[request.tokens[p + shift] for p in range(request.first, end)],
        position=request.first,
        blocks=request.blocks,
    )


def features_of(
    features: torch.Tensor | None, parts: Sequence[tuple[Computed, int]]
) -> torch.Tensor | None:
    """The features of each request's positions from the first up to and without its end, one request after another."""
    if features is None:
        return None
    picked = [features[r.row : r.row + end - r.first] for r, end in parts]
    return torch.cat(picked)


def last_computed(request: Computed) -> int:
    """The last position that the target has computed and kept."""
    return request.first + request.count - 1
