"""A cache for a GPU that is not here: what of it can be built on this machine, and why the rest cannot."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.abilities import look
from graphspec.cache.load import first_of_each_key, keyed_units
from graphspec.cache.opened import open_cache
from graphspec.capture.kernel_binaries import (
    KernelResult,
    load_or_compile_kernels,
    needed_variants,
)
from graphspec.capture.program import load_program
from graphspec.fleet.devices import Described, recorded
from graphspec.kernels.targets import GpuTarget
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class CrossUnit:
    """A compiled unit of the model: its key for the described device, and whether the cache has it."""

    name: str
    key: str
    stored: bool


@attrs.frozen(kw_only=True)
class CrossReport:
    """What there is for the device now. `why_not` says why no unit was built here."""

    device: Described
    units: tuple[CrossUnit, ...]
    kernels: tuple[KernelResult, ...]
    why_not: str

    @property
    def findings(self) -> Sequence[str]:
        """What a node with this device would still lack, and kernels that it could not run."""
        found = [f"kernel {k.variant}: {k.problem}" for k in self.kernels if k.problem]
        for kernel in self.kernels:
            found += _beyond(kernel, self.device)
        missing = [unit.name for unit in self.units if not unit.stored]
        if missing or not self.units:
            what = f"units {', '.join(missing)}" if missing else "the units"
            found.append(f"{what}: {self.why_not}")
        return found

    @property
    def notes(self) -> Sequence[str]:
        """What is good to know."""
        if self.device.exact or not self.units:
            return ()
        return (
            "the device's memory is known to the MiB, and keys of units have it in bytes: a node looks under other keys; "
            "record its facts with graphspec devices --record",
        )

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``warmup --device --json`` prints."""
        return {
            **recorded(self.device.profile),
            "exact": self.device.exact,
            "source": self.device.source,
            "units": [attrs.asdict(unit) for unit in self.units],
            "kernels": [
                {
                    "kernel": k.variant,
                    "target": k.target,
                    "key": k.key,
                    "compiled": k.compiled,
                    "bytes": k.bytes,
                    **attrs.asdict(k.resources),
                    "seconds": k.seconds,
                }
                for k in self.kernels
            ],
            "compiled": sum(k.compiled for k in self.kernels),
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


def warm_for(spec: EngineSpec, device: Described, *, cache_dir: str | None = None) -> CrossReport:
    """Compiles the contract's kernels for a described device into the cache, and looks its units up.

    A kernel's code depends on the architecture alone, and Triton needs no device to make it. Raises what
    `load_or_compile_kernels` raises.
    """
    cache = open_cache(spec.cache, cache_dir)
    target = GpuTarget(device.profile.kind, device.profile.capability[0])
    kernels = load_or_compile_kernels(needed_variants(spec), [target], cache)
    units: list[CrossUnit] = []
    if device.profile.kind == "cuda":
        keyed = keyed_units(load_program(spec).units(), spec, device=device.profile)
        for key, first in first_of_each_key(keyed).items():
            stored = look(cache.store, key).entry is not None
            units.append(CrossUnit(name=first.unit.name, key=key.digest, stored=stored))
    return CrossReport(
        device=device, units=tuple(units), kernels=tuple(kernels), why_not=_why_not(device)
    )


def _why_not(device: Described) -> str:
    import torch

    if device.profile.kind != "cuda":
        return "not built: torch measures AMD devices in other words than this profile, so no key is known"
    if torch.version.cuda is None:
        return (
            f"not built: torch {torch.__version__} has no CUDA in it, so it neither generates code for one nor has the "
            "toolchain that a node's keys name; compile them on a node, or share its entries by a tier or a bundle"
        )
    return "not built: units are compiled where the device is; run graphspec warmup on a node"


def _beyond(kernel: KernelResult, device: Described) -> Sequence[str]:
    if device.limits is None:
        return ()
    taken, limits = kernel.resources, device.limits
    pairs = (
        ("registers", taken.registers, limits.registers),
        ("bytes of shared memory", taken.shared, limits.shared_bytes),
    )
    return [
        f"kernel {kernel.variant} takes {found} {what}, and the device gives {most}"
        for what, found, most in pairs
        if found > most
    ]
