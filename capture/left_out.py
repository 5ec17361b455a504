"""What a plan leaves out, summed up for reports: nothing that steps could use is dropped without a word."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import GraphMode, Phase
from graphspec.capture.plan import CapturePlan
from graphspec.text import plural


@attrs.frozen(kw_only=True)
class LeftOut:
    """Graphs of one phase and mode that steps could use and that are not captured, for one reason."""

    phase: Phase
    mode: GraphMode
    reason: Fallthrough
    graphs: int

    def __str__(self) -> str:
        where = f"{self.phase.value} {self.mode.value}"
        return f"{plural(self.graphs, 'graph')} of {where} left out: {self.reason.value}"

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "phase": self.phase.value,
            "mode": self.mode.value,
            "reason": self.reason.name.lower(),
            "graphs": self.graphs,
        }


def left_out_of(plan: CapturePlan) -> tuple[LeftOut, ...]:
    """What a plan leaves out, in the order of capture."""
    counted = Counter(
        (key.phase, key.mode, plan.left_out[key]) for key in plan.planned if key in plan.left_out
    )
    return tuple(
        LeftOut(phase=phase, mode=mode, reason=reason, graphs=count)
        for (phase, mode, reason), count in counted.items()
    )
