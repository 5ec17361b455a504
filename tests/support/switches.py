"""Build functions that depend on more than the spec, for tests of the watch over a trace."""

import enum
import math
import os

import torch

from support import settings
from support.settings import SCALE as IMPORTED_SCALE


class Mode(enum.Enum):
    """How a unit works."""

    PLAIN = 1
    FAST = 2


class Sizes:
    """Constants of a class."""

    rows = 4


FACTOR = 3
BIG = FACTOR * (1 << 10) - 1
NAMES = ("a", "b")
BY_NAME = {"a": 1.0, "b": [2.0, None]}
ONE, TWO = 1, 2
LABEL: str = " x".strip()
LOWEST = torch.finfo(torch.float32).min
LOG = math.log2(8.0)
DTYPE = torch.float64
MODE = Mode.FAST
KINDS = frozenset(("a", "b"))
NUMBERS = frozenset((1, 2))
LATER = None
ALIKE = True

FROM_ENVIRONMENT = os.environ.get("SUPPORT_SWITCH", "1")
if FROM_ENVIRONMENT == "1":
    CONDITIONAL = 1
    OTHERWISE = 1
else:
    CONDITIONAL = 2
TWICE = 1
TWICE = 2
TENSOR = torch.ones(1)
ACTIVATIONS = {"relu": torch.relu}


def constants(spec):
    """Reads constants of every kind."""

    def call(x):
        wide = x.to(DTYPE) * FACTOR + BIG + len(NAMES) + BY_NAME["a"] + ONE + TWO + len(LABEL)
        wide = ACTIVATIONS["relu"](wide.clamp(min=LOWEST) + LOG)
        if "a" in KINDS and MODE is Mode.FAST and LATER is None:
            wide = wide + sum(n for n in NUMBERS) + Sizes.rows
        return wide + len(sorted(KINDS)) + math.pi

    return call


def imported(spec):
    """Reads a constant that was imported from another module."""
    return lambda x: x * IMPORTED_SCALE


def through_module(spec):
    """Reads a constant of another module."""
    return lambda x: x * settings.SCALE


def through_class(spec):
    """Reads a constant of a class of another module."""
    return lambda x: x + settings.Limits.rows


def through_function(spec):
    """Reads a constant that it imports when it runs."""

    def call(x):
        from support.settings import SCALE

        return x * SCALE

    return call


def through_object(spec):
    """Reads an attribute of an object that lives beside the spec."""
    return lambda x: x + int(settings.FLAGS.fast)


def scaled(spec):
    """Reads FACTOR."""
    return lambda x: x * FACTOR


def layer(spec, index):
    """Adds a number that it is given."""
    return lambda x: x + index


def closure(index):
    """A build function that holds a number."""

    def build(spec):
        return layer(spec, index)

    return build


def adds_a_tensor(spec):
    """Makes a tensor of torch's default dtype."""
    return lambda x: x + torch.ones(4)


def own_class(spec):
    """Reads a constant of a class of this module."""
    return lambda x: x + Sizes.rows


def alike(spec):
    """Reads ALIKE, whose other values compare as equal."""
    return lambda x: x + int(ALIKE)


def later(spec):
    """Reads LATER, which may be set later on."""
    return lambda x: x if LATER is None else LATER(x)


def environment_at_import(spec):
    """Reads a global that was read from the environment."""
    return lambda x: x if FROM_ENVIRONMENT == "1" else -x


def conditional(spec):
    """Reads a global that is assigned under a condition."""
    return lambda x: x + CONDITIONAL


def twice(spec):
    """Reads a global that is assigned twice."""
    return lambda x: x + TWICE


def tensor(spec):
    """Reads a tensor."""
    return lambda x: x + TENSOR


def own_file(spec):
    """Reads where it lies."""
    return lambda x: x + len(__file__)


def loop_over_set(spec):
    """Adds one row after the other, in the order of a set of texts."""

    def call(x):
        for name in KINDS:
            x = x + 1 if name == "a" else x * 2
        return x

    return call


def list_of_set(spec):
    """Takes the order of a set that is written where it is used."""

    def call(x):
        steps = {"a": x + 1, "b": x * 2}
        return torch.cat([steps[name] for name in {"a", "b"}])  # noqa: PLC0208 - the mistake

    return call


STEPS = "half double square root sine next".split()


def _step(x, name):
    if name in ("half", "double"):
        return x * (2.0 if name == "double" else 0.5)
    if name in ("square", "root"):
        return x * x if name == "square" else x.abs().sqrt()
    return x.sin() if name == "sine" else x + 1


def hidden_loop_over_set(spec):
    """Takes the order of a set that no instruction names: it comes through a local variable."""

    def call(x):
        names = set(STEPS)
        for name in names:
            x = _step(x, name)
        return x

    return call


def sorted_loop_over_set(spec):
    """The same steps in an order that is the same everywhere."""

    def call(x):
        for name in sorted(set(STEPS)):
            x = _step(x, name)
        return x

    return call


def variable_by_index(spec):
    """Reads a variable while it builds."""
    scale = float(os.environ["SUPPORT_SCALE"])
    return lambda x: x * scale


def variable_by_get(spec):
    """Reads a variable while it is traced."""
    return lambda x: x * float(os.environ.get("SUPPORT_SCALE", "1"))


def variable_by_getenv(spec):
    """Reads a variable with getenv."""
    return lambda x: x * float(os.getenv("SUPPORT_SCALE", "1"))


def variable_by_in(spec):
    """Asks whether a variable is set."""
    return lambda x: x + 1 if "SUPPORT_SCALE" in os.environ else x


def variable_by_bytes(spec):
    """Reads a variable as bytes."""
    return lambda x: x * float(os.environb.get(b"SUPPORT_SCALE", b"1"))


def variable_by_expansion(spec):
    """Reads a variable in a path."""
    return lambda x: x * len(os.path.expandvars("$SUPPORT_SCALE"))


def every_variable(spec):
    """Copies the environment."""
    return lambda x: x + len(dict(os.environ))


def imported_variable(spec):
    """Imports a module whose body reads a variable; the module is forgotten, so that it is imported each time."""

    def call(x):
        import sys

        sys.modules.pop("support.reads_at_import", None)
        import support.reads_at_import  # noqa: F401

        return x + 1

    return call
