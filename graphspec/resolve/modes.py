"""The graph mode: asked, granted, and a reason for every step between. One table of rules over declared facts."""

from graphspec.config.compilation import AttentionSupport, CompileMode, CudagraphMode
from graphspec.config.parallel import All2AllBackend
from graphspec.errors import Problem, SpecError
from graphspec.resolve.decision import ModeDecision, ModeFacts, Row, Turns

NONE, PIECEWISE = CudagraphMode.NONE, CudagraphMode.PIECEWISE
FULL, DECODE_ONLY = CudagraphMode.FULL, CudagraphMode.FULL_DECODE_ONLY
BOTH = CudagraphMode.FULL_AND_PIECEWISE
NEVER, ALWAYS = AttentionSupport.NEVER, AttentionSupport.ALWAYS
UNIFORM_BATCH = AttentionSupport.UNIFORM_BATCH
HIGH_THROUGHPUT = All2AllBackend.DEEPEP_HIGH_THROUGHPUT

NO_GRAPHS: Turns = dict.fromkeys((PIECEWISE, FULL, DECODE_ONLY, BOTH), NONE)
NO_MODE: Turns = dict.fromkeys(CudagraphMode)
FULL_TO_PIECES: Turns = dict.fromkeys((FULL, DECODE_ONLY, BOTH), PIECEWISE)
FULL_TO_NONE: Turns = dict.fromkeys((FULL, DECODE_ONLY, BOTH), NONE)
NO_PIECES: Turns = {mode: mode.without_piecewise for mode in (PIECEWISE, BOTH)}
# Where the compiler makes one piece of the model, a mixed step of FULL_AND_PIECEWISE is that one piece. PIECEWISE asked
# for no whole steps at all, and a step of one piece would be one.
ONE_PIECE: Turns = {PIECEWISE: NONE, BOTH: FULL}

