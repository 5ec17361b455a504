"""What a graph mode is decided from and as: declared facts, one rule over them, and the decision."""

from collections.abc import Callable, Mapping

import attrs

from graphspec.config.compilation import AttentionSupport, CompileMode, CudagraphMode
from graphspec.config.parallel import All2AllBackend
from graphspec.errors import Problem
from graphspec.fields import Stage, config_class, keyed, unkeyed


@config_class
class ModeDecision:
    """What graph mode was asked for, what is granted, and why the two differ."""

    asked: CudagraphMode = unkeyed(doc="Mode in the config.", reason="only the granted mode acts")
    granted: CudagraphMode = keyed(Stage.CAPTURE, doc="Mode that capture uses.")
    reasons: tuple[str, ...] = unkeyed(
        default=(), doc="One reason code and sentence per downgrade.", reason="explanation only"
    )


@attrs.frozen(kw_only=True)
class ModeFacts:
    """What an engine can do, as far as graph modes depend on it. The defaults allow every mode.

    All facts are the target's own. A drafter has its own facts and its own decision, so no number of one can enter
    the other's; where both must share a mode, `attention_support` is the weaker of the two.
    """

    attention_support: AttentionSupport = AttentionSupport.ALWAYS
    """What the weakest attention backend of the model allows."""
    attention_backend: str = ""
    """That backend's name, for messages."""
    query_len: int = 1
    """Tokens per request in the widest uniform decode step: 1 + k."""
    compile_mode: CompileMode = CompileMode.PIECEWISE
    model_compiled: bool = True
    """Whether any part of the model goes through the compiler."""
    splits_attention: bool = True
    """Whether attention is among the splitting ops."""
    splitting_ops_empty: bool = False
    inductor_partition: bool = False
    """Whether the compiler cuts the pieces: at attention too, whatever the splitting ops name, if they name any."""
    fuse_attention_quant: bool = False
    breakable: bool = False
    """Whether capture itself breaks at attention, so that pieces need no compiler."""
    enforce_eager: bool = False
    pooling: bool = False
    encoder_decoder: bool = False
    connector_layerwise: bool = False
    """Whether a KV connector works between layers."""
    all2all_backend: All2AllBackend | None = None
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    runner: str = "v2"
    """The runner's name, for messages."""
    runner_v2: bool = True
    runner_full_graphs_per_k: bool = True
    """Whether the runner captures full graphs of more than one query length."""
    dynamic_schedule: bool = False
    """Whether batch sizes differ in k."""
    adaptive_verification: bool = False
    lora: bool = False
    hisparse: bool = False
    mamba: bool = False
    """Whether any layer keeps Mamba state: one block for each sequence."""
    max_num_seqs: int = 1
    num_blocks: int = 1
    """Blocks that sequences can have."""

    @property
    def compiled_in_pieces(self) -> bool:
        """True when pieces, if there are any, come from the compiler."""
        compiled = self.compile_mode is CompileMode.PIECEWISE and self.model_compiled
        return compiled and not self.breakable

    @property
    def fusion_joins_attention(self) -> bool:
        """True when the fused kernel keeps the tracer from cutting at attention; the compiler's own cut comes later."""
        return self.fuse_attention_quant and not self.inductor_partition

    @property
    def cuts_attention(self) -> bool:
        """True when there are pieces to capture and none of them holds attention."""
        if self.encoder_decoder:
            return False
        if not self.compiled_in_pieces:
            return self.breakable
        one_piece = self.splitting_ops_empty or self.fusion_joins_attention
        return not one_piece and (self.splits_attention or self.inductor_partition)

    @property
    def captures_mixed_steps(self) -> bool:
        """True when a graph may hold a whole step with prompt tokens."""
        return self.attention_support is AttentionSupport.ALWAYS and not self.hisparse


Condition = Callable[[ModeFacts], bool]
Turns = Mapping[CudagraphMode, CudagraphMode | None]


@attrs.frozen(kw_only=True)
class Row:
    """One rule. Where `holds` is true, modes become what `turns` says; None is an error: no mode can stand in.

    Where `provided` is false, `otherwise` is used, and `lacking` says what is missing. `cause` and `keep` are the
    halves of the sentence: why, and what to change to keep the mode. `where`, `found` and `wanted` are an error's.
    Names in braces are filled in from the facts.
    """

    code: str
    holds: Condition
    turns: Turns
    provided: Condition = lambda _: True
    otherwise: Turns = attrs.Factory(dict)
    lacking: str = ""
    cause: str
    keep: str
    where: str = "compilation.cudagraph_mode"
    found: str = "{mode}"
    wanted: str = ""

    def outcomes(self, facts: ModeFacts) -> Turns:
        """What becomes of each mode that this row changes or refuses."""
        if not self.holds(facts):
            return {}
        return self.turns if self.provided(facts) else self.otherwise

    def applies(self, facts: ModeFacts, mode: CudagraphMode) -> bool:
        """True when this row changes or refuses `mode`."""
        return mode in self.outcomes(facts)

    def grants(self, facts: ModeFacts, mode: CudagraphMode) -> CudagraphMode | None:
        """The mode that is left, or None when none is. `mode` itself where the row does not apply."""
        return self.outcomes(facts).get(mode, mode)

    def why(self, facts: ModeFacts, mode: CudagraphMode) -> str:
        """What becomes of the mode, why, and what to change to keep it."""
        granted = self.grants(facts, mode)
        step = f"{mode.value} becomes {granted.value}, since " if granted else ""
        lacking = f", and {self.lacking}" if granted is not self.turns[mode] else ""
        return f"{step}{self.cause}{lacking}; {self.keep}".format_map(words(facts))

    def problem(self, facts: ModeFacts, mode: CudagraphMode, stands: str) -> Problem:
        """The refusal of `mode`; `stands` says which mode stands in the config and what became of it."""
        named = {**words(facts), "mode": stands}
        return Problem(
            where=self.where,
            found=self.found.format_map(named),
            wanted=self.wanted.format_map(named),
            hint=f"{self.code}: {self.why(facts, mode)}",
        )


def words(facts: ModeFacts) -> Mapping[str, str]:
    """What the names in braces stand for."""
    backend = facts.attention_backend or "the weakest attention backend"
    return {
        "backend": f"{backend} (level {facts.attention_support.value})",
        "all2all": facts.all2all_backend.value if facts.all2all_backend else "",
        "runner": facts.runner,
        "query_len": str(facts.query_len),
        "pipeline": str(facts.pipeline_parallel_size),
        "max_num_seqs": str(facts.max_num_seqs),
        "num_blocks": str(facts.num_blocks),
    }
