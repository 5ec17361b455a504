"""From a compiled kernel's bytes to a launch that compiles nothing: into Triton's cache, and from there onto the device."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from graphspec.errors import KernelError, Problem
from graphspec.kernels.targets import GpuTarget, options_for, source_of, triton_version
from graphspec.kernels.variants import Variant

_VALUES: Mapping[str, Any] = {
    # Any value does, since no kernel is specialised on one; but an integer beyond 32 bits has another type.
    "i32": 17,
    "i64": 1 << 40,
    "u64": (1 << 64) - 1,
    "fp32": 0.5,
    "i1": True,
}

_POINTED: Mapping[str, str] = {
    "i1": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
}


def install(
    variant: Variant, target: GpuTarget, payload: bytes | memoryview, facts: Mapping[str, Any]
) -> str:
    """Puts a compiled variant where Triton looks before it compiles, and returns the name of that place.

    The place is named by this process' Triton, its settings and the target, as at a launch: a launch under other settings
    looks elsewhere and compiles.
    """
    version = triton_version()
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    source, backend, options = source_of(variant, target)
    environment = get_cache_invalidating_env_vars()
    parsed = backend.parse_options(dict(options))
    key = get_cache_key(source, backend, parsed, environment)
    digest = hashlib.sha256(key.encode()).hexdigest()
    metadata = {
        "hash": digest,
        "target": target.for_triton(),
        **parsed.__dict__,
        **environment,
        "triton_version": version,
        **facts,
    }
    name = source.name[:150]
    manager = get_cache_manager(digest)
    notes = json.dumps(metadata, default=vars)
    group = {
        f"{name}.{backend.binary_ext}": manager.put(
            bytes(payload), f"{name}.{backend.binary_ext}", binary=True
        ),
        f"{name}.json": manager.put(notes, f"{name}.json", binary=False),
    }
    manager.put_group(f"{name}.json", group)
    return digest


def preload(variants: Sequence[Variant], target: GpuTarget) -> None:
    """Makes this process ready to launch each variant on the current device, a `target`: looked up, or compiled, and loaded.

    To load at the first launch would be too late: a module that is loaded while a graph is captured ends the capture.
    """
    for variant in variants:
        values = [
            variant.constexprs[name] if name in variant.constexprs else _example(variant, name)
            for name in variant.kernel.arg_names
        ]
        compiled = variant.kernel.warmup(*values, grid=(1,), **options_for(variant, target))
        compiled._init_handles()


def _example(variant: Variant, argument: str) -> Any:
    """A value that has the argument's type at a launch; for a pointer a dtype stands for a tensor of it."""
    kind = variant.signature[argument]
    if kind in _VALUES:
        return _VALUES[kind]
    import torch

    pointed = _POINTED.get(kind.removeprefix("*")) if kind.startswith("*") else None
    if pointed is None:
        raise KernelError(
            Problem(
                where=f"variant {variant.name}, argument {argument}",
                found=kind,
                wanted=f"one of {', '.join(_VALUES)}, or a pointer to one of {', '.join(_POINTED)}",
            )
        )
    return getattr(torch, pointed)