# A row sees the mode that the rows above it left, so the order is part of the rules.
# 1. What excludes every graph comes first: nothing below could add to it.
# 2. What excludes full graphs. It grants PIECEWISE without asking whether there are pieces, so it stands above every
#    row that takes pieces away.
# 3. What leaves no pieces by construction. It can make one graph of a whole mixed step, and then only where the tests
#    of attention below allow that: no one is refused, or lowered further, for a mode that no one asked for.
# 4. Attention, in its fixed order: mixed steps, decode steps, decode steps of several tokens. PIECEWISE is granted only
#    where pieces are cut at attention, so 5 never takes it back.
# 5. Whether there are pieces, for a mode that was asked for or came from 2.
# 6. Refusals, of the mode that is left: a combination that a row above dissolved is no error.
# No row gives a mode that a row above it would change, so deciding again changes nothing.
ROWS: tuple[Row, ...] = (
    Row(
        code="enforce_eager",
        holds=lambda f: f.enforce_eager,
        turns=NO_GRAPHS,
        cause="compilation.enforce_eager asks for no graphs at all",
        keep="set it to false",
    ),
    Row(
        code="all2all_not_capturable",
        holds=lambda f: (
            f.all2all_backend is All2AllBackend.MOONEP
            or (f.all2all_backend is HIGH_THROUGHPUT and f.data_parallel_size > 1)
        ),
        turns=NO_GRAPHS,
        cause="the token exchange {all2all} cannot be captured",
        keep="set parallel.all2all_backend to deepep_low_latency or allgather_reducescatter",
    ),
    Row(
        code="v2_stock_compile",
        holds=lambda f: f.runner_v2 and f.compile_mode is CompileMode.STOCK,
        turns=NO_GRAPHS,
        cause="a v2 runner captures nothing of a model that the stock compiler compiled",
        keep="set compilation.compile_mode to piecewise",
    ),
    Row(
        code="pooling",
        holds=lambda f: f.pooling,
        turns=FULL_TO_PIECES,
        cause="the steps of a pooling model are not captured whole",
        keep="set model.pooling to false if the model generates tokens",
    ),
    Row(
        code="connector_layerwise",
        holds=lambda f: f.connector_layerwise,
        turns=FULL_TO_PIECES,
        cause="the KV connector works between layers, and no graph may span them",
        keep="use a connector that works between steps",
    ),
    Row(
        code="runner_v1_dynamic_k",
        holds=lambda f: f.dynamic_schedule and not f.runner_full_graphs_per_k,
        turns=FULL_TO_PIECES,
        cause="a {runner} runner knows one query length, so it cannot capture full graphs per depth",
        keep="set compilation.runner to v2 or drop the table",
    ),
    Row(
        code="encoder_decoder",
        holds=lambda f: f.encoder_decoder,
        turns={**NO_PIECES, FULL: DECODE_ONLY},
        cause="a step that reads the encoder's output is captured neither whole nor in pieces",
        keep="ask for FULL_DECODE_ONLY, which captures the other steps",
    ),
    Row(
        code="attention_quant_fusion",
        holds=lambda f: f.compiled_in_pieces and f.fusion_joins_attention,
        turns=ONE_PIECE,
        provided=lambda f: f.captures_mixed_steps,
        otherwise=NO_PIECES,
        lacking="mixed steps cannot be captured whole",
        cause="attention and the quantisation after it are one kernel, so the tracer cuts no pieces",
        keep="set compilation.use_inductor_graph_partition to true or fuse_attention_quant to false",
    ),
    Row(
        code="splitting_ops_empty",
        holds=lambda f: f.compiled_in_pieces and f.splitting_ops_empty,
        turns=ONE_PIECE,
        provided=lambda f: f.captures_mixed_steps,
        otherwise=NO_PIECES,
        lacking="mixed steps cannot be captured whole",
        cause="compilation.splitting_ops is empty, so the model is one piece",
        keep="leave splitting_ops out, which cuts at attention",
    ),
    Row(
        code="mixed_full_never",
        holds=lambda f: f.attention_support is NEVER,
        turns={FULL: None},
        cause="no graph may hold the attention of {backend}",
        keep="ask for PIECEWISE with compilation.compile_mode piecewise, or choose another attention backend",
        wanted="PIECEWISE",
    ),
    Row(
        code="mixed_full_unsupported",
        holds=lambda f: f.attention_support not in (NEVER, ALWAYS),
        turns={FULL: BOTH},
        provided=lambda f: f.cuts_attention,
        otherwise={FULL: DECODE_ONLY},
        lacking="no pieces are cut at attention",
        cause="{backend} cannot be captured in mixed steps",
        keep="choose an attention backend of level always",
    ),
    Row(
        code="decode_full_unsupported",
        holds=lambda f: f.attention_support is NEVER,
        turns=FULL_TO_PIECES,
        provided=lambda f: f.cuts_attention,
        otherwise=FULL_TO_NONE,
        lacking="no pieces are cut at attention",
        cause="{backend} cannot be captured in decode steps",
        keep="choose an attention backend of a higher level",
    ),
    Row(
        code="speculation_unsupported",
        holds=lambda f: f.query_len > 1 and f.attention_support.level < UNIFORM_BATCH.level,
        turns=FULL_TO_PIECES,
        provided=lambda f: f.cuts_attention,
        otherwise=FULL_TO_NONE,
        lacking="no pieces are cut at attention",
        cause="{backend} cannot be captured in decode steps of {query_len} tokens per request",
        keep="choose an attention backend of level uniform_batch or always, or drop the speculative section",
    ),
    Row(
        code="compile_mode_not_piecewise",
        holds=lambda f: f.compile_mode is not CompileMode.PIECEWISE and not f.breakable,
        turns=NO_PIECES,
        cause="compilation.compile_mode cuts no pieces",
        keep="set it to piecewise, or compilation.breakable_cudagraph to true",
    ),
    Row(
        code="no_compiled_submodule",
        holds=lambda f: not f.model_compiled and not f.breakable,
        turns=NO_PIECES,
        cause="no part of the model is compiled, so there are no pieces",
        keep="compile a part of it, or set compilation.breakable_cudagraph to true",
    ),
    Row(
        code="attention_not_split",
        holds=lambda f: not f.cuts_attention,
        turns=NO_PIECES,
        cause="attention is not among the splitting ops, so pieces would hold it",
        keep="add it to compilation.splitting_ops, or leave that out",
    ),
    Row(
        code="full_unsupported",
        holds=lambda f: f.attention_support is NEVER,
        turns=dict.fromkeys((FULL, DECODE_ONLY, BOTH)),
        cause="no graph may hold the attention of {backend}, and no rule above lowered the mode",
        keep="ask for PIECEWISE, and report this: it is an error of the table",
        wanted="PIECEWISE",
    ),
    Row(
        code="hisparse_full",
        holds=lambda f: f.hisparse,
        turns={FULL: None},
        cause="sparse attention over offloaded blocks is captured in decode steps only",
        keep="ask for FULL_AND_PIECEWISE, or set compilation.hisparse to false",
        wanted="a mode without whole mixed steps",
    ),
    Row(
        code="adaptive_without_full_graphs",
        holds=lambda f: f.adaptive_verification,
        turns=dict.fromkeys((NONE, PIECEWISE)),
        cause="adaptive verification measures the full decode graphs, and there are none",
        keep="set speculative.enable_adaptive_verification to false, or allow full decode graphs",
        wanted="a mode with full decode graphs",
    ),
    Row(
        code="adaptive_with_pipeline",
        holds=lambda f: f.adaptive_verification and f.pipeline_parallel_size > 1,
        turns=NO_MODE,
        cause="adaptive verification measures whole steps, and a pipeline stage runs a part of one",
        keep="set speculative.enable_adaptive_verification to false, or use one stage",
        where="parallel.pipeline_parallel_size",
        found="{pipeline}",
        wanted="1",
    ),
    Row(
        code="adaptive_with_lora",
        holds=lambda f: f.adaptive_verification and f.lora,
        turns=NO_MODE,
        cause="adaptive verification measures steps without adapters",
        keep="set speculative.enable_adaptive_verification to false, or drop the lora section",
        where="lora",
        found="adapters",
        wanted="none",
    ),
    Row(
        code="mamba_blocks",
        holds=lambda f: f.mamba and f.max_num_seqs > f.num_blocks,
        turns=dict.fromkeys((FULL, DECODE_ONLY, BOTH)),
        cause="a captured decode step needs a block of Mamba state for each of {max_num_seqs} sequences",
        keep="lower max_num_seqs, or give the cache more blocks",
        where="scheduler.max_num_seqs",
        found="{max_num_seqs}",
        wanted="at most {num_blocks}, the number of blocks",
    ),
)


