"""TensorRT-LLM's LLM API options to a config and back. Facts of its llm_args.py of 2026, with older decoding types."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from graphspec.config.engine import EngineConfig
from graphspec.formats.carry import (
    Carried,
    Carrier,
    Exporter,
    Grammar,
    Renamed,
    Settings,
    by_name,
    read_keys,
)
from graphspec.formats.document import Document
from graphspec.formats.yaml_reader import read_yaml
from graphspec.text import did_you_mean, one_of

_ENGINE = "TensorRT-LLM"
_S, _KIND = "speculative_config", "speculative_config.decoding_type"
_K, _TABLE = (f"speculative.num_speculative_tokens{end}" for end in ("", "_per_batch_size"))
_MODE = "compilation.cudagraph_mode"

ROWS: Mapping[str, str] = {
    "model": "model.source",
    "tokenizer": "model.tokenizer",
    "dtype": "model.dtype",
    "max_seq_len": "model.max_model_len",
    "model_kwargs": "model.hf_overrides",
    "encode_only": "model.pooling",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "pipeline_parallel_size": "parallel.pipeline_parallel_size",
    "max_batch_size": "scheduler.max_num_seqs",
    "max_num_tokens": "scheduler.max_num_batched_tokens",
    "kv_cache_config.tokens_per_block": "kv_cache.block_size",
    "kv_cache_config.dtype": "kv_cache.dtype",
    "kv_cache_config.enable_block_reuse": "kv_cache.enable_prefix_caching",
    "kv_connector_config.connector": "kv_cache.connector.name",
    "attn_backend": "kernels.attention_backend",
    "moe_config.backend": "kernels.moe_backend",
    "lora_config.max_loras": "lora.max_loras",
    "lora_config.max_lora_rank": "lora.max_lora_rank",
}
"""Option -> field. Both directions read it."""

SPECULATIVE: Mapping[str, str] = {
    f"{_S}.speculative_model": "speculative.model",
    f"{_S}.speculative_model_dir": "speculative.model",
}
"""The same for drafting: two names of one option."""

METHODS: Mapping[str, str] = {
    "Eagle": "eagle3",
    "Eagle3": "eagle3",
    "MTP": "mtp",
    "NGram": "ngram",
    "Draft_Target": "draft_model",
    "PARD": "draft_model",
    "DFlash": "dflash",
    "DSpark": "dspark",
    "Medusa": "medusa",
    "SaveState": "extract_hidden_states",
}
"""Decoding type -> method."""

NO_METHOD: Mapping[str, str] = {
    "Lookahead": "it verifies n-grams that the target itself makes in extra branches; graphspec has no such method",
    "SA": "it matches in a suffix automaton; graphspec's nearest methods are ngram and suffix",
    "User_Provided": "its drafter is a Python object; write a custom class, or register a method",
    "AUTO": "TensorRT-LLM chooses n-gram settings by batch size; write method ngram with a depth",
}
"""Decoding types that no method stands for, and why."""

_DEPTHS = {
    "MTP": "num_nextn_predict_layers",
    "Medusa": "num_medusa_heads",
    "DSpark": "block_size",
}
"""Options of one decoding type that give the depth, beside max_draft_len."""

_MOE: Renamed = {
    "AUTO": "auto",
    "CUTLASS": "cutlass",
    "DEEPGEMM": "deep_gemm",
    "TRITON": "triton",
    "MARLIN": "marlin",
}
_RENAMED: Mapping[str, Renamed] = {"model.dtype": {"auto": None}, "kernels.moe_backend": _MOE}
_GRAPHS = {
    (True, "disabled"): ("FULL_DECODE_ONLY", False),
    (True, "piecewise"): ("FULL_AND_PIECEWISE", False),
    (True, "breakable"): ("FULL_AND_PIECEWISE", True),
    (False, "disabled"): ("NONE", False),
}
"""Whether decode steps are captured, and how prefill is -> mode, and whether pieces are captured at breaks."""

_GRAPH_NAMES = ("cuda_graph_config", "torch_compile_config", "prefill_cuda_graph_backend")
_SECTIONS = ("kv_cache_config", "kv_connector_config", "moe_config", "lora_config")
_CODE = "graphspec has no field for it, and it can change compiled code: keep engines that differ in it apart"
_TREE = "shapes a tree of drafts; graphspec drafts the chain of max_draft_len"
_LOSSY = (
    "keeps drafts that the target would not; graphspec's rejection_sample_method fly is another"
)
_CHECKPOINT = "graphspec reads it from the draft checkpoint"
REASONS: Mapping[str, str] = {
    **by_name(
        {
            "graphspec derives the captured sizes from the scheduler's limits and the depth schedule": """
                cuda_graph_config prefill_capture_num_tokens torch_compile_config.capture_num_tokens""",
            "decides how weights and tokenizer are found and loaded; weights are inputs of every graph": """
                revision tokenizer_revision tokenizer_mode custom_tokenizer skip_tokenizer_init trust_remote_code
                load_format checkpoint_format checkpoint_loader""",
            "a share of memory, or what becomes of blocks; graphspec counts blocks: write kv_cache.num_blocks": """
                kv_cache_config peft_cache_config""",
            "moves the cache between engines; write kv_cache.connector": """
                kv_connector_config cache_transceiver_config""",
            "about requests, sampling, logging or processes; no graph depends on it": """
                max_input_len max_beam_width guided_decoding_backend scheduler_config stream_interval print_iter_log
                enable_iter_perf_stats enable_chunked_prefill reasoning_parser return_perf_metrics gpus_per_node
                num_postprocess_workers orchestrator_type otlp_traces_endpoint generation_config sampler_type
                gather_generation_logits batched_logits_processor telemetry_config env_overrides""",
            "TensorRT-LLM has several kinds of it inside the tensor parallel group; graphspec has none": """
                context_parallel_size cp_config enable_attention_dp attention_dp_config moe_tensor_parallel_size
                moe_cluster_parallel_size enable_lm_head_tp_in_adp pp_partition""",
            _CODE: """
                torch_compile_config moe_config lora_config sparse_attention_config enable_autotuner nvfp4_gemm_config
                enable_min_latency force_dynamic_quantization use_cute_dsl_blockscaling_mm quant_config
                enable_in_graph_sampling backend""",
        }
    ),
    **{
        f"{_S}.{name}": why
        for name, why in by_name(
            {
                _TREE: """
                    eagle_choices use_dynamic_tree dynamic_tree_max_topK max_non_leaves_per_layer num_eagle_layers
                    medusa_choices""",
                _LOSSY: """
                    greedy_sampling posterior_threshold use_relaxed_acceptance_for_thinking relaxed_topk relaxed_delta
                    begin_thinking_phase_token end_thinking_phase_token""",
                _CHECKPOINT: """
                    mask_token_id target_layer_ids eagle3_layers_to_capture eagle3_model_arch markov_rank
                    markov_head_type""",
                "TensorRT-LLM turns drafting off by what is accepted; graphspec does not": """
                    acceptance_rate_window_size acceptance_rate_threshold acceptance_window
                    acceptance_length_threshold""",
                "one model holds target and draft, as always in graphspec": """
                    eagle3_one_model mtp_eagle_one_model""",
                "graphspec takes the earliest of the longest matches, in the request's own tokens": """
                    is_keep_all is_use_oldest is_public_pool""",
                "where hidden states are written to, which is the engine's": """
                    output_directory write_interval file_prefix""",
                _CODE: "sa_config attention_backend advanced_sampling_mode enable_penalty use_mtp_vanilla",
                "has no effect in TensorRT-LLM": "allow_advanced_sampling",
            }
        ).items()
    },
}
"""Why an option is left."""

ABSENT: Mapping[str, str] = {
    "model.dtype": "TensorRT-LLM takes the checkpoint's own type; graphspec's default is float32",
    "scheduler.max_num_seqs": "TensorRT-LLM takes 2048; graphspec's default is 64",
    "scheduler.max_num_batched_tokens": "TensorRT-LLM takes 8192; graphspec's default is 2048",
    "kv_cache.block_size": "TensorRT-LLM takes 32; graphspec's default is 16",
    "kv_cache.num_blocks": "TensorRT-LLM measures what fits in memory; graphspec's default is 1024",
    "compilation.compile_mode": "TensorRT-LLM compiles only when asked to; graphspec's default is piecewise",
    _MODE: "TensorRT-LLM captures decode steps alone; graphspec's default is FULL_AND_PIECEWISE",
    "device.target": "TensorRT-LLM runs on CUDA; graphspec's default is cpu",
}
"""Fields whose default differs, when the input does not give them."""


def read_trtllm(text: str, source: str) -> Document:
    """The YAML of options. Keys that are whole numbers, as those of draft_len_schedule, are read as their text."""
    spans: dict[int, int] = {}
    try:
        _number_keys(yaml.compose(text, Loader=yaml.SafeLoader), spans, set())
    except (yaml.YAMLError, RecursionError, ValueError):
        spans.clear()
    for start, end in sorted(spans.items(), reverse=True):
        text = f'{text[:start]}"{text[start:end]}"{text[end:]}'
    return read_yaml(text, source)


def _number_keys(node: Any, spans: dict[int, int], seen: set[int]) -> None:
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    for item in node.value:
        if isinstance(node, yaml.MappingNode):
            key, item = item  # noqa: PLW2901 - a mapping's items are pairs
            if key.tag == "tag:yaml.org,2002:int" and re.fullmatch("[1-9][0-9]*", key.value):
                spans[key.start_mark.index] = key.end_mark.index
        _number_keys(item, spans, seen)


def from_trtllm(options: Mapping[str, Any]) -> Carried:
    """The config data of LLM API options. Raises one `SpecError` with every problem, by the names of the options.

    A tree of drafts becomes the chain of its depth. Past the last batch size of ``draft_len_schedule``, and above
    ``max_concurrency``, the depth is 0, as there.

    >>> from_trtllm({"speculative_config": {"decoding_type": "MTP", "max_draft_len": 3}}).data
    {'speculative': {'method': 'mtp', 'num_speculative_tokens': 3}}
    """
    return from_settings(read_keys(options, Grammar()))


def from_settings(settings: Settings) -> Carried:
    """`from_trtllm` for options that were read before."""
    given = settings.values
    carrier = Carrier(_ENGINE, settings, nulls=_GRAPH_NAMES[:2])
    for section in _SECTIONS:
        carrier.expand(section)
    if carrier.truth("enable_lora") or given.get("lora_config"):
        carrier.put("lora", {}, "enable_lora")
    _parallel(carrier, given)
    _blocks(carrier, given)
    _graphs(carrier, given)
    if carrier.expand(_S):
        _speculative(carrier, given)
    carrier.carry_all(ROWS, _RENAMED)
    return carrier.finish(REASONS, ABSENT)


def _parallel(carrier: Carrier, given: Mapping[str, Any]) -> None:
    name, path = "moe_expert_parallel_size", "parallel.enable_expert_parallel"
    experts, devices = carrier.number(name), given.get("tensor_parallel_size", 1)
    if experts is not None and experts in (1, devices):
        carrier.put(path, experts > 1, name)
    elif experts is not None:
        why = f"spreads experts over {experts} of {devices} devices; graphspec over all or none"
        carrier.leave(name, why, experts)
    name, path = "allreduce_strategy", "parallel.disable_custom_all_reduce"
    strategy = carrier.take(name)
    if strategy in ("AUTO", "NCCL"):
        carrier.note(name, strategy, path, strategy == "NCCL", "what the strategy allows")
        carrier.put(path, strategy == "NCCL", name)
    elif strategy is not None:
        carrier.leave(name, "graphspec knows only whether NCCL alone is used", strategy)
    if "disable_overlap_scheduler" in given:
        name = "disable_overlap_scheduler"
        carrier.put("scheduler.async_scheduling", not carrier.truth(name), name)


def _blocks(carrier: Carrier, given: Mapping[str, Any]) -> None:
    name, path = "kv_cache_config.max_tokens", "kv_cache.num_blocks"
    tokens, cache = carrier.number(name), given.get("kv_cache_config")
    size = cache.get("tokens_per_block", 32) if isinstance(cache, Mapping) else 32
    if tokens is not None and type(size) is int and size > 0:
        blocks = -(-tokens // size) + 1
        why = f"blocks of {size} tokens, and block 0 for padding rows"
        carrier.note(name, tokens, path, blocks, why)
        carrier.put(path, blocks, name)


def _graphs(carrier: Carrier, given: Mapping[str, Any]) -> None:
    decode, compiled, backend = _GRAPH_NAMES
    captured = given.get(decode, {}) is not None
    if captured:
        carrier.expand(decode)
    carrier.take(decode)
    pieces = carrier.expand(compiled) and carrier.truth(f"{compiled}.enable_piecewise_cuda_graph")
    carrier.take(compiled)
    written = carrier.take(backend)
    if pieces and written not in (None, "piecewise"):
        carrier.wrong(backend, written, f"piecewise, as {compiled} says")
    prefill = str(written) if written is not None else "piecewise" if pieces else "disabled"
    if compiled in given or prefill == "piecewise":
        mode = "none" if given.get(compiled, {}) is None else "stock"
        mode = "piecewise" if prefill == "piecewise" else mode
        name = compiled if compiled in given else backend
        carrier.note(name, given[name], "compilation.compile_mode", mode, "what it compiles")
        carrier.put("compilation.compile_mode", mode, name)
    names = [n for n in (backend, decode, *([compiled] if pieces else [])) if n in given]
    found = _GRAPHS.get((captured, prefill))
    if names and found is not None:
        why = f"decode {'captured' if captured else 'not captured'}, prefill {prefill}"
        carrier.note(names[0], given[names[0]], _MODE, found[0], why)
        carrier.put(_MODE, found[0], names[0])
        carrier.put("compilation.breakable_cudagraph", found[1], names[0])
    elif names:
        carrier.leave(names[0], f"no mode captures prefill ({prefill}) alone", given[names[0]])


def _speculative(carrier: Carrier, given: Mapping[str, Any]) -> None:
    kind = carrier.take(_KIND)
    if isinstance(kind, str) and kind in NO_METHOD:
        carrier.leave(_KIND, NO_METHOD[kind], kind)
        for name in [n for n in given[_S] if isinstance(n, str) and n != "decoding_type"]:
            carrier.leave(f"{_S}.{name}", f"of {kind}, which no method stands for")
        return
    if not isinstance(kind, str) or kind not in METHODS:
        known = [*METHODS, *NO_METHOD]
        hint = did_you_mean(kind, known) if isinstance(kind, str) else ""
        carrier.wrong(_KIND, kind, one_of(known), hint)
        return
    method = METHODS[kind]
    why = "graphspec's name for the same"
    if kind == "Eagle":
        older = given.get("backend") == "tensorrt"
        method = "eagle" if older else method
        why = "the TensorRT backend's" if older else "the PyTorch backend takes it for Eagle3"
    carrier.note(_KIND, kind, "speculative.method", method, why)
    carrier.put("speculative.method", method, _KIND)
    _depth(carrier, kind, given)
    if kind == "PARD":
        carrier.put("speculative.parallel_drafting", True, _KIND)
    if kind == "NGram":
        _window(carrier)
    if carrier.truth(f"{_S}.use_rejection_sampling"):
        path = "speculative.draft_sample_method"
        carrier.put(path, "probabilistic", f"{_S}.use_rejection_sampling")
    load = carrier.take(f"{_S}.load_format")
    if load is not None:
        path = "speculative.draft_load_config"
        carrier.put(path, {"load_format": load}, f"{_S}.load_format")
    carrier.carry_all(SPECULATIVE, {})


def _window(carrier: Carrier) -> None:
    name = f"{_S}.max_matching_ngram_size"
    size = carrier.number(name)
    if size is None:
        carrier.note(name, None, "speculative.prompt_lookup_max", 2, "what it is when not given")
    carrier.note(name, size, "speculative.prompt_lookup_min", 1, "shorter patterns count as well")
    carrier.put("speculative.prompt_lookup_max", 2 if size is None else size, name)
    carrier.put("speculative.prompt_lookup_min", 1, name)


def _depth(carrier: Carrier, kind: str, given: Mapping[str, Any]) -> None:
    names = ["max_draft_len", *([_DEPTHS[kind]] if kind in _DEPTHS else [])]
    found = {f"{_S}.{n}": k for n in names if (k := carrier.number(f"{_S}.{n}")) is not None}
    k = next(iter(found.values()), None)
    for name, depth in found.items():
        if name == next(iter(found)):
            carrier.put(_K, depth, name)
        elif depth == k:
            carrier.leave(name, "says the same as max_draft_len", depth)
        else:
            carrier.wrong(name, depth, f"{k}, as max_draft_len says")
    total = f"{_S}.max_total_draft_tokens"
    drafts = carrier.number(total)
    if drafts is not None:
        carrier.leave(total, "a chain, as always" if drafts == k else _TREE, drafts)
    if k is None and kind == "SaveState":
        carrier.put(_K, 1, _KIND)
    schedule, most = f"{_S}.draft_len_schedule", f"{_S}.max_concurrency"
    table, limit = carrier.take(schedule), carrier.number(most)
    if table is not None and limit is not None:
        carrier.wrong(most, limit, "one of max_concurrency and draft_len_schedule")
    elif table is not None:
        _table(carrier, schedule, table, k, given.get("max_batch_size"))
    elif limit is not None and k is not None:
        _table(carrier, most, {limit: k}, k, given.get("max_batch_size"))
    elif limit is not None:
        carrier.leave(most, "a depth is needed beside it", limit)


def _table(carrier: Carrier, name: str, table: Any, k: int | None, largest: Any) -> None:
    depths: dict[int, int] = {}
    for key, depth in table.items() if isinstance(table, Mapping) else ():
        if not re.fullmatch("[1-9][0-9]{0,8}", str(key)) or type(depth) is not int or depth < 0:
            carrier.wrong(
                f"{name}.{key}", depth, "a depth of 0 or more for a batch size of 1 or more"
            )
        else:
            depths[int(key)] = depth
    if not depths:
        carrier.wrong(name, table, "a mapping of batch sizes to depths")
        return
    first = depths[min(depths)]
    if first != (first if k is None else k) or max(depths.values()) > first:
        wanted = f"max_draft_len ({k}) for the smallest batch size, and no more for any other"
        carrier.wrong(name, table, wanted)
        return
    ends = sorted(depths)
    starts = [1, *(end + 1 for end in ends)]
    last = max(starts[-1], largest if type(largest) is int else 0)
    ranges = [[s, e, depths[e]] for s, e in zip(starts, ends, strict=False)]
    ranges.append([starts[-1], last, 0])
    carrier.note(name, table, _TABLE, ranges, "ranges of batch sizes; past the last one none")
    carrier.put(_TABLE, ranges, name)
    if k is None:
        carrier.put(_K, first, name)


_OMITTED = frozenset(
    """
    parallel.tensor_parallel_size parallel.pipeline_parallel_size model.pooling model.hf_overrides
    """.split()
)
"""Fields that are written only when they are set."""

_EXPORTED: Mapping[str, Mapping[str, str]] = {
    "kernels.attention_backend": {"FLASHINFER": "FLASHINFER"},
    "kernels.moe_backend": {str(new): old for old, new in _MOE.items()},
    "kv_cache.dtype": {
        name: name for name in ("auto", "float16", "bfloat16", "float32", "fp8", "nvfp4")
    },
}
"""Choices that both sides have, by field."""

_KINDS = {method: kind for kind, method in METHODS.items() if kind not in ("Eagle", "PARD")}


def to_trtllm(config: EngineConfig) -> Carried:
    """The LLM API options that say what `config` says, and what TensorRT-LLM has no option for."""
    exporter = Exporter(_ENGINE, config)
    _export_drafts(exporter, config.scheduler.max_num_seqs)
    for name, path in ROWS.items():
        value = exporter.take(path)
        if value is None or (path in _OMITTED and exporter.is_default(path, value)):
            continue
        new = _EXPORTED[path].get(value) if path in _EXPORTED else value
        if new is None or (path == "model.hf_overrides" and isinstance(value, str)):
            exporter.leave(path, "TensorRT-LLM has no such value", value)
        else:
            exporter.put(name, new, path)
    path = "kv_cache.num_blocks"
    tokens = (exporter.take(path) - 1) * config.kv_cache.block_size
    exporter.put("kv_cache_config.max_tokens", tokens, path)
    path = "scheduler.async_scheduling"
    exporter.put("disable_overlap_scheduler", not exporter.take(path), path)
    if exporter.take("parallel.disable_custom_all_reduce"):
        exporter.put("allreduce_strategy", "NCCL", "parallel.disable_custom_all_reduce")
    if exporter.take("parallel.enable_expert_parallel"):
        devices = config.parallel.tensor_parallel_size
        exporter.put("moe_expert_parallel_size", devices, "parallel.enable_expert_parallel")
    _export_graphs(exporter)
    return exporter.done({"program": "TensorRT-LLM has its own models"})


def _export_graphs(exporter: Exporter) -> None:
    breaks, mode = exporter.take("compilation.breakable_cudagraph"), exporter.take(_MODE)
    found = [key for key, value in _GRAPHS.items() if value == (mode, breaks)]
    if exporter.take("compilation.enforce_eager"):
        exporter.note("compilation.enforce_eager", True, "cuda_graph_config", None, "nothing else")
        if mode != "NONE":
            exporter.leave(_MODE, "with enforce_eager nothing is captured", mode)
        found = [(False, "disabled")]
    if not found:
        exporter.leave(_MODE, "TensorRT-LLM captures decode steps, or those and prefill", mode)
        return
    captured, prefill = found[0]
    if not captured:
        exporter.put("cuda_graph_config", None, _MODE)
    exporter.put("prefill_cuda_graph_backend", prefill, _MODE)
    path = "compilation.compile_mode"
    compiled = exporter.take(path)
    if compiled == "piecewise" and prefill != "piecewise":
        exporter.leave(path, "TensorRT-LLM compiles pieces only to capture prefill", compiled)
    elif compiled != "piecewise":
        config = None if compiled == "none" else {"enable_fullgraph": True}
        exporter.put("torch_compile_config", config, path)


def _export_drafts(exporter: Exporter, largest: int) -> None:
    method = exporter.take("speculative.method")
    if method not in _KINDS:
        if method is not None:
            exporter.leave("speculative.method", "TensorRT-LLM has no such decoding type", method)
        return
    parallel = exporter.take("speculative.parallel_drafting") and method == "draft_model"
    exporter.put(_KIND, "PARD" if parallel else _KINDS[method], "speculative.method")
    k, model = exporter.take(_K), exporter.take("speculative.model")
    if k is not None:
        exporter.put(f"{_S}.max_draft_len", k, _K)
    if model is not None:
        exporter.put(f"{_S}.speculative_model", model, "speculative.model")
    high = exporter.take("speculative.prompt_lookup_max")
    if high is not None:
        exporter.put(f"{_S}.max_matching_ngram_size", high, "speculative.prompt_lookup_max")
    path = "speculative.draft_sample_method"
    if exporter.take(path) == "probabilistic":
        exporter.put(f"{_S}.use_rejection_sampling", True, path)
    table = sorted(exporter.take(_TABLE) or ())
    if not table:
        return
    # Their table names the ends of its ranges, and drafts nothing past the last.
    ends = [*(after[0] - 1 for after in table[1:]), max(table[-1][0], largest)]
    depths = [min(depth, k or depth) for _, _, depth in table]
    if len(table) > 1 and depths[-1] == 0:
        ends.pop()
    if depths[0] != k or max(depths) > depths[0]:
        exporter.leave(_TABLE, "TensorRT-LLM wants the largest depth for the smallest batch", table)
    else:
        schedule = {str(end): depth for end, depth in zip(ends, depths, strict=False)}
        exporter.put(f"{_S}.draft_len_schedule", schedule, _TABLE)
