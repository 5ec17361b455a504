"""Capture plans for tests: a spec with another table, by way of the public config."""

from collections.abc import Callable, Sequence
from typing import Any

from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import Range
from graphspec.resolve.spec import EngineSpec

FULL_MODES = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def spec_for(
    make: Callable[..., dict[str, Any]],
    table: Sequence[Range] | None,
    *,
    k: int,
    max_num_seqs: int,
    mode: str = "FULL_AND_PIECEWISE",
) -> EngineSpec:
    """The spec of the tiny model with this schedule; `make` is the fixture tiny_config."""
    speculative: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": k}
    if table is not None:
        speculative["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in table]
    config = make(
        scheduler={"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_seqs * (1 + k)},
        speculative=speculative,
        compilation={"cudagraph_mode": mode},
    )
    return EngineConfig.from_dict(config).resolve()


def plan_for(
    make: Callable[..., dict[str, Any]], table: Sequence[Range] | None, **limits: Any
) -> CapturePlan:
    """The plan of `spec_for`."""
    return plan_capture(spec_for(make, table, **limits))
