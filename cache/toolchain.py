"""What compiled code owes to the toolchain: versions and compiler settings that enter every entry's key.

The host's C++ compiler is provenance, not key: hosts that only load have none.
"""

import platform
import sys
from collections.abc import Mapping
from typing import Any

from graphspec.config.device import CpuIsa, DeviceConfig, Target

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
        "pipeline": COMPILER_EPOCH,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "python": f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}",
        "system": platform.system(),
    }
    if device.target is Target.CUDA:
        facts["cuda"] = torch.version.cuda
        facts["triton"] = _triton_version()
    return facts


def _triton_version() -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler_options(device: DeviceConfig) -> Mapping[str, Any]:
    """Inductor settings that differ from their defaults: part of the key, and what the compiler is given."""
    options = dict(_ALWAYS)
    if device.target is Target.CUDA:
        options.update(_CUDA)
    elif device.isa in _VECTOR_BITS:
        options["cpp.simdlen"] = _VECTOR_BITS[device.isa]
    return options


def compiler_flags(device: DeviceConfig) -> tuple[str, ...]:
    """C++ flags beyond inductor's own: part of the key."""
    if device.target is Target.CPU and device.isa is not CpuIsa.NATIVE:
        return (f"-march={device.isa.value}",)
    return ()
