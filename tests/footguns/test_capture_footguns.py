"""Surprises of captured graphs: each is shown first, then what to do instead. Those that nothing reports come first.

| rank | surprise                                                | reported by      | instead                            |
|------|---------------------------------------------------------|------------------|------------------------------------|
| 1    | a Python number in a step is a constant of its graph    | verify, at best  | keep it in a tensor, fill_ it      |
| 2    | Python code in a step runs at capture, never again      | nothing          | run it beside the replay           |
| 3    | a branch on Python state is taken once                  | nothing          | one graph each, or torch.where     |
| 4    | a size taken from the batch stays that of the capture   | nothing          | one graph a bucket, mask in tensor |
| 5    | an input that is passed, not copied in, is not read     | nothing          | copy it into a static buffer       |
| 6    | the next replay overwrites the outputs of this one      | nothing          | use them before it, or clone       |
| 7    | an output that is a view of an input changes with it    | nothing          | copy it inside the step            |
| 8    | outputs have no values before the first replay          | nothing          | replay, then read                  |
| 9    | rows behind the batch are those of an earlier batch     | poison, in debug | pad them, read the batch's own     |
| 10   | a masked NaN is still a NaN: 0 times NaN                | nothing          | finite padding                     |
| 11   | a step that changes state changed it while it warmed    | nothing          | set the state after capture        |
| 12   | a row of the wrong shape is broadcast into a buffer     | copy_in          | StaticBuffer.copy_in               |
| 13   | Python's random numbers are drawn once                  | nothing          | a registered generator             |
| 14   | a tensor put in a static buffer's place is never read   | the manager only | write into the buffer: copy_       |
| 15   | random numbers of an unknown generator repeat           | the capture      | register the generator             |
| 16   | a branch on what a batch contains cannot be captured    | the capture      | compute both, use torch.where      |
| 17   | a shape that depends on data cannot be captured         | the capture      | a mask of fixed shape              |

The tape shows all of them on a CPU; a CUDA graph behaves the same. docs/capture-footguns.md is the page of this file.
"""

import random

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.buffers import Padding, StaticBuffer
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


class Engine:
    """Keeps a flag beside its step, as engines do for a first step or a debug mode."""

    first = True


def test_a_branch_on_python_state_is_taken_once():
    """Silent: the graph holds the side that was taken at capture, whatever the flag says later."""
    x, engine = torch.ones(3), Engine()
    graph = capture(lambda: [x * 2 if engine.first else x * 3])
    engine.first = False
    assert torch.equal(graph.replay()[0], torch.full((3,), 2.0))


def test_a_flag_in_a_tensor_chooses_at_each_replay():
    """Workaround: the flag is a static tensor. Where the sides have little in common, capture one graph of each."""
    x, first = torch.ones(3), torch.tensor(True)
    graph = capture(lambda: [torch.where(first, x * 2, x * 3)])
    first.fill_(False)
    assert torch.equal(graph.replay()[0], torch.full((3,), 3.0))


def test_a_size_from_the_batch_is_frozen():
    """Silent: a slice to the batch's size is a slice to the size at capture; later requests are cut off."""
    rows, batch = torch.zeros(4), [1.0, 2.0]
    graph = capture(lambda: [rows[: len(batch)].sum()])
    batch += [3.0, 4.0]
    rows.copy_(torch.tensor(batch))
    assert graph.replay()[0] == 3


def test_a_size_in_a_tensor_masks_at_each_replay():
    """Workaround: compute the bucket's rows, and let a tensor say how many count."""
    rows, count = torch.zeros(4), torch.tensor(2)
    graph = capture(lambda: [torch.where(torch.arange(4) < count, rows, 0.0).sum()])
    rows.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    count.fill_(4)
    assert graph.replay()[0] == 10


def test_an_input_that_is_not_copied_in_is_not_read():
    """Silent: a new tensor for each batch, wherever the step looks for it, is not the one that the graph reads."""
    batch = {"x": torch.ones(3)}
    graph = capture(lambda: [batch["x"] + 1])
    batch["x"] = torch.full((3,), 8.0)
    assert torch.equal(graph.replay()[0], torch.full((3,), 2.0))


def test_an_input_that_is_copied_in_is_read():
    """Workaround: one static buffer, and each batch is copied into it."""
    x = StaticBuffer("x", torch.ones(3), Padding(poison=float("nan"), unread=float("nan")))
    graph = capture(lambda: [x.tensor + 1])
    x.copy_in(torch.full((3,), 8.0))
    assert torch.equal(graph.replay()[0], torch.full((3,), 9.0))


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


def test_an_output_that_is_a_view_of_an_input_changes_with_it():
    """Silent: no replay is needed to overwrite the result; copying the next batch in does it."""
    x = torch.ones(4)
    graph = capture(lambda: [x[:2]])
    (result,) = graph.replay()
    x.fill_(5)
    assert torch.equal(result, torch.full((2,), 5.0))


def test_an_output_of_its_own_stays_until_the_next_replay():
    """Workaround: the step copies what it returns."""
    x = torch.ones(4)
    graph = capture(lambda: [x[:2].clone()])
    (result,) = graph.replay()
    x.fill_(5)
    assert torch.equal(result, torch.ones(2))


def test_outputs_have_no_values_before_the_first_replay():
    """Silent: capturing records and does not run, so what it returned is not the result for what was in the buffers."""
    x, total = torch.ones(3), torch.zeros(3)
    graph = capture(lambda: [total.add_(x)])
    assert torch.equal(graph.outputs[0], torch.zeros(3))
    assert torch.equal(graph.replay()[0], torch.ones(3))


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


