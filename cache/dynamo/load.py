"""A graph of Dynamo's to a callable: from the store where it can be, one compile a key, tried out before it is stored."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule

from graphspec.cache.compiling.sizes import hold
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.dynamo.call import GraphCall, try_out
from graphspec.cache.dynamo.graph import Lifted, NotStorableError, Varying, hint, lift
from graphspec.cache.dynamo.key import (
    device_config,
    graph_factors,
    graph_key,
    graph_unit,
    on_device,
)
from graphspec.cache.entry import Entry
from graphspec.cache.opened import OpenCache
from graphspec.cache.store import Lookup, Outcome, Stored, set_aside
from graphspec.cache.units import EntryKey
from graphspec.config.device import CpuIsa
from graphspec.errors import CacheUnusableError, CompileError, OfflineMissError, Problem

_LOCK_POLL_S = 0.2
_MOST_VARIANTS = 4
_REFUSED = "refused"
"""In the metadata of an entry without a library: why there is none."""
_varying = Varying()


@attrs.frozen(kw_only=True)
class LoadedGraph:
    """A callable in the place of a graph, the first lookup's outcome and reason, and whether it was compiled here."""

    call: Callable[..., Any]
    unit: str
    key: EntryKey
    lookup: Lookup
    compiled: bool
    stored: Stored | None = None


def lift_for_inference(gm: GraphModule, arguments: Sequence[Any]) -> Lifted:
    """The graph as a function of tensors. Raises `NotStorableError`, also where autograd would have to follow it."""
    wants = any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
    if wants and (torch.is_grad_enabled() or _enables_gradients(gm)):
        raise NotStorableError("gradients are wanted (use torch.no_grad or torch.inference_mode)")
    return lift(gm, arguments, _varying)


def _enables_gradients(gm: GraphModule) -> bool:
    switched = gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return any(node.args != (False,) for node in switched)


def load_or_compile_graph(
    gm: GraphModule, arguments: Sequence[Any], cache: OpenCache, *, isa: CpuIsa, strict: bool
) -> LoadedGraph:
    """The callable for a graph of Dynamo's, whose real arguments are at hand.

    Raises `NotStorableError` for a graph that no library can hold, `CompileError` where the compiler fails,
    `OfflineMissError` where compiling is forbidden, and with `strict` `CacheUnusableError` for a store that takes nothing.
    """
    lifted = lift_for_inference(gm, arguments)
    factors = graph_factors(lifted, isa)
    for variant in range(_MOST_VARIANTS):
        run = _Run(gm, arguments, lifted, factors, graph_key(factors, variant), cache, isa, strict)
        loaded = run.load() or run.compile_or_wait()
        if loaded is not None:
            return loaded
    raise NotStorableError(f"sizes for which none of {_MOST_VARIANTS} stored libraries is")


