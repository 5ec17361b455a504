"""A cache for a GPU that is not here: what of it can be built on this machine, and why the rest cannot."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.abilities import look
from graphspec.cache.compiling.described import DescribedGpu, unknown_torch
from graphspec.cache.elsewhere import UnitKernel, build_elsewhere
from graphspec.cache.load import first_of_each_key, keyed_units
from graphspec.cache.opened import OpenCache, open_cache
from graphspec.cache.units import CompileUnit
from graphspec.capture.kernel_binaries import (
    KernelResult,
    load_or_compile_kernels,
    needed_variants,
)
from graphspec.capture.program import load_program
from graphspec.config.device import CpuIsa
from graphspec.fleet.devices import Described, recorded
from graphspec.kernels.targets import GpuTarget
from graphspec.processors import usable_cpus
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class CrossUnit:
    """A compiled unit of the model: its key for the described device, and whether the cache has it now.

    `seconds` is what it took here. `kernels` are those in its library, with what they take; None for a unit that is not
    stored, and for one that was compiled where the device is.
    """

    name: str
    key: str
    stored: bool
    compiled: bool = False
    seconds: float = 0.0
    kernels: tuple[UnitKernel, ...] | None = None
    store_problem: str = ""


@attrs.frozen(kw_only=True)
class CrossReport:
    """What there is for the device now. `why_not` says why no unit was built here, or nothing where units were.

    `native_host`: the part of the units' libraries that runs on the host is for this machine's processor.
    """

    device: Described
    units: tuple[CrossUnit, ...]
    kernels: tuple[KernelResult, ...]
    why_not: str
    native_host: bool = False

    @property
    def findings(self) -> Sequence[str]:
        """What a node with this device would still lack, and kernels that it could not run."""
        found = [f"kernel {k.variant}: {k.problem}" for k in self.kernels if k.problem]
        for kernel in self.kernels:
            found += _beyond(kernel, self.device)
        missing = [unit for unit in self.units if not unit.stored]
        if self.why_not and (missing or not self.units):
            names = ", ".join(unit.name for unit in missing)
            found.append(f"{f'units {names}' if names else 'the units'}: {self.why_not}")
        elif missing:
            found += [
                f"unit {u.name}: not stored: {u.store_problem or 'the cache is not used'}"
                for u in missing
            ]
        return found

    @property
    def notes(self) -> Sequence[str]:
        """What is good to know."""
        notes = []
        if self.units and not self.device.exact:
            notes.append(
                "the device's memory is known to the MiB, and keys of units have it in bytes: a node looks under other "
                "keys; record its facts with graphspec devices --record"
            )
        if self.units and self.native_host:
            notes.append(
                "device.isa is native: a node with another processor than this machine's looks under other keys; "
                "x86-64-v3 travels"
            )
        untried = sum(k.configs > 1 for unit in self.units for k in unit.kernels or ())
        if untried:
            notes.append(
                f"{untried} kernels of units have several configurations, and the first that keeps its registers was taken: "
                "only the device can tell which is the fastest"
            )
        return notes

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
            "compiled": self.compiled,
            "findings": list(self.findings),
            "notes": list(self.notes),
        }

    @property
    def compiled(self) -> int:
        """How many kernels and units were compiled here and now."""
        return sum(k.compiled for k in self.kernels) + sum(u.compiled for u in self.units)


def warm_for(
    spec: EngineSpec,
    device: Described,
    *,
    cache_dir: str | None = None,
    jobs: int | None = None,
) -> CrossReport:
    """Compiles the contract's kernels and units for a described device into the cache.

    A kernel's code depends on the architecture alone, and Triton needs no device to make it. Units need a CUDA build of
    torch, of a version whose compiler can be told of a device; without one they are looked up. `jobs`: compiler processes at
    once; default, one per CPU. Raises what `load_or_compile_kernels` and `build_elsewhere` raise.
    """
    cache = open_cache(spec.cache, cache_dir)
    target = GpuTarget(device.profile.kind, device.profile.capability[0])
    kernels = load_or_compile_kernels(needed_variants(spec), [target], cache)
    why_not = _why_not(device)
    units: Sequence[CrossUnit] = ()
    if device.profile.kind == "cuda":
        listed = load_program(spec).units()
        if why_not:
            units = _looked_up(listed, spec, cache, device)
        else:
            units = _built(listed, spec, cache, device, jobs or usable_cpus())
    return CrossReport(
        device=device,
        units=tuple(units),
        kernels=tuple(kernels),
        why_not=why_not,
        native_host=spec.device.isa is CpuIsa.NATIVE,
    )


def described_gpu_of(device: Described) -> DescribedGpu | None:
    """What a compiler is told of a device; None where its limits are not known, or it is no NVIDIA GPU."""
    profile, limits = device.profile, device.limits
    if limits is None or profile.kind != "cuda":
        return None
    return DescribedGpu(
        name=profile.name,
        architecture=profile.capability[0],
        multiprocessors=profile.multiprocessors,
        memory_bytes=profile.memory_bytes,
        warp_size=profile.warp_size,
        registers=limits.registers,
        threads=limits.threads,
        shared_bytes=limits.shared_bytes,
        registers_per_multiprocessor=limits.registers_per_multiprocessor,
        threads_per_multiprocessor=limits.threads_per_multiprocessor,
    )


def _looked_up(
    listed: Sequence[CompileUnit], spec: EngineSpec, cache: OpenCache, device: Described
) -> Sequence[CrossUnit]:
    firsts = first_of_each_key(keyed_units(listed, spec, device=device.profile))
    return [
        CrossUnit(
            name=first.unit.name, key=key.digest, stored=look(cache.store, key).entry is not None
        )
        for key, first in firsts.items()
    ]


def _built(
    listed: Sequence[CompileUnit], spec: EngineSpec, cache: OpenCache, device: Described, jobs: int
) -> Sequence[CrossUnit]:
    gpu = described_gpu_of(device)
    assert gpu is not None
    built = build_elsewhere(
        listed,
        spec,
        cache.store,
        cache.locks,
        device.profile,
        gpu,
        jobs=jobs,
        lock_wait_seconds=spec.cache.lock_wait_seconds,
        offline=cache.offline,
    )
    cache.record([one.result for one in built])
    stored = {unit.key: unit.stored for unit in _looked_up(listed, spec, cache, device)}
    return [
        CrossUnit(
            name=one.result.name,
            key=one.result.key,
            stored=stored[one.result.key],
            compiled=one.result.compiled,
            seconds=one.result.seconds,
            kernels=one.kernels,
            store_problem=one.result.store_problem,
        )
        for one in built
        if not one.result.same_as
    ]


def _why_not(device: Described) -> str:
    import torch

    if device.profile.kind != "cuda":
        return "not built: torch measures AMD devices in other words than this profile, so no key is known"
    if torch.version.cuda is None:
        return (
            f"not built: torch {torch.__version__} has no CUDA in it, so it neither generates code for one nor has the "
            "toolchain that a node's keys name; install the CUDA build of this torch, which needs no GPU, or share a "
            "node's entries by a tier or a bundle"
        )
    if unknown := unknown_torch(str(torch.__version__)):
        return f"not built: {unknown}; compile them on a node"
    if device.limits is None:
        return f"not built: what a kernel may take is not known of {device.profile.capability[0]}; compile them on a node"
    return ""


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
