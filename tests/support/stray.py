"""A module that no unit declares."""


def double(x):
    """Twice x."""
    return x * 2
