"""`DeviceProfile` of the device that a spec is for, measured on this machine."""

import platform
from collections.abc import Set

from graphspec.config.device import CpuIsa, DeviceConfig, DeviceProfile, Target
from graphspec.errors import EnvironmentProblem, Problem

_X86_V3 = frozenset("avx avx2 bmi1 bmi2 f16c fma movbe abm xsave".split())
_X86_V4 = _X86_V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
_BASELINES = {CpuIsa.X86_64_V3: _X86_V3, CpuIsa.X86_64_V4: _X86_V4}

_CODE_PREFIXES = ("sse", "ssse", "avx", "amx", "fma", "bmi", "sha", "asimd", "sve", "aes", "vaes")
_CODE_FLAGS = frozenset(
    "popcnt abm lzcnt f16c movbe adx pclmulqdq vpclmulqdq gfni rdrnd rdseed cx16 lahf_lm clflushopt clwb "
    "xsave xsavec xsaves xsaveopt prefetchw rdpid fsgsbase mmx fxsr bf16 i8mm fp16 dotprod".split()
)
"""Flags of /proc/cpuinfo by which a compiler may choose instructions. Others (mitigations, virtualisation) differ
between equal processors and change no code."""


def measure_device(device: DeviceConfig) -> DeviceProfile:
    """Facts of this machine's device of the asked kind. Raises `EnvironmentProblem` when there is none."""
    return _cuda() if device.target is Target.CUDA else _cpu(device.isa)


def _cpu(isa: CpuIsa) -> DeviceProfile:
    machine = platform.machine()
    flags = _cpu_flags()
    if isa is CpuIsa.NATIVE:
        code = sorted(f for f in flags if f in _CODE_FLAGS or f.startswith(_CODE_PREFIXES))
        return DeviceProfile(kind="cpu", name=machine, capability=tuple(code))
    lacking = sorted(_BASELINES[isa] - flags)
    if machine != "x86_64" or lacking:
        raise EnvironmentProblem(
            Problem(
                where="device.isa",
                found=f"a {machine} processor without {', '.join(lacking) or 'x86-64 baselines'}",
                wanted=f"every feature of {isa.value}",
                hint="use device.isa: native, or a lower baseline",
            )
        )
    return DeviceProfile(kind="cpu", name=machine, capability=(isa.value,))


def _cpu_flags() -> Set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def _cuda() -> DeviceProfile:
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            Problem(
                where="device.target",
                found="no CUDA device that torch can use",
                wanted="a CUDA device",
                hint="use device.target: cpu, or install a CUDA build of torch on a machine with a GPU",
            )
        )
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceProfile(
        kind="cuda",
        name=facts.name,
        capability=(f"sm_{facts.major}{facts.minor}",),
        multiprocessors=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        warp_size=getattr(facts, "warp_size", 32),
    )
