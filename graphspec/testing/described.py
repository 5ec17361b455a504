"""Devices that are described, not there: enough to key and trace units for a GPU on a machine without one."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from graphspec.cache.compiling.device import measure_device
from graphspec.config.device import DeviceConfig, DeviceProfile, Target
from graphspec.errors import EnvironmentProblem

H100 = DeviceProfile(
    kind="cuda",
    name="NVIDIA H100 80GB HBM3",
    capability=("sm_90",),
    multiprocessors=132,
    memory_bytes=85_029_158_912,
    warp_size=32,
)
"""What stands for any CUDA device that this machine lacks. Which one it is changes no graph."""


def device_profile(device: DeviceConfig) -> DeviceProfile:
    """Facts of the device: measured where it is present, described where it is not."""
    try:
        return measure_device(device)
    except EnvironmentProblem:
        if device.target is Target.CUDA:
            return H100
        return DeviceProfile(kind="cpu", name=platform.machine(), capability=(device.isa.value,))


_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CUDA, _META = 1, 14  # c10::DeviceType; the numbers are part of torch's file formats


@contextmanager
def cuda_traceable() -> Iterator[None]:
    """Lets fake tensors of device ``cuda`` be indexed by a torch that was built for CPUs.

    Indexing switches to the tensor's device first. Builds with CUDA replace that by nothing where no device is present
    (torch does so when a FakeTensorMode is entered); CPU builds lack it, and fail. They get the one of meta tensors, which
    does nothing. With a torch in which that cannot be done, such a unit does not trace, and the audit says so.
    """
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        guards = (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(path), _REGISTRY)
    except (OSError, ValueError):
        yield
        return
    if torch.version.cuda is not None or guards[_CUDA] is not None:
        yield
        return
    guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = None
