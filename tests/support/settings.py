"""A module of settings that a unit may or may not declare."""

import types

SCALE = 2.0
FLAGS = types.SimpleNamespace(fast=True)


class Limits:
    """Settings as attributes of a class."""

    rows = 4


def double(x):
    """Twice x, by way of a constant of this module."""
    return x * SCALE
