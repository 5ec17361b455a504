"""SGLang's server arguments to a config and back. Facts as of SGLang 0.5.23, with the names of older versions."""

import itertools
import json
import re
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
from graphspec.formats.json_reader import read_json
from graphspec.formats.read import read_document

_ENGINE = "SGLang"
_K, _TABLE = (f"speculative.num_speculative_tokens{end}" for end in ("", "_per_batch_size"))
_ALGORITHM, _STEPS = "speculative_algorithm", "speculative_num_steps"
_TOPK, _DRAFTS = "speculative_eagle_topk", "speculative_num_draft_tokens"
_ADAPTIVE, _SLOTS = "speculative_adaptive", "speculative_adaptive_config"

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
    "page_size": "kv_cache.block_size",
    "kv_cache_dtype": "kv_cache.dtype",
    "attention_backend": "kernels.attention_backend",
    "moe_runner_backend": "kernels.moe_backend",
    "enable_hisparse": "compilation.hisparse",
    "disable_cuda_graph": "compilation.enforce_eager",
    "device": "device.target",
    "speculative_draft_model_path": "speculative.model",
    "speculative_draft_model_revision": "speculative.revision",
    "speculative_draft_model_quantization": "speculative.quantization",
    "speculative_draft_attention_backend": "speculative.attention_backend",
    "speculative_moe_runner_backend": "speculative.moe_backend",
    "speculative_draft_kv_cache_dtype": "speculative.kv_cache_dtype",
}
"""Argument -> field. Both directions read it."""

_INVERTED = {
    "disable_overlap_schedule": "scheduler.async_scheduling",
    "disable_radix_cache": "kv_cache.enable_prefix_caching",
}
"""Arguments that switch off what the field switches on."""

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
_RENAMED: Mapping[str, Renamed] = {
    "model.dtype": {"half": "float16", "float": "float32", "auto": None},
    "kernels.attention_backend": _ATTENTION,
    "speculative.attention_backend": _ATTENTION,
    "kv_cache.dtype": {"bf16": "bfloat16"},
    "speculative.kv_cache_dtype": {"bf16": "bfloat16"},
}
_GRAPHS = {
    ("full", "full"): ("FULL", False),
    ("full", "breakable"): ("FULL_AND_PIECEWISE", True),
    ("full", "disabled"): ("FULL_DECODE_ONLY", False),
    ("breakable", "breakable"): ("PIECEWISE", True),
    ("disabled", "disabled"): ("NONE", False),
}
"""Kinds of graph for decode and for prefill -> mode, and whether pieces are captured at breaks."""

SLOTS = {1: [1, 3, 5, 7], 8: [0, 1, 3], 32: [0, 1], 64: [0]}
"""What SGLang adapts between when it is given no file: candidate steps from a batch size on."""

_FLAGS = """
    trust_remote_code skip_server_warmup skip_tokenizer_init enable_dp_attention enable_dp_lm_head enable_lora
    enable_torch_compile enable_two_batch_overlap disable_radix_cache disable_overlap_schedule enable_mixed_chunk
    enable_metrics enable_hierarchical_cache enable_lmcache disable_cuda_graph_padding enable_multi_layer_eagle
    enable_eplb speculative_adaptive speculative_use_rejection_sampling speculative_use_block_verification
"""
_INTS = f"""
    ep_size chunked_prefill_size {_STEPS} {_TOPK} {_DRAFTS} speculative_dflash_block_size speculative_dspark_block_size
    speculative_ngram_min_match_window_size speculative_ngram_max_match_window_size speculative_ngram_capacity
    max_lora_rank max_loras_per_batch port nnodes node_rank random_seed
"""
_FLOATS = "speculative_accept_threshold_single speculative_accept_threshold_acc mem_fraction_static"
_ALIASES = """
    --model model_path --tp tp_size --dp dp_size --pp pp_size --ep ep_size --tensor-parallel-size tp_size
    --data-parallel-size dp_size --pipeline-parallel-size pp_size --expert-parallel-size ep_size
    --decode-context-parallel-size dcp_size --speculative-draft-model speculative_draft_model_path
"""
GRAMMAR = Grammar(
    kinds={
        **{name: kind_at(path) for name, path in ROWS.items()},
        **dict.fromkeys(_FLAGS.split(), "flag"),
        **dict.fromkeys(_INTS.split(), "int"),
        **dict.fromkeys(_FLOATS.split(), "float"),
        **dict.fromkeys(("max_total_tokens", "max_prefill_tokens"), "size"),
        **dict.fromkeys(("cuda_graph_bs", "lora_paths", "lora_target_modules"), "list"),
        **dict.fromkeys(("json_model_override_args", "cuda_graph_config"), "json"),
    },
    aliases=dict(zip(_ALIASES.split()[::2], _ALIASES.split()[1::2], strict=True)),
)

