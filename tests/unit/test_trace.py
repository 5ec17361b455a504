"""Tracing under watch: what the host application does meanwhile is not taken for the unit's code."""

import gc

import attrs
import pytest

from graphspec.cache.compiling.trace import trace
from support.toy import NAME, program


@pytest.fixture
def collector():
    """Makes the collector run at almost every allocation, with a callback as profilers and test tools register them."""
    calls = []

    def callback(phase, info):
        calls.append(phase)

    threshold, enabled = gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(callback)
    gc.set_threshold(1)
    yield calls
    gc.callbacks.remove(callback)
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


@pytest.fixture
def unit(tiny_spec):
    return program(attrs.evolve(tiny_spec, program=NAME)).units()[1]


def test_a_callback_of_the_garbage_collector_is_not_code_of_the_unit(unit, tiny_spec, collector):
    """A collection that would fall into a trace waits for its end, so its callbacks are in no unit's key."""

    traced = trace(unit, tiny_spec, "cpu")
    assert len(traced.outputs) == 2
    assert collector


@pytest.mark.parametrize("enabled", [False, True])
def test_the_garbage_collector_is_as_before_after_a_failed_trace(
    unit, tiny_spec, collector, enabled
):
    """A unit that raises leaves the collector enabled or disabled as it was."""

    def build(spec):
        assert not gc.isenabled()
        raise ValueError("no such layer")

    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ValueError, match="no such layer"):
        trace(attrs.evolve(unit, build=build), tiny_spec, "cpu")
    assert gc.isenabled() is enabled
