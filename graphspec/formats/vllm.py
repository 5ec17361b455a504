"""vLLM's engine arguments to a config and back. Facts as of vLLM 0.33.0, with the names of older versions."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import policies
from graphspec.formats.carry import (
    Carried,
    Carrier,
    Exporter,
    Grammar,
    Renamed,
    Settings,
    by_name,
    kind_at,
    read_keys,
    read_size,
    read_words,
    with_file,
)

_ENGINE = "vLLM"
_SPEC = "speculative_config"

ROWS: Mapping[str, str] = {
    "model": "model.source",
    "model_weights": "model.weights",
    "tokenizer": "model.tokenizer",
    "dtype": "model.dtype",
    "quantization": "model.quantization",
    "max_model_len": "model.max_model_len",
    "hf_overrides": "model.hf_overrides",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "pipeline_parallel_size": "parallel.pipeline_parallel_size",
    "data_parallel_size": "parallel.data_parallel_size",
    "prefill_context_parallel_size": "parallel.prefill_context_parallel_size",
    "decode_context_parallel_size": "parallel.decode_context_parallel_size",
    "enable_expert_parallel": "parallel.enable_expert_parallel",
    "all2all_backend": "parallel.all2all_backend",
    "disable_custom_all_reduce": "parallel.disable_custom_all_reduce",
    "distributed_executor_backend": "parallel.distributed_executor_backend",
    "max_parallel_loading_workers": "parallel.max_parallel_loading_workers",
    "ray_workers_use_nsight": "parallel.ray_workers_use_nsight",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "async_scheduling": "scheduler.async_scheduling",
    "block_size": "kv_cache.block_size",
    "num_gpu_blocks_override": "kv_cache.num_blocks",
    "kv_cache_dtype": "kv_cache.dtype",
    "enable_prefix_caching": "kv_cache.enable_prefix_caching",
    "kv_transfer_config.kv_connector": "kv_cache.connector.name",
    "attention_backend": "kernels.attention_backend",
    "moe_backend": "kernels.moe_backend",
    "enforce_eager": "compilation.enforce_eager",
    "compilation_config.mode": "compilation.compile_mode",
    "compilation_config.cudagraph_mode": "compilation.cudagraph_mode",
    "compilation_config.splitting_ops": "compilation.splitting_ops",
    "compilation_config.use_inductor_graph_partition": "compilation.use_inductor_graph_partition",
    "compilation_config.pass_config.fuse_attn_quant": "compilation.fuse_attention_quant",
    "watermark_config.key": "watermark.key",
    "watermark_config.algorithm": "watermark.algorithm",
}
"""Argument -> field. Both directions read it."""

OLDER: Mapping[str, str] = {
    "attention_config.backend": "kernels.attention_backend",
    "kernel_config.moe_backend": "kernels.moe_backend",
    "compilation_config.level": "compilation.compile_mode",
    "compilation_config.pass_config.enable_attn_fusion": "compilation.fuse_attention_quant",
}
"""Second names of the same, read only."""

_DTYPES = {"half": "float16", "float": "float32", "auto": None}
_MODES = {"NONE": "none", "STOCK_TORCH_COMPILE": "stock", "VLLM_COMPILE": "piecewise"}
_LEVELS = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
_RENAMED: Mapping[str, Renamed] = {"model.dtype": _DTYPES}

_SECTIONS = (
    "compilation_config",
    "compilation_config.pass_config",
    "attention_config",
    "kernel_config",
    "kv_transfer_config",
    "watermark_config",
)
_LEGACY = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
_FLAGS = """
    aggregate_engine_logging allow_credentials calculate_kv_scales data_parallel_external_lb data_parallel_hybrid_lb
    disable_cascade_attn disable_chunked_mm_input disable_fastapi_docs disable_hybrid_kv_cache_manager
    disable_log_requests disable_log_stats disable_sliding_window disable_uvicorn_access_log enable_auto_tool_choice
    enable_chunked_prefill enable_dbo enable_eplb enable_log_outputs enable_log_requests enable_lora enable_mm_embeds
    enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers enable_server_load_tracking
    enable_sleep_mode enable_ssl_refresh fully_sharded_loras headless kv_cache_metrics kv_sharing_fast_prefill
    language_model_only skip_mm_profiling skip_tokenizer_init trust_remote_code use_tqdm_on_load
