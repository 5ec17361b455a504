"""Units that read or run what they should not, for tests of watched tracing."""

import logging

import torch

from support import stray

made_elsewhere = {}
exec("def half(x):\n    return x * 0.5\n", {"__name__": "__main__"}, made_elsewhere)


def reads_in_build(spec):
    """Reads a field while it builds."""
    width = spec.model.hidden_size
    return lambda x: x + width


def reads_in_call(spec):
    """Reads a field while it is traced."""
    return lambda x: x + spec.model.hidden_size


def reads_k(spec):
    """Reads the draft depth, which is no COMPILE factor of an n-gram spec."""
    return lambda x: x + spec.num_speculative_tokens


def stays_inside(spec):
    """Reads what its scope names."""
    return lambda x: x * spec.model.rms_norm_eps


def calls_outside(spec):
    """Calls a function of another module."""
    return stray.double


def calls_outside_two_levels_down(spec):
    """Calls a function that calls another module's."""

    def inner(x):
        return stray.double(x)

    return lambda x: torch.relu(inner(x))


def calls_code_from_a_string(spec):
    """Calls code that has no file and no module of its own."""
    return made_elsewhere["half"]


def logs(spec):
    """Logs while it is traced: the handlers are the application's business."""

    def call(x):
        logging.getLogger("support.tracing").warning("traced")
        return x + 1

    return call


def branches_on_data(spec):
    """Takes a branch that depends on values."""
    return lambda x: x + 1 if x.sum() > 0 else x
