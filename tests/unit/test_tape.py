"""The tape: what it refuses by name, what it accepts, and that a replay is the call run again."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.backends.tape import TapeBackend
from graphspec.errors import CaptureIllegalError, CaptureStateError
from support.processes import run_python
from support.tape_cases import ILLEGAL, LEGAL, grown, ops


@pytest.fixture
def x():
    return torch.arange(1.0, 7.0).reshape(2, 3)


@pytest.mark.parametrize(("code", "name"), ILLEGAL.values(), ids=ILLEGAL)
def test_what_no_replay_repeats_is_refused_by_name(x, code, name):
    """Each illegal operation ends the capture with an error that names it, and the next capture works."""
    backend = TapeBackend()
    with pytest.raises(CaptureIllegalError) as caught:
        backend.capture(lambda: [x + 1, code(x)][:1])
    (problem,) = caught.value.problems
    assert name in problem.where
    graph = backend.capture(lambda: [x + 1])
    x.fill_(4)
    assert torch.equal(graph.replay()[0], torch.full((2, 3), 5.0))


@pytest.mark.parametrize("code", LEGAL.values(), ids=LEGAL)
def test_legal_neighbours_are_replayed_on_new_content(x, code):
    """What differs from an illegal call in the decisive point only is captured, and a replay equals an eager run."""
    x.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    graph = TapeBackend().capture(lambda: code(x))
    x.copy_(torch.tensor([[5.0, 1, 2], [1, 7, 3]]))
    for got, wanted in zip(graph.replay(), code(x), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "call",
    [
        torch.sub,
        lambda a, b: torch.cat([a, b, a]),
        lambda a, b: torch.stack((b, a)),
        lambda a, b: a[:, (b[0] > 0).long()],
        lambda a, b: torch.ops.aten.index_put.default(a, [None, b[0].long() % 3], b),
        lambda a, b: torch.mul(a, b, out=torch.empty_like(a)),
        lambda a, b: torch.ops.aten.where.self(condition=a > b, self=a, other=b),
        lambda a, b: torch.ops.aten._foreach_add.List([a, b], [b, a], alpha=2)[1],
    ],
    ids=["plain", "list", "tuple", "list with none", "in place list", "out", "keywords", "lists"],
)
def test_a_replay_uses_what_the_call_made_wherever_an_operation_takes_it(x, call):
    """Among the positional arguments, in lists, in keywords: always what this replay computed."""
    graph = TapeBackend().capture(lambda: [call(x + 1, x * 2)])
    x.copy_(torch.tensor([[5.0, 1, 2], [1, 7, 3]]))
    assert torch.equal(graph.replay()[0], call(x + 1, x * 2))


def test_a_registered_generator_gives_fresh_numbers_at_each_replay():
    """Random numbers go on from replay to replay exactly as they would without capture."""
    generator, eager = (torch.Generator().manual_seed(7) for _ in range(2))
    graph = TapeBackend([generator]).capture(lambda: [torch.rand(4, generator=generator)])
    seen = [graph.outputs[0].clone(), *(graph.replay()[0].clone() for _ in range(3))]
    for got in seen:
        assert torch.equal(got, torch.rand(4, generator=eager))


def test_in_place_operations_act_on_the_static_tensor_at_each_replay(x):
    """A counter that the step raises is left alone by the capture, and raised once by each replay."""
    before = x.clone()
    graph = TapeBackend().capture(lambda: [x.add_(1)])
    assert torch.equal(x, before)
    graph.replay()
    assert torch.equal(graph.replay()[0], before + 2)
    assert graph.outputs[0] is x


def test_a_capture_inside_a_capture_is_refused(x):
    """The inner capture is an error, and the thread can capture again afterwards."""
    backend = TapeBackend()
    with pytest.raises(CaptureStateError, match="a capture inside a capture"):
        backend.capture(lambda: backend.capture(lambda: [x + 1]).outputs)
    assert torch.equal(backend.capture(lambda: [x + 1]).replay()[0], x + 1)


def test_outputs_keep_their_address(x):
    """Each replay writes to the tensors that the capture returned."""
    graph = TapeBackend().capture(lambda: [x * 2, x.sum()])
    places = [t.data_ptr() for t in graph.outputs]
    x.add_(1)
    assert [t.data_ptr() for t in graph.replay()] == places
    assert graph.memory_bytes == 7 * 4


@pytest.mark.parametrize(
    "code",
    [lambda x: [ops.grow(x)], lambda x: [ops.grow(x).sum()], lambda x: [ops.more(x)[0]]],
    ids=["output", "intermediate", "number of tensors"],
)
def test_an_opaque_operation_that_changes_its_shape_is_an_error(x, code):
    """Neither an output nor a value inside may have another shape at replay, even where it would broadcast."""
    grown.clear()
    graph = TapeBackend().capture(lambda: code(x))
    with pytest.raises(CaptureIllegalError, match=r"graphspec_tape_test|tape output"):
        graph.replay()


def test_values_between_operations_are_released_as_a_replay_goes(x):
    """A replay keeps an intermediate value no longer than its last use, and none of the capture's at all."""
    made = []

    def keep(value):
        made.append(weakref.ref(value))
        return value.clone()

    library = torch.library.Library("graphspec_tape_release", "DEF")
    library.define("keep(Tensor x) -> Tensor")
    library.define("alive(Tensor x) -> Tensor")
    library.impl("keep", keep, "CompositeExplicitAutograd")
    alive = []

    def count(value):
        alive.append(sum(r() is not None for r in made))
        return value.clone()

    library.impl("alive", count, "CompositeExplicitAutograd")
    of = torch.ops.graphspec_tape_release

    def step():
        value = x
        for _ in range(8):
            value = of.keep(value * 2)
        return [of.alive(value)]

    graph = TapeBackend().capture(step)
    gc.collect()
    assert all(r() is None for r in made)
    made.clear()
    graph.replay()
    assert len(made) == 8
    assert alive[-1] == 0


