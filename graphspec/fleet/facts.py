"""What keys are made of, as flat texts: small enough to compare between nodes, and named, so that a difference has a name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import toolchain
from graphspec.cache.load import Keyed
from graphspec.config.device import DeviceConfig, Target
from graphspec.errors import EnvironmentProblem
from graphspec.keys.compare import describe, parts
from graphspec.keys.encoding import decode, encode

_WHOLE = 1 << 20
"""Characters of a value: nothing is cut, or two long values could look equal."""
_COMMON = ("toolchain", "device", "options")
"""Parts of a key that all units of a spec have in common."""


def facts_of_keys(keyed: Sequence[Keyed]) -> Mapping[str, str]:
    """Each factor of the units' keys by its path. What is common to all units is there once, the rest below the unit."""
    facts: dict[str, str] = {}
    for one in keyed:
        key = decode(one.key.text)
        for part, value in key.items():
            path = part if part in _COMMON else f"unit {one.unit.name}: {part}"
            facts.update(_flat(value, path))
    return facts


def facts_of_node() -> Mapping[str, str]:
    """The toolchain and the devices of this machine, as keys have them. Empty without torch."""
    facts: dict[str, str] = {}
    for target in Target:
        device = DeviceConfig(target=target)
        try:
            measured = measure_device(device)
            made = {f"toolchain for {target.value}": toolchain(device), target.value: measured}
        except (EnvironmentProblem, ImportError):
            continue
        for path, value in made.items():
            facts.update(_flat(decode(encode(value)), path))
    return facts


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    within = parts(value)
    if within is None:
        yield path, describe(value, limit=_WHOLE)
        return
    name, members = within
    if name:
        yield f"{path} (class)", name
    for member, below in members.items():
        yield from _flat(below, f"{path}.{member}")
