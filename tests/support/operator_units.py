"""Build functions that call custom operators which other modules and libraries register."""

import torch

from support import stray


def halves(spec):
    """Calls an operator made by a decorator."""
    return torch.ops.graphspec_test.halve


def thirds(spec):
    """Calls an operator made from a library object."""
    return lambda x: torch.ops.graphspec_test_raw.third(x) + 1


def inside_a_branch(spec):
    """Calls an operator in a graph inside the graph."""

    def call(x):
        return torch.cond(
            x.shape[0] > 3,
            lambda x: torch.ops.graphspec_test.halve(x) + 1,
            lambda x: x.clone(),
            (x,),
        )

    return call


def adds(spec):
    """Calls an operator that a compiled library registers."""
    return lambda x: torch.ops.aoti_custom_ops.custom_add(x, x)


def undeclared_inside_a_branch(spec):
    """Calls a function of another module in a branch, which torch interprets and does not run."""

    def call(x):
        return torch.cond(x.shape[0] > 3, lambda x: stray.double(x) + 1, lambda x: x.clone(), (x,))

    return call