UNARY = [torch.relu, torch.sin, lambda t: t.t().contiguous().t(), lambda t: t.clone().mul_(0.5)]
BINARY = [torch.add, torch.mul, torch.maximum, lambda a, b: a.clone().sub_(b)]


@given(data=st.data(), seed=st.integers(0, 1000))
def test_replay_of_random_programs_equals_eager(data, seed):
    """Any chain of operations, in-place ones on static tensors included, replays as it runs."""
    program = data.draw(
        st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50), st.integers(0, 50)), max_size=12)
    )
    torch.manual_seed(seed)

    def run(static):
        values = list(static)
        for kind, a, b in program:
            first, second = values[a % len(values)], values[b % len(values)]
            if kind < 4:
                values.append(UNARY[kind](first))
            elif kind < 8:
                values.append(BINARY[kind - 4](first, second))
            else:
                static[a % len(static)].mul_(0.5).add_(second[0, 0].clone())
        return [values[-1], values[len(values) // 2]]

    static = [torch.randn(3, 3) for _ in range(2)]
    twin = [t.clone() for t in static]
    graph = TapeBackend().capture(lambda: run(static))
    run(twin)
    for _ in range(2):
        for a, b in zip(static, twin, strict=True):
            a.copy_(b.copy_(torch.randn(3, 3)))
        for got, wanted in zip(graph.replay(), run(twin), strict=True):
            assert torch.equal(got, wanted)
        for a, b in zip(static, twin, strict=True):
            assert torch.equal(a, b)


def test_capturing_on_the_tape_loads_no_compiler():
    """A warm start must not pay for torch._inductor or Dynamo, which take seconds to import."""
    code = """
        import sys, torch
        from graphspec.capture.backends.tape import TapeBackend
        x = torch.zeros(3)
        graph = TapeBackend().capture(lambda: [torch.relu(x + 1).sum()])
        graph.replay()
        print(sorted(m for m in ("torch._inductor", "torch._dynamo", "sympy") if m in sys.modules))
    """
    assert run_python(code) == "[]"
