"""The compilation section: which graphs to capture, and what the engine's runner can do."""

import enum

from graphspec.fields import Stage, config_class, keyed, unkeyed


class CudagraphMode(enum.Enum):
    """Which steps run as captured graphs. FULL covers a whole step, PIECEWISE the pieces between attention."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"

    @property
    def decode_is_full(self) -> bool:
        """True when uniform decode steps run as one graph each."""
        return self in (self.FULL, self.FULL_DECODE_ONLY, self.FULL_AND_PIECEWISE)


class Runner(enum.Enum):
    """Generation of the engine's model runner: v2 captures full graphs per draft depth, v1 cannot."""

    V1 = "v1"
    V2 = "v2"


@config_class
class CompilationConfig:
    """What to compile and capture."""

    cudagraph_mode: CudagraphMode = keyed(
        Stage.CAPTURE,
        default=CudagraphMode.FULL_AND_PIECEWISE,
        doc="Graph mode that is asked for; the granted one may be lower, with reasons.",
    )
    runner: Runner = keyed(
        Stage.CAPTURE, default=Runner.V2, doc="Generation of the engine's model runner."
    )
    strict: bool = unkeyed(
        default=False,
        doc="Whether a downgrade of what was asked is an error.",
        reason="turns a downgrade into a refusal to start; it changes no graph",
    )
