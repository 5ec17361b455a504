"""Units compiled on this machine for a GPU that is not in it, stored under the keys that a node with the GPU makes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.cache.compiling.described import DescribedGpu
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.entry import Entry
from graphspec.cache.folder.locks import Locks
from graphspec.cache.load import CompileRun, Keyed, UnitResult, keyed_units
from graphspec.cache.store import Store
from graphspec.cache.units import CompileUnit
from graphspec.config.device import DeviceProfile
from graphspec.cubin import cubins_in, read_cubin
from graphspec.errors import CacheError, EnvironmentProblem, Problem
from graphspec.resolve.spec import EngineSpec

if TYPE_CHECKING:
    from graphspec.cache.compiling.compiler import Compiled, Compiler

_HINT = "remove the entry and build it again, or compile the unit on a node that has the GPU"


@attrs.frozen(kw_only=True)
class UnitKernel:
    """A kernel inside a unit's library, as its entry tells of it.

    `digest` is the SHA-256 of its binary. `shared` is what a launch asks for, in bytes. `config` was taken, of `configs` that
    a trial on the GPU would have chosen between.
    """

    kernel: str
    digest: str
    registers: int
    spills: int
    shared: int
    threads: int
    config: str
    configs: int


@attrs.frozen(kw_only=True)
class Built:
    """A unit: what became of it, and its kernels. None for one that was compiled where its GPU is, and tells of none."""

    result: UnitResult
    kernels: tuple[UnitKernel, ...] | None


def build_elsewhere(
    units: Sequence[CompileUnit],
    spec: EngineSpec,
    store: Store,
    locks: Locks,
    profile: DeviceProfile,
    gpu: DescribedGpu,
    *,
    jobs: int = 1,
    lock_wait_seconds: float = 900.0,
    offline: str | None = None,
) -> Sequence[Built]:
    """Each unit from the store, or compiled for `gpu` and stored; in the order of `units`.

    `profile` is the device part of the keys. What cannot be tried without the GPU is checked instead: each kernel's binary
    is in the library, is for the GPU's architecture, and takes no more than it gives. The entry is of the kind that a node
    makes itself, and a node loads it in the same way.

    Raises what `load_or_compile` does, and `CacheError` for a library that was compiled and does not pass the checks.
    """
    run = _Elsewhere(spec, store, locks, lock_wait_seconds, profile, gpu)
    keyed = keyed_units(units, spec, device=profile)
    run.all(keyed, jobs, offline)
    return [
        Built(result=run.results[one.unit.name], kernels=run.kernels[one.key.digest])
        for one in keyed
    ]


class _Elsewhere(CompileRun):
    """A run whose libraries cannot be loaded here: they are checked in place of that."""

    def __init__(
        self,
        spec: EngineSpec,
        store: Store,
        locks: Locks,
        lock_wait: float,
        profile: DeviceProfile,
        gpu: DescribedGpu,
    ) -> None:
        super().__init__(spec, store, locks, False, False, lambda result: None, lock_wait)
        self._profile = profile
        self._gpu = gpu
        self.kernels: dict[str, tuple[UnitKernel, ...] | None] = {}

    def share(self, name: str, first: str) -> None:
        self.results[name] = attrs.evolve(
            self.results[first], name=name, compiled=False, seconds=0.0, same_as=first
        )

    def _compiler(self) -> "Compiler":
        from graphspec.cache.compiling.compiler import Compiler

        device = self._spec.device
        return Compiler(
            compiler_flags(device), compiler_options(device), device.target.value, self._gpu
        )

    def _notes(self, compiled: "Compiled") -> Mapping[str, Any]:
        return {"kernels": [dict(kernel) for kernel in compiled.kernels]}

    def _keep(self, keyed: Keyed, entry: Entry) -> None:
        kernels = kernels_of(entry)
        if kernels is not None:
            problems = list(kernel_problems(entry, kernels, self._gpu))
            if problems:
                raise CacheError(problems)
        self.kernels[entry.key.digest] = kernels


def kernels_of(entry: Entry) -> tuple[UnitKernel, ...] | None:
    """What an entry that was built without its GPU tells of its kernels; None for one that was built where the GPU is.

    Raises `CacheError` where it tells it in other words.
    """
    stored = entry.metadata.get("kernels")
    if stored is None:
        return None
    try:
        return tuple(UnitKernel(**kernel) for kernel in stored)
    except TypeError as error:
        raise CacheError(
            Problem(
                where=f"unit {entry.metadata['unit']}",
                found=f"kernels described in other words: {error}",
                wanted="what this graphspec writes of kernels",
                hint=_HINT,
            )
        ) from None


def kernel_problems(
    entry: Entry, kernels: Sequence[UnitKernel], gpu: DescribedGpu
) -> Sequence[Problem]:
    """What of a library's kernels does not fit the GPU, or is not as the entry says. Reads the binaries themselves."""
    binaries = {}
    for content in cubins_in(entry.payload):
        try:
            cubin = read_cubin(content)
        except EnvironmentProblem as error:
            return [_problem(entry, "a kernel", error.problems[0].found, "one that can be read")]
        binaries[cubin.digest] = cubin
    problems = []
    for kernel in kernels:
        binary = binaries.get(kernel.digest)
        name = f"kernel {kernel.kernel}"
        if binary is None:
            problems.append(_problem(entry, name, "no such binary in the library", "its binary"))
            continue
        if binary.architecture != gpu.architecture:
            problems.append(
                _problem(entry, name, f"code for {binary.architecture}", f"for {gpu.architecture}")
            )
        taken = (
            ("registers", binary.registers, gpu.registers),
            ("bytes of shared memory", kernel.shared, gpu.shared_bytes),
            ("threads", kernel.threads, gpu.threads_with(binary.registers)),
        )
        problems += [
            _problem(entry, name, f"{found} {what}", f"at most {most}, which the device gives")
            for what, found, most in taken
            if found > most
        ]
    return problems


def _problem(entry: Entry, what: str, found: str, wanted: str) -> Problem:
    return Problem(
        where=f"unit {entry.metadata['unit']}, {what}", found=found, wanted=wanted, hint=_HINT
    )
