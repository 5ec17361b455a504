"""Which operations of Dynamo's graph a key can name: torch's own, under a name that leads to that very function."""

import builtins
import functools
import operator
import os
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graphspec.cache.native import TORCH_NAMESPACES

_WITH_GRAPHS = frozenset(("cond", "while_loop"))
"""Operators on graphs that may be stored. Others hold what no text of the graph shows, such as a kernel's number."""


def operation_fault(node: Node) -> str:
    """Why a call in a graph cannot be named in a key, as a phrase, or an empty text."""
    if node.op == "call_module":
        return f"a module that Dynamo has left whole ({node.target})"
    if node.op == "call_function" and not _is_torchs_own(node.target):
        return f"a call of {_shown(node.target)}, whose code no key covers"
    for value in _plain_parts((node.args, node.kwargs)):
        if not isinstance(value, _PLAIN):
            return f"an argument of type {type(value).__name__} for {_shown(node.target)}"
    return ""


def graphs_inside(module: GraphModule) -> Iterator[GraphModule]:
    """The graphs that a graph holds for its operators, and those inside them."""
    for node in module.graph.find_nodes(op="get_attr"):
        inner = attribute(module, node)
        if isinstance(inner, GraphModule):
            yield inner
            yield from graphs_inside(inner)


def attribute(module: GraphModule, node: Node) -> Any:
    """What a node of a graph holds."""
    return functools.reduce(getattr, str(node.target).split("."), module)


_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def _plain_parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Node):
        return
    if isinstance(value, tuple | list):
        for each in value:
            yield from _plain_parts(each)
    elif isinstance(value, dict):
        yield from _plain_parts([*value, *value.values()])
    elif isinstance(value, slice):
        yield from _plain_parts((value.start, value.stop, value.step))
    else:
        yield value


def _is_torchs_own(target: Any) -> bool:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in _WITH_GRAPHS
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in TORCH_NAMESPACES
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target._qualified_op_name).partition("::")[0] in TORCH_NAMESPACES
    module, name = str(getattr(target, "__module__", "")), str(getattr(target, "__qualname__", ""))
    if module.partition(".")[0] not in ("torch", "_operator", "math", "builtins"):
        return False
    if isinstance(target, FunctionType) and not _lies_in_torch(target):
        return False
    # Functions in C name the class that has them, which is not to be found under that name.
    found = (_at(module, name), _at(module, name.rpartition(".")[2]))
    return any(each is target for each in found)


def _at(module: str, name: str) -> Any:
    held: Any = {"_operator": operator, "builtins": builtins}.get(module) or sys.modules.get(module)
    for part in name.split("."):
        held = getattr(held, part, None)
    return held


def _lies_in_torch(function: FunctionType) -> bool:
    folder = os.path.dirname(torch.__file__) + os.sep
    return function.__code__.co_filename.startswith(folder)


def _shown(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"the operator {target.name()}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | str):
        return str(target)
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', '')}.{name}"
