"""Pieces: a step as several graphs, with what no graph may hold run as it is between them.

A source whose steps can be captured so has a method ``pieces(key)``. What it gives shares nothing but static tensors, so
that each piece may be a graph of its own, and what lies between may be as wide as the present step really is.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from graphspec.capture.backends.base import Call, Graph, GraphBackend, released_graph
from graphspec.capture.keys import CaptureKey, GraphMode
from graphspec.capture.source import StepSource
from graphspec.capture.verified import Verified, compare_outputs

_FEW = 64
"""Tokens up to which a piece takes hardly more time than one token does."""


@attrs.frozen(kw_only=True)
class Piece:
    """One part of a step. `run` returns the static tensors that it wrote; `captured` is False for what runs as it is."""

    run: Call
    captured: bool = True


def pieces_of(source: StepSource, key: CaptureKey) -> Sequence[Piece] | None:
    """The pieces of a piecewise step; None for a whole step, and for a source that has no pieces: its step is one."""
    if key.mode is not GraphMode.PIECEWISE:
        return None
    given: Any = getattr(source, "pieces", None)
    pieces: Sequence[Piece] | None = None if given is None else given(key)
    return pieces


def run_pieces(pieces: Sequence[Piece]) -> Sequence[torch.Tensor]:
    """All pieces one after another, without a graph; what the last one wrote."""
    outputs: Sequence[torch.Tensor] = ()
    for piece in pieces:
        outputs = piece.run()
    return outputs


class PiecewiseGraph:
    """A step captured in pieces. A replay runs graphs and what lies between them in turn."""

    def __init__(self, pieces: Sequence[Piece], graphs: Sequence[Graph | None]) -> None:
        self._parts = list(zip(pieces, graphs, strict=True))
        self._outputs: Sequence[torch.Tensor] = ()
        if self._parts and graphs[-1] is not None:
            self._outputs = graphs[-1].outputs
        self._released = False

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        return self._outputs

    @property
    def memory_bytes(self) -> int:
        return sum(graph.memory_bytes for _, graph in self._parts if graph is not None)

    @property
    def graphs(self) -> Sequence[tuple[Piece, Graph]]:
        """The pieces that are captured, in order, each with its graph."""
        return [(piece, graph) for piece, graph in self._parts if graph is not None]

    def replay(self) -> Sequence[torch.Tensor]:
        if self._released:
            raise released_graph("piecewise")
        outputs: Sequence[torch.Tensor] = ()
        for piece, graph in self._parts:
            outputs = piece.run() if graph is None else graph.replay()
        return outputs

    def release(self) -> None:
        for _, graph in self._parts:
            if graph is not None:
                graph.release()
        self._parts, self._outputs, self._released = [], (), True


def capture_pieces(backend: GraphBackend, pieces: Sequence[Piece]) -> PiecewiseGraph:
    """Captures each piece that a graph shall hold. Where one fails, the graphs before it are released, and it raises."""
    graphs: list[Graph | None] = []
    try:
        graphs.extend(backend.capture(p.run) if p.captured else None for p in pieces)
    except BaseException:
        for graph in graphs:
            if graph is not None:
                graph.release()
        raise
    return PiecewiseGraph(pieces, graphs)


def verify_pieces(backend: GraphBackend, key: CaptureKey, graph: PiecewiseGraph) -> Verified:
    """Runs the middle piece eagerly and replays it on the same content, and up to 64 tokens the first and the last one too.

    A step has as many pieces as the model has layers, and they run the same code on other weights, and so do those of other
    sizes: comparing all of them would take the time of two whole steps for each size, most of a warmup.
    """
    held = graph.graphs
    worst, agrees = 0.0, True
    probes = {len(held) // 2} if key.tokens > _FEW else {0, len(held) // 2, len(held) - 1}
    for at in sorted(probes) if held else ():
        piece, captured = held[at]
        written = captured.outputs
        before = [t.clone() for t in written]
        alone = [t.clone() for t in backend.warm(piece.run)]
        # A piece may read what it writes.
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(old)
        found = compare_outputs(key, alone, captured.replay())
        worst, agrees = max(worst, found.max_difference), agrees and found.agrees
    return Verified(key=key, max_difference=worst, agrees=agrees)
