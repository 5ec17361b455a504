"""Export of hidden states: no drafts, but the target's intermediate layers for every token that it computes.

States lie in a paged cache over the target's block ids, as draft keys and values would. So a request that finds a prefix in
the cache finds its states there too.
"""

import os
from collections.abc import Mapping, Sequence

import torch

from graphspec.engine.drafters.context import DraftContext, Export
from graphspec.engine.drafters.network import last_computed
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.outputs import aux_layers


class ExtractHiddenStatesSpeculator:
    """Proposes nothing. When a request ends, `export` receives its token ids and states.

    ``token_ids`` [tokens] int64 and ``hidden_states`` [tokens, layers, hidden_size], in the order of ``aux_layers``. The last
    token of a text was sampled and never computed, so it has no state and is not among them.
    """

    def __init__(self, context: DraftContext) -> None:
        spec = context.spec
        self._layers, self._export = len(aux_layers(spec)), context.export
        self._block_size = spec.kv_cache.block_size
        self._states = torch.zeros(
            (
                spec.kv_cache.num_blocks * self._block_size,
                self._layers,
                spec.model.hidden_size,
            ),
            dtype=getattr(torch, spec.model.dtype.value),
            device=context.device,
        )
        self._known: dict[int, Computed] = {}

    @classmethod
    def make(cls, context: DraftContext) -> "ExtractHiddenStatesSpeculator":
        """With the layers of the contract."""
        return cls(context)

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Keeps the states of each request's rows; no drafts."""
        assert step.aux is not None
        for r in step.requests:
            rows = step.aux[r.row : r.row + r.count]
            slots = self._slots(r.blocks, range(r.first, r.first + r.count))
            self._states[slots] = rows.unflatten(1, (self._layers, -1))
            self._known[r.request] = r
        return [Proposal() for _ in step.requests]

    def states(self, request: int) -> Mapping[str, torch.Tensor]:
        """What is there of a running request: token ids and states, copied."""
        r = self._known[request]
        end = last_computed(r) + 1
        return {
            "token_ids": torch.tensor(list(r.tokens[:end]), dtype=torch.int64),
            "hidden_states": self._states[self._slots(r.blocks, range(end))].cpu(),
        }

    def forget(self, request: int) -> None:
        """Exports what there is, while the blocks still hold it."""
        if request in self._known:
            if self._export is not None:
                self._export(request, self.states(request))
            del self._known[request]

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """The cache of states."""
        return {"states": self._states}

    def _slots(self, blocks: Sequence[int], positions: range) -> list[int]:
        size = self._block_size
        return [blocks[p // size] * size + p % size for p in positions]


def to_folder(folder: str) -> Export:
    """An export that writes one safetensors file a request, ``request-ID.safetensors``, into `folder`."""

    def write(request: int, tensors: Mapping[str, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        os.makedirs(folder, exist_ok=True)
        save_file(dict(tensors), os.path.join(folder, f"request-{request}.safetensors"))

    return write
