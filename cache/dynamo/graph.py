"""Dynamo's graph as a function of tensors alone: numbers become sizes or constants, held tensors become inputs.

What a library cannot hold is refused here, by what the graph shows before it is traced.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from graphspec.cache.compiling.fingerprint import traced_lines
from graphspec.cache.compiling.sizes import UnwritableError, written
from graphspec.cache.dynamo.operators import attribute, graphs_inside, operation_fault


class NotStorableError(Exception):
    """A graph that cannot be stored. The text is the reason, a phrase.

    `lasting`: it took a compile to find out, and each further one would find the same.
    """

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class Source(enum.Enum):
    """Where an output of Dynamo's graph comes from."""

    LIBRARY = "library"
    ARGUMENT = "argument"
    NUMBER = "number"
    CONSTANT = "constant"


@attrs.frozen
class Place:
    """Where a call has a size: an argument that is a number, or a dimension of one that is a tensor."""

    argument: int
    dim: int | None = None


@attrs.frozen(kw_only=True)
class Output:
    """One output: the library's at a place, an argument as it is, a number as `dynamo_sizes` writes it, or a constant.

    `places` say where a call has the sizes that a number is computed from.
    """

    source: Source
    value: Any
    places: Sequence[Place] = ()


@attrs.frozen(kw_only=True)
class Lifted:
    """A graph of tensors, and how a call of Dynamo's graph becomes one of it.

    Its inputs are the arguments at `tensors`, then `held`, then for each argument at `numbers` a tensor of that many rows
    and no elements. `text` is the canonical one, in which sizes have the numbers `symbols`; `sizes` are torch's symbols in
    that order. There were `guards` of Dynamo's when the text was made.
    """

    module: GraphModule = attrs.field(repr=False)
    text: Sequence[str] = attrs.field(repr=False)
    symbols: Mapping[str, int]
    sizes: Sequence[Any]
    guards: int
    tensors: Sequence[int]
    held: Sequence[torch.Tensor] = attrs.field(repr=False)
    numbers: Sequence[int]
    outputs: Sequence[Output]
    device: torch.device

    @property
    def inputs(self) -> Sequence[FakeTensor]:
        """What Dynamo knows of the inputs: tensors without content, with torch's symbols as sizes."""
        return [n.meta["val"] for n in self.module.graph.find_nodes(op="placeholder")]

    @property
    def results(self) -> Sequence[FakeTensor]:
        """What Dynamo knows of the outputs that are computed."""
        return [n.meta["val"] for n in self.module.graph.output_node().args[0]]  # type: ignore[union-attr]


class Varying:
    """The values that Python numbers have had, by the frame and the name that Dynamo knows them by."""

    _MOST = 2

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], set[float]] = {}

    def is_constant(self, frame: str, name: str, value: float) -> bool:
        """True for the first values of a number, which become constants of a graph. A compile for each is not worth it."""
        seen = self._seen.setdefault((frame, name), set())
        if len(seen) < self._MOST:
            seen.add(value)
        return value in seen


def fake_mode() -> FakeTensorMode:
    """Dynamo's own mode for tensors without content, of the graph that is being compiled."""
    mode = torch._guards.TracingContext.get().fake_mode
    if mode is None or mode.shape_env is None:
        raise NotStorableError("a graph without symbolic sizes")
    return mode


def lift(gm: GraphModule, arguments: Sequence[Any], varying: Varying) -> Lifted:
    """The graph as a function of tensors. Raises `NotStorableError` for what no library can hold.

    What is decided here by the value of a size or number becomes a guard of Dynamo's: another value is another graph.
    """
    nodes = list(gm.graph.nodes)
    devices = _examine(gm)
    return _Lift(gm, arguments, varying, _live(nodes), devices).lifted()


def _examine(gm: GraphModule) -> torch.device:
    """The one device of a graph, which has nothing in it that a key cannot name."""
    devices: dict[torch.device, None] = {}
    for module in (gm, *graphs_inside(gm)):
        for node in module.graph.nodes:
            for value in _parts(_value(node)):
                _examine_value(value, node)
                if isinstance(value, torch.Tensor):
                    devices[value.device] = None
            if node.op.startswith("call"):
                fault = operation_fault(node)
                if fault:
                    raise NotStorableError(fault)
            if node.op == "get_attr" and module is not gm:
                raise NotStorableError("a tensor or graph that is held two graphs deep")
    if len(devices) > 1:
        raise NotStorableError(f"tensors on {' and '.join(sorted(map(str, devices)))}")
    return next(iter(devices), torch.device("cpu"))


