"""Devices that are not here: described by a profile of ours, or by facts that were recorded where the device is."""

import os
from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.config.device import DeviceProfile
from graphspec.errors import DeviceFileError, Problem
from graphspec.formats.json_file import read_json_file
from graphspec.text import did_you_mean, show

_NVIDIA_LIMITS = (
    "github.com/NVIDIA/cccl, libcudacxx/include/cuda/__device/arch_traits.h at 004ad198: the tables of the CUDA "
    "programming guide, compute capabilities, as NVIDIA writes them in code"
)
_AMD_LIMITS = (
    "rocm.docs.amd.com/en/latest/reference/gpu-specs.html: 64 KiB of LDS and 512 KiB of vector registers a compute unit, "
    "which is 512 for each of 64 lanes of its 4 SIMDs"
)


@attrs.frozen(kw_only=True)
class Limits:
    """What one kernel may take, and what a multiprocessor has for all that run on it.

    `registers` of a thread; `shared_bytes` of a block that asks for more than is usual; `threads` of a block.
    """

    registers: int
    shared_bytes: int
    threads_per_multiprocessor: int
    source: str
    threads: int = 1024
    registers_per_multiprocessor: int = 64 << 10


@attrs.frozen(kw_only=True)
class KnownDevice:
    """A device that can be named. `exact`: its memory is known to the byte, as it is in keys.

    Drivers differ in what they report of the same device: 81,082, 81,089 and 81,090 MiB were seen of one kind of H100.
    Code for a kernel does not depend on it, the key of a unit does: record the facts on a node for that.
    """

    name: str
    profile: DeviceProfile
    limits: Limits
    source: str
    exact: bool = False

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``devices --json`` lists."""
        return {
            "device": self.name,
            **recorded(self.profile)["device"],
            "exact": self.exact,
            "registers": self.limits.registers,
            "shared_bytes": self.limits.shared_bytes,
            "threads_per_multiprocessor": self.limits.threads_per_multiprocessor,
            "sources": [self.source, self.limits.source],
        }


def _device(
    name: str,
    reported: str,
    capability: str,
    multiprocessors: int,
    memory_bytes: int,
    shared_kib: int,
    source: str,
    *,
    threads: int = 2048,
    exact: bool = False,
) -> KnownDevice:
    amd = capability.startswith("gfx")
    return KnownDevice(
        name=name,
        profile=DeviceProfile(
            kind="hip" if amd else "cuda",
            name=reported,
            capability=(capability,),
            multiprocessors=multiprocessors,
            memory_bytes=memory_bytes,
            warp_size=64 if amd else 32,
        ),
        limits=Limits(
            registers=512 if amd else 255,
            shared_bytes=shared_kib << 10,
            threads_per_multiprocessor=threads,
            registers_per_multiprocessor=(512 if amd else 256) << 10 >> 2,
            source=_AMD_LIMITS if amd else _NVIDIA_LIMITS,
        ),
        source=source,
        exact=exact,
    )


def _mib(count: int) -> int:
    return count << 20


KNOWN: Mapping[str, KnownDevice] = {
    device.name: device
    for device in (
        _device(
            "nvidia-a100-40gb",
            "NVIDIA A100-SXM4-40GB",
            "sm_80",
            108,
            42_298_834_944,
            163,
            "deviceQuery in github.com/bottlerocket-os/bottlerocket/pull/3873",
            exact=True,
        ),
        _device(
            "nvidia-h100",
            "NVIDIA H100 80GB HBM3",
            "sm_90",
            132,
            _mib(81_090),
            227,
            "torch's properties in public logs of torch 2.7, which say 81,089 and 81,090 MiB",
        ),
        _device(
            "nvidia-h200",
            "NVIDIA H200",
            "sm_90",
            132,
            _mib(143_156),
            227,
            "torch's properties, 143,156 MiB: github.com/ai-bot-pro/achatbot, deploy/modal/src/llm/vllm/vlm/skywork_r1v.py",
        ),
        _device(
            "nvidia-b200",
            "NVIDIA B200",
            "sm_100",
            148,
            _mib(182_631),
            227,
            "github.com/pytorch/ao/pull/4002; torch 2.8 in public logs says 182,631 and 182,642 MiB",
        ),
        _device(
            "nvidia-l40s",
            "NVIDIA L40S",
            "sm_89",
            142,
            _mib(45_589),
            99,
            "torch's properties in a public log, with 45,589 MiB",
            threads=1536,
        ),
        _device(
            "amd-mi300x",
            "AMD Instinct MI300X",
            "gfx942",
            304,
            _mib(196_592),
            64,
            "torch's properties in github.com/ROCm/ROCm/issues/4203, with 196,592 MiB",
        ),
    )
}
"""By the name that ``--device`` takes."""


@attrs.frozen(kw_only=True)
class Described:
    """A device to build for. `limits` are unknown for facts of an architecture that no profile has."""

    profile: DeviceProfile
    exact: bool
    limits: Limits | None
    source: str


def describe_device(text: str) -> Described:
    """The device that ``--device`` names: one of `KNOWN`, or a file that ``graphspec devices --record`` gave.

    Raises `DeviceFileError`.
    """
    if text in KNOWN:
        known = KNOWN[text]
        return Described(
            profile=known.profile, exact=known.exact, limits=known.limits, source=known.source
        )
    if not os.path.exists(text):
        raise DeviceFileError(
            Problem(
                where=f"--device {text}",
                found="no such device, and no such file",
                wanted="a name that graphspec devices lists, or a file that graphspec devices --record wrote",
                hint=did_you_mean(text, KNOWN),
            )
        )
    profile = _read(text)
    limits = (k.limits for k in KNOWN.values() if k.profile.capability == profile.capability)
    return Described(
        profile=profile, exact=True, limits=next(limits, None), source=f"facts in {text}"
    )


def recorded(profile: DeviceProfile) -> Mapping[str, Any]:
    """What ``devices --record`` writes of a device that was measured."""
    return {"device": {**attrs.asdict(profile), "capability": list(profile.capability)}}


def _read(path: str) -> DeviceProfile:
    data = read_json_file(path, DeviceFileError, _no_facts).data
    facts = data.get("device") if isinstance(data, Mapping) else None
    kinds = {a.name: int if a.type is int else str for a in attrs.fields(DeviceProfile)}
    if not isinstance(facts, Mapping) or set(facts) != set(kinds):
        raise DeviceFileError(_no_facts(path, show(data)))
    capability = facts["capability"]
    plain = {name: value for name, value in facts.items() if name != "capability"}
    wrong = [name for name, value in plain.items() if type(value) is not kinds[name]]
    if wrong or not isinstance(capability, list) or not all(isinstance(c, str) for c in capability):
        raise DeviceFileError(_no_facts(path, show(facts)))
    return DeviceProfile(**plain, capability=tuple(capability))


def _no_facts(path: str, found: str) -> Problem:
    return Problem(
        where=path,
        found=found,
        wanted="the facts of one device",
        hint="write them on a machine that has it, with: graphspec devices --record > DEVICE.json",
    )
