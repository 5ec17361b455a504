"""Triton's driver of a described GPU: knows the target, reads binaries, loads and launches nothing."""

import functools
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from graphspec.cache.compiling.described import DescribedGpu
from graphspec.cubin import read_cubin
from graphspec.errors import EnvironmentProblem, Problem

_WORD = 4
"""Bytes of a register: Triton counts spills in registers."""


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Stands for every call that would have to reach the GPU. Raises `EnvironmentProblem`."""
    raise EnvironmentProblem(
        Problem(
            where="a GPU that is not here",
            found="something that has to run on it",
            wanted="code that is compiled without being run",
            hint="compile this unit on a node that has the GPU",
        )
    )


def driver_of(gpu: DescribedGpu) -> type[Any]:
    """A class of Triton's kind for drivers, whose GPU is `gpu`."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    read = functools.cache(read_cubin)
    properties: Mapping[str, int] = {
        "max_shared_mem": gpu.shared_bytes,
        "max_num_regs": gpu.registers_per_multiprocessor,
        "multiprocessor_count": gpu.multiprocessors,
        "warpSize": gpu.warp_size,
    }

    def load_binary(name: str, content: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Module, function, registers, spilled registers, and most threads, as the driver tells them of what it loaded."""
        cubin = read(content)
        threads = gpu.threads_with(cubin.registers)
        # No module: Triton 3.8 would unload it, by whatever driver is there when the kernel goes.
        return None, 0, cubin.registers, cubin.spills // _WORD, threads

    class DescribedDriver(DriverBase):  # type: ignore[misc]
        """Answers for a GPU that is not here."""

        def __init__(self) -> None:
            self.utils = types.SimpleNamespace(
                load_binary=load_binary, get_device_properties=lambda device: properties
            )
            self.launcher_cls = lambda source, metadata: refuse
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_device_capability = lambda device=0: gpu.capability
            self.get_current_stream = refuse

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", gpu.number, gpu.warp_size)

        def get_active_torch_device(self) -> NoReturn:
            refuse()

        def get_device_interface(self) -> NoReturn:
            refuse()

        def map_python_to_cpp_type(self, ty: str) -> NoReturn:
            refuse()

        def get_benchmarker(self) -> NoReturn:
            refuse()

    return DescribedDriver
