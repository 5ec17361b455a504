"""`import_bundle`: the entries of a bundle into a cache folder, if they are whole, trusted, and for this machine."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.bundle.layout import HOST, Listed, Machine
from graphspec.cache.bundle.reader import Bundle, open_bundle, read_bundle
from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.entry import Entry, Trust
from graphspec.cache.folder.disk import DiskStore
from graphspec.config.device import CpuIsa, DeviceConfig, Target
from graphspec.errors import (
    BundleError,
    CacheError,
    CacheUnusableError,
    EnvironmentProblem,
    Problem,
    UntrustedError,
)
from graphspec.keys.compare import Difference, compare, describe, parts

_SETTINGS = ("environment", "torch_state")
"""Parts of the toolchain that are a process's own: variables that are set, switches of torch. Not the machine's."""


@attrs.frozen(kw_only=True)
class ImportedEntry:
    """What became of one entry.

    `outcome` is ``imported``, ``present`` (the same was there), ``differs`` (another was there under the same key, and
    stayed) or ``failed``, with the `reason`.
    """

    digest: str
    unit: str
    outcome: str
    reason: str = ""

    @property
    def is_finding(self) -> bool:
        """True where somebody should look: other bytes under one key, or nothing stored."""
        return self.outcome in ("differs", "failed")


@attrs.frozen(kw_only=True)
class Imported:
    """What an import did. `notes` are sentences about settings that the entries ask for and this process does not have.

    `signer` is the public key that the bundle names as its signer; it was checked only where trust was asked for.
    """

    path: str
    folder: str
    entries: tuple[ImportedEntry, ...]
    notes: tuple[str, ...]
    created_by: Mapping[str, str]
    signer: bytes | None

    def count(self, outcome: str) -> int:
        """How many entries ended that way."""
        return sum(e.outcome == outcome for e in self.entries)


def import_bundle(
    path: str,
    store: DiskStore,
    *,
    trust: Trust | None = None,
    entry_trust: Trust | None = None,
    any_device: bool = False,
) -> Imported:
    """Stores the entries of the bundle at `path`. Everything is checked before anything is written.

    Entries keep their seals, so `store` should not sign. What is stored already stays. Raises `BundleError` for a bundle
    that is damaged or, unless `any_device`, for another toolchain or device; `UntrustedError` where `trust` (of the
    bundle) or `entry_trust` (of each entry) says no; `CacheUnusableError` when the folder takes no entries at all.
    """
    with open_bundle(path) as file:
        bundle = read_bundle(file, where=path, trust=trust, entry_trust=entry_trust)
        notes = () if any_device else _check_machines(bundle)
        problem = store.problem()
        if problem:
            raise _unusable(problem)
        done: list[ImportedEntry] = []
        for listed in bundle.entries:
            try:
                entry = bundle.load(listed, entry_trust)
            except (BundleError, UntrustedError) as error:
                raise _changed(error, len(done), bundle) from None
            done.append(_store(entry, store))
    return Imported(
        path=path,
        folder=store.root,
        entries=tuple(done),
        notes=notes,
        created_by=bundle.created_by,
        signer=bundle.seal.public_key if bundle.seal is not None else None,
    )


def this_machine(device: DeviceConfig) -> Machine:
    """What keys made on this machine say of it. Imports torch. Raises `EnvironmentProblem` when it has no such device."""
    return {
        "toolchain": toolchain(device),
        "device": measure_device(device),
        "options": {**compiler_options(device), "flags": compiler_flags(device)},
    }


def device_config_of(machine: Machine) -> DeviceConfig:
    """The device section of a config that makes keys for such a machine."""
    device = _members(machine.get("device"))
    if device.get("kind") != Target.CUDA.value:
        return DeviceConfig(isa=_isa(device))
    host = _members(_members(machine.get("toolchain")).get("host"))
    return DeviceConfig(target=Target.CUDA, isa=_isa(host))


def _isa(profile: Mapping[Any, Any]) -> CpuIsa:
    baselines = (CpuIsa.X86_64_V3, CpuIsa.X86_64_V4)
    return next((b for b in baselines if profile.get("capability") == (b.value,)), CpuIsa.NATIVE)


def _members(value: Any) -> Mapping[Any, Any]:
    inside = parts(value)
    return inside[1] if inside is not None else {}


def _check_machines(bundle: Bundle) -> tuple[str, ...]:
    problems, notes = [], []
    for number, machine in enumerate(bundle.machines):
        if _members(machine.get("device")).get("kind") == HOST:
            # Host code is named in the words of its compiler. What is for another processor is never looked up here.
            continue
        count = _count(bundle.entries, number)
        try:
            here = this_machine(device_config_of(machine))
        except EnvironmentProblem as error:
            problems.append(_lacks(machine, error, count))
            continue
        except ImportError as error:
            problems.append(_without_torch(machine, error, count))
            continue
        for difference in compare(machine, here):
            if _is_setting(difference):
                notes.append(_note(difference, count))
            else:
                problems.append(_problem(difference, count))
    if problems:
        raise BundleError([*problems[:-1], attrs.evolve(problems[-1], hint=_REFUSED)])
    return tuple(notes)


def _count(entries: Sequence[Listed], machine: int) -> str:
    count = sum(e.machine == machine for e in entries)
    return f"{count} of {len(entries)} entries" if count < len(entries) else "all its entries"


def _is_setting(difference: Difference) -> bool:
    part, _, rest = difference.path.partition(".")
    return part == "toolchain" and rest.startswith(_SETTINGS)


def _problem(difference: Difference, count: str) -> Problem:
    theirs, ours = difference.texts
    return Problem(
        where=difference.path,
        found=f"{theirs} in {count}",
        wanted=f"{ours}, as on this machine",
    )


_SHOWN = 200
_REFUSED = (
    "it would never be used here, so nothing was imported; --any-device fills a cache for others"
)


def _lacks(machine: Machine, error: EnvironmentProblem, count: str) -> Problem:
    return Problem(
        where="device",
        found=f"{describe(machine.get('device', attrs.NOTHING), limit=_SHOWN)} in {count}",
        wanted=f"what this machine has: {error.problems[0].found}",
    )


def _without_torch(machine: Machine, error: ImportError, count: str) -> Problem:
    torch = _members(machine.get("toolchain")).get("torch", attrs.NOTHING)
    return Problem(
        where="toolchain.torch",
        found=f"{describe(torch)} in {count}",
        wanted=f"a torch that can be imported here: {error}",
    )


def _note(difference: Difference, count: str) -> str:
    theirs, ours = difference.texts
    return (
        f"{count} are for processes with {difference.path} {theirs}, and this one has {ours}: only such processes will "
        "load them"
    )


def _store(entry: Entry, store: DiskStore) -> ImportedEntry:
    stored = store.put(entry)
    if stored.failed:
        outcome = "failed"
    elif stored.differs:
        outcome = "differs"
    else:
        outcome = "imported" if stored.written else "present"
    unit = str(entry.metadata.get("unit", ""))
    return ImportedEntry(digest=entry.key.digest, unit=unit, outcome=outcome, reason=stored.reason)


def _changed(error: CacheError, done: int, bundle: Bundle) -> BundleError:
    return BundleError(
        Problem(
            where=bundle.where,
            found=f"a file that changed after it was checked: {error.problems[0].found}",
            wanted="a file that nobody writes to while it is imported",
            hint=f"{done} of {len(bundle.entries)} entries are stored, each of them whole; import it again for the rest",
        )
    )


def _unusable(reason: str) -> CacheUnusableError:
    return CacheUnusableError(
        Problem(
            where="cache folder",
            found=reason,
            wanted="a folder that entries can be written to",
            hint="free space or permissions, or choose another with --cache-dir; nothing was imported",
        )
    )
