"""The canonical text of a graph: equal for equal graphs, different for whatever the compiler would see as another."""

import re

import pytest
import torch

from graphspec.cache.compiling.fingerprint import _content, graph_fingerprint, graph_lines

ROWS = torch.export.Dim("rows", min=2, max=32)


def export(function, *inputs, dynamic=None):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    shapes = (tuple(dynamic),) if dynamic else None
    return torch.export.export(Module(), inputs, dynamic_shapes=shapes, strict=False)


def x(*shape, **kind):
    return torch.ones(*(shape or (4, 3)), **kind)


USUAL = (lambda a: torch.relu(a + 1).sum(0), x())
OTHERS = {
    "operation": (lambda a: torch.tanh(a + 1).sum(0), x()),
    "overload": (lambda a: torch.relu(a + 1).sum(), x()),
    "number": (lambda a: torch.relu(a + 2).sum(0), x()),
    "type of number": (lambda a: torch.relu(a + 1.0).sum(0), x()),
    "order": (lambda a: torch.relu(a).add(1).sum(0), x()),
    "argument": (lambda a: torch.relu(a + 1).sum(1), x()),
    "named argument": (lambda a: torch.relu(a + 1).sum(0, dtype=torch.float64), x()),
    "shape": (lambda a: torch.relu(a + 1).sum(0), x(4, 5)),
    "dtype": (lambda a: torch.relu(a + 1).sum(0), x(dtype=torch.float64)),
    "stride": (lambda a: torch.relu(a + 1).sum(0), x(3, 4).t()),
    "device": (lambda a: torch.relu(a + 1).sum(0), x(device="meta")),
    "output": (lambda a: (torch.relu(a + 1).sum(0), a), x()),
    "another input": (lambda a, b: torch.relu(a + 1).sum(0), x(), x()),
    "written input": (lambda a: torch.relu(a.add_(1)).sum(0), x()),
    "constant": (lambda a: torch.relu(a + torch.tensor([1.0, 2.0, 3.0])).sum(0), x()),
    "content of a constant": (lambda a: torch.relu(a + torch.tensor([1.0, 2.0, 4.0])).sum(0), x()),
}


def test_whatever_differs_shows():
    """Sixteen graphs that differ from one another in one thing each have as many fingerprints."""
    programs = [export(*USUAL), *(export(*other) for other in OTHERS.values())]
    assert len({graph_fingerprint(p) for p in programs}) == len(programs)


def test_names_do_not_show():
    """What values, arguments and functions are called, and where the code stands, is left out."""

    def other(first):
        second = first + 1
        third = torch.relu(second)
        return third.sum(0)

    assert graph_lines(export(other, x())) == graph_lines(export(*USUAL))


def test_dynamic_sizes_are_numbered_and_bounded():
    """The symbol's name is left out, its bounds are not, and a static size is another graph."""
    usual = graph_lines(export(lambda a: a + 1, x(), dynamic=[{0: ROWS}]))
    assert usual == [
        "d0: 2 to 32",
        "%0 = user_input -> float32[d0, 3] strides (3, 1) from 0 on cpu",
        "%1 = aten::add.Tensor(%0, 1) -> float32[d0, 3] strides (3, 1) from 0 on cpu",
        "return (%1) as ['user_output']",
    ]
    tokens = torch.export.Dim("tokens", min=2, max=32)
    assert graph_lines(export(lambda a: a + 1, x(7, 3), dynamic=[{0: tokens}])) == usual
    wider = torch.export.Dim("rows", min=2, max=64)
    assert graph_lines(export(lambda a: a + 1, x(), dynamic=[{0: wider}])) != usual
    assert graph_lines(export(lambda a: a + 1, x())) != usual


def test_two_sizes_are_told_apart():
    """Which dimensions are the same size is part of the graph."""
    columns = torch.export.Dim("columns", min=2, max=32)

    def flat(a, b):
        return a.reshape(-1), b + 1

    two = export(flat, x(4, 5), x(5), dynamic=[{0: ROWS, 1: columns}, {0: columns}])
    assert "float32[d0, d1]" in graph_lines(two)[2]
    assert "float32[d0*d1]" in "".join(graph_lines(two))


def test_graphs_inside_a_graph_show():
    """The branches of torch.cond are written out below it."""

    def branch(number):
        return lambda a: torch.cond(a.shape[0] > 3, lambda a: a + number, lambda a: a * 2, (a,))

    one, two = (graph_lines(export(branch(n), x(), dynamic=[{0: ROWS}])) for n in (1, 2))
    (differing,) = [(a, b) for a, b in zip(one, two, strict=True) if a != b]
    assert differing[0].strip().startswith("%1 = aten::add.Tensor(%0, 1)")


def test_nothing_of_the_process_is_in_the_text():
    """No address, no path and no name of a module of the host."""
    text = "\n".join(line for other in OTHERS.values() for line in graph_lines(export(*other)))
    assert not re.search(r"0x[0-9a-f]{6}|/|Module", text)


@pytest.mark.parametrize("form", [torch.clone, torch.Tensor.to_sparse])
def test_constants_of_every_layout_count_by_content(form):
    """Two constants that differ only in their values never look the same, strided or sparse."""
    one, other = torch.eye(3), 2 * torch.eye(3)
    assert _content(form(one)) == _content(form(one.clone()))
    assert _content(form(one)) != _content(form(other))
