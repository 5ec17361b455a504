"""Compiled kernels for GPUs in the cache: compiled once for each architecture, on any machine, and found again."""

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import triton_build
from graphspec.cache.entry import Entry
from graphspec.cache.load import UnitResult, unusable_store
from graphspec.cache.opened import OpenCache
from graphspec.cache.store import Lookup, Outcome
from graphspec.cache.units import EntryKey
from graphspec.config.device import Target
from graphspec.errors import OfflineMissError, Problem
from graphspec.kernels.preload import install, preload
from graphspec.kernels.resources import Resources
from graphspec.kernels.seal import KernelSeal
from graphspec.kernels.targets import GpuTarget, compile_variant, options_for, triton_version
from graphspec.kernels.variants import Variant, kernel_modules, variants_of
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.factors import digest
from graphspec.resolve.spec import EngineSpec

_METHODS_OF = {"graphspec.kernels.ngram_gpu": ("ngram", "ngram_gpu")}
"""Kernels that only some drafting methods launch. Any other may run in every step."""


@attrs.frozen(kw_only=True)
class KernelResult:
    """What became of a variant for a target. `seconds` is what it took here; `store_problem` why it could not be stored;
    `differs`: other bytes are stored under its key, and stayed. `entry` has the bytes."""

    variant: str
    target: str
    key: str
    outcome: Outcome
    compiled: bool
    seconds: float
    bytes: int
    resources: Resources
    reason: str = ""
    store_problem: str = ""
    differs: bool = False
    entry: Entry = attrs.field(repr=False)

    @property
    def problem(self) -> str:
        """What an operator should know of, in a sentence, or an empty text."""
        if self.differs:
            return f"does not compile alike: other bytes are stored under its key {self.key}"
        return f"not stored: {self.store_problem}" if self.store_problem else ""


Listener = Callable[[KernelResult], None]


def kernel_key(variant: Variant, target: GpuTarget) -> EntryKey:
    """The key of a compiled variant: its code and what that calls, types, constants, options, Triton, and the target.

    The source's digest is the one that Triton itself uses, which covers every function that the kernel calls. Needs Triton,
    and no GPU.
    """
    triton_version()
    from triton._C.libtriton import get_cache_invalidating_env_vars

    text = encode(
        {
            "epoch": EPOCH,
            "kind": "kernel",
            "unit": unit_name(variant),
            "source": variant.kernel.cache_key,
            "signature": dict(variant.types),
            "constexprs": dict(variant.constexprs),
            "options": dict(options_for(variant, target)),
            "toolchain": {"triton": triton_build()},
            "environment": dict(get_cache_invalidating_env_vars()),
            "device": target.profile(),
        }
    )
    return EntryKey(text, digest(text))


def unit_name(variant: Variant) -> str:
    """What listings of the cache call a variant."""
    return f"kernel.{variant.name}"


def load_or_compile_kernels(
    variants: Sequence[Variant],
    targets: Sequence[GpuTarget],
    cache: OpenCache,
    *,
    strict: bool = False,
    listener: Listener = lambda result: None,
) -> Sequence[KernelResult]:
    """Each variant for each target: from the cache, or compiled here and stored.

    Raises `OfflineMissError` with all that is missing where compiling is forbidden, and with `strict` `CacheUnusableError`
    where a result cannot be stored.
    """
    asked = [(v, t, kernel_key(v, t)) for v in variants for t in targets]
    found = [cache.store.get(key) for _, _, key in asked]
    missing = [one for one, lookup in zip(asked, found, strict=True) if lookup.entry is None]
    if missing and cache.offline is not None:
        raise OfflineMissError(
            Problem(
                where=f"kernel {v.name} for {t}",
                found=f"no entry {key.digest} in {cache.offline}",
                wanted="a compiled kernel",
                hint=f"graphspec kernels compile --target {t}, where compiling is allowed",
            )
            for v, t, key in missing
        )
    results = []
    for (variant, target, key), lookup in zip(asked, found, strict=True):
        began = time.perf_counter()
        results.append(
            _result(variant, target, lookup, lookup.entry, began)
            if lookup.entry is not None
            else _compiled(variant, target, key, lookup, cache, strict)
        )
        listener(results[-1])
    return results


