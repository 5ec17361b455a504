"""SGLang's server arguments to a config and back. Facts as of SGLang 0.5.23, with the names of older versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
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
    read_words,
    with_file,
)
from graphspec.formats.read import read_document

_ENGINE = "SGLang"
_K = "speculative.num_speculative_tokens"
_TABLE = "speculative.num_speculative_tokens_per_batch_size"
_STEPS, _TOPK, _DRAFTS = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)

ROWS: Mapping[str, str] = {
    "model_path": "model.source",
    "tokenizer_path": "model.tokenizer",
    "dtype": "model.dtype",
    "quantization": "model.quantization",
    "context_length": "model.max_model_len",
    "is_embedding": "model.pooling",
    "tp_size": "parallel.tensor_parallel_size",
    "pp_size": "parallel.pipeline_parallel_size",
    "dp_size": "parallel.data_parallel_size",
    "dcp_size": "parallel.decode_context_parallel_size",
    "disable_custom_all_reduce": "parallel.disable_custom_all_reduce",
    "max_running_requests": "scheduler.max_num_seqs",
    "chunked_prefill_size": "scheduler.max_num_batched_tokens",
    "page_size": "kv_cache.block_size",
    "kv_cache_dtype": "kv_cache.dtype",
    "attention_backend": "kernels.attention_backend",
    "moe_runner_backend": "kernels.moe_backend",
    "enable_hisparse": "compilation.hisparse",
    "disable_cuda_graph": "compilation.enforce_eager",
    "device": "device.target",
}
"""Argument -> field. Both directions read it."""

SPECULATIVE: Mapping[str, str] = {
    "speculative_draft_model_path": "speculative.model",
    "speculative_draft_model_revision": "speculative.revision",
    "speculative_draft_model_quantization": "speculative.quantization",
    "speculative_draft_attention_backend": "speculative.attention_backend",
    "speculative_moe_runner_backend": "speculative.moe_backend",
    "speculative_draft_kv_cache_dtype": "speculative.kv_cache_dtype",
}
"""The same for drafting, where the method is one that graphspec has."""

_METHODS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
    "DSPARK": "dspark",
}
_CHAINS = ("eagle", "eagle3", "mtp", "draft_model")
_ATTENTION: Renamed = {
    "fa3": "FLASH_ATTN",
    "fa4": "FLASH_ATTN",
    "triton": "TRITON_ATTN",
    "flashinfer": "FLASHINFER",
    "torch_native": "TORCH_SDPA",
    "flex_attention": "FLEX_ATTENTION",
    "flashmla": "FLASHMLA",
    "trtllm_mla": "FLASHINFER_MLA",
    "cutlass_mla": "CUTLASS_MLA",
}
_CACHE: Renamed = {"bf16": "bfloat16"}
_RENAMED: Mapping[str, Renamed] = {
    "model.dtype": {"half": "float16", "float": "float32", "auto": None},
    "kernels.attention_backend": _ATTENTION,
    "speculative.attention_backend": _ATTENTION,
    "kv_cache.dtype": _CACHE,
    "speculative.kv_cache_dtype": _CACHE,
}
_GRAPHS: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("full", "full"): ("FULL", False),
    ("full", "breakable"): ("FULL_AND_PIECEWISE", True),
    ("full", "disabled"): ("FULL_DECODE_ONLY", False),
    ("breakable", "breakable"): ("PIECEWISE", True),
    ("disabled", "disabled"): ("NONE", False),
}
"""Kinds of graph for decode and for prefill -> mode, and whether pieces are captured at breaks."""

ADAPTIVE: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3]},
    "32": {"candidate_steps": [0, 1]},
    "64": {"candidate_steps": [0]},
}
"""What SGLang adapts between when it is given no file."""

_FLAGS = """
    skip_server_warmup trust_remote_code skip_tokenizer_init enable_dp_attention enable_dp_lm_head enable_lora
    enable_torch_compile enable_two_batch_overlap disable_radix_cache disable_overlap_schedule enable_mixed_chunk
    enable_metrics log_requests enable_hierarchical_cache enable_lmcache enable_eplb enable_deterministic_inference
    disable_cuda_graph_padding disable_decode_cuda_graph disable_prefill_cuda_graph enable_multi_layer_eagle
    enable_memory_saver enable_cache_report enable_multimodal enable_nccl_nvls enable_p2p_check enable_prefill_cp
    speculative_adaptive speculative_use_rejection_sampling speculative_use_block_verification
    speculative_dspark_align_verify_tokens_to_graph_tier
