"""What an operation would return, without running it: so that recording a step computes nothing and changes nothing.

Views are made, since they are only descriptions. Operations that write do not write and return what they would have
written to. All others are asked for shapes on the meta device and answered with zeros.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]


def outputs_without_running(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """What `func` would return for these arguments, with right shapes, dtypes, strides and aliasing.

    An operation without a shape function runs for real; zeros are valid input for nearly all of them.
    """
    schema = func._schema
    if schema.is_mutable:
        return _mutated(func, args, kwargs)
    if any(r.alias_info is not None for r in schema.returns) or not _has_tensors(args, kwargs):
        return func(*args, **kwargs)
    return _by_shape(func, args, kwargs)


def _has_tensors(args: Arguments, kwargs: Keywords) -> bool:
    found = []
    tree_map(lambda a: found.append(a) if isinstance(a, torch.Tensor) else None, (args, kwargs))
    return bool(found)


def _by_shape(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    device = _device(args, kwargs)
    try:
        described = func(*_on_meta(args), **_on_meta(kwargs))
    except (NotImplementedError, RuntimeError):
        return func(*args, **kwargs)
    return tree_map(lambda t: _zeros_like(t, device), described)


def _device(args: Arguments, kwargs: Keywords) -> torch.device:
    found: list[torch.device] = []
    tree_map(
        lambda a: found.append(a.device) if isinstance(a, torch.Tensor) else None, (args, kwargs)
    )
    return found[0]


def _on_meta(values: Any) -> Any:
    return tree_map(lambda a: a.to("meta") if isinstance(a, torch.Tensor) else a, values)


def _zeros_like(described: Any, device: torch.device) -> Any:
    if not isinstance(described, torch.Tensor):
        return described
    made = torch.empty_strided(
        described.size(), described.stride(), dtype=described.dtype, device=device
    )
    return made.zero_()


def _mutated(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Returns that alias a written argument are that argument; others get their shapes from the meta device."""
    schema = func._schema
    given = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    written = {
        _name(a.alias_info): given[a.name]
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
    }
    aliases = [_name(r.alias_info) for r in schema.returns]
    if all(name in written for name in aliases):
        made = [written[name] for name in aliases]
    else:
        described = func(*_on_meta(args), **_on_meta(kwargs))
        shapes = described if isinstance(described, tuple) else (described,)
        made = [
            written[name] if name in written else _zeros_like(shape, _device(args, kwargs))
            for name, shape in zip(aliases, shapes, strict=True)
        ]
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)


def _name(alias: Any) -> str:
    """The letter by which a schema ties a return to the argument it aliases; empty for none, and for lists of tensors."""
    return "" if alias is None else next(iter(alias.before_set), "")
