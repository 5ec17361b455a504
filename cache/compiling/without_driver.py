"""What a machine without a GPU lacks to link a library for one: a stand-in for NVIDIA's driver library, and CUDA's headers."""

import os
import shutil
import subprocess

from graphspec.errors import EnvironmentProblem, Problem

_CALLS = (
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuLaunchKernel",
    "cuModuleGetFunction",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
"""What AOTInductor's libraries call of the driver, by the sources of torch 2.13 (torch/_inductor/codegen, torch/csrc/inductor).

One that is missing here is still found where the driver is: a shared library is linked without it. But the linker notes that
a library needs the driver only where it finds something of it."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE of cuda.h."""


def driver_stub(folder: str, compiler: str = "g++") -> str:
    """The folder, below `folder`, with a ``libcuda.so`` whose calls all answer that there is no device; made if it is missing.

    Linked libraries ask for ``libcuda.so.1``, as the real one is called: nothing of the stub is in them.
    """
    place = os.path.join(folder, "driver-stub")
    library = os.path.join(place, "libcuda.so.1")
    if os.path.exists(library):
        return place
    os.makedirs(place, exist_ok=True)
    source = os.path.join(place, "stub.c")
    with open(source, "w", encoding="utf-8") as file:
        file.writelines(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in _CALLS)
    making = library + ".making"
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", making]
    subprocess.run([*command, source], check=True, capture_output=True)
    os.rename(making, library)
    os.symlink("libcuda.so.1", os.path.join(place, "libcuda.so"))
    return place


def cuda_home() -> str:
    """The folder of the CUDA toolkit, which has the headers that a library for a GPU is compiled with.

    Looks where torch looks, and further where it would stop: an ``nvcc`` on the path can be a script that lies elsewhere.
    Raises `EnvironmentProblem` where there is none.
    """
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    guessed = [os.path.dirname(os.path.dirname(nvcc)) if nvcc else None, "/usr/local/cuda"]
    for place in (p for p in [*named, *guessed] if p):
        if os.path.exists(os.path.join(place, "include", "cuda.h")):
            return place
    raise EnvironmentProblem(
        Problem(
            where="CUDA toolkit",
            found=f"no include/cuda.h in {', '.join(p for p in [*named, *guessed] if p)}",
            wanted="the headers of the toolkit that torch is built with",
            hint="set CUDA_HOME, or install the toolkit; neither a GPU nor a driver is needed",
        )
    )
