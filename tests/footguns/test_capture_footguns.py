"""Surprises of captured graphs: each is shown first, then what to do instead. Those that nothing reports come first.

| rank | surprise                                               | reported by      | instead                         |
|------|--------------------------------------------------------|------------------|---------------------------------|
| 1    | a Python number in a step is a constant of its graph   | nothing          | keep it in a tensor, fill_ it   |
| 2    | Python code in a step runs at capture, never again     | nothing          | run it beside the replay        |
| 3    | the next replay overwrites the outputs of this one     | nothing          | use them before it, or clone    |
| 4    | rows behind the batch are those of an earlier batch    | nothing          | fill them, read the batch's own |
| 5    | a tensor put in a static buffer's place is never read  | the manager only | write into the buffer: copy_    |
| 6    | a branch on what a batch contains cannot be captured   | the capture      | compute both, use torch.where   |

The tape shows all of them on a CPU; a CUDA graph behaves the same.
"""

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.manager import CaptureManager, State
from graphspec.errors import CaptureError, CaptureIllegalError
from support.graphs import PLAN, Steps, key


def capture(call):
    return TapeBackend().capture(call)


class Settings:
    """What an engine might keep beside its step."""

    temperature = 2.0


def test_a_python_number_is_frozen():
    """Silent: a number that the step reads from Python stays what it was at capture."""
    logits, settings = torch.ones(3), Settings()
    graph = capture(lambda: [logits / settings.temperature])
    settings.temperature = 4.0
    assert torch.equal(graph.replay()[0], torch.full((3,), 0.5))


def test_a_number_in_a_tensor_is_read_at_each_replay():
    """Workaround: the number lies in a static tensor, and is changed with fill_."""
    logits, temperature = torch.ones(3), torch.tensor(2.0)
    graph = capture(lambda: [logits / temperature])
    temperature.fill_(4.0)
    assert torch.equal(graph.replay()[0], torch.full((3,), 0.25))


def test_python_code_runs_at_capture_only():
    """Silent: a counter, a log line or an append in the step happens once, whatever is replayed."""
    x, seen = torch.ones(3), []

    def step():
        seen.append("step")
        return [x + 1]

    graph = capture(step)
    for _ in range(5):
        graph.replay()
    assert seen == ["step"]


def test_counting_beside_the_replay_or_in_a_tensor_counts():
    """Workaround: what Python has to do is done where replay is called; what counts on the device is a tensor."""
    x, steps, seen = torch.ones(3), torch.zeros((), dtype=torch.int64), []

    def step():
        steps.add_(1)
        return [x + 1]

    graph = capture(step)
    steps.zero_()
    for _ in range(5):
        graph.replay()
        seen.append("step")
    assert (len(seen), int(steps)) == (5, 5)


def test_outputs_are_overwritten_by_the_next_replay():
    """Silent: the tensors of the first step hold the results of the second."""
    x = torch.zeros(2)
    graph = capture(lambda: [x + 1])
    first = graph.replay()[0]
    x.fill_(9)
    graph.replay()
    assert torch.equal(first, torch.full((2,), 10.0))


def test_outputs_that_are_cloned_stay():
    """Workaround: what is needed after the next replay is cloned before it."""
    x = torch.zeros(2)
    graph = capture(lambda: [x + 1])
    first = graph.replay()[0].clone()
    x.fill_(9)
    graph.replay()
    assert torch.equal(first, torch.ones(2))


def test_rows_behind_the_batch_are_those_of_an_earlier_one():
    """Silent: a batch of two in a graph of four is computed with two rows of the batch before it."""
    rows = torch.zeros(4)
    graph = capture(lambda: [rows * 10, rows.sum()])
    rows.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    graph.replay()
    rows[:2] = torch.tensor([5.0, 6.0])
    each, total = graph.replay()
    assert torch.equal(each, torch.tensor([50.0, 60.0, 30.0, 40.0]))
    assert total == 18


def test_filled_padding_and_results_of_the_batch_only():
    """Workaround: padding rows are given harmless content, and only the batch's rows of the outputs are read."""
    rows = torch.zeros(4)
    graph = capture(lambda: [rows * 10, rows.sum()])
    rows.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    graph.replay()
    rows[:2] = torch.tensor([5.0, 6.0])
    rows[2:].zero_()
    each, total = graph.replay()
    assert torch.equal(each[:2], torch.tensor([50.0, 60.0]))
    assert total == 11


def test_a_buffer_that_is_replaced_is_not_read_by_a_bare_graph():
    """Silent without the manager: the graph goes on with the tensor it was captured with."""
    steps = Steps()
    graph = capture(lambda: steps.step(key(2, 1)))
    before = [t.clone() for t in graph.replay()]
    steps.x = torch.full_like(steps.x, 7.0)
    for got, wanted in zip(graph.replay(), before, strict=True):
        assert torch.equal(got, wanted)
    assert not torch.equal(graph.replay()[0], steps.expected(key(2, 1))[0])


def test_a_buffer_that_is_replaced_is_reported_by_the_manager():
    """Loud with the manager: the replay is refused, and the buffer is named."""
    steps = Steps()
    manager = CaptureManager(PLAN, steps, TapeBackend())
    manager.warm()
    manager.capture()
    manager.seal()
    steps.x = torch.full_like(steps.x, 7.0)
    with pytest.raises(CaptureError, match="static buffer x"):
        manager.replay(key(2, 1))
    assert manager.state is State.STALE


def test_a_buffer_that_is_written_is_read_at_the_next_replay():
    """Workaround: new values are written into the buffer."""
    steps = Steps()
    graph = capture(lambda: steps.step(key(2, 1)))
    steps.x.copy_(torch.full_like(steps.x, 7.0))
    for got, wanted in zip(graph.replay(), steps.expected(key(2, 1)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_branch_on_the_batch_is_refused():
    """Loud: a graph has one course, so a step that looks into its batch cannot be captured."""
    x = torch.ones(3)
    with pytest.raises(
        CaptureIllegalError, match="__bool__: found a read of a tensor's value by the host"
    ):
        capture(lambda: [x * 2 if (x > 0).all() else -x])


def test_both_sides_of_a_branch_and_a_choice_are_captured():
    """Workaround: both sides are computed, and torch.where chooses at each replay."""
    x = torch.ones(3)
    graph = capture(lambda: [torch.where((x > 0).all(), x * 2, -x)])
    assert torch.equal(graph.replay()[0], torch.full((3,), 2.0))
    x.fill_(-3.0)
    assert torch.equal(graph.replay()[0], torch.full((3,), 3.0))
