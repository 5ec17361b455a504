"""Custom operators that are registered from Python, and build functions that call operators."""

import torch


@torch.library.custom_op("graphspec_test::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    """x / 2."""
    return x / 2


@halve.register_fake
def _(x):
    return torch.empty_like(x)


LIBRARY = torch.library.Library("graphspec_test_raw", "DEF")
LIBRARY.define("third(Tensor x) -> Tensor")
LIBRARY.impl("third", lambda x: x / 3, "CPU")


@torch.library.register_fake("graphspec_test_raw::third")
def _(x):
    return torch.empty_like(x)