def _examine_value(value: Any, node: Node) -> None:
    if isinstance(value, torch.Tensor):
        plain = type(value) is FakeTensor and value.layout is torch.strided
        if not plain or value.is_quantized:
            raise NotStorableError(f"a {type(value).__name__} of {value.layout} ({node.name})")
        if value.device.type not in ("cpu", "cuda"):
            raise NotStorableError(f"a tensor on {value.device}")
        for size in (*value.shape, *value.stride()):
            _examine_value(size, node)
    elif isinstance(value, _SYMBOLIC) and free_unbacked_symbols(value):
        raise NotStorableError(f"a size or number that depends on data ({node.name})")


def _live(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that are computed by a library: not the numbers that only numbers are made of."""
    live: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output":
            results = (n for n in _parts(node.args) if isinstance(n, Node))
            live.update(n for n in results if n.op != "placeholder" and not _is_numeric(n))
        elif node in live or (node.op.startswith("call") and not _is_numeric(node)):
            live.add(node)
            if not isinstance(_value(node), torch.SymFloat):
                live.update(node.all_input_nodes)
    return live


class _Lift:
    def __init__(
        self,
        gm: GraphModule,
        arguments: Sequence[Any],
        varying: Varying,
        live: set[Node],
        device: torch.device,
    ) -> None:
        self._gm = gm
        self._arguments = arguments
        self._varying = varying
        self._device = device
        self._graph = Graph()
        self._new: dict[Node, Any] = {}
        self._roles: list[str] = []
        self._parameters = {n: at for at, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self._nodes = [n for n in gm.graph.nodes if n in live]
        self._inputs = [n for n in self._nodes if n in self._parameters]

    def lifted(self) -> Lifted:
        tensors = [n for n in self._inputs if isinstance(_value(n), torch.Tensor)]
        for node in tensors:
            self._add_tensor(node)
        held = [n for n in self._nodes if self._holds_tensor(n)]
        for node in held:
            tensor = attribute(self._gm, node)
            self._add(node, fake_mode().from_tensor(tensor, static_shapes=True), "held")
        numbers = self._add_numbers(tensors)
        for node in self._nodes:
            if node not in self._new and node.op != "output":
                self._copy(node)
        outputs = self._outputs()
        module = GraphModule(self._gm, self._graph)
        environment = fake_mode().shape_env
        assert environment is not None
        relations = [guard.expr for guard in environment.guards]
        text, symbols = traced_lines(module, self._roles, relations, environment.var_to_range)
        return Lifted(
            module=module,
            text=text,
            symbols=symbols,
            sizes=self._sizes(symbols),
            guards=len(environment.guards),
            tensors=[self._parameters[n] for n in tensors],
            held=[attribute(self._gm, n) for n in held],
            numbers=[self._parameters[n] for n in numbers],
            outputs=outputs,
            device=self._device,
        )

    def _add(self, node: Node, value: torch.Tensor, role: str) -> Node:
        new = self._graph.placeholder(f"input_{len(self._roles)}")
        new.meta["val"] = value
        self._new[node] = new
        self._roles.append(role)
        return new

    def _add_tensor(self, node: Node) -> None:
        real, shown = self._arguments[self._parameters[node]], _value(node)
        if not isinstance(real, torch.Tensor) or isinstance(real, FakeTensor):
            raise NotStorableError(f"no real tensor for the input {node.name}")
        if real.is_conj() or real.is_neg():
            raise NotStorableError(f"a conjugated or negated view as an input ({node.name})")
        if [hint(s) for s in (*shown.shape, *shown.stride())] != [*real.shape, *real.stride()]:
            raise NotStorableError(f"an input whose shape the graph changes ({node.name})")
        self._add(node, shown, f"tensor, requires_grad={real.requires_grad}")

    def _holds_tensor(self, node: Node) -> bool:
        if node.op != "get_attr":
            return False
        held = attribute(self._gm, node)
        if isinstance(held, GraphModule):
            return False
        if type(held) not in (torch.Tensor, torch.nn.Parameter) or held.device != self._device:
            raise NotStorableError(f"a held {type(held).__name__}")
        return True

    def _add_numbers(self, tensors: Sequence[Node]) -> Sequence[Node]:
        """Sizes in place of the dynamic numbers; returns those that no tensor has as a size."""
        found: dict[Any, tuple[Node, int]] = {}
        for node in tensors:
            for dim, size in enumerate(_value(node).shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(size.node.expr, (self._new[node], dim))
        numbers = [n for n in self._inputs if isinstance(_value(n), torch.SymInt)]
        own: list[Node] = []
        for node in numbers:
            size = _value(node)
            # As a number of rows it cannot be negative, and what is traced need not hold for 0 and 1.
            if hint(size) < 2 or not size >= 2:
                raise NotStorableError(f"a dynamic number below two ({node.name})")
            if size.node.expr not in found and not size.node.expr.is_Integer:
                with fake_mode():
                    rows = torch.empty((size, 0), device=self._device)
                found[size.node.expr] = self._add(node, rows, "rows"), 0
                own.append(node)
        for node in numbers:
            size = _value(node)
            if size.node.expr.is_Integer:
                self._new[node] = int(size)
            else:
                self._new[node] = self._graph.call_method("size", found[size.node.expr])
                self._new[node].meta["val"] = size
        return own

    def _copy(self, node: Node) -> None:
        if isinstance(_value(node), torch.SymFloat):
            self._new[node] = self._float(node)
            return
        new = self._graph.node_copy(node, lambda n: self._new[n])
        new.meta = {"val": _value(node)}
        self._new[node] = new

    def _float(self, node: Any) -> Any:
        """A Python number that Dynamo passes as a tensor becomes a constant, and its value a guard."""
        if not isinstance(node, Node):
            return node
        value = _value(node)
        given: Any = getattr(node.args[0], "meta", {}).get("grapharg") if node.args else None
        if node.target == "item" and getattr(given, "pass_arg_as_tensor", False):
            name, now = str(given.source.name), float(value.node.hint)
            frame = getattr(torch._guards.CompileContext.current_compile_id(), "frame_id", None)
            if value.node.maybe_as_float() is None and not self._varying.is_constant(
                str(frame), name, now
            ):
                raise NotStorableError(f"a Python number that varies: {name}")
            return float(value)
        if node.op != "call_function" or node.kwargs or not isinstance(value, torch.SymFloat):
            raise NotStorableError(f"a number that is computed from others ({node.name})")
        return node.target(*(self._float(a) for a in node.args))  # type: ignore[operator]

    def _outputs(self) -> Sequence[Output]:
        results: dict[Node, int] = {}
        outputs = []
        for each in _flat(self._gm.graph.output_node().args[0]):
            value = _value(each) if isinstance(each, Node) else each
            if each in self._parameters:
                outputs.append(Output(source=Source.ARGUMENT, value=self._parameters[each]))
            elif isinstance(value, torch.Tensor):
                place = results.setdefault(self._new[each], len(results))
                outputs.append(Output(source=Source.LIBRARY, value=place))
            elif isinstance(value, torch.SymInt):
                outputs.append(self._number_output(value))
            elif value is None or isinstance(value, bool | int | float):
                outputs.append(Output(source=Source.CONSTANT, value=value))
            else:
                raise NotStorableError(f"an output of type {type(value).__name__}")
        self._graph.output(tuple(results))
        return outputs

    def _number_output(self, value: torch.SymInt) -> Output:
        expression = value.node.expr
        places = self._places()
        symbols = sorted(expression.free_symbols, key=str)
        try:
            text = written(expression, {s.name: at for at, s in enumerate(symbols)})
            found = [places[s] for s in symbols]
        except (UnwritableError, KeyError) as error:
            raise NotStorableError(f"an output that is a number of its own ({error})") from None
        return Output(source=Source.NUMBER, value=text, places=found)

    def _places(self) -> Mapping[Any, Place]:
        places: dict[Any, Place] = {}
        for node, at in self._parameters.items():
            value = _value(node)
            sizes = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    place = Place(at, None if size is value else dim)
                    places.setdefault(size.node.expr, place)
        return places

    def _sizes(self, symbols: Mapping[str, int]) -> Sequence[Any]:
        """torch's own numbers for the symbols of the text. What is asked of them becomes a guard."""
        environment = fake_mode().shape_env
        assert environment is not None
        known: dict[str, Any] = {}
        hints = getattr(environment, "backed_var_to_val", None)
        for symbol, hint in (environment.var_to_val if hints is None else hints).items():
            if symbol.name in symbols and symbol.is_integer:
                known[symbol.name] = environment.create_symintnode(symbol, hint=int(hint))
        return [known.get(name) for name in symbols]


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _value(node: Node) -> Any:
    return node.meta.get("example_value")


def _is_numeric(node: Node) -> bool:
    return isinstance(_value(node), (*_SYMBOLIC, bool, int, float))


def hint(size: Any) -> int:
    """The size that a dynamic size has in the call that is being compiled for."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from _parts(each)
    else:
        yield value