def decide_mode(asked: CudagraphMode, facts: ModeFacts, *, strict: bool = False) -> ModeDecision:
    """The mode that `facts` allow, with a reason for each step from the asked one.

    Raises one `SpecError` with every refusal and, with ``strict``, every step.

    >>> decision = decide_mode(CudagraphMode.FULL, ModeFacts(pooling=True))
    >>> decision.granted.value, decision.reasons[0].partition(":")[0]
    ('PIECEWISE', 'pooling')
    """
    mode, stands = asked, asked.value
    reasons: list[str] = []
    problems: list[Problem] = []
    for row in ROWS:
        if not row.applies(facts, mode):
            continue
        granted = row.grants(facts, mode)
        if granted is None:
            problems.append(row.problem(facts, mode, stands))
            continue
        reasons.append(f"{row.code}: {row.why(facts, mode)}")
        mode, stands = granted, f"{stands}, which {row.code} made {granted.value}"
    if strict:
        problems.extend(
            Problem(
                where="compilation.cudagraph_mode",
                found=asked.value,
                wanted=f"{mode.value}, since compilation.strict forbids a downgrade",
                hint=reason,
            )
            for reason in reasons
        )
    if problems:
        raise SpecError(problems)
    return ModeDecision(asked=asked, granted=mode, reasons=tuple(reasons))


def step_mode(mode: CudagraphMode, *, cascade: bool) -> CudagraphMode:
    """The mode of one step. Cascade attention depends on the prefix that its batch shares: no full graph holds it."""
    if not cascade or not mode.decode_is_full:
        return mode
    return PIECEWISE if mode.needs_piecewise else NONE
