"""How torch 2.13 and 2.14 ask for a GPU while they compile for one, and a described GPU's answer to each question.

Found by reading: the device interface (properties, capability, guards), four functions of `torch.cuda` that inductor calls
beside it, Triton's active driver, and the block of kernel calls that AOTInductor runs to choose between configurations.
`torch.cuda.is_available` is left to say no: torch would otherwise make tensors on the GPU while it traces. Heuristics that
ask it take the answer of a machine without a GPU, which decides between equal kernels and about warnings.
"""

import contextlib
import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphspec.cache.compiling.described import DescribedGpu, Replacement, replaced
from graphspec.cache.compiling.described_driver import driver_of, refuse
from graphspec.cubin import read_cubin
from graphspec.errors import CompileError, Problem

_WITHOUT_TRIALS: Mapping[str, Any] = {
    # These compare by running: the heuristic choice stands instead.
    "shape_padding": False,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "benchmark_fusion": False,
    "benchmark_epilogue_fusion": False,
    "benchmark_combo_kernel": False,
    "triton.multi_kernel": 0,
    "triton.autotune_with_sample_inputs": False,
    # One block of code defines all kernels, and what it runs is replaced.
    "triton.autotune_at_compile_time": True,
    # Processes of inductor's own would not have these answers.
    "compile_threads": 1,
}
_CACHES = (
    "torch.utils._triton",
    "torch._inductor.utils",
    "torch._inductor.compile_fx",
    "triton.compiler.compiler",
)
"""Modules whose functions remember what a GPU answered."""
_LAUNCH = (
    "mangled_name",
    "num_warps",
    "shared_mem",
    "config",
    "inductor_meta",
    "triton_meta",
    "def_args",
    "call_args",
)
_SPILLS_ENDURED = 16
"""Spilled registers beyond which inductor leaves a configuration out, where a kernel does not say otherwise."""


@contextlib.contextmanager
def answers(gpu: DescribedGpu) -> Iterator[list[Mapping[str, Any]]]:
    """See `described_gpu`."""
    import torch._inductor.config as settings
    from torch._dynamo.device_interface import get_interface_for_device

    # Torch registers its own interfaces at the first question, over any that are there.
    get_interface_for_device("cpu")
    kernels: list[Mapping[str, Any]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_forget)
        stack.enter_context(replaced(*_replacements(gpu, kernels)))
        stack.enter_context(settings.patch(dict(_WITHOUT_TRIALS)))
        _forget()
        yield kernels


def _replacements(gpu: DescribedGpu, kernels: list[Mapping[str, Any]]) -> Sequence[Replacement]:
    import torch
    import triton.backends
    from torch._dynamo import device_interface
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from triton.runtime import driver

    properties = _properties(gpu)
    driver_class = driver_of(gpu)
    nvidia = triton.backends.Backend(
        compiler=triton.backends.backends["nvidia"].compiler, driver=driver_class
    )
    return (
        Replacement(device_interface.device_interfaces, "cuda", _interface(gpu, properties)),
        Replacement(torch.cuda, "current_device", lambda: 0),
        Replacement(torch.cuda, "get_device_properties", lambda device=None: properties),
        Replacement(torch.cuda, "get_device_capability", lambda device=None: gpu.capability),
        Replacement(torch.cuda, "get_device_name", lambda device=None: gpu.name),
        Replacement(triton.backends.backends, "nvidia", nvidia),
        Replacement(driver, "_active", driver_class()),
        Replacement(
            PythonWrapperCodegen, "generate_and_run_autotune_block", _compile_without_runs(kernels)
        ),
    )


def _properties(gpu: DescribedGpu) -> Any:
    major, minor = gpu.capability
    return types.SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        multi_processor_count=gpu.multiprocessors,
        total_memory=gpu.memory_bytes,
        warp_size=gpu.warp_size,
        regs_per_multiprocessor=gpu.registers_per_multiprocessor,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor,
        max_threads_per_block=gpu.threads,
        shared_memory_per_block_optin=gpu.shared_bytes,
    )