def _compiled(
    variant: Variant,
    target: GpuTarget,
    key: EntryKey,
    lookup: Lookup,
    cache: OpenCache,
    strict: bool,
) -> KernelResult:
    began = time.perf_counter()
    binary = compile_variant(variant, target)
    entry = Entry(
        key=key,
        metadata={
            "unit": unit_name(variant),
            "device": target.backend,
            "compile_seconds": binary.seconds,
            "resources": attrs.asdict(binary.resources),
            "facts": dict(binary.facts),
            "provenance": {"triton": triton_version()},
        },
        payload=binary.payload,
    )
    stored = cache.store.put(entry)
    if strict and stored.failed:
        raise unusable_store(stored.reason)
    result = _result(variant, target, lookup, entry, began)
    return attrs.evolve(result, compiled=True, store_problem=stored.reason, differs=stored.differs)


def _result(
    variant: Variant,
    target: GpuTarget,
    lookup: Lookup,
    entry: Entry,
    began: float,
) -> KernelResult:
    return KernelResult(
        variant=variant.name,
        target=str(target),
        key=entry.key.digest,
        outcome=lookup.outcome,
        compiled=False,
        seconds=time.perf_counter() - began,
        bytes=len(entry.payload),
        resources=Resources(**entry.metadata["resources"]),
        reason=lookup.reason,
        entry=entry,
    )


def needed_variants(spec: EngineSpec) -> Sequence[Variant]:
    """The variants that an engine of this contract may launch on a GPU."""
    method = spec.speculative.method if spec.speculative is not None else ""
    return variants_of([m for m in kernel_modules() if method in _METHODS_OF.get(m, (method,))])


def device_target(spec: EngineSpec) -> GpuTarget | None:
    """The GPU of this machine that the contract is for; None for a contract that is for a CPU."""
    if spec.device.target is not Target.CUDA:
        return None
    import torch

    if torch.version.hip is not None:
        # torch calls these devices cuda too, and their capability names no architecture.
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        return GpuTarget("hip", facts.gcnArchName.partition(":")[0])
    profile = measure_device(spec.device)
    return GpuTarget(profile.kind, profile.capability[0])


def warm_kernels(
    spec: EngineSpec, cache: OpenCache, *, strict: bool = False
) -> Sequence[UnitResult]:
    """For a contract on a GPU: its kernels from the cache, or compiled, and loaded onto the device, so that no launch
    compiles. Each is reported as a unit is. Nothing for a CPU, and nothing without Triton: no kernel of ours can run then.
    """
    target = device_target(spec)
    if target is None or importlib.util.find_spec("triton") is None:
        return ()
    variants = needed_variants(spec)
    results = load_or_compile_kernels(variants, [target], cache, strict=strict)
    put_in_place(variants, target, results)
    preload(variants, target)
    return [_as_unit(r) for r in results]


def seal_kernels(spec: EngineSpec, *, strict: bool = False) -> KernelSeal | None:
    """The seal of an engine that is ready, closed: from now on a kernel that is compiled is counted in its `seen`, or with
    `strict` one of graphspec's is a `KernelError` at the launch. None where no kernel of ours can run."""
    if spec.device.target is not Target.CUDA or importlib.util.find_spec("triton") is None:
        return None
    seal = KernelSeal(strict=strict)
    seal.close()
    return seal


def _as_unit(result: KernelResult) -> UnitResult:
    saved = 0.0 if result.compiled else float(result.entry.metadata["compile_seconds"])
    return UnitResult(
        name=str(result.entry.metadata["unit"]),
        key=result.key,
        outcome=result.outcome,
        reason=result.reason,
        compiled=result.compiled,
        seconds=result.seconds,
        seconds_saved=max(0.0, saved - result.seconds),
        bytes=result.bytes,
        store_problem=result.store_problem,
        differs=result.differs,
    )


def put_in_place(
    variants: Sequence[Variant], target: GpuTarget, results: Sequence[KernelResult]
) -> None:
    """Puts what was loaded or compiled for a target where Triton finds it."""
    for variant, result in zip(variants, results, strict=True):
        facts: dict[str, Any] = dict(result.entry.metadata["facts"])
        install(variant, target, result.entry.payload, facts)
