"""The device section, and `DeviceProfile`: a device described by facts."""

import enum

import attrs

from graphspec.fields import Stage, config_class, keyed


class Target(enum.Enum):
    """Kind of device that units are compiled for."""

    CPU = "cpu"
    CUDA = "cuda"


class CpuIsa(enum.Enum):
    """What the C++ compiler may use on a CPU: this machine's own features, or a stated baseline that travels."""

    NATIVE = "native"
    X86_64_V3 = "x86-64-v3"
    X86_64_V4 = "x86-64-v4"


@config_class
class DeviceConfig:
    """The device to compile for."""

    target: Target = keyed(Stage.COMPILE, default=Target.CPU, doc="Kind of device.")
    isa: CpuIsa = keyed(
        Stage.COMPILE,
        default=CpuIsa.NATIVE,
        doc="CPU features that compiled code may use. A baseline lets entries travel between machines.",
    )


@attrs.frozen(kw_only=True)
class DeviceProfile:
    """Facts of one device that compiled code depends on: the device part of an entry's key.

    `capability` is a CPU's instruction sets or a GPU's compute capability; `multiprocessors`, `memory_bytes` and
    `warp_size` are 0 on a CPU, where generated code does not depend on them.
    """

    kind: str
    name: str
    capability: tuple[str, ...]
    multiprocessors: int = 0
    memory_bytes: int = 0
    warp_size: int = 0