REASONS: Mapping[str, str] = {
    **by_name(
        {
            "graphspec derives the captured sizes from the scheduler's limits and the depth schedule": """
                cuda_graph_max_bs cuda_graph_bs cuda_graph_config disable_cuda_graph_padding torch_compile_max_bs""",
            "belongs to the server, its processes and its requests; no graph depends on it": """
                host port api_key admin_api_key served_model_name chat_template reasoning_parser tool_call_parser
                skip_server_warmup log_level enable_metrics random_seed sampling_backend schedule_policy nnodes node_rank
                schedule_conservativeness max_queued_requests max_prefill_tokens dist_init_addr enable_mixed_chunk""",
            "decides how weights are found and loaded; weights are inputs of every graph": """
                load_format download_dir revision trust_remote_code tokenizer_mode skip_tokenizer_init lora_paths""",
            "a share of memory that SGLang measures; graphspec counts blocks: write kv_cache.num_blocks": "mem_fraction_static cpu_offload_gb",
            "moves the cache between engines; write kv_cache.connector": """
                enable_hierarchical_cache enable_lmcache disaggregation_mode disaggregation_transfer_backend""",
            "lies inside the group of tp_size, where graphspec has no sizes of its own": "attn_dp_size attn_cp_size moe_dp_size enable_dp_attention enable_dp_lm_head",
            "graphspec has no field for it, and it can change compiled code: keep engines that differ in it apart": """
                decode_attention_backend prefill_attention_backend enable_torch_compile enable_two_batch_overlap
                enable_deterministic_inference moe_a2a_backend deepep_mode enable_eplb fp8_gemm_runner_backend
                lora_backend lora_target_modules enable_multi_layer_eagle speculative_token_map speculative_attention_mode
                speculative_moe_a2a_backend speculative_draft_window_size speculative_draft_sink_size""",
            "keeps drafts that the target would not; see graphspec's rejection_sample_method fly": "speculative_accept_threshold_single speculative_accept_threshold_acc",
            "about a trie of all requests and a tree of drafts; graphspec drafts a chain from one request": """
                speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth speculative_ngram_match_type
                speculative_ngram_branch_length speculative_ngram_capacity speculative_ngram_max_trie_depth""",
            "without enable_lora SGLang does not read it": "max_loras_per_batch max_lora_rank",
        }
    ),
    _SLOTS: "without speculative_adaptive SGLang does not read it",
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
    carrier, given = Carrier(_ENGINE, settings), settings.values
    _model(carrier, given)
    _scheduler(carrier, given)
    _graphs(carrier, given)
    _speculative(carrier, given)
    carrier.carry_all(ROWS, _RENAMED)
    return carrier.finish(REASONS, ABSENT)


def _model(carrier: Carrier, given: Mapping[str, Any]) -> None:
    name = "json_model_override_args"
    value = carrier.take(name)
    try:
        if isinstance(value, str):
            value = read_json(value, carrier.spelling(name)).data
        if value is not None:
            carrier.put("model.hf_overrides", value, name)
    except SpecError as error:
        carrier.wrong(name, value, error.problems[0].wanted)
    if carrier.truth("enable_lora") or given.get("lora_paths"):
        carrier.put("lora", {}, "enable_lora")
        carrier.carry("max_loras_per_batch", "lora.max_loras")
        carrier.carry("max_lora_rank", "lora.max_lora_rank")
    experts, devices = carrier.number("ep_size"), given.get("tp_size", 1)
    if experts is not None and experts in (1, devices):
        carrier.put("parallel.enable_expert_parallel", experts > 1, "ep_size")
    elif experts is not None:
        carrier.leave("ep_size", f"graphspec spreads experts over all {devices} or none", experts)


def _scheduler(carrier: Carrier, given: Mapping[str, Any]) -> None:
    name, path = "chunked_prefill_size", "scheduler.max_num_batched_tokens"
    chunk = carrier.number(name)
    if chunk == -1:
        carrier.leave(name, "prompts are not cut; graphspec wants a limit for a step", chunk)
    elif chunk is not None:
        carrier.note(name, chunk, path, chunk, "SGLang counts prompt tokens, graphspec all tokens")
        carrier.put(path, chunk, name)
    for name, path in _INVERTED.items():
        if name in given:
            carrier.put(path, not carrier.truth(name), name)
    name, path = "max_total_tokens", "kv_cache.num_blocks"
    tokens, page = carrier.number(name), given.get("page_size")
    if tokens is not None and type(page) is int and page > 0:
        blocks = tokens // page + 1
        carrier.note(name, tokens, path, blocks, f"of {page} tokens, and block 0 for padding")
        carrier.put(path, blocks, name)
    elif tokens is not None:
        carrier.leave(name, "graphspec counts blocks: give page_size too", tokens)


def _graphs(carrier: Carrier, given: Mapping[str, Any]) -> None:
    if given.get("enable_torch_compile") is False:
        carrier.take("enable_torch_compile")
        carrier.put("compilation.compile_mode", "none", "enable_torch_compile")
    names = ("cuda_graph_backend_decode", "cuda_graph_backend_prefill")
    found = {name: kind for name in names if (kind := carrier.take(name)) is not None}
    kinds = (str(found.get(names[0], "full")), str(found.get(names[1], "breakable")))
    mode, breaks = _GRAPHS.get(kinds, (None, False))
    for name, kind in found.items():
        if mode is None:
            carrier.leave(name, f"graphspec has no mode of {kinds[0]} and {kinds[1]}", kind)
            continue
        carrier.note(name, kind, "compilation.cudagraph_mode", mode, f"decode, prefill: {kinds}")
        if name == next(iter(found)):
            carrier.put("compilation.cudagraph_mode", mode, name)
            carrier.put("compilation.breakable_cudagraph", breaks, name)


def _speculative(carrier: Carrier, given: Mapping[str, Any]) -> None:
    algorithm = carrier.take(_ALGORITHM)
    method = _METHODS.get(str(algorithm).upper())
    if method is None:
        why = f"without {_ALGORITHM} SGLang does not draft"
        if algorithm is not None:
            why = "graphspec has no such method, so the result does not draft"
            carrier.leave(_ALGORITHM, why, algorithm)
        for name in [n for n in given if n.startswith("speculative_") and n != _ALGORITHM]:
            carrier.leave(name, why)
        return
    why = "graphspec's name for the same"
    draft = given.get("speculative_draft_model_path")
    if method == "eagle" and draft in (None, given.get("model_path")):
        method, why = "mtp", "without a draft model of its own it drafts with the target's layers"
    carrier.note(_ALGORITHM, algorithm, "speculative.method", method, why)
    carrier.put("speculative.method", method, _ALGORITHM)
    if method in _CHAINS:
        _chain(carrier, method, given)
    else:
        _block(carrier, method)
    block, drawn = "speculative_use_block_verification", "speculative_use_rejection_sampling"
    in_blocks, sampled = carrier.truth(block), carrier.truth(drawn)
    if in_blocks:
        carrier.put("speculative.rejection_sample_method", "block", block)
    if sampled or (in_blocks and method in _CHAINS):
        name = drawn if sampled else block
        carrier.put("speculative.draft_sample_method", "probabilistic", name)
    name = "speculative_draft_load_format"
    if name in given:
        carrier.put("speculative.draft_load_config", {"load_format": carrier.take(name)}, name)


def _chain(carrier: Carrier, method: str, given: Mapping[str, Any]) -> None:
    steps, topk, drafts = (carrier.number(name) for name in (_STEPS, _TOPK, _DRAFTS))
    slots = _slots(carrier, method, topk)
    if slots:
        _table(carrier, slots, steps, given.get("max_running_requests"))
    elif steps is not None:
        carrier.put(_K, steps, _STEPS)
    elif topk is not None or drafts is not None:
        carrier.wrong(_STEPS, None, f"a number, beside {_TOPK} and {_DRAFTS}")
    else:
        carrier.missing(_K, "SGLang takes 3 or 5 steps by the target's architecture")
    tree = topk is not None and topk > 1
    if topk is not None:
        why = "a tree; graphspec drafts the chain of its steps" if tree else "a chain, as always"
        carrier.leave(_TOPK, why, topk)
    if drafts is None:
        return
    if not tree and steps is not None and drafts != steps + 1:
        wanted = f"{steps + 1}: {steps} steps ({_STEPS}) with {topk or 1} draft each, and one token"
        carrier.wrong(_DRAFTS, drafts, wanted)
    else:
        carrier.leave(_DRAFTS, "the size of a tree" if tree else "follows from the steps", drafts)


def _slots(carrier: Carrier, method: str, topk: int | None) -> Mapping[int, list[int]]:
    """Batch size from which a slot holds -> its candidate steps; nothing when SGLang does not adapt."""
    if not carrier.truth(_ADAPTIVE):
        return {}
    if method == "draft_model" or topk not in (None, 1):
        carrier.leave(_ADAPTIVE, "SGLang adapts EAGLE and EAGLE3 alone, with chains", True)
        return {}
    table = carrier.take(_SLOTS)
    if table is None:
        return SLOTS
    try:
        table = read_document(table).data if isinstance(table, str) else table
    except SpecError as error:
        carrier.wrong(_SLOTS, table, error.problems[0].wanted, error.problems[0].found)
        return {}
    slots: dict[int, list[int]] = {}
    for key, entry in table.items() if isinstance(table, Mapping) else ():
        steps = entry.get("candidate_steps") if isinstance(entry, Mapping) else None
        if not re.fullmatch("[1-9][0-9]{0,8}", str(key)):
            carrier.leave(f"{_SLOTS}.{key}", "decides between captured depths as it runs", entry)
        elif isinstance(steps, list) and steps and all(type(s) is int and s >= 0 for s in steps):
            slots[int(key)] = steps
        else:
            carrier.wrong(f"{_SLOTS}.{key}.candidate_steps", steps, "a list of numbers of steps")
    if not slots:
        carrier.wrong(_SLOTS, table, "batch sizes as keys, each with candidate_steps")
    return slots


def _table(carrier: Carrier, slots: Mapping[int, list[int]], steps: int | None, top: Any) -> None:
    starts = sorted(slots)
    ends = [*(s - 1 for s in starts[1:]), max(starts[-1], top if type(top) is int else 0)]
    table = [[s, e, max(slots[s])] for s, e in zip(starts, ends, strict=True)]
    table[0][0] = 1
    why = "the largest candidate of each slot; SGLang goes down from it by what is accepted"
    carrier.note(_ADAPTIVE, True, _TABLE, table, why)
    carrier.put(_TABLE, table, _ADAPTIVE)
    carrier.put(_K, max(k for _, _, k in table), _ADAPTIVE)
    candidates = sorted({step for slot in slots.values() for step in slot})
    if steps is not None and steps not in candidates:
        carrier.wrong(_STEPS, steps, f"one of the candidate steps {candidates}")
    elif steps is not None:
        carrier.leave(_STEPS, "where SGLang begins to adapt", steps)


def _block(carrier: Carrier, method: str) -> None:
    name = f"speculative_{method}_block_size"
    size, drafts = carrier.number(name), carrier.number(_DRAFTS)
    # A block of DFlash counts the token that drafting starts from, one of DSpark does not.
    width = size + 1 if size is not None and method == "dspark" else size
    if width is not None and drafts not in (None, width):
        carrier.wrong(_DRAFTS, drafts, f"{width}, which follows from {name} ({size})")
    elif drafts is not None and width is not None:
        carrier.leave(_DRAFTS, f"follows from {name}", drafts)
    written = _DRAFTS if width is None else name
    width = drafts if width is None else width
    if width is None and method == "ngram":
        carrier.note(_DRAFTS, None, _K, 11, "SGLang verifies 12 tokens a step")
        carrier.put(_K, 11, _DRAFTS)
    elif width is None:
        carrier.missing(_K, "what the draft checkpoint was trained for")
    else:
        size = drafts if size is None else size
        carrier.note(written, size, _K, width - 1, "one verified token is the target's own")
        carrier.put(_K, width - 1, written)
    for other in (_STEPS, _TOPK):
        value = carrier.number(other)
        if value is not None:
            carrier.leave(other, f"not read with {method}, whose drafts come all at once", value)
    carrier.carry("speculative_ngram_min_match_window_size", "speculative.prompt_lookup_min")
    carrier.carry("speculative_ngram_max_match_window_size", "speculative.prompt_lookup_max")


_OMITTED = frozenset(
    """
    parallel.tensor_parallel_size parallel.pipeline_parallel_size parallel.data_parallel_size model.pooling
    parallel.decode_context_parallel_size parallel.disable_custom_all_reduce compilation.hisparse device.target
    """.split()
)

_BACKENDS = {new: old for old, new in sorted(_ATTENTION.items(), reverse=True)}
_CACHES = {name: name for name in ("auto", "fp8_e5m2", "fp8_e4m3", "bfloat16", "nvfp4")}


def to_sglang(config: EngineConfig) -> Carried:
    """The server arguments that say what `config` says, and what SGLang has no argument for."""
    exporter = Exporter(_ENGINE, config)
    _export_drafts(exporter)
    for name, path in ROWS.items():
        value = exporter.take(path)
        if value is None or (path in _OMITTED and exporter.is_default(path, value)):
            continue
        new = _BACKENDS.get(value.upper()) if path.endswith("attention_backend") else value
        new = _CACHES.get(value) if name.endswith("kv_cache_dtype") else new
        if new is None:
            exporter.leave(path, "SGLang has no such value", value)
        else:
            exporter.put(name, new, path)
    for name, path in _INVERTED.items():
        exporter.put(name, not exporter.take(path), path)
    path = "kv_cache.num_blocks"
    tokens = (exporter.take(path) - 1) * config.kv_cache.block_size
    exporter.put("max_total_tokens", tokens, path)
    path = "scheduler.max_num_batched_tokens"
    exporter.put("chunked_prefill_size", exporter.take(path), path)
    path = "parallel.enable_expert_parallel"
    if exporter.take(path):
        exporter.put("ep_size", config.parallel.tensor_parallel_size, path)
    overrides = config.model.hf_overrides
    if overrides and not isinstance(overrides, str):
        value = json.dumps(exporter.take("model.hf_overrides"))
        exporter.put("json_model_override_args", value, "model.hf_overrides")
    if config.lora:
        exporter.put("enable_lora", True, "lora")
        exporter.put("max_loras_per_batch", exporter.take("lora.max_loras"), "lora.max_loras")
        exporter.put("max_lora_rank", exporter.take("lora.max_lora_rank"), "lora.max_lora_rank")
    _export_graphs(exporter)
    return exporter.done({"program": "SGLang has its own models"})


def _export_graphs(exporter: Exporter) -> None:
    path = "compilation.compile_mode"
    compiled = exporter.take(path)
    if compiled == "none":
        exporter.put("enable_torch_compile", False, path)
    else:
        exporter.leave(path, "SGLang has --enable-torch-compile, a way of its own", compiled)
    path = "compilation.cudagraph_mode"
    mode, breakable = exporter.take(path), exporter.take("compilation.breakable_cudagraph")
    kinds, breaks = next((k, m[1]) for k, m in _GRAPHS.items() if m[0] == mode)
    if breaks is not breakable:
        why = "its pieces end at breaks" if breaks else "the mode has no pieces"
        exporter.note("compilation.breakable_cudagraph", breakable, "kinds", kinds, why)
    exporter.put("cuda_graph_backend_decode", kinds[0], path)
    exporter.put("cuda_graph_backend_prefill", kinds[1], path)


def _export_drafts(exporter: Exporter) -> None:
    method = exporter.take("speculative.method")
    if method not in _METHODS.values():
        if method is not None:
            exporter.leave("speculative.method", "SGLang has no such algorithm", method)
        return
    algorithm = {new: old for old, new in _METHODS.items()}[method]
    exporter.put(_ALGORITHM, algorithm, "speculative.method")
    k = exporter.take(_K)
    if method in _CHAINS and k is not None:
        for name, value in ((_STEPS, k), (_TOPK, 1), (_DRAFTS, k + 1)):
            exporter.put(name, value, _K)
    elif k is not None:
        exporter.put(_DRAFTS, k + 1, _K)
    table = exporter.take(_TABLE)
    if table is not None:
        slots = {str(first): {"candidate_steps": [k]} for first, _, k in sorted(table)}
        why = f"SGLang wants --speculative-adaptive and a file for {_SLOTS}: {json.dumps(slots)}"
        exporter.leave(_TABLE, why, table)
    path = "speculative.draft_sample_method"
    if exporter.take(path) == "probabilistic":
        exporter.put("speculative_use_rejection_sampling", True, path)
    path = "speculative.rejection_sample_method"
    rule = exporter.take(path)
    if rule == "block":
        exporter.put("speculative_use_block_verification", True, path)
    elif rule != "standard":
        exporter.leave(path, "SGLang has no such rule", rule)


def sglang_command(settings: Mapping[str, Any]) -> list[str]:
    """The command line that gives server arguments to ``sglang serve``.

    >>> sglang_command({"model_path": "m", "is_embedding": True, "disable_radix_cache": False})
    ['sglang', 'serve', '--model-path', 'm', '--is-embedding']
    """
    given = {f"--{n.replace('_', '-')}": v for n, v in settings.items() if v is not False}
    words = [[flag] if value is True else [flag, str(value)] for flag, value in given.items()]
    return ["sglang", "serve", *itertools.chain.from_iterable(words)]