@attrs.define
class _Run:
    """The way of one graph under one key."""

    gm: GraphModule
    arguments: Sequence[Any]
    lifted: Lifted
    factors: Mapping[str, Any]
    key: EntryKey
    cache: OpenCache
    isa: CpuIsa
    strict: bool
    first: Lookup | None = None
    is_for_others: bool = False

    def load(self) -> LoadedGraph | None:
        """The stored library. None where there is none, or one that `is_for_others`: for other sizes than are wanted."""
        lookup = self.cache.store.get(self.key)
        if lookup.outcome is Outcome.DISABLED:
            raise NotStorableError(lookup.reason)
        if lookup.entry is not None and _REFUSED in lookup.entry.metadata:
            raise NotStorableError(f"{lookup.entry.metadata[_REFUSED]} (as was found before)")
        call = None
        if lookup.entry is not None:
            try:
                call = self._use(lookup.entry)
            except (RuntimeError, LookupError, TypeError, ValueError) as error:
                # Whole, and of no use here: another C library, say.
                reason = f"its library does not load: {error}"
                lookup = Lookup(outcome=Outcome.STALE, reason=reason)
                set_aside(self.cache.store, self.key, reason)
        self.first = self.first or lookup
        if call is None:
            return None
        if not hold(call.demands, self.lifted.sizes):
            raise NotStorableError(
                "sizes that the stored library is not for, by torch's own account"
            )
        return self._loaded(call)

    def compile_or_wait(self) -> LoadedGraph | None:
        """Compiles the graph, unless another process does: then what that one has stored is loaded."""
        if self.is_for_others:
            return None
        if self.cache.offline is not None:
            raise _offline(self.lifted, self.key, self.cache.root)
        began = time.monotonic()
        while True:
            with self.cache.locks.try_lock(self.key) as free:
                waited = time.monotonic() - began
                loaded = self.load()
                if loaded is not None or self.is_for_others:
                    return loaded
                if free or waited >= self.cache.config.lock_wait_seconds:
                    if not free:
                        reason = f"another process has held the graph's lock for {waited:.0f} s"
                        self.first = Lookup(outcome=Outcome.LOCKED_OUT, reason=reason)
                    return self._compile_or_remember()
            time.sleep(_LOCK_POLL_S)

    def _use(self, entry: Entry) -> GraphCall | None:
        demands, written = entry.metadata["demands"], entry.metadata["written"]
        # As plain numbers first: what is asked of torch's symbols becomes a guard, even where it does not hold.
        if not hold(demands, [s if s is None else hint(s) for s in self.lifted.sizes]):
            self.is_for_others = True
            return None
        with on_device(self.lifted.device):
            return GraphCall(self.lifted, entry.payload, demands, written, self.gm)

    def _compile_or_remember(self) -> LoadedGraph:
        """Compiles the graph. What that finds to be impossible is stored too, or each process would find it out again."""
        from graphspec.cache.compiling.compiler import OutsideOperatorsError

        try:
            return self._compile()
        except (NotStorableError, OutsideOperatorsError) as error:
            reason = str(error)
            if isinstance(error, OutsideOperatorsError):
                reason = error.problems[0].found
            elif not error.lasting:
                raise
            facts = {"unit": graph_unit(self.lifted), "device": self.lifted.device.type}
            metadata = {**facts, _REFUSED: reason, "compile_seconds": 0.0}
            self.cache.store.put(Entry(key=self.key, metadata=metadata, payload=b""))
            raise NotStorableError(reason) from error

    def _compile(self) -> LoadedGraph:
        from graphspec.cache.compiling.compiler import Compiler
        from graphspec.cache.dynamo.trace import new_demands, trace_graph

        lifted, device = self.lifted, device_config(self.lifted.device, self.isa)
        with on_device(lifted.device):
            traced = trace_graph(lifted)
            inputs = [
                ([hint(s) for s in i.shape], str(i.dtype).removeprefix("torch."))
                for i in lifted.inputs
            ]
            with Compiler(
                compiler_flags(device), compiler_options(device), str(lifted.device)
            ) as compiler:
                compiled = compiler.compile_program(
                    traced.program, graph_unit(lifted), inputs, symbols=lifted.symbols
                )
            if not hold(compiled.demands, lifted.sizes):
                raise NotStorableError("the compiler asks for other sizes than it was given")
            call = GraphCall(lifted, compiled.library, (), traced.written, self.gm)
            try_out(lifted, call, self.gm, self.arguments)
        self._check_unchanged()
        entry = Entry(
            key=self.key,
            metadata={
                "unit": graph_unit(lifted),
                "device": lifted.device.type,
                "demands": [*new_demands(lifted)],
                "written": list(traced.written),
                "compile_seconds": traced.seconds + compiled.seconds,
                "provenance": dict(compiled.provenance),
            },
            payload=compiled.library,
        )
        stored = self.cache.store.put(entry)
        if self.strict and stored.failed:
            raise CacheUnusableError(
                Problem(
                    where="cache folder",
                    found=stored.reason,
                    wanted="a folder that entries can be written to",
                    hint="free space or permissions, choose another cache_dir, or drop strict",
                )
            )
        return self._loaded(call, stored)

    def _check_unchanged(self) -> None:
        """Refuses what was compiled while a variable or a switch that its key covers was being changed."""
        if graph_key(graph_factors(self.lifted, self.isa)) != graph_key(self.factors):
            raise CompileError(
                Problem(
                    where=graph_unit(self.lifted),
                    found="another key than before it was compiled",
                    wanted="environment variables and settings of torch that stay as they are meanwhile",
                )
            )

    def _loaded(self, call: GraphCall, stored: Stored | None = None) -> LoadedGraph:
        assert self.first is not None
        return LoadedGraph(
            call=call,
            unit=graph_unit(self.lifted),
            key=self.key,
            lookup=self.first,
            compiled=stored is not None,
            stored=stored,
        )


def _offline(lifted: Lifted, key: EntryKey, folder: str) -> OfflineMissError:
    return OfflineMissError(
        Problem(
            where=graph_unit(lifted),
            found=f"no usable entry under {key.digest} in {folder}",
            wanted="an entry that was made ahead of time",
            hint="run the program once where compiling is allowed, and take its cache folder along",
        )
    )
