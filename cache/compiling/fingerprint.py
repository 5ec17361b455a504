"""A canonical text of a traced graph, and its digest: equal for equal graphs, whatever their values are called.

The text holds operations, shapes, dtypes, strides, devices, constants and which input or output is which. Left out are
names of values and symbols, source positions and module stacks. Operations are listed in traced order: two orders are
two graphs, because the compiler sees them so.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest


def graph_fingerprint(program: torch.export.ExportedProgram) -> str:
    """xxh3-128 of `graph_lines`, in hexadecimal."""
    return digest(encode(graph_lines(program)))


def graph_lines(program: torch.export.ExportedProgram) -> Sequence[str]:
    """The canonical text of a traced graph, one operation a line: what two graphs are compared by, and diffed.

    A value is ``%`` and its position; a dynamic size is ``d`` and its position in order of first use.
    """
    text = _Text()
    lines = list(text.graph(program.graph_module, _inputs(program), _outputs(program)))
    ranges = {str(text.renamed(s)): r for s, r in program.range_constraints.items()}
    return [
        *(f"{name}: {r.lower} to {r.upper}" for name, r in sorted(ranges.items())),
        *lines,
    ]


def traced_lines(
    module: GraphModule,
    inputs: Sequence[str],
    relations: Sequence[Any],
    ranges: Mapping[sympy.Symbol, Any],
) -> tuple[Sequence[str], Mapping[str, int]]:
    """The canonical text of a graph with symbolic sizes that is no exported program, and the numbers of its symbols.

    `inputs` says what each placeholder is. `relations` are what is known of sizes, and `ranges` the ranges of the symbols:
    of those that are in the graph or the relations, they are part of the text.
    """
    text = _Text()
    lines = list(text.graph(module, inputs, ()))
    known = sorted(f"given {text.renamed(relation)}" for relation in relations)
    numbered = text.numbered()
    bounds = [
        f"d{at}: {ranges[s].lower} to {ranges[s].upper}"
        for at, s in enumerate(numbered)
        if s in ranges
    ]
    return [*bounds, *known, *lines], {s.name: at for at, s in enumerate(numbered)}


def _inputs(program: torch.export.ExportedProgram) -> Sequence[str]:
    """What each placeholder is: the caller's, or a tensor that the trace has found, by its content."""
    held: Mapping[str, Any] = {**program.state_dict, **program.constants}
    return [
        spec.kind.name.lower()
        + ("" if spec.target is None else f" {_content(held.get(spec.target))}")
        for spec in program.graph_signature.input_specs
    ]


def _outputs(program: torch.export.ExportedProgram) -> Sequence[str]:
    position = {
        spec.target if spec.target is not None else getattr(spec.arg, "name", ""): i
        for i, spec in enumerate(program.graph_signature.input_specs)
    }
    return [
        spec.kind.name.lower()
        + ("" if spec.target is None else f" of input {position.get(spec.target)}")
        for spec in program.graph_signature.output_specs
    ]