"""
_INTS = f"""
    ep_size {_STEPS} {_TOPK} {_DRAFTS} speculative_dflash_block_size speculative_dspark_block_size
    speculative_ngram_min_match_window_size speculative_ngram_max_match_window_size speculative_ngram_capacity
    speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth speculative_ngram_branch_length
    speculative_ngram_max_trie_depth max_lora_rank max_loras_per_batch port nnodes node_rank random_seed
"""
_FLOATS = """
    speculative_accept_threshold_single speculative_accept_threshold_acc mem_fraction_static schedule_conservativeness
"""
GRAMMAR = Grammar(
    kinds={
        **{name: kind_at(path) for name, path in {**ROWS, **SPECULATIVE}.items()},
        **dict.fromkeys(_FLAGS.split(), "flag"),
        **dict.fromkeys(_INTS.split(), "int"),
        **dict.fromkeys(_FLOATS.split(), "float"),
        **dict.fromkeys(("max_total_tokens", "max_prefill_tokens"), "size"),
        **dict.fromkeys("cuda_graph_bs cuda_graph_bs_decode cuda_graph_bs_prefill".split(), "list"),
        **dict.fromkeys("lora_paths lora_target_modules".split(), "list"),
        **dict.fromkeys(("json_model_override_args", "cuda_graph_config"), "json"),
    },
    aliases={
        "--model": "model_path",
        "--tp": "tp_size",
        "--dp": "dp_size",
        "--pp": "pp_size",
        "--ep": "ep_size",
        "--tensor-parallel-size": "tp_size",
        "--data-parallel-size": "dp_size",
        "--pipeline-parallel-size": "pp_size",
        "--expert-parallel-size": "ep_size",
        "--decode-context-parallel-size": "dcp_size",
        "--speculative-draft-model": "speculative_draft_model_path",
        "--speculative-draft": "speculative_draft_model_path",
    },
)

_CODE = "graphspec has no field for it, and it can change compiled code: keep engines that differ in it apart"
_SIZES = "graphspec derives the captured sizes from the scheduler's limits and the depth schedule"
_TREE = "graphspec drafts chains; this shapes a tree of drafts"
_LOSSY = (
    "accepts drafts that the target would not; graphspec's rejection_sample_method fly is another"
)
_SERVER = "belongs to the server in front of the engine; no graph depends on it"
REASONS: Mapping[str, str] = {
    **by_name(
        {
            _SIZES: """
                cuda_graph_max_bs cuda_graph_bs cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode
                cuda_graph_bs_prefill disable_cuda_graph_padding torch_compile_max_bs cuda_graph_config""",
            _SERVER: """
                host port api_key admin_api_key served_model_name chat_template reasoning_parser tool_call_parser
                skip_server_warmup log_level log_level_http log_requests enable_metrics random_seed watchdog_config
                enable_cache_report stream_interval grammar_backend sampling_backend schedule_policy
                schedule_conservativeness max_queued_requests max_prefill_tokens enable_mixed_chunk
                preferred_sampling_params decode_log_interval watchdog_timeout""",
            "decides how weights are found and loaded; weights are inputs of every graph": """
                load_format download_dir revision trust_remote_code model_loader_extra_config tokenizer_mode
                skip_tokenizer_init model_impl lora_paths enable_memory_saver""",
            "places processes on machines; no graph depends on it": """
                nnodes node_rank dist_init_addr nccl_port base_gpu_id gpu_id_step numa_node use_ray""",
            "a share of memory that SGLang measures; graphspec counts blocks: write kv_cache.num_blocks": """
                mem_fraction_static cpu_offload_gb swa_full_tokens_ratio""",
            "moves the cache between engines; write kv_cache.connector": """
                enable_hierarchical_cache enable_lmcache disaggregation_mode disaggregation_transfer_backend
                hicache_ratio hicache_size hicache_storage_backend""",
            "lies inside the group of tp_size, where graphspec has no sizes of its own": """
                attn_dp_size attn_cp_size moe_dp_size enable_dp_attention enable_dp_lm_head""",
            _CODE: """
                decode_attention_backend prefill_attention_backend enable_torch_compile enable_two_batch_overlap
                enable_deterministic_inference moe_a2a_backend deepep_mode enable_eplb fp8_gemm_runner_backend
                fp4_gemm_runner_backend enable_nccl_nvls lora_backend lora_target_modules enable_prefill_cp
                speculative_moe_a2a_backend speculative_attention_mode speculative_draft_window_size
                speculative_draft_sink_size enable_multi_layer_eagle speculative_token_map ep_size""",
            _LOSSY: "speculative_accept_threshold_single speculative_accept_threshold_acc",
            _TREE: f"""
                {_TOPK} speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
                speculative_ngram_match_type""",
            "SGLang's drafter keeps a trie of all requests; graphspec looks in a request's own tokens": """
                speculative_ngram_branch_length speculative_ngram_capacity speculative_ngram_max_trie_depth
                speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
                speculative_ngram_external_corpus_max_tokens""",
            "graphspec measures the costs of verification itself": """
                speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
                speculative_dspark_align_verify_tokens_to_graph_tier""",
            "without enable_lora SGLang does not read it": "max_loras_per_batch max_lora_rank",
        }
    ),
    "speculative_adaptive_config": "without speculative_adaptive SGLang does not read it",
    "config": "the name of a file of settings",
}
"""Why an argument is left."""

ABSENT: Mapping[str, str] = {
    "model.dtype": "SGLang takes the checkpoint's own type, and float16 for float32; graphspec's default is float32",
    "scheduler.max_num_seqs": "SGLang takes what memory allows, and 48 when it drafts; graphspec's default is 64",
    "scheduler.max_num_batched_tokens": "SGLang takes 2048 to 16384 by device; graphspec's default is 2048",
    "kv_cache.block_size": "SGLang takes 1 unless the attention backend wants more; graphspec's default is 16",
    "kv_cache.num_blocks": "SGLang measures what fits in memory; graphspec's default is 1024",
    "compilation.compile_mode": "SGLang compiles only when asked to; graphspec's default is piecewise",
    "device.target": "SGLang takes the device that it finds; graphspec's default is cpu",
}
"""Fields whose default differs, when the input does not give them."""


def from_sglang(source: Mapping[str, Any] | Sequence[str]) -> Carried:
    """The config data of server arguments: a mapping by their Python or YAML names, or the words of a command line.

    A tree of drafts becomes the chain of its steps. With ``speculative_adaptive``, each slot of the table gives its
    batch sizes the largest of its candidate steps: that depth is what must be captured, and what SGLang goes up to.

    >>> from_sglang(["--model-path", "m", "--tp", "2"]).data["parallel"]
    {'tensor_parallel_size': 2}
    """
    if isinstance(source, Mapping):
        return from_settings(read_keys(source, GRAMMAR))
    starts = [i for i, word in enumerate(source) if word == "serve" or word.startswith("sglang.")]
    words = source[starts[0] + 1 :] if starts else source
    return from_settings(with_file(read_words(words, GRAMMAR), GRAMMAR))


def from_settings(settings: Settings) -> Carried:
    """`from_sglang` for arguments that were read before."""
    carrier = Carrier(_ENGINE, settings)
    _overrides(carrier)
    _experts(carrier, settings.values)
    _cache(carrier, settings.values)
    _graphs(carrier)
    _scheduler(carrier)
    _lora(carrier, settings.values)
    _speculative(carrier, settings.values)
    carrier.carry_all(ROWS, _RENAMED)
    return carrier.finish(REASONS, ABSENT)


def _overrides(carrier: Carrier) -> None:
    name = "json_model_override_args"
    if carrier.expand(name):
        overrides = {inner.partition(".")[2]: carrier.take(inner) for inner in carrier.under(name)}
        carrier.put("model.hf_overrides", overrides, name)


def _experts(carrier: Carrier, given: Mapping[str, Any]) -> None:
    experts, devices = carrier.number("ep_size"), given.get("tp_size", 1)
    if experts in (1, devices) and experts is not None:
        carrier.put("parallel.enable_expert_parallel", experts > 1, "ep_size")
    elif experts is not None:
        why = f"spreads experts over {experts} of {devices} devices; graphspec over all or none"
        carrier.leave("ep_size", why, experts)
    backend, mode = given.get("moe_a2a_backend"), given.get("deepep_mode")
    names = {"normal": "deepep_high_throughput", "low_latency": "deepep_low_latency"}
    if backend == "deepep" and mode in names:
        carrier.note("moe_a2a_backend", carrier.take("moe_a2a_backend"), "parallel.all2all_backend", names[mode], "of the two kinds that deepep_mode names")
        carrier.put("parallel.all2all_backend", names[mode], "moe_a2a_backend")
        carrier.take("deepep_mode")


def _cache(carrier: Carrier, given: Mapping[str, Any]) -> None:
    tokens, page = carrier.number("max_total_tokens"), given.get("page_size")
    if tokens is not None and type(page) is int and page > 0:
        blocks = tokens // page + 1
        why = f"blocks of {page} tokens, and block 0 for padding rows"
        carrier.note("max_total_tokens", tokens, "kv_cache.num_blocks", blocks, why)
        carrier.put("kv_cache.num_blocks", blocks, "max_total_tokens")
    elif tokens is not None:
        carrier.leave("max_total_tokens", "graphspec counts blocks: page_size is needed", tokens)