def _interface(gpu: DescribedGpu, properties: Any) -> type[Any]:
    from torch._dynamo.device_interface import CudaInterface

    def noted(device: Any = None) -> Any:
        return properties

    # What inductor's own processes would ask.
    worker = {
        "set_device": staticmethod(lambda device: None),
        "current_device": staticmethod(lambda: 0),
        "get_device_properties": staticmethod(noted),
    }
    members = {
        "Worker": type("Worker", (), worker),
        "is_available": staticmethod(lambda: True),
        "device_count": staticmethod(lambda: 1),
        "current_device": staticmethod(lambda: 0),
        "set_device": staticmethod(lambda device: None),
        "exchange_device": staticmethod(lambda device: 0),
        "maybe_exchange_device": staticmethod(lambda device: 0),
        "get_device_properties": staticmethod(noted),
        "get_compute_capability": staticmethod(lambda device=None: gpu.number),
        "is_triton_capable": staticmethod(lambda device=None: True),
        "raise_if_triton_unavailable": staticmethod(lambda device=None: None),
        "get_raw_stream": staticmethod(refuse),
        "synchronize": staticmethod(refuse),
    }
    return type("DescribedInterface", (CudaInterface,), members)


def _compile_without_runs(kernels: list[Mapping[str, Any]]) -> Callable[[Any], None]:
    """What AOTInductor does to get its kernels, less the calls: those only say which configuration is the fastest."""

    def generate_and_run_autotune_block(wrapper: Any) -> None:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        wrapper.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile\n")
        scope: dict[str, Any] = {}
        exec(wrapper.kernel_autotune_defs.getvalue(), scope)
        kernels.extend(_taken(k) for k in scope.values() if isinstance(k, CachingAutotuner))

    return generate_and_run_autotune_block


def _taken(kernel: Any) -> Mapping[str, Any]:
    """Takes the first configuration of a kernel that does not spill, in inductor's order, and tells what was taken.

    Inductor lists what it expects most of first, and its own trials leave out what spills.
    """
    from torch._inductor.codecache import CudaKernelParamCache

    endured = kernel.inductor_meta.get("spill_threshold", _SPILLS_ENDURED)
    unspilt = [made for made in kernel.launchers if (made.n_spills or 0) <= endured]
    taken = (unspilt or kernel.launchers)[0]
    kernel.save_gpu_kernel(0, taken)
    name = kernel.inductor_meta["kernel_name"]
    launch = CudaKernelParamCache.get(name) or {}
    content = bytes(taken.bin.asm["cubin"])
    cubin = read_cubin(content)
    lacking = launch_problems(launch, cubin.symbol)
    if lacking:
        raise CompileError(
            Problem(
                where=f"kernel {name}",
                found=f"a launch without {', '.join(lacking)}",
                wanted="all that the library needs to launch it",
            )
        )
    return {
        "kernel": name,
        "digest": hashlib.sha256(content).hexdigest(),
        "registers": cubin.registers,
        "spills": cubin.spills,
        "shared": int(launch["shared_mem"]),
        "threads": int(launch["num_warps"]) * kernel.device_props.warp_size_or_default,
        "config": " ".join(f"{k}={v}" for k, v in launch["config"].items() if v is not None),
        "configs": len(kernel.launchers),
    }


def launch_problems(launch: Mapping[str, Any], symbol: str) -> Sequence[str]:
    """What is missing of a kernel's launch, as inductor notes it, for a binary with this `symbol`."""
    lacking = [name for name in _LAUNCH if launch.get(name) is None]
    if lacking:
        return lacking
    types_of = launch["triton_meta"].get("signature", {})
    lacking += [f"the type of {a}" for a in launch["call_args"] if a not in types_of]
    if not launch["inductor_meta"].get("grid_type"):
        lacking.append("the form of its grid")
    if launch["mangled_name"] != symbol:
        lacking.append(f"the binary's symbol {symbol}: it says {launch['mangled_name']}")
    return lacking


def _forget() -> None:
    """Drops what was remembered of a GPU, so that neither the described one nor its absence outlives the context."""
    from torch._inductor.codecache import CacheBase
    from torch._inductor.runtime.hints import DeviceProperties

    DeviceProperties.create.cache_clear()
    CacheBase.get_system.cache_clear()
    for name in _CACHES:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module is not None else ():
            if hasattr(value, "cache_clear") and getattr(value, "__module__", None) == name:
                value.cache_clear()