"""
_LISTS = """
    allowed_media_domains api_key collect_detailed_traces cudagraph_capture_sizes device_ids kv_cache_dtype_skip_layers
    logits_processors lora_modules lora_target_modules middleware numa_bind_cpus numa_bind_nodes served_model_name
"""
_JSON = f"""
    {_SPEC} kv_transfer_config compilation_config attention_config kernel_config watermark_config pooler_config
    kv_events_config ec_transfer_config additional_config override_generation_config
"""
GRAMMAR = Grammar(
    kinds={
        **{name: kind_at(path) for name, path in ROWS.items() if "." not in name},
        **dict.fromkeys(_FLAGS.split(), "flag"),
        **dict.fromkeys(_LISTS.split(), "list"),
        **dict.fromkeys(_JSON.split(), "json"),
        **dict.fromkeys(("max_num_batched_tokens", "kv_cache_memory_bytes"), "size"),
        **dict.fromkeys(("max_loras", "max_lora_rank", "spec_tokens", "seed", "port"), "int"),
        **dict.fromkeys(("gpu_memory_utilization", "cpu_offload_gb", "swap_space"), "float"),
        # A size, or auto; and paths, although its name is that of a switch.
        **dict.fromkeys(("max_model_len", "disable_access_log_for_endpoints"), "text"),
    },
    aliases={
        "-tp": "tensor_parallel_size",
        "-pp": "pipeline_parallel_size",
        "-dp": "data_parallel_size",
        "-dcp": "decode_context_parallel_size",
        "-pcp": "prefill_context_parallel_size",
        "-ep": "enable_expert_parallel",
        "-q": "quantization",
        "-sc": _SPEC,
        "-cc": "compilation_config",
        "-ac": "attention_config",
        "-n": "nnodes",
        "-r": "node_rank",
        "-O": "optimization_level",
    },
    positional="model",
    inverse=True,
    nested=True,
)

_CODE = "graphspec has no field for it, and it can change compiled code: keep engines that differ in it apart"
_SIZES = "graphspec derives the captured sizes from the scheduler's limits and the depth schedule"
_SERVER = "belongs to the server in front of the engine; no graph depends on it"
_LOADING = "decides how weights are found and loaded; weights are inputs of every graph"
_MEMORY = "a share of memory that vLLM measures; graphspec counts blocks: write kv_cache.num_blocks"
_SAMPLING = "decides what is sampled or allowed of a request; no graph depends on it"
_WATCH = "logging, metrics and tracing; no graph depends on it"
_LAUNCH = "places processes on machines; no graph depends on it"
_MEDIA = "about images, audio or video; graphspec captures the language model alone"
REASONS: Mapping[str, str] = {
    **by_name(
        {
            _SIZES: "cudagraph_capture_sizes max_cudagraph_capture_size max_seq_len_to_capture cuda_graph_sizes",
            _SERVER: """
                host port uds api_key allow_credentials allowed_origins allowed_methods allowed_headers root_path
                middleware ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh
                served_model_name chat_template response_role tool_call_parser tool_parser_plugin tool_server
                enable_auto_tool_choice reasoning_parser lora_modules uvicorn_log_level disable_fastapi_docs
                disable_uvicorn_access_log api_server_count headless grpc_port enable_request_id_headers enable_log_outputs
                enable_prompt_tokens_details enable_server_load_tracking""",
            _LOADING: """
                load_format download_dir revision code_revision tokenizer_revision hf_token hf_config_path
                trust_remote_code config_format model_loader_extra_config ignore_patterns use_tqdm_on_load
                pt_load_map_location safetensors_load_strategy tokenizer_mode skip_tokenizer_init generation_config
                enable_sleep_mode weight_transfer_config""",
            _MEMORY: """
                gpu_memory_utilization kv_cache_memory_bytes swap_space cpu_offload_gb kv_offloading_size
                kv_offloading_backend""",
            _SAMPLING: """
                seed max_logprobs logprobs_mode override_generation_config logits_processors scheduling_policy
                structured_outputs_config reasoning_config max_num_queued_reqs max_num_queued_tokens stream_interval
                logits_processor_pattern return_sampling_mask enable_chunked_prefill long_prefill_token_threshold
                max_num_scheduled_tokens scheduler_cls watermark prefix_caching_hash_algo""",
            _WATCH: """
                disable_log_stats disable_log_requests enable_log_requests max_log_len otlp_traces_endpoint
                collect_detailed_traces kv_cache_metrics cudagraph_metrics profiler_config logging_config log_level
                log_config_file kv_events_config aggregate_engine_logging show_hidden_metrics_for_version
                watchdog_config""",
            _LAUNCH: """
                nnodes node_rank master_addr master_port numa_bind numa_bind_nodes numa_bind_cpus device_ids
                data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
                data_parallel_rpc_port data_parallel_backend data_parallel_hybrid_lb data_parallel_external_lb
                distributed_timeout_seconds worker_cls worker_extension_cls""",
            _MEDIA: """
                limit_mm_per_prompt allowed_local_media_path allowed_media_domains media_io_kwargs mm_processor_kwargs
                mm_processor_cache_gb mm_processor_cache_type mm_encoder_only mm_encoder_tp_mode skip_mm_profiling
                language_model_only enable_mm_embeds mm_encoder_attn_backend ec_transfer_config ec_manager_config
                disable_chunked_mm_input video_pruning_rate""",
            _CODE: """
                quantization_config model_impl disable_sliding_window disable_cascade_attn enable_dbo ubatch_size
                enable_eplb eplb_config expert_placement_strategy linear_backend mamba_config mamba_cache_dtype
                mamba_ssm_cache_dtype mamba_block_size mamba_backend additional_config attention_config kernel_config
                compilation_config fully_sharded_loras lora_dtype lora_target_modules max_cpu_loras
                kv_cache_dtype_skip_layers calculate_kv_scales kv_sharing_fast_prefill ir_op_priority
                dcp_comm_backend cp_kv_cache_interleave_size dcp_kv_cache_interleave_size enable_prompt_embeds
                disable_hybrid_kv_cache_manager model_class_overrides diffusion_config monokernel""",
        }
    ),
    "compilation_config.cudagraph_capture_sizes": _SIZES,
    "compilation_config.max_cudagraph_capture_size": _SIZES,
    "compilation_config.cache_dir": "graphspec keeps its own cache",
    "optimization_level": "stands for many settings at once: 0 neither compiles nor captures, 1 compiles and captures "
    "pieces, 2 and 3 are graphspec's default; write compilation.compile_mode and cudagraph_mode",
    "performance_mode": "changes vLLM's own defaults; write the sizes themselves",
    "kv_transfer_config": "set up on the connector's side; no graph depends on it",
    "watermark_config": "graphspec marks with the key and the algorithm alone",
    "pooler_config": "what is made of the hidden states after the model",
    "convert": "turns a generating model into a pooling one; write model.pooling",
    "task": "replaced by runner and convert in vLLM; write model.pooling",
    "enable_lora": "adapters are off; graphspec has no lora section then",
    "max_loras": "without enable_lora vLLM does not read it",
    "max_lora_rank": "without enable_lora vLLM does not read it",
    "config": "the name of a file of settings",
    **dict.fromkeys(
        "speculative_model num_speculative_tokens speculative_draft_tensor_parallel_size speculative_max_model_len "
        "ngram_prompt_lookup_max ngram_prompt_lookup_min speculative_disable_by_batch_size".split(),
        "removed from vLLM: it belongs into speculative_config",
    ),
    **{
        f"{_SPEC}.{name}": why
        for name, why in by_name(
            {
                "derived by vLLM, not a user's setting": "target_model_config target_parallel_config "
                "draft_model_config draft_parallel_config custom_method speculator_config",
                "removed from vLLM; num_speculative_tokens_per_batch_size gives a depth of 0 to large batches": "disable_by_batch_size",
                "removed from vLLM; graphspec drafts chains, and a tree is a registered method's": "speculative_token_tree",
                "removed from vLLM; enable_adaptive_verification measures its costs itself": "dspark_confidence_threshold dspark_budget_frac dspark_sps_curve dspark_online_sts",
                "removed from vLLM; write synthetic_acceptance_rates or synthetic_acceptance_length": "synthetic_acceptance_rate",
                "removed from vLLM with its first engine": "disable_logprobs disable_mqa_scorer acceptance_method "
                "posterior_threshold posterior_alpha ngram_prompt_lookup_max ngram_prompt_lookup_min",
            }
        ).items()
    },
}
"""Why an argument is left."""

ABSENT: Mapping[str, str] = {
    "model.dtype": "vLLM takes the checkpoint's own type, and float16 for float32; graphspec's default is float32",
    "scheduler.max_num_seqs": "vLLM takes 256, or 1024 on large devices; graphspec's default is 64",
    "scheduler.max_num_batched_tokens": "vLLM takes 2048 to 16384 by device and use; graphspec's default is 2048",
    "kv_cache.num_blocks": "vLLM measures what fits in memory; graphspec's default is 1024",
    "device.target": "vLLM takes the platform that it finds; graphspec's default is cpu",
}
"""Fields whose default differs, when the input does not give them."""

_ENVIRONMENT: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    "VLLM_USE_V2_MODEL_RUNNER": {
        "1": ("compilation.runner", "v2"),
        "0": ("compilation.runner", "v1"),
    },
    "VLLM_USE_BREAKABLE_CUDAGRAPH": {"1": ("compilation.breakable_cudagraph", True)},
}


def from_vllm(source: Mapping[str, Any] | Sequence[str]) -> Carried:
    """The config data of engine arguments: a mapping by their Python or YAML names, or the words of a command line.

    Raises one `SpecError` with every problem, by the names that were written.

    >>> from_vllm(["vllm", "serve", "m", "-tp", "2", "-sc.method", "mtp"]).data["parallel"]
    {'tensor_parallel_size': 2}
    """
    if isinstance(source, Mapping):
        return from_settings(read_keys(source, GRAMMAR))
    return from_settings(with_file(_read_command(source), GRAMMAR))


def _read_command(words: Sequence[str]) -> Settings:
    # What stands before the arguments is the program, and variables set for it.
    start = 0
    for i, word in enumerate(words):
        if word.startswith("--"):
            break
        if word == "serve" or word.startswith("vllm.entrypoints"):
            start = i + 1
            break
    flags = [part for word in words[start:] for part in _level(word)]
    settings = read_words(flags, GRAMMAR)
    variables = dict(word.split("=", 1) for word in words[:start] if "=" in word)
    return attrs.evolve(settings, values={**variables, **settings.values})


def _level(word: str) -> tuple[str, ...]:
    # -O3 and -O=3 stand for -O 3.
    match = re.fullmatch("-O=?([0-9]+)", word)
    return ("-O", match[1]) if match else (word,)


def from_settings(settings: Settings) -> Carried:
    """`from_vllm` for arguments that were read before."""
    carrier = Carrier(_ENGINE, settings)
    for section in _SECTIONS:
        carrier.expand(section)
    _length(carrier)
    _lora(carrier)
    _pooling(carrier)
    for name in ("compilation_config.mode", "compilation_config.level"):
        _mode(carrier, name)
    if carrier.expand("attention_config.hisparse_config"):
        carrier.put("compilation.hisparse", True, "attention_config.hisparse_config")
    for name, values in _ENVIRONMENT.items():
        value = carrier.take(name)
        if isinstance(value, str) and value in values:
            carrier.put(*values[value], name)
        elif value is not None:
            carrier.leave(name, "a variable that graphspec does not read", value)
    carrier.carry_all(ROWS, _RENAMED)
    carrier.carry_all(OLDER, _RENAMED)
    _speculative(carrier)
    return carrier.finish(REASONS, ABSENT)


def _length(carrier: Carrier) -> None:
    for name in ("max_model_len", "max_num_batched_tokens"):
        value = carrier.take(name)
        size = read_size(value) if isinstance(value, str) else value
        if name == "max_model_len" and value in ("auto", -1, "-1"):
            carrier.leave(name, "what fits in memory; graphspec takes the checkpoint's", value)
        elif isinstance(value, str) and size is None:
            carrier.wrong(name, value, "an integer, or one with a suffix such as 16k")
        elif value is not None:
            carrier.put(ROWS[name], size, name)


def _lora(carrier: Carrier) -> None:
    value = carrier.take("enable_lora")
    if value is True:
        carrier.put("lora", {}, "enable_lora")
        carrier.carry("max_loras", "lora.max_loras")
        carrier.carry("max_lora_rank", "lora.max_lora_rank")
    elif value is False:
        carrier.leave("enable_lora", REASONS["enable_lora"], value)
    elif value is not None:
        carrier.wrong("enable_lora", value, "true or false")


def _pooling(carrier: Carrier) -> None:
    value = carrier.take("runner")
    pooling = {"pooling": True, "generate": False}.get(value) if isinstance(value, str) else None
    if pooling is not None:
        carrier.note("runner", value, "model.pooling", pooling, "what the runner is for")
        carrier.put("model.pooling", pooling, "runner")
    elif value is not None:
        carrier.leave("runner", "only pooling and generate say what model.pooling is", value)


def _mode(carrier: Carrier, name: str) -> None:
    value = carrier.take(name)
    if value is None:
        return
    path = "compilation.compile_mode"
    number = type(value) is int and 0 <= value < len(_LEVELS)
    level = _LEVELS[value] if number else str(value).upper()
    if level in _MODES:
        carrier.note(name, value, path, _MODES[level], "graphspec's name for the same")
        carrier.put(path, _MODES[level], name)
    elif level in _LEVELS:
        carrier.leave(name, "graphspec compiles stock, piecewise or not at all", value)
    else:
        carrier.wrong(name, value, f"0 to 3, or one of {', '.join(_LEVELS)}")


def _speculative(carrier: Carrier) -> None:
    carrier.expand(_SPEC)
    _method(carrier)
    _verification(carrier)
    for name in policies(SpeculativeConfig):
        carrier.carry(f"{_SPEC}.{name}", f"speculative.{name}")
    for flag, name in _LEGACY.items():
        carrier.carry(flag, f"speculative.{name}")


def _method(carrier: Carrier) -> None:
    name = f"{_SPEC}.method"
    value = carrier.take(name)
    if value == "mlp_speculator":
        hint = "vLLM removed it; a registered method can take its place"
        carrier.wrong(name, value, "a drafting method that exists", hint)
    elif value is not None:
        if value == "medusa":
            why = "no longer part of vLLM; graphspec has it as a registered method"
            carrier.note(name, value, "speculative.method", value, why)
        carrier.put("speculative.method", value, name)


def _verification(carrier: Carrier) -> None:
    name, path = f"{_SPEC}.rejection_sample_method", "speculative.rejection_sample_method"
    value = carrier.take(name)
    if value in ("strict", "probabilistic"):
        # The older names told apart how drafts are drawn; the rule of acceptance is one.
        why = "an older name: how drafts are drawn is draft_sample_method"
        carrier.note(name, value, path, "standard", why)
        carrier.put(path, "standard", name)
        if value == "probabilistic":
            carrier.put("speculative.draft_sample_method", value, name)
    elif value is not None:
        carrier.put(path, value, name)


_OMITTED = frozenset(
    """
    parallel.tensor_parallel_size parallel.pipeline_parallel_size parallel.data_parallel_size
    parallel.prefill_context_parallel_size parallel.decode_context_parallel_size parallel.enable_expert_parallel
    parallel.disable_custom_all_reduce parallel.ray_workers_use_nsight compilation.enforce_eager
    compilation.use_inductor_graph_partition compilation.fuse_attention_quant model.hf_overrides
    """.split()
)
"""Fields with the same default on both sides, as those of the speculative section. Others are always written."""

_ABROAD: Mapping[str, frozenset[str]] = {
    "kernels.attention_backend": frozenset({"PAGED", "TREE_ATTN"}),
    "speculative.attention_backend": frozenset({"PAGED", "TREE_ATTN"}),
    "kv_cache.dtype": frozenset({"float32", "int8"}),
    "speculative.kv_cache_dtype": frozenset({"float32", "int8"}),
}
"""Names that vLLM does not have."""

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_NO_HOME: Mapping[str, str] = {
    "compilation.runner": "a variable for vLLM: VLLM_USE_V2_MODEL_RUNNER is 1 or 0",
    "compilation.breakable_cudagraph": "a variable for vLLM: VLLM_USE_BREAKABLE_CUDAGRAPH is 1",
    "compilation.attention_support": "vLLM reads it off its attention backends",
    "compilation.hisparse": "vLLM wants the sizes too: write attention_config.hisparse_config",
    "compilation.strict": "vLLM lowers a mode with a warning",
    "kv_cache.connector.layerwise": "vLLM asks its connector",
    "device.target": "vLLM takes the platform that it finds",
    "program": "vLLM has its own models",
}


def to_vllm(config: EngineConfig) -> Carried:
    """The engine arguments that say what `config` says, and what vLLM has no argument for."""
    exporter = Exporter(_ENGINE, config)
    for name, path in ROWS.items():
        _export(exporter, name, path)
    for name in policies(SpeculativeConfig):
        _export(exporter, f"{_SPEC}.{name}", f"speculative.{name}")
    if exporter.take("model.pooling"):
        exporter.put("runner", "pooling", "model.pooling")
    _export_lora(exporter)
    return exporter.done(_NO_HOME)


def _export(exporter: Exporter, name: str, path: str) -> None:
    value = exporter.take(path)
    same = path in _OMITTED or path.startswith("speculative.")
    if value is None or (same and exporter.is_default(path, value)):
        return
    if isinstance(value, str) and {value, value.upper()} & _ABROAD.get(path, frozenset()):
        exporter.leave(path, "vLLM knows no such name", value)
        return
    if path == "model.hf_overrides" and isinstance(value, str):
        exporter.leave(path, "vLLM takes a function only in Python, not by name", value)
        return
    if path == "kv_cache.connector.name":
        exporter.note(path, value, name, value, "vLLM wants kv_role beside it, which no config has")
    if path == "compilation.compile_mode":
        value = _LEVELS.index({new: old for old, new in _MODES.items()}[value])
    exporter.put(name, value, path)


def _export_lora(exporter: Exporter) -> None:
    loras, rank = exporter.take("lora.max_loras"), exporter.take("lora.max_lora_rank")
    if loras is None:
        return
    exporter.put("enable_lora", True, "lora")
    exporter.put("max_loras", loras, "lora.max_loras")
    if rank in _RANKS:
        exporter.put("max_lora_rank", rank, "lora.max_lora_rank")
    else:
        exporter.leave("lora.max_lora_rank", f"vLLM takes one of {_RANKS}", rank)


def vllm_command(settings: Mapping[str, Any]) -> list[str]:
    """The command line that gives engine arguments to ``vllm serve``.

    >>> vllm_command({"model": "m", "enforce_eager": True, "speculative_config": {"method": "mtp"}})
    ['vllm', 'serve', 'm', '--enforce-eager', '--speculative-config', '{"method": "mtp"}']
    """
    words = ["vllm", "serve", *([settings["model"]] if "model" in settings else [])]
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if name == "model":
            continue
        if type(value) is bool:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            words += [f"--{flag}", json.dumps(value)]
        else:
            words += [f"--{flag}", str(value)]
    return words
