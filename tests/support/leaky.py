"""Units whose keys forget something, for tests that must notice it."""

import torch

from graphspec.cache.units import CompileUnit, TensorInput
from graphspec.errors import Problem, SpecError
from graphspec.keys.scope import Scope


class Program:
    """One unit whose graph has the number of layers in it. `leaky`: its scope, and so its key, does not."""

    def __init__(self, spec, leaky):
        self.spec, self.leaky = spec, leaky

    def units(self):
        scope = Scope(("model.dtype",) if self.leaky else ("model.num_hidden_layers",))
        return (
            CompileUnit(
                name="shift",
                scope=scope,
                modules=("support.leaky",),
                build=self.build_behind if self.leaky else build,
                inputs=(TensorInput(name="x", shape=(2,), dtype="float32"),),
            ),
        )

    def build_behind(self, spec):
        """Reads the spec past the view, which no watch can see."""
        return shift(self.spec.model.num_hidden_layers)


def build(spec):
    """Reads the spec as it should."""
    return shift(spec.model.num_hidden_layers)


def shift(by):
    def run(x: torch.Tensor):
        return x + by

    return run


class Half(Program):
    """Its unit has a graph for an odd number of layers alone, and its key says nothing of that."""

    def build_behind(self, spec):
        if self.spec.model.num_hidden_layers % 2:
            return shift(1)
        return lambda x: x * int(x.sum())  # asks for a value, which no trace has


def half(spec):
    """A program that cannot always be traced."""
    return Half(spec, leaky=True)


def picky(spec):
    """A program that refuses every spec."""
    raise SpecError(Problem(where="spec", found="this", wanted="another"))


def leaky(spec):
    """A program with the fault."""
    return Program(spec, leaky=True)


def sound(spec):
    """The same without it."""
    return Program(spec, leaky=False)
