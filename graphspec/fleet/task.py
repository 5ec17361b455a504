"""`Task`: one unit to compile, as it is sent to a worker, and `Done`, what the worker answers."""

import enum

import attrs

from graphspec.cache.load import UnitResult
from graphspec.cache.units import EntryKey
from graphspec.config.device import Target
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class Resources:
    """What one task takes while it runs. `memory_bytes` is of its worker and compiler together."""

    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0


@attrs.frozen(kw_only=True)
class Task:
    """One unit to compile. `spec` is final, so a worker needs neither the config file nor the checkpoint.

    `expected_seconds` orders tasks; `attempt` counts from 1.
    """

    spec: EngineSpec
    unit: str
    key: EntryKey = attrs.field(repr=False)
    expected_seconds: float
    resources: Resources = Resources()
    cache_dir: str | None = None
    attempt: int = 1


class Verdict(enum.Enum):
    """How a worker ended a task."""

    COMPILED = "compiled"
    FOUND = "found"
    """Another process had stored it meanwhile."""
    NOT_STORED = "not stored"
    """Compiled, and no place took it: the work is lost when the worker ends."""
    FAILED = "failed"
    """It does not compile; it would not on another worker either."""
    DIFFERS = "differs"
    """This worker gives the unit another key: its toolchain, device or code is not the driver's."""


@attrs.frozen(kw_only=True)
class Done:
    """What a worker answers. `seconds` is the time in the worker, `result` is there where the unit was loaded or compiled."""

    verdict: Verdict
    node: str
    seconds: float
    reason: str = ""
    result: UnitResult | None = None


def resources_of(spec: EngineSpec, memory_bytes: int) -> Resources:
    """What a unit of this spec takes. Code for a GPU is made where one is: its key is of that device, and its kernels are
    tuned on it."""
    return Resources(memory_bytes=memory_bytes, gpus=int(spec.device.target is Target.CUDA))
