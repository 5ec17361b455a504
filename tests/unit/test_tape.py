"""The tape: what it refuses by name, what it accepts, and that a replay is the call run again."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from graphspec.capture.backends.tape import TapeBackend
from graphspec.errors import CaptureIllegalError, CaptureStateError
from support.processes import run_python

_library = torch.library.Library("graphspec_tape_test", "DEF")
_library.define("read_inside(Tensor x) -> Tensor")
_library.define("grow(Tensor x) -> Tensor")
_library.define("more(Tensor x) -> Tensor[]")
_grown = []


def _read_inside(x):
    # What a GPU kernel does: it reads its inputs as it pleases, and its output has a static shape.
    return torch.full((2,), float(sum(x.tolist())) + x[0].item())


def _grow(x):
    _grown.append(None)
    return x.new_ones(len(_grown))


def _more(x):
    _grown.append(None)
    return [x + 1 for _ in _grown]


_library.impl("read_inside", _read_inside, "CompositeExplicitAutograd")
_library.impl("grow", _grow, "CompositeExplicitAutograd")
_library.impl("more", _more, "CompositeExplicitAutograd")
ops = torch.ops.graphspec_tape_test


@pytest.fixture
def x():
    return torch.arange(1.0, 7.0).reshape(2, 3)


ILLEGAL = {
    "item": (lambda x: x[0, 0].item(), "item"),
    "tolist": (lambda x: x.tolist(), "tolist"),
    "numpy": (lambda x: x.numpy(), "numpy"),
    "array": (lambda x: x.__array__(), "__array__"),
    "float": (lambda x: float(x[0, 0]), "__float__"),
    "int": (lambda x: int(x[0, 0]), "__int__"),
    "bool": (lambda x: bool(x[0, 0] > 0), "__bool__"),
    "branch": (lambda x: x if (x > 0).any() else x + 1, "__bool__"),
    "index by tensor": (lambda x: [1, 2][x[0, 0].long() - 1], "__index__"),
    "format": (lambda x: f"{x[0, 0]:.2f}", "_local_scalar_dense"),
    "print": (str, "__repr__"),
    "cpu": (lambda x: x.cpu(), "cpu"),
    "dlpack": (torch.from_dlpack, "__dlpack__"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "slice by tensor": (lambda x: x[: x[0, 0].long()], "_local_scalar_dense"),
    "nonzero": (torch.nonzero, "nonzero"),
    "where": (lambda x: torch.where(x > 2), "nonzero"),
    "masked_select": (lambda x: torch.masked_select(x, x > 2), "masked_select"),
    "boolean index": (lambda x: x[x > 2], "index"),
    "write by mask": (lambda x: x.index_put_((x > 2,), torch.zeros(4)), "index_put_"),
    "write one value by mask": (lambda x: x.index_put_((x > 2,), x[0, 0]), "index_put_"),
    "unique": (torch.unique, "unique"),
    "repeat": (lambda x: torch.repeat_interleave(x, x[:, 0].long(), dim=0), "repeat_interleave"),
    "tensor from values": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), "lift_fresh"),
    "new_tensor": (lambda x: x.new_tensor([1.0]), "lift_fresh"),
    "rand": (lambda x: torch.rand(3), "rand"),
    "normal_": (lambda x: torch.empty(3).normal_(), "normal_"),
    "dropout": (lambda x: F.dropout(x, 0.5), "bernoulli_"),
    "own generator": (lambda x: torch.rand(3, generator=torch.Generator()), "rand"),
    "attention dropout": (
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None],
                                                 dropout_p=0.5), "bernoulli_",
    ),
}  # fmt: skip


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


LEGAL = {
    "index by whole numbers": lambda x: [x[(x[:, 0] > 2).long()]],
    "write by whole numbers": lambda x: [x.clone().index_put_((x[:, 0].long() % 2,), x[0])],
    "gather": lambda x: [x.gather(1, (x > 2).long())],
    "where": lambda x: [torch.where(x > 2, x, -x)],
    "masked fill": lambda x: [x.masked_fill(x > 2, 0.0)],
    "attention": lambda x: [
        F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    ],
    "dropout off": lambda x: [F.dropout(x, 0.5, training=False)],
    "repeat to a stated size": lambda x: [
        torch.repeat_interleave((x[:, 0] > 2).long() + 1, output_size=3)
    ],
    "full": lambda x: [x + torch.full((3,), 2.0)],
    "views": lambda x: [x.t().reshape(-1)[2:], x.view(6)[::2] * 2],
    "view written through": lambda x: [_doubled_first_column(x)],
    "opaque operation": lambda x: [ops.read_inside(x.view(-1))],
    "several outputs": lambda x: list(x.sort(dim=1)),
    "same output twice": lambda x: [x + 1] * 2,
}


def _doubled_first_column(x):
    made = x + 0
    made[:, 0].mul_(2)
    return made


@pytest.mark.parametrize("code", LEGAL.values(), ids=LEGAL)
def test_legal_neighbours_are_replayed_on_new_content(x, code):
    """What differs from an illegal call in the decisive point only is captured, and a replay equals an eager run."""
    x.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    graph = TapeBackend().capture(lambda: code(x))
    x.copy_(torch.tensor([[5.0, 1, 2], [1, 7, 3]]))
    for got, wanted in zip(graph.replay(), code(x), strict=True):
        assert torch.equal(got, wanted)


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
    _grown.clear()
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
