"""Makes the drafter that a contract names."""

import importlib
from typing import Any

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.protocol import CapturedSpeculator, Speculator
from graphspec.engine.weights import Weights
from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.spec import EngineSpec, SpeculativeSpec
from graphspec.speculators.base import DraftPhase


def make_drafter(context: DraftContext) -> Speculator:
    """The drafter of the contract's method, by the dotted name of its class and that class's ``make(context)``.

    Raises `EnvironmentProblem` where there is no such class.
    """
    drafter: Speculator = _class_of(context.speculative).make(context)
    return drafter


def device_drafter(
    spec: EngineSpec, weights: Weights, *, debug_padding: bool = False
) -> CapturedSpeculator | None:
    """The drafter of a method that drafts on the device; None for others, which keep their drafts' state on the host."""
    if not captures_drafts(spec):
        return None
    made: Any = make_drafter(DraftContext(spec=spec, weights=weights, debug_padding=debug_padding))
    drafter: CapturedSpeculator = made
    return drafter


def captures_drafts(spec: EngineSpec) -> bool:
    """Whether the method's draft phase has passes of a fixed shape, and its drafter is one whose passes a graph can hold."""
    s = spec.speculative
    if s is None or s.speculator.draft_phase is DraftPhase.NONE:
        return False
    return hasattr(_class_of(s), "draft_step")


def _class_of(s: SpeculativeSpec) -> Any:
    module, _, name = str(s.speculator.implementation).rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvironmentProblem(
            Problem(
                where=f"speculative.method {s.custom_method or s.method}",
                found=f"no drafter {module}.{name}: {error}",
                wanted="a class that can be imported, with a class method make(context)",
                hint="ngram needs nothing; --no-speculation decodes without drafts",
            )
        ) from None
