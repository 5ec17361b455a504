"""Switches of torch that a process may have changed and that change what is traced or compiled.

Those that differ from torch's own values are in the key of each unit, and the compiler's process is given them: code for
an engine that demands deterministic operators is another than code for one that does not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Switch:
    """How a switch is read and set, and the values that count as torch's own."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    usual: Sequence[Any]


def _attribute(path: str, *usual: Any) -> Switch:
    *owners, name = path.split(".")

    def owner(torch: Any) -> Any:
        for part in owners:
            torch = getattr(torch, part)
        return torch

    return Switch(
        lambda torch: getattr(owner(torch), name),
        lambda torch, value: setattr(owner(torch), name, value),
        usual,
    )


def _attention(name: str) -> Switch:
    return Switch(
        lambda torch: getattr(torch.backends.cuda, f"{name}_sdp_enabled")(),
        lambda torch, value: getattr(torch.backends.cuda, f"enable_{name}_sdp")(value),
        (True,),
    )


_SWITCHES: Mapping[str, Switch] = {
    "default dtype": Switch(
        lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda torch, value: torch.set_default_dtype(getattr(torch, value)),
        ("float32",),
    ),
    "deterministic operators": Switch(
        lambda torch: torch.get_deterministic_debug_mode(),
        lambda torch, value: torch.set_deterministic_debug_mode(value),
        (0,),
    ),
    # torch says none where nothing was chosen, and then computes as ieee.
    "precision of matmul on cuda": _attribute(
        "backends.cuda.matmul.fp32_precision", "none", "ieee"
    ),
    "precision of matmul on cpu": _attribute(
        "backends.mkldnn.matmul.fp32_precision", "none", "ieee"
    ),
    "precision of convolution on cuda": _attribute("backends.cudnn.conv.fp32_precision", "tf32"),
    "flash attention": _attention("flash"),
    "memory-efficient attention": _attention("mem_efficient"),
    "attention in plain operators": _attention("math"),
}


def torch_state() -> Mapping[str, Any]:
    """The switches of this process that are not as torch sets them: plain values, part of a unit's key."""
    import torch

    values = {name: switch.read(torch) for name, switch in _SWITCHES.items()}
    return {name: value for name, value in values.items() if value not in _SWITCHES[name].usual}


def set_torch_state(state: Mapping[str, Any]) -> None:
    """Makes this process like the one that `state` was read in: called in the compiler's process."""
    import torch

    for name, switch in _SWITCHES.items():
        value = state.get(name, switch.usual[-1])
        if switch.read(torch) not in (value, *(() if name in state else switch.usual)):
            switch.write(torch, value)