def _content(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    held = "without content"
    if not value.is_meta and not isinstance(value, FakeTensor):
        held = hashlib.sha256(_bytes_of(value.detach())).hexdigest()
    return f"{_kind(value)} {tuple(value.shape)} {held}"


def _bytes_of(value: torch.Tensor) -> bytes:
    if value.is_quantized:
        value = value.int_repr()
    elif value.layout is not torch.strided:
        value = value.to_dense()
    plain: bytes = (
        value.cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )
    return plain


def _kind(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


class _Text:
    """Writes one graph and the graphs inside it, with one numbering of symbols."""

    def __init__(self) -> None:
        self._symbols: dict[sympy.Symbol, sympy.Symbol] = {}

    def renamed(self, expression: Any) -> Any:
        """The expression with its symbols numbered by first use."""
        if not isinstance(expression, sympy.Basic):
            return expression
        free = sorted(expression.free_symbols, key=str)
        for symbol in free:
            # Of its kind: a fraction would be found unequal to any value of an integer.
            kind = {"integer": True} if symbol.is_integer else {"real": True}
            self._symbols.setdefault(symbol, sympy.Symbol(f"d{len(self._symbols)}", **kind))
        return expression.xreplace({s: self._symbols[s] for s in free})

    def numbered(self) -> Sequence[sympy.Symbol]:
        """The symbols in the order of their numbers."""
        return list(self._symbols)

    def graph(
        self, module: GraphModule, inputs: Sequence[str], outputs: Sequence[str], indent: str = ""
    ) -> Iterator[str]:
        """The lines of a graph. `inputs` and `outputs` say what its placeholders and results are."""
        position: dict[Node, int] = {}
        roles = iter(inputs)
        for node in module.graph.nodes:
            position[node] = len(position)
            if node.op == "output":
                results = self._value(node.args[0], position)
                yield f"{indent}return {results}" + (f" as {list(outputs)}" if outputs else "")
                continue
            if node.op == "placeholder":
                what = next(roles, "input")
            elif node.op == "get_attr":
                what = self._attribute(module, str(node.target))
            else:
                what = self._call(node, position)
            yield f"{indent}%{position[node]} = {what} -> {self._result(node.meta.get('val'))}"
            inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
            if isinstance(inner, GraphModule):
                yield from self.graph(inner, (), (), indent + "  ")

    def _attribute(self, module: GraphModule, name: str) -> str:
        held = module
        for part in name.split("."):
            held = getattr(held, part)
        return "graph" if isinstance(held, GraphModule) else f"held {_content(held)}"

    def _call(self, node: Node, position: Mapping[Node, int]) -> str:
        parts = [self._value(a, position) for a in node.args]
        parts += [f"{k}={self._value(v, position)}" for k, v in sorted(node.kwargs.items())]
        return f"{_target(node.target)}({', '.join(parts)})"

    def _value(self, value: Any, position: Mapping[Node, int]) -> str:
        if isinstance(value, Node):
            return f"%{position[value]}"
        if isinstance(value, tuple):
            return f"({', '.join(self._value(v, position) for v in value)})"
        if isinstance(value, list):
            return f"[{', '.join(self._value(v, position) for v in value)}]"
        if isinstance(value, dict):
            pairs = (f"{k!r}: {self._value(v, position)}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._value(v, position) for v in bounds)})"
        if isinstance(value, _SYMBOLIC):
            return self._size(value)
        if isinstance(value, float):
            return value.hex()
        if value is None or isinstance(value, bool | int | complex | str | bytes | _PLAIN):
            return repr(value)
        return (
            f"{type(value).__module__}.{type(value).__qualname__} {_ADDRESS.sub('', repr(value))}"
        )

    def _result(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            shape = ", ".join(self._size(s) for s in value.shape)
            if value.layout is not torch.strided:
                return f"{_kind(value)}[{shape}] {value.layout} {value.device}"
            stride = ", ".join(self._size(s) for s in value.stride())
            start = self._size(value.storage_offset())
            return f"{_kind(value)}[{shape}] strides ({stride}) from {start} on {value.device}"
        if isinstance(value, tuple | list):
            return f"({', '.join(self._result(v) for v in value)})"
        return self._value(value, {})

    def _size(self, size: Any) -> str:
        return str(self.renamed(size.node.expr)) if isinstance(size, _SYMBOLIC) else str(size)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = torch.dtype | torch.device | torch.layout | torch.memory_format | type(Ellipsis)


def _target(target: Any) -> str:
    """The operation by the name it is registered under; a plain function by its dotted name."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return str(target.name())  # type: ignore[no-untyped-call]
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"{target._qualified_op_name} by its arguments"
    if isinstance(target, str):
        return f"method {target}"
    return f"{target.__module__}.{target.__qualname__}"
