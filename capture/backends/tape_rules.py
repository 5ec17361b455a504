"""What no replay can repeat: the rules of CUDA graphs, as far as single operations show that they are broken.

They are reads of tensor values by the host, shapes that depend on data, constants made from Python values, and random
numbers from a generator that nobody registered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphspec.capture.backends.calling_line import calling_line
from graphspec.errors import CaptureIllegalError, Problem

HOST_READ = "a read of a tensor's value by the host"
DATA_SHAPE = "a shape that depends on data"
CONSTANT = "a tensor made from Python values, which a replay would not make anew"
RANDOM = "random numbers from a generator that is not registered"
WANTED = "operations that a replay repeats exactly on the present content of static buffers"
HINT = "move it out of the captured step, or keep the value in a tensor at a fixed address"

_HOST_READS = frozenset(
    "tolist numpy item __bool__ __int__ __float__ __index__ __array__ __dlpack__ __complex__ __repr__ cpu".split()
)
_INDEXING = frozenset((torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_))


def why_illegal(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    generators: Sequence[torch.Generator] = (),
) -> str:
    """What is wrong with capturing an operation of the dispatcher; empty for nothing.

    `generators` are those that it may draw random numbers from.
    """
    if torch.Tag.data_dependent_output in func.tags:
        return HOST_READ
    if _shape_depends_on_data(func, args, kwargs):
        return DATA_SHAPE
    if func is torch.ops.aten.lift_fresh.default:
        return CONSTANT
    if (
        torch.Tag.nondeterministic_seeded in func.tags
        and _argument_named("dropout_p", func, args, kwargs) != 0.0
        and not _is_registered(kwargs.get("generator"), generators)
    ):
        return RANDOM
    return ""


def is_host_read(func: Any) -> bool:
    """Whether a function of tensors hands a value to the host without passing the dispatcher on a CPU."""
    return getattr(func, "__name__", "") in _HOST_READS


def _is_registered(generator: Any, known: Sequence[Any]) -> bool:
    # The dispatcher wraps a generator anew for each call, so neither `is` nor == finds it.
    return generator is not None and generator._cdata in [g._cdata for g in known]


def _shape_depends_on_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if func.overloadpacket in _INDEXING:
        # Only a mask selects as many positions as its data says. Writing by mask makes the same list of positions.
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    return _argument_named("output_size", func, args, kwargs) is None


def _argument_named(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call gives to a parameter, by position, by name or by default; None when it has no such parameter."""
    for at, parameter in enumerate(func._schema.arguments):
        if parameter.name == name:
            return args[at] if at < len(args) else kwargs.get(name, parameter.default_value)
    return None


def illegal(operation: str, what: str) -> CaptureIllegalError:
    """The error for an operation that cannot be captured, with the line that it is called from."""
    file, line = calling_line()
    return CaptureIllegalError(
        Problem(
            where=operation,
            found=f"{what}, at {file}:{line}" if file else what,
            wanted=WANTED,
            hint=HINT,
        )
    )
