"""`Progress`: what a warmup tells while it runs."""

from collections.abc import Sequence

from graphspec.cache.load import UnitResult
from graphspec.cache.units import CompileUnit
from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import CapturePlan


class Progress:
    """Told of each step of a warmup. Override what is of interest."""

    def started(self, units: Sequence[CompileUnit], plan: CapturePlan) -> None:
        """The plan is made; nothing has been touched."""

    def unit_done(self, result: UnitResult) -> None:
        """One unit is loaded. May be called from several threads."""

    def phase(self, name: str) -> None:
        """A phase begins: units, weights, warm, capture, verify, or drafter where host code is compiled."""

    def graph_done(self, phase: str, key: CaptureKey) -> None:
        """One graph is warmed or captured."""
