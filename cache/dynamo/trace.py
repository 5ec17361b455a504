"""From a lifted graph to an exported program: torch's own operators, nothing written in place, sizes as Dynamo knows them.

torch.export would begin with sizes of its own. What Dynamo has found out about sizes would be lost, and what the trace
finds out would not become guards of Dynamo's. So the graph is traced on Dynamo's symbols.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

from graphspec.cache.compiling.sizes import UnwritableError, written
from graphspec.cache.dynamo.graph import Lifted, NotStorableError, fake_mode
from graphspec.cache.native import operator_problems


@attrs.frozen(kw_only=True)
class TracedGraph:
    """A lifted graph as an exported program.

    `demands` is what the trace took for granted about sizes. `written` are the inputs, by place, that the graph writes to.
    """

    program: torch.export.ExportedProgram = attrs.field(repr=False)
    demands: Sequence[Any]
    written: Sequence[int]
    seconds: float


def trace_graph(lifted: Lifted) -> TracedGraph:
    """Traces a lifted graph. Raises `NotStorableError` for what no library can hold, and torch's errors for what it refuses."""
    from torch._functorch.aot_autograd import aot_export_module

    began = time.perf_counter()
    mode = fake_mode()
    with mode:
        # Fresh ones: those of Dynamo share memory where their views do, and know where in it they begin.
        inputs = [
            torch.empty_strided(i.shape, i.stride(), dtype=i.dtype, device=i.device)
            for i in lifted.inputs
        ]
    # A context of its own, or the trace would leave its notes in Dynamo's.
    with own_modes(), torch._guards.tracing(torch._guards.TracingContext(mode)):
        graph, signature = aot_export_module(
            lifted.module, inputs, trace_joint=False, decompositions={}
        )
    assert isinstance(graph, GraphModule)
    program = _exported(graph, signature, mode.shape_env)
    _examine(program)
    return TracedGraph(
        program=program,
        demands=new_demands(lifted),
        written=_written(program),
        seconds=time.perf_counter() - began,
    )


@contextlib.contextmanager
def own_modes() -> Iterator[None]:
    """Notes of Dynamo's are out of reach inside, and gradients and autocast are afterwards as they were before.

    A graph may switch them, and an error in the middle of one would leave them switched.
    """
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._guards.tracing(None))
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for kind in kinds:
            on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            stack.enter_context(torch.autocast(kind, enabled=on, dtype=dtype))
        yield


def new_demands(lifted: Lifted) -> Sequence[Any]:
    """What has become a guard on sizes since the graph's text was made, as `dynamo_sizes` writes it."""
    environment = fake_mode().shape_env
    assert environment is not None
    try:
        return [written(g.expr, lifted.symbols) for g in environment.guards[lifted.guards :]]
    except UnwritableError as error:
        raise NotStorableError(f"a demand on sizes that cannot be stored: {error}") from None


def _exported(graph: GraphModule, signature: Any, environment: Any) -> torch.export.ExportedProgram:
    from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
    from torch.export.graph_signature import (
        ExportGraphSignature,
        InputKind,
        InputSpec,
        OutputKind,
        OutputSpec,
        TensorArgument,
    )
    from torch.utils._pytree import tree_structure

    constants = _lift_constants(graph)
    changed: Mapping[str, str] = signature.user_inputs_to_mutate
    outputs = [_node(n) for n in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    specs = [
        OutputSpec(OutputKind.USER_INPUT_MUTATION, TensorArgument(name=n.name), changed[n.name])
        if n.name in changed
        else OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=n.name), None)
        for n in outputs
    ]
    inputs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=name), name) for name in constants
    ] + [
        InputSpec(InputKind.USER_INPUT, TensorArgument(name=str(name)), None)
        for name in signature.user_inputs
    ]
    returned = sum(spec.kind is OutputKind.USER_OUTPUT for spec in specs)
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=tree_structure((tuple(range(len(signature.user_inputs))), {})),
        out_spec=tree_structure(tuple(range(returned))),
    )
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            # Source lines and module names are of no use to the compiler, and differ from host to host.
            node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return torch.export.ExportedProgram(
        root=graph,
        graph=graph.graph,
        graph_signature=ExportGraphSignature(input_specs=inputs, output_specs=specs),
        state_dict={},
        range_constraints={s: environment.var_to_range[s] for s in _symbols(graph)},
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        example_inputs=None,
        constants=constants,
    )


def _symbols(graph: GraphModule) -> Sequence[Any]:
    values = (n.meta["val"] for n in graph.graph.find_nodes(op="placeholder"))
    sizes = (s for v in values for s in (*v.shape, *v.stride()) if isinstance(s, torch.SymInt))
    return list(dict.fromkeys(f for s in sizes for f in sorted(s.node.expr.free_symbols, key=str)))


def _lift_constants(graph: GraphModule) -> dict[str, Any]:
    """Tensors that the graph makes of numbers in its text, as inputs that the library holds."""
    constants: dict[str, Any] = {}
    first = next(iter(graph.graph.nodes))
    for node in graph.graph.find_nodes(op="get_attr"):
        held = getattr(graph, str(node.target))
        if not isinstance(held, torch.Tensor):
            continue
        name = f"constant_{len(constants)}"
        with graph.graph.inserting_before(first):
            new = graph.graph.placeholder(name)
        new.meta = node.meta
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
        constants[new.name] = held
    return constants


def _node(value: Any) -> Node:
    if not isinstance(value, Node) or not isinstance(value.meta.get("val"), torch.Tensor):
        raise NotStorableError("an output that is no tensor, once it is traced")
    return value


def _written(program: torch.export.ExportedProgram) -> Sequence[int]:
    places = {str(name): at for at, name in enumerate(program.graph_signature.user_inputs)}
    return [places[n] for n in program.graph_signature.user_inputs_to_mutate.values()]


def _is_random(node: Node) -> bool:
    """Whether an operator draws random numbers. Attention has a tag that says so, and does not where it drops nothing."""
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    for at, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, 0.0)
            return bool(given != 0.0)
    return True


def _examine(program: torch.export.ExportedProgram) -> None:
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if _is_random(node):
                raise NotStorableError(f"random numbers ({node.target})")
            if node.target is torch.ops.aten.as_strided.default:
                raise NotStorableError("a view by absolute strides (as_strided)")
    foreign = operator_problems(program, (), (), "a graph")
    if foreign:
        raise NotStorableError(foreign[0].found)
