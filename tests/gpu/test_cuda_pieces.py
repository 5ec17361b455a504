"""Steps in pieces on a device: graphs and what runs between them share a stream, a pool and static tensors."""

import pytest
import torch

from graphspec.capture.pieces import Piece, capture_pieces

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def backend():
    from graphspec.capture.backends.cuda import CudaBackend

    return CudaBackend()


def test_graphs_and_what_lies_between_replay_in_turn(backend):
    """A hundred replays of two sizes in turn, on new content each: what is between reads the device, which no graph may."""
    x, y = torch.zeros(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    weight, seen = torch.randn(64, 64, device="cuda") / 8, []

    def pieces(n):
        def first():
            y[:n].copy_(x[:n] @ weight)
            return [y[:n]]

        def between():
            seen.append(float(y[:n].sum()))
            y[:n].add_(1)
            return [y[:n]]

        def last():
            y[:n].copy_(torch.relu(y[:n]) @ weight)
            return [y[:n]]

        return [Piece(run=first), Piece(run=between, captured=False), Piece(run=last)]

    graphs = {}
    for n in (64, 8):
        for piece in pieces(n):
            backend.warm(piece.run)
        graphs[n] = capture_pieces(backend, pieces(n))
    seen.clear()
    for at in range(100):
        n = (64, 8)[at % 2]
        x.normal_()
        wanted = torch.relu(x[:n] @ weight + 1) @ weight
        torch.testing.assert_close(graphs[n].replay()[0], wanted, rtol=1e-4, atol=1e-4)
    assert len(seen) == 100
    graphs[64].release()
    torch.testing.assert_close(
        graphs[8].replay()[0], torch.relu(x[:8] @ weight + 1) @ weight, rtol=1e-4, atol=1e-4
    )
