"""A step in pieces: what is captured, what runs between, and what a failure leaves."""

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.keys import CaptureKey, GraphMode, Phase
from graphspec.capture.manager import CaptureManager
from graphspec.capture.pieces import Piece, PiecewiseGraph, capture_pieces, pieces_of
from graphspec.capture.plan import PIECES, plan_capture
from graphspec.errors import CaptureStateError
from support.plans import spec_for

KEY = CaptureKey(Phase.TARGET_VERIFY, 0, 4, mode=GraphMode.PIECEWISE)


class Steps:
    """x doubled in a graph; `added`, a number of the host's, added between; one added in a graph."""

    def __init__(self):
        self.x, self.y, self.z = torch.zeros(64), torch.zeros(64), torch.zeros(64)
        self.added, self.between = 0.0, 0
        self.frozen = False
        self.variant = 0

    def static_tensors(self):
        return {"x": self.x, "y": self.y, "z": self.z}

    def fill_example(self, key, variant):
        self.x.fill_(3.0 + variant)
        self.y.fill_(5.0 + variant)
        self.variant = variant

    def pieces(self, key):
        n = key.bucket
        x, y, z = self.x[:n], self.y[:n], self.z[:n]

        def double():
            y.copy_(x * 2)
            return [y]

        def host():
            self.between += 1
            y.add_(self.added)
            return [y]

        def one_more():
            z.copy_(y + (1.0 + self.variant if self.frozen else 1.0))
            return [z]

        return [Piece(run=double), Piece(run=host, captured=False), Piece(run=one_more)]

    def step(self, key):
        raise AssertionError("a step in pieces is asked for its pieces")


def test_a_replay_runs_graphs_and_what_lies_between_in_turn():
    """What is between sees the host's values of now, and does not run while graphs are captured."""
    steps = Steps()
    graph = capture_pieces(TapeBackend(), steps.pieces(KEY))
    assert steps.between == 0
    for added in (10.0, 20.0):
        steps.x.fill_(4.0)
        steps.added = added
        (out,) = graph.replay()
        assert out.tolist() == [9.0 + added] * 4
    assert steps.between == 2
    assert steps.z[4:].abs().sum() == 0
    assert len(graph.graphs) == 2
    assert graph.outputs[0].data_ptr() == steps.z.data_ptr()


def test_a_released_graph_in_pieces_is_not_replayed():
    """Each of its graphs is let go of, and a replay says so."""
    graph = capture_pieces(TapeBackend(), Steps().pieces(KEY))
    held = [g for _, g in graph.graphs]
    graph.release()
    graph.release()
    for one in (graph, *held):
        with pytest.raises(CaptureStateError):
            one.replay()
    assert graph.memory_bytes == 0


def test_where_a_piece_fails_those_before_it_are_released():
    """Nothing of a step that is captured in part stays behind."""
    made = []

    class Watched(TapeBackend):
        def capture(self, call):
            made.append(super().capture(call))
            return made[-1]

    pieces = [*Steps().pieces(KEY), Piece(run=lambda: [torch.zeros(2).tolist()])]
    with pytest.raises(Exception, match="host"):
        capture_pieces(Watched(), pieces)
    assert len(made) == 2
    for graph in made:
        with pytest.raises(CaptureStateError):
            graph.replay()


def manager_of(tiny_config, steps):
    spec = spec_for(tiny_config, None, k=3, max_num_seqs=4, mode="PIECEWISE")
    manager = CaptureManager(plan_capture(spec, captures=frozenset({PIECES})), steps, TapeBackend())
    manager.warm()
    manager.capture(strict=True)
    return manager


def test_a_manager_captures_and_verifies_pieces(tiny_config):
    """Every bucket in pieces, each verified without running what lies between."""
    steps = Steps()
    manager = manager_of(tiny_config, steps)
    assert all(v.agrees and v.max_difference == 0 for v in manager.verify())
    assert steps.between == 0
    manager.seal()
    assert all(isinstance(manager._graphs[key], PiecewiseGraph) for key in manager.captured)
    steps.x.fill_(1.0)
    steps.variant, steps.added = 0, 0.5
    (out,) = manager.replay(manager.plan.piecewise_key(3))
    assert out.tolist() == [3.5] * 4


def test_a_value_that_was_frozen_into_a_piece_is_noticed(tiny_config):
    """A piece is verified on another example than it was captured on."""
    steps = Steps()
    steps.frozen = True
    found = manager_of(tiny_config, steps).verify()
    assert found
    assert not any(v.agrees for v in found)
    assert {v.max_difference for v in found} == {1.0}


def test_a_source_without_pieces_has_steps_of_one_piece():
    """Only piecewise steps are asked for pieces, and only of a source that has some."""

    class Whole:
        pass

    assert pieces_of(Whole(), KEY) is None
    assert pieces_of(Steps(), CaptureKey(Phase.TARGET_VERIFY, 3, 4)) is None
    assert len(pieces_of(Steps(), KEY)) == 3
