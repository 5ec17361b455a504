"""The cases of tests/data/peer-cases as configs of ours, and our facts under the names that the cases use."""

import json
from pathlib import Path

from graphspec.speculators.mtp import MultiModuleMTPSpeculatorConfig

FOLDER = Path(__file__).resolve().parents[1] / "data" / "peer-cases"
RUNNERS = {"V1": "v1", "V2": "v2"}


def cases():
    """Every case of the file."""
    return json.loads((FOLDER / "spec-cases.json").read_text())["cases"]


def folder(name):
    """The checkpoint folder of a model that a case names."""
    return str(FOLDER / "models" / name)


def config_of(case):
    """The case as plain data of an `EngineConfig`."""
    section = {
        key: folder(value.removeprefix("models/"))
        if key == "model" and isinstance(value, str) and value.startswith("models/")
        else value
        for key, value in case["spec"].items()
    }
    engine, arguments = case.get("engine", {}), dict(case.get("target_args", {}))
    compilation = dict(engine.get("compilation", {}))
    if "runner" in engine:
        compilation["runner"] = RUNNERS[engine["runner"]]
    if arguments.pop("enforce_eager", False):
        compilation["enforce_eager"] = True
    data = {
        "model": {"source": folder(case["target"]), "dtype": "bfloat16", **arguments},
        "scheduler": {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 8192,
            **engine.get("scheduler", {}),
        },
        "kv_cache": {"num_blocks": 4096, **engine.get("cache", {})},
        "parallel": engine.get("parallel", {}),
        "compilation": compilation,
        "speculative": section,
    }
    if "watermark" in engine:
        data["watermark"] = engine["watermark"]
    return data


def theirs(case):
    """What vLLM made of an accepted case, as one flat mapping of facts."""
    config, engine = case["vllm"]["config"], case["vllm"]["engine"]
    facts = {
        "method": config["method"],
        "num_speculative_tokens": config["num_speculative_tokens"],
        "parallel_drafting": config["parallel_drafting"],
        "max_num_new_slots_for_drafting": config["max_num_new_slots_for_drafting"],
        "uses_aux_hidden_states": config["uses_aux_hidden_states"],
        "needs_eagle_block_drop": config["needs_eagle_block_drop"],
        "use_eagle_block_drop": config["eagle_block_drop"],
        "uses_draft_kv_cache": config["uses_draft_kv_cache"],
        "multi_module_mtp": config["multi_module_mtp"],
        "rejection_sample_method": config["rejection_sample_method"],
        "draft_sample_method": config["draft_sample_method"],
        "synthetic_acceptance_rates": config.get("synthetic_acceptance_rates"),
        "fly_window_size": config.get("fly_window_size"),
        "target_max_model_len": engine["target_max_model_len"],
        "runner": RUNNERS[engine["runner"]],
        "cudagraph_mode": engine["cudagraph_mode"],
        "max_num_seqs": engine.get("max_num_active_seqs"),
        **{
            name: engine[name]
            for name in (
                "num_lookahead_tokens",
                "num_prefill_lookahead_tokens",
                "num_hash_lookahead_tokens",
                "uniform_decode_query_len",
            )
        },
        "schedule": config.get("schedule", {}).get("runs") if "table_kept" in engine else None,
    }
    if config["method"].startswith("ngram"):
        facts["prompt_lookup_min"] = config["prompt_lookup_min"]
        facts["prompt_lookup_max"] = config["prompt_lookup_max"]
    if "draft_parallel" in config:
        parallel = config["draft_parallel"]
        facts["draft_tensor_parallel_size"] = parallel["tensor_parallel_size"]
        facts["draft_expert_parallel"] = parallel["enable_expert_parallel"]
    draft = config.get("draft", {"is_target": True})
    if not draft["is_target"]:
        facts |= {
            f"draft_{name}": draft[name]
            for name in (
                "architectures",
                "max_model_len",
                "max_position_embeddings",
                "vocab_size",
                "is_moe",
            )
        }
    return facts


def ours(spec, wanted):
    """Our facts of a spec, for the names in `wanted`."""
    made = spec.speculative
    speculator, draft = made.speculator, made.draft_model
    block = made.method in ("dflash", "dspark")
    facts = {
        "method": made.method,
        "num_speculative_tokens": made.num_speculative_tokens,
        "parallel_drafting": getattr(speculator, "parallel_drafting", block),
        "multi_module_mtp": isinstance(speculator, MultiModuleMTPSpeculatorConfig),
        "rejection_sample_method": made.verification.rejection_sample_method.value,
        "draft_sample_method": made.verification.draft_sample_method.value,
        "fly_window_size": made.verification.fly_window_size,
        "draft_tensor_parallel_size": made.draft_parallel.tensor_parallel_size,
        "draft_expert_parallel": made.draft_parallel.enable_expert_parallel,
        "target_max_model_len": spec.model.max_model_len,
        "runner": spec.runner.granted,
        "cudagraph_mode": spec.mode.granted.value,
        "max_num_seqs": spec.scheduler.max_num_seqs,
        "schedule": [list(t) for t in spec.schedule.tiers],
        "prompt_lookup_min": getattr(speculator, "prompt_lookup_min", None),
        "prompt_lookup_max": getattr(speculator, "prompt_lookup_max", None),
    }
    rates = made.verification.synthetic_acceptance_rates
    facts["synthetic_acceptance_rates"] = None if rates is None else list(rates)
    if draft is not None:
        facts |= {
            "draft_architectures": list(draft.architectures),
            "draft_max_model_len": draft.max_model_len,
            "draft_max_position_embeddings": draft.max_position_embeddings,
            "draft_vocab_size": draft.vocab_size,
            "draft_is_moe": draft.is_moe,
        }
    known = {n: facts[n] if n in facts else getattr(spec, n, None) for n in wanted}
    if wanted.get("max_num_seqs") is None:
        known["max_num_seqs"] = None
    if wanted.get("schedule") is None:
        known["schedule"] = None
    return known
