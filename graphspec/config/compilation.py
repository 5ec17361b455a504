"""The compilation section: which graphs to capture, and what the engine's runner and attention can do."""

import enum

from graphspec.fields import Stage, config_class, keyed, unkeyed


class CudagraphMode(enum.Enum):
    """Which steps run as captured graphs. FULL covers a whole step, PIECEWISE the pieces between attention.

    A name of two parts gives the mode of uniform decode steps and that of mixed ones.
    """

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"

    @property
    def decode_is_full(self) -> bool:
        """True when uniform decode steps run as one graph each."""
        return self in (self.FULL, self.FULL_DECODE_ONLY, self.FULL_AND_PIECEWISE)

    @property
    def mixed_is_full(self) -> bool:
        """True when steps with prompt tokens run as one graph each."""
        return self is self.FULL

    @property
    def needs_piecewise(self) -> bool:
        """True when some steps run as graphs of the pieces between attention."""
        return self in (self.PIECEWISE, self.FULL_AND_PIECEWISE)

    @property
    def without_piecewise(self) -> "CudagraphMode":
        """The mode that is left when no pieces can be captured."""
        left = {self.PIECEWISE: self.NONE, self.FULL_AND_PIECEWISE: self.FULL_DECODE_ONLY}
        return left.get(self, self)


class Runner(enum.Enum):
    """Generation of the engine's model runner. `auto` is v2, or v1 where only that one has the method."""

    AUTO = "auto"
    V1 = "v1"
    V2 = "v2"


@config_class
class RunnerFacts:
    """What a model runner can do, for engines whose runner is neither generation."""

    full_graphs_per_k: bool = keyed(
        Stage.CAPTURE, doc="Whether full graphs can be captured per draft depth."
    )
    central_trimming: bool = keyed(
        Stage.CAPTURE,
        doc="Whether the runner trims drafts to the step's depth, so that a method need not.",
    )


class CompileMode(enum.Enum):
    """How the model is compiled: not at all, as one graph, or in pieces between the splitting ops."""

    NONE = "none"
    STOCK = "stock"
    PIECEWISE = "piecewise"


class AttentionSupport(enum.Enum):
    """What a captured graph may hold of attention, by what the weakest backend of the model allows."""

    NEVER = "never"
    UNIFORM_SINGLE_TOKEN_DECODE = "uniform_single_token_decode"
    UNIFORM_BATCH = "uniform_batch"
    ALWAYS = "always"

    @property
    def level(self) -> int:
        """0 to 3, weakest first."""
        return list(AttentionSupport).index(self)


@config_class
class CompilationConfig:
    """What to compile and capture."""

    cudagraph_mode: CudagraphMode = keyed(
        Stage.CAPTURE,
        default=CudagraphMode.FULL_AND_PIECEWISE,
        doc="Graph mode that is asked for; the granted one may be lower, with reasons.",
    )
    runner: Runner | RunnerFacts = keyed(
        Stage.CAPTURE,
        default=Runner.AUTO,
        doc="Generation of the engine's model runner, or its capabilities.",
    )
    compile_mode: CompileMode = keyed(
        Stage.COMPILE, default=CompileMode.PIECEWISE, doc="How the model is compiled."
    )
    splitting_ops: tuple[str, ...] | None = keyed(
        Stage.COMPILE,
        default=None,
        doc="Ops between which pieces are compiled; none: attention; empty: no split.",
    )
    use_inductor_graph_partition: bool = keyed(
        Stage.COMPILE,
        default=False,
        doc="Whether the compiler, not the tracer, cuts the pieces.",
    )
    breakable_cudagraph: bool = keyed(
        Stage.CAPTURE,
        default=False,
        doc="Whether pieces can be captured without compilation, by breaks at marked ops.",
    )
    fuse_attention_quant: bool = keyed(
        Stage.COMPILE,
        default=False,
        doc="Whether attention and the quantisation after it are one kernel.",
    )
    attention_support: AttentionSupport = keyed(
        Stage.CAPTURE,
        default=AttentionSupport.ALWAYS,
        doc="What graphs may hold of attention: the weakest level of all the model's backends.",
    )
    hisparse: bool = keyed(
        Stage.COMPILE, default=False, doc="Whether sparse attention reads offloaded blocks."
    )
    enforce_eager: bool = keyed(
        Stage.CAPTURE, default=False, doc="Whether nothing is captured at all."
    )
    hysteresis: bool = keyed(
        Stage.CAPTURE,
        default=False,
        doc="Whether each depth has a captured size more on either side of its batch sizes.",
    )
    strict: bool = unkeyed(
        default=False,
        doc="Whether a downgrade of what was asked is an error.",
        reason="turns a downgrade into a refusal to start; it changes no graph",
    )
