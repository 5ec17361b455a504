"""The key of a graph of Dynamo's: its text, the state of torch that it is traced in, the toolchain, the device."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.dynamo.graph import Lifted
from graphspec.cache.units import EntryKey
from graphspec.config.device import CpuIsa, DeviceConfig, Target
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.factors import digest

GRAPH_EPOCH = 1
"""Number of the way from Dynamo's graph to what the compiler is given. A change of it that alters code raises it."""


def device_config(device: torch.device, isa: CpuIsa) -> DeviceConfig:
    """The device section that compiling for `device` amounts to."""
    return DeviceConfig(target=Target(device.type), isa=isa)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one: its facts are read, and its libraries loaded, of that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def graph_unit(lifted: Lifted) -> str:
    """The name of a graph's entries: one graph has the same everywhere."""
    return f"graph {hashlib.sha256(_text(lifted)).hexdigest()[:12]}"


def graph_factors(lifted: Lifted, isa: CpuIsa = CpuIsa.NATIVE) -> Mapping[str, Any]:
    """What the key of a compiled graph covers, as the graph and this process are now."""
    device = device_config(lifted.device, isa)
    with on_device(lifted.device):
        chain, profile = toolchain(device), measure_device(device)
    return {
        "epoch": EPOCH,
        "kind": "graph",
        "pipeline": GRAPH_EPOCH,
        "unit": graph_unit(lifted),
        "graph": _text(lifted).decode(),
        "state": traced_state(lifted.device.type),
        "toolchain": chain,
        "device": profile,
        "options": {**compiler_options(device), "flags": compiler_flags(device)},
    }


def graph_key(factors: Mapping[str, Any], variant: int = 0) -> EntryKey:
    """The key of a compiled graph.

    One graph may need several libraries, each good for some of its sizes: `variant` is their number. It does not say which
    sizes those are, and so does not differ from host to host.
    """
    text = encode({**factors, "variant": variant})
    return EntryKey(text, digest(text))


def _text(lifted: Lifted) -> bytes:
    return "\n".join(lifted.text).encode()


def traced_state(kind: str) -> Mapping[str, Any]:
    """What of this thread's state decides how a graph for such a device is traced: modes, autocast, changed settings."""
    import torch._functorch.config
    import torch.fx.experimental._config

    settings = {
        name: _changed(module)
        for name, module in (
            ("functorch", torch._functorch.config),
            ("symbolic shapes", torch.fx.experimental._config),
        )
    }
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default device": str(torch.get_default_device()),
        "autocast": {
            k: _autocast(k) for k in sorted({"cpu", kind}) if torch.is_autocast_enabled(k)
        },
        "settings": {name: values for name, values in settings.items() if values},
    }


def _autocast(kind: str) -> tuple[str, bool]:
    return str(torch.get_autocast_dtype(kind)), torch.is_autocast_cache_enabled()


def _changed(module: Any) -> Mapping[str, Any]:
    """The settings of a config module of torch that are not as torch sets them."""
    names = sorted(name for name in module._config if not module._is_default(name))
    found = {name: getattr(module, name) for name in names}
    # Whoever patched a setting and put it back leaves it set, to its default: inductor itself does.
    set_back = {n for n, value in found.items() if _equal(value, module._config[n].default)}
    return {name: _plain(value) for name, value in found.items() if name not in set_back}


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _plain(value: Any) -> Any:
    try:
        encode(value)
    except KeyFactorError:
        # Functions and the like: which one it is, as far as its name can tell.
        return f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"
    return value