def test_padding_that_is_poisoned_shows_what_depends_on_it():
    """Workaround, to find it: in debug padding is NaN, and a result that mixes rows is NaN too."""
    rows = StaticBuffer(
        "rows",
        torch.zeros(4),
        Padding(poison=float("nan"), unread=float("nan")),
        debug=True,
    )
    graph = capture(lambda: [rows.tensor * 10, rows.tensor.sum()])
    rows.copy_in([5.0, 6.0])
    rows.pad(2, 4)
    each, total = graph.replay()
    assert torch.equal(each[:2], torch.tensor([50.0, 60.0]))
    assert total.isnan()


def test_a_masked_nan_is_a_nan():
    """Silent: attention gives masked rows the weight 0, and 0 times NaN is NaN: one poisoned row spoils the others."""
    scores, values = torch.zeros(3), torch.tensor([1.0, 3.0, float("nan")])
    seen = torch.tensor([True, True, False])

    def attention():
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=0)
        return [(weights * values).sum()]

    assert capture(attention).replay()[0].isnan()


def test_masked_rows_that_are_finite_count_nothing():
    """Workaround: what is masked stays finite, however large. The engine's cache starts as zeros for this."""
    scores, values = torch.zeros(3), torch.tensor([1.0, 3.0, 1e30])
    seen = torch.tensor([True, True, False])

    def attention():
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=0)
        return [(weights * values).sum()]

    assert capture(attention).replay()[0] == 2


def test_a_step_that_changes_state_changed_it_while_it_warmed():
    """Silent: the warm run and the eager run of verify are runs like any other; the capture is none."""
    x, total = torch.ones(3), torch.zeros(3)
    backend = TapeBackend()
    backend.warm(lambda: [total.add_(x)])
    graph = backend.capture(lambda: [total.add_(x)])
    assert torch.equal(graph.replay()[0], torch.full((3,), 2.0))


def test_state_that_is_set_after_capture_starts_there():
    """Workaround: state is set when capturing has ended, before the first request."""
    x, total = torch.ones(3), torch.zeros(3)
    backend = TapeBackend()
    backend.warm(lambda: [total.add_(x)])
    graph = backend.capture(lambda: [total.add_(x)])
    total.zero_()
    assert torch.equal(graph.replay()[0], torch.ones(3))


def test_a_row_of_the_wrong_shape_is_broadcast():
    """Silent: copy_ takes whatever broadcasts, so one number becomes the whole batch."""
    x = torch.zeros(3)
    graph = capture(lambda: [x + 1])
    x.copy_(torch.tensor([7.0]))
    assert torch.equal(graph.replay()[0], torch.full((3,), 8.0))


def test_copy_in_takes_rows_of_the_buffers_shape_only():
    """Workaround: copy_in writes the rows it is given, and refuses others."""
    x = StaticBuffer("x", torch.zeros(3, 2), Padding(poison=9, unread=9))
    x.copy_in([[7.0, 8.0]])
    assert x.tensor.tolist() == [[7, 8], [0, 0], [0, 0]]
    with pytest.raises(CaptureError, match=r"static buffer x: found rows of shape \[\]"):
        x.copy_in([7.0, 8.0])
    with pytest.raises(CaptureError, match="rows 0 to 4; wanted rows within its 3"):
        x.copy_in(torch.zeros(4, 2))


def test_random_numbers_of_python_are_drawn_once():
    """Silent: the step asks Python's generator at capture, and every replay uses that number."""
    x, dice = torch.ones(3), random.Random(1)
    graph = capture(lambda: [x * dice.random()])
    first = graph.replay()[0].clone()
    assert torch.equal(graph.replay()[0], first)


def test_random_numbers_of_a_generator_nobody_registered_are_refused():
    """Loud: a replay would draw the same numbers for ever."""
    x, generator = torch.ones(64), torch.Generator()
    with pytest.raises(CaptureIllegalError, match="generator that is not registered"):
        capture(lambda: [x + torch.rand(64, generator=generator)])


def test_random_numbers_of_a_registered_generator_go_on():
    """Workaround: the backend knows the generator, and each replay continues its sequence."""
    x, generator = torch.ones(64), torch.Generator().manual_seed(1)
    backend = TapeBackend(generators=[generator])
    graph = backend.capture(lambda: [x + torch.rand(64, generator=generator)])
    first = graph.replay()[0].clone()
    assert not torch.equal(graph.replay()[0], first)


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


def test_a_buffer_that_had_to_move_is_captured_anew():
    """Workaround, where it must move: recapture, as after weights that were loaded into other tensors."""
    steps = Steps()
    manager = CaptureManager(PLAN, steps, TapeBackend())
    manager.warm()
    manager.capture()
    manager.seal()
    steps.w = torch.full_like(steps.w, 0.5)
    manager.recapture()
    for got, wanted in zip(manager.replay(key(2, 1)), steps.expected(key(2, 1)), strict=True):
        torch.testing.assert_close(got, wanted)


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


def test_a_shape_that_depends_on_data_is_refused():
    """Loud: a selection has as many rows as its mask says, and a graph has one shape."""
    x = torch.ones(4)
    with pytest.raises(CaptureIllegalError, match="a shape that depends on data"):
        capture(lambda: [x[x > 0] * 2])


def test_a_mask_of_fixed_shape_is_captured():
    """Workaround: all rows are computed, and the mask says which count."""
    x = torch.ones(4)
    graph = capture(lambda: [torch.where(x > 0, x * 2, 0.0)])
    x.copy_(torch.tensor([1.0, -1.0, 2.0, -2.0]))
    assert graph.replay()[0].tolist() == [2, 0, 4, 0]
