"""The facts of an engine that its graph mode depends on, gathered from the sections that state them."""

from graphspec.config.engine import EngineConfig
from graphspec.config.kernels import attention_backend_name
from graphspec.config.schedule import KSchedule
from graphspec.config.speculative import SpeculativeConfig
from graphspec.resolve.decision import ModeFacts
from graphspec.resolve.model_facts import ModelFacts
from graphspec.resolve.runner import RunnerDecision


def mode_facts(
    config: EngineConfig,
    model: ModelFacts,
    *,
    runner: RunnerDecision,
    schedule: KSchedule,
    k: int,
    max_num_seqs: int,
    section: SpeculativeConfig | None = None,
) -> ModeFacts:
    """The target's facts. A draft has its own; none of its numbers enters here.

    `section` is the speculative section where it is not the config's own: without what its method does not read.
    """
    section = config.speculative if section is None else section
    asked, splitting = config.compilation, config.compilation.splitting_ops
    connector = config.kv_cache.connector
    return ModeFacts(
        attention_support=asked.attention_support,
        attention_backend=attention_backend_name(config.kernels.attention_backend) or "",
        query_len=1 + k,
        compile_mode=asked.compile_mode,
        splits_attention=splitting is None or any("attention" in op for op in splitting),
        splitting_ops_empty=splitting == (),
        inductor_partition=asked.use_inductor_graph_partition,
        fuse_attention_quant=asked.fuse_attention_quant,
        breakable=asked.breakable_cudagraph,
        enforce_eager=asked.enforce_eager,
        pooling=config.model.pooling,
        encoder_decoder=bool(model.is_encoder_decoder),
        connector_layerwise=connector is not None and connector.layerwise,
        all2all_backend=config.parallel.all2all_backend,
        data_parallel_size=config.parallel.data_parallel_size,
        pipeline_parallel_size=config.parallel.pipeline_parallel_size,
        runner=runner.granted,
        runner_v2=runner.granted == "v2",
        runner_full_graphs_per_k=runner.facts.full_graphs_per_k,
        dynamic_schedule=len(schedule.depths) > 1,
        adaptive_verification=section is not None and section.enable_adaptive_verification,
        lora=config.lora is not None,
        hisparse=asked.hisparse,
        mamba=bool(model.has_mamba),
        max_num_seqs=max_num_seqs,
        num_blocks=config.kv_cache.num_blocks,
    )
