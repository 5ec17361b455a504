"""What an operation would return, without doing its work: recording a step changes nothing and skips the heavy part.

Operations that write do not write, and return what they would have written to. An engine's own operations answer with
zeros of the shapes that their Meta kernel gives. Torch's pure operations run, on those zeros: next to an engine's own
they cost nothing, and their shape functions would load the compiler (torch 2.13: 2 s).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphspec.capture.backends.nested import changed, items

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]


def outputs_without_running(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """What `func` would return for these arguments, with right shapes, dtypes, strides and aliasing."""
    if func._schema.is_mutable:
        return _mutated(func, args, kwargs)
    if func.namespace == "aten" or not _has_shape_function(func):
        return func(*args, **kwargs)
    device = _device(args, kwargs)
    return changed(lambda t: _zeros_like(t, device), _described(func, args, kwargs))


def _has_shape_function(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta")


def _described(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """What `func` returns on the meta device: tensors with shapes and without content."""

    def on_meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    return func(*changed(on_meta, tuple(args)), **changed(on_meta, dict(kwargs)))


def _device(args: Arguments, kwargs: Keywords) -> torch.device:
    given = items((tuple(args), dict(kwargs)))
    return next((a.device for a in given if isinstance(a, torch.Tensor)), torch.device("cpu"))


def _zeros_like(described: Any, device: torch.device) -> Any:
    if not isinstance(described, torch.Tensor):
        return described
    made = torch.empty_strided(
        described.size(), described.stride(), dtype=described.dtype, device=device
    )
    return made.zero_()


def _mutated(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Returns that alias a written argument are that argument; others have the shapes of the Meta kernel."""
    schema = func._schema
    given = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    written = {
        _letter(a.alias_info): given[a.name]
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
    }
    letters = [_letter(r.alias_info) for r in schema.returns]
    if all(letter in written for letter in letters):
        made = [written[letter] for letter in letters]
    else:
        described, device = _described(func, args, kwargs), _device(args, kwargs)
        shapes = described if isinstance(described, tuple) else (described,)
        made = [
            written[letter] if letter in written else _zeros_like(shape, device)
            for letter, shape in zip(letters, shapes, strict=True)
        ]
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)


def _letter(alias: Any) -> str:
    """By which letter a schema ties a return to an argument; empty for none, and for lists of tensors."""
    return "" if alias is None else next(iter(alias.before_set), "")
