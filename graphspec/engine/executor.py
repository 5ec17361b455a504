"""The executor: runs one step of the model on static buffers, eagerly or inside a capture."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.nn import functional as F

from graphspec.capture.keys import CaptureKey, GraphMode, Phase
from graphspec.capture.pieces import Piece, run_pieces
from graphspec.engine.attention import paged_attention
from graphspec.engine.buffers import RequestRows, allocate_buffers, allocate_cache, example_requests
from graphspec.engine.drafters.making import device_drafter
from graphspec.engine.drafters.protocol import CapturedSpeculator
from graphspec.engine.llama import rms_norm
from graphspec.engine.outputs import StepOutputs, aux_layers
from graphspec.engine.target_pieces import TargetPieces, Units
from graphspec.engine.weights import Weights
from graphspec.resolve.spec import EngineSpec


class Executor:
    """Weights, KV cache, buffers and artifacts of one replica. It is the step source that graphs are captured from: the
    target's whole decode steps, its pieces, and the passes of `drafter`.

    `drafter` is the method's, where it drafts on the device; drafters on the host are the generator's own.
    `debug_padding` poisons what no request owns: results of requests must not change by a bit.
    """

    def __init__(
        self,
        spec: EngineSpec,
        weights: Weights,
        artifacts: Mapping[str, Any],
        *,
        debug_padding: bool = False,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.buffers = allocate_buffers(spec, debug_padding=debug_padding)
        self.cache = allocate_cache(spec, debug_padding=debug_padding)
        self._input = artifacts["attention_input"]
        self._output = artifacts["attention_output"]
        self._head = artifacts["head"]
        self._aux_layers = aux_layers(spec)
        self.drafter = device_drafter(spec, weights, debug_padding=debug_padding)
        self._pieces: TargetPieces | None = None
        if spec.mode.granted.needs_piecewise:
            self._pieces = TargetPieces(
                spec,
                weights,
                Units(attention_input=self._input, attention_output=self._output),
                self.buffers,
                self.cache,
                self._aux_layers,
                debug_padding=debug_padding,
            )

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, caches and weights: everything that a captured step has the addresses of."""
        named = {**self.buffers.by_name(), "cache": self.cache, **self.weights.by_name}
        if self._pieces is not None:
            named.update(self._pieces.static_tensors())
        if self.drafter is not None:
            for name, tensor in self.drafter.static_tensors().items():
                named[f"drafter.{name}"] = tensor
        return named

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        """A step of `key` on pseudo-random tokens. For use before serving: it writes to the first blocks of the cache."""
        if key.phase is Phase.DRAFT:
            self._captured_drafter().fill_draft_example(key, variant)
        elif key.mode is GraphMode.PIECEWISE:
            self._fill_pieces(key, variant)
        else:
            self.buffers.write(self._examples(key.bucket, 1 + key.k, random.Random(variant)))

    def padding_request(self, k: int) -> RequestRows:
        """A request of 1 + k rows that no result is read from."""
        return RequestRows(tokens=(), position=0, blocks=(), padding=1 + k)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """A step of `key` on the buffers' content. The target's whole step gives `StepOutputs`, flat; its pieces give the
        last layer's output and the auxiliary ones; a draft phase what its drafter reads."""
        if key.phase is Phase.DRAFT:
            return self._captured_drafter().draft_step(key)
        if key.mode is GraphMode.PIECEWISE:
            return run_pieces(self.pieces(key))
        return self._outputs(*self._layers(key.tokens, key.bucket)).flat()

    def pieces(self, key: CaptureKey) -> Sequence[Piece]:
        """The parts of a step in pieces."""
        return self._in_pieces().pieces(key)

    def write_pieces(self, key: CaptureKey, requests: Sequence[RequestRows]) -> int:
        """Copies in a step that runs in pieces; gives its number of rows, without the graph's padding."""
        return self._in_pieces().write(requests, key.bucket)

    def scored(self, last: Sequence[torch.Tensor], rows: Sequence[int]) -> StepOutputs:
        """The outputs of a step whose pieces gave `last`, with logits for the given rows only."""
        hidden, *aux = last
        with torch.no_grad():
            return self._outputs(
                hidden, aux[0] if aux else None, torch.tensor(rows, device=hidden.device)
            )

    def run(self, requests: Sequence[RequestRows], rows: Sequence[int]) -> StepOutputs:
        """Any step, without a graph: compiled pieces with attention between. Logits for the given rows only."""
        count = self.buffers.write(requests)
        with torch.no_grad():
            hidden, aux = self._layers(count, len(requests))
            return self._outputs(hidden, aux, torch.tensor(rows, device=hidden.device))

    def logits(self, requests: Sequence[RequestRows]) -> torch.Tensor:
        """Logits [rows, vocabulary] of every row of a step."""
        return self.run(requests, range(sum(len(r.tokens) + r.padding for r in requests))).logits

    def _examples(self, count: int, rows: int, made: random.Random) -> Sequence[RequestRows]:
        """`count` requests of `rows` random tokens, with random trees of drafts where drafts are trees."""
        requests = example_requests(self.spec, count, rows, made)
        if requests is None:
            return [self.padding_request(rows - 1)] * count
        if not self.spec.drafts_in_trees:
            return requests
        drafts = range(rows - 1)
        return [
            attrs.evolve(r, parents=[made.randint(-1, d - 1) for d in drafts]) for r in requests
        ]

    def _fill_pieces(self, key: CaptureKey, variant: int) -> None:
        pieces, made = self._in_pieces(), random.Random(variant)
        count = min(key.bucket, self.spec.scheduler.max_num_seqs)
        rows = pieces.write(self._examples(count, 1, made), key.bucket)
        vocabulary = self.spec.model.vocab_size
        others = [made.randrange(vocabulary) for _ in range(key.bucket - rows)]
        self.buffers.token_ids.copy_in(others, at=rows)
        pieces.fill(key.bucket, torch.Generator().manual_seed(variant))

    def _in_pieces(self) -> TargetPieces:
        assert self._pieces is not None, "the granted mode has pieces"
        return self._pieces

    def _captured_drafter(self) -> CapturedSpeculator:
        assert self.drafter is not None, "the method drafts on the device"
        return self.drafter

    def _layers(self, rows: int, requests: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output of the last layer [rows, hidden_size], and those of the auxiliary ones side by side."""
        b, w = self.buffers, self.weights
        positions, slots = b.positions.tensor[:rows], b.slots.tensor[:rows]
        tables, lens = b.block_tables.tensor[:requests], b.context_lens.tensor[:requests]
        starts = b.query_starts.tensor[: requests + 1]
        unseen = None if b.unseen is None else b.unseen.tensor[:rows]
        hidden = F.embedding(b.token_ids.tensor[:rows], w.embedding)
        outputs = []
        for layer, cache in zip(w.unit_layers, self.cache, strict=True):
            q, k, v = self._input(hidden, positions, layer.attention_norm, layer.w_qkv)
            attended = paged_attention(q, k, v, cache, slots, tables, lens, starts, unseen)
            (hidden,) = self._output(
                attended, hidden, layer.w_o, layer.mlp_norm, layer.w_gate_up, layer.w_down
            )
            if self._aux_layers:
                outputs.append(hidden)
        aux = torch.cat([outputs[at] for at in self._aux_layers], dim=1) if outputs else None
        return hidden, aux

    def _outputs(
        self, hidden: torch.Tensor, aux: torch.Tensor | None, rows: torch.Tensor | None = None
    ) -> StepOutputs:
        w = self.weights
        chosen = hidden if rows is None else hidden.index_select(0, rows)
        (logits,) = self._head(chosen, w.final_norm, w.head_for_units)
        values, ids = torch.topk(logits, 2, dim=-1)
        normed = None
        if self.spec.uses_target_hidden_states:
            normed = rms_norm(hidden, w.final_norm, self.spec.model.rms_norm_eps)
        return StepOutputs(
            best=ids[:, 0],
            value=values[:, 0],
            margin=values[:, 0] - values[:, 1],
            logits=logits,
            hidden=normed,
            aux=aux,
        )
