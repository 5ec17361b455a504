"""``torch.compile(model, backend="graphspec")``: graphs of Dynamo's from the store where they can be, else through inductor.

A graph for inference is keyed by its text, looked up, and compiled into a library of the store where it is not there.
Weights are inputs of the library. What cannot be stored has the outcome `bypass`, a reason, and inductor's own code.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.cache.store import Outcome
from graphspec.config.cache import CacheConfig
from graphspec.config.device import CpuIsa
from graphspec.errors import (
    CacheUnusableError,
    CompileError,
    GraphspecError,
    OfflineMissError,
    Problem,
)

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from graphspec.cache.dynamo.load import LoadedGraph

_logger = logging.getLogger("graphspec.cache")
_lock = threading.Lock()
_results: "list[GraphResult]" = []


@attrs.frozen(kw_only=True)
class Options:
    """What ``torch.compile(..., options={...})`` may say.

    `cache_dir`: the cache folder. `strict`: what cannot be stored, or not be put into the store, is an error. `cache`: the
    cache section of a config. `isa`: what the code may use of a CPU, ``native`` or a baseline.
    """

    cache_dir: str | None = None
    strict: bool = False
    cache: CacheConfig = attrs.field(factory=CacheConfig)
    isa: CpuIsa = attrs.field(default=CpuIsa.NATIVE, converter=CpuIsa)


@attrs.frozen(kw_only=True)
class GraphResult:
    """What became of one graph.

    `graph` is Dynamo's name for it, frame and number of compile; `unit` the name of its entries. `key` is the digest of its
    key; both are empty for a graph that was not stored. `reason` says why it was no hit. `seconds` is what it took to this
    point, without inductor's part; `compiled` tells whether the library was made here.
    """

    graph: str
    outcome: Outcome
    reason: str
    key: str
    seconds: float
    unit: str = ""
    compiled: bool = False
    store_problem: str = ""


def results() -> Sequence[GraphResult]:
    """What became of each graph in this process, in the order in which they were finished."""
    with _lock:
        return tuple(_results)


def clear_results() -> None:
    """Forgets the results so far."""
    with _lock:
        _results.clear()


def outcome_counts() -> Mapping[Outcome, int]:
    """How many graphs ended with each outcome. The counts add up to the number of graphs."""
    counts = dict.fromkeys(Outcome, 0)
    for result in results():
        counts[result.outcome] += 1
    return counts


def graphspec(
    gm: "GraphModule",
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: what Dynamo is to call in place of its graph."""
    import torch

    from graphspec.cache.dynamo.graph import NotStorableError
    from graphspec.cache.dynamo.load import load_or_compile_graph
    from graphspec.cache.opened import open_cache

    asked = _read(options, mode)
    began = time.perf_counter()
    cause: Exception
    graph = str(torch._guards.CompileContext.current_compile_id() or "")
    cache = open_cache(asked.cache, asked.cache_dir)
    try:
        loaded = load_or_compile_graph(
            gm, example_inputs, cache, isa=asked.isa, strict=asked.strict
        )
    except NotStorableError as error:
        reason, cause = str(error), error
    except (OfflineMissError, CacheUnusableError) as error:
        missing = isinstance(error, OfflineMissError)
        outcome = Outcome.MISS if missing else Outcome.ERROR
        _keep(graph, outcome, error.problems[0].found, began)
        raise
    except GraphspecError as error:
        reason, cause = error.problems[0].found, error
    except Exception as error:
        # Whatever torch says of a graph that it cannot trace.
        reason, cause = f"{type(error).__name__}: {_first_line(error)}", error
    else:
        _keep(graph, loaded.lookup.outcome, loaded.lookup.reason, began, loaded)
        return loaded.call
    _keep(graph, Outcome.BYPASS, reason, began)
    if asked.strict or cache.offline is not None:
        raise _refused(graph, reason, strict=asked.strict) from cause
    from torch._inductor.compile_fx import compile_fx

    made: Callable[..., Any] = compile_fx(gm, example_inputs)  # type: ignore[assignment]
    return made


def _read(options: Mapping[str, Any] | None, mode: str | None) -> Options:
    names = [a.name for a in attrs.fields(Options)]
    unknown = sorted(set(options or ()) - set(names))
    if unknown or mode not in (None, "default"):
        raise CompileError(
            Problem(
                where="torch.compile with the backend graphspec",
                found=f"the option {unknown[0]}" if unknown else f"the mode {mode}",
                wanted=f"options of {', '.join(names)}, and no mode",
                hint="inductor's own options do not reach the compiler's process",
            )
        )
    return Options(**(options or {}))


def _keep(
    graph: str, outcome: Outcome, reason: str, began: float, loaded: "LoadedGraph | None" = None
) -> None:
    result = GraphResult(
        graph=graph,
        outcome=outcome,
        reason=reason,
        key=loaded.key.digest if loaded is not None else "",
        seconds=time.perf_counter() - began,
        unit=loaded.unit if loaded is not None else "",
        compiled=loaded is not None and loaded.compiled,
        store_problem=loaded.stored.reason if loaded is not None and loaded.stored else "",
    )
    with _lock:
        _results.append(result)
    level = logging.INFO if outcome is Outcome.BYPASS else logging.DEBUG
    told = f": {reason}" if reason else ""
    facts = {"event": "torch_compile_graph", **attrs.asdict(result), "outcome": outcome.value}
    _logger.log(level, "graph %s: %s%s", graph, outcome.value, told, extra=facts)


def _refused(graph: str, reason: str, *, strict: bool) -> GraphspecError:
    problem = Problem(
        where=f"graph {graph} of torch.compile",
        found=reason,
        wanted="a graph that can be stored",
        hint="with strict, inductor does not compile it instead"
        if strict
        else "offline, inductor may not compile it instead",
    )
    return CompileError(problem) if strict else OfflineMissError(problem)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
