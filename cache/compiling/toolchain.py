"""What compiled code owes to the toolchain: versions, builds and settings that enter every entry's key.

The host's C++ compiler is provenance, not key: hosts that only load have none. So is the GPU's driver: code for a toolkit
runs under any driver that the toolkit supports. Settings of `torch._inductor.config` that the host application has changed
do not matter: the compiler's process has its own, which are the defaults, `compiler_options` and the variables below.
"""

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

import graphspec
from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.torch_state import torch_state
from graphspec.config.device import CpuIsa, DeviceConfig, Target
from graphspec.fields import evolve
from graphspec.keys.environment import code_environment

COMPILER_EPOCH = 1
"""Number of our own compile pipeline (flags, export settings). A change that alters payloads raises it."""

_ALWAYS: Mapping[str, Any] = {
    # Stack frames and line tables carry build paths and cost size; nothing here is debugged at that level.
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
    # Without it the number of threads at compile time is a constant in the kernels.
    "cpp.dynamic_threads": True,
    # A second cache below ours would hide what a miss costs, and its entries are not checked.
    "fx_graph_cache": False,
    # Two headers take 20 s to precompile and save 5 s a unit, and a compiler process rarely sees four units.
    "aot_inductor.precompile_headers": False,
    # The CPU's features are read from the kernel; compiling a probe for each costs 10 s a process.
    "cpp.vec_isa_ok": True,
}

_CUDA: Mapping[str, Any] = {
    # One file per entry: kernels inside the library instead of cubin files beside it.
    "aot_inductor.embed_kernel_binary": True,
}

_VECTOR_BITS: Mapping[CpuIsa, int] = {CpuIsa.X86_64_V3: 256, CpuIsa.X86_64_V4: 512}


def toolchain(device: DeviceConfig) -> Mapping[str, Any]:
    """Versions and builds that decide what a unit compiles to, and whether it can be loaded. Imports torch."""
    import torch

    facts: dict[str, Any] = {
        "graphspec": graphspec.__version__,
        "pipeline": COMPILER_EPOCH,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "torch_debug": bool(torch.version.debug),
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "python": f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}",
        "system": platform.system(),
    }
    if device.target is Target.CUDA:
        facts["cuda"] = torch.version.cuda
        facts["rocm"] = torch.version.hip
        facts["triton"] = triton_build()
        # The library that launches the kernels is compiled for this processor, or for the stated baseline.
        facts["host"] = measure_device(evolve(device, target=Target.CPU))
    settings = {"environment": code_environment(os.environ), "torch_state": torch_state()}
    return {**facts, **{part: values for part, values in settings.items() if values}}


def triton_build() -> tuple[str, str] | None:
    """Version of Triton, and a digest of the content of its files as its wheel lists them."""
    try:
        found = importlib.metadata.distribution("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
    # Scripts and the installer's own notes differ from one installation of the same wheel to another.
    listed = sorted(
        f"{f} {f.hash.value}"
        for f in found.files or ()
        if f.hash is not None and f.parts[0] in ("triton", "triton_kernels")
    )
    return found.version, hashlib.sha256("\n".join(listed).encode()).hexdigest()


def compiler_options(device: DeviceConfig) -> Mapping[str, Any]:
    """Inductor settings that differ from their defaults: part of the key, and what the compiler is given."""
    options = dict(_ALWAYS)
    if device.target is Target.CUDA:
        options.update(_CUDA)
    if device.isa in _VECTOR_BITS:
        options["cpp.simdlen"] = _VECTOR_BITS[device.isa]
    return options


def compiler_flags(device: DeviceConfig) -> tuple[str, ...]:
    """C++ flags beyond inductor's own: part of the key."""
    if device.isa is not CpuIsa.NATIVE:
        return (f"-march={device.isa.value}",)
    return ()
