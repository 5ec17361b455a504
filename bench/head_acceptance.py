"""What a draft head is worth in the engine: tokens a step, greedy, on prompts that it was not trained on."""

from collections.abc import Sequence

from graphspec.capture.warmup import make_ready
from graphspec.config.engine import EngineConfig
from graphspec.engine.generate import Generator
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.tokenizer import load_tokenizer


def acceptance(
    model: str, method: str, head: str, prompts: Sequence[Sequence[int]], depth: int, tokens: int
) -> dict:
    """Acceptance length, the share of steps in which each draft was right, and what was counted."""
    longest = max(map(len, prompts)) + tokens
    spec = EngineConfig.from_dict(
        {
            "model": {"source": model, "dtype": "float32", "max_model_len": longest},
            "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 512},
            "kv_cache": {"block_size": 16, "num_blocks": 1 + 9 * -(-(longest + depth) // 16)},
            "compilation": {"cudagraph_mode": "NONE"},
            "speculative": {"method": method, "model": head, "num_speculative_tokens": depth},
            "device": {"target": "cpu"},
        }
    ).resolve()
    ready = make_ready(spec)
    engine = Generator(ready.source, ready.manager, end_of_text=load_tokenizer(spec.model).stop_ids)
    engine.generate(prompts, SamplingParams(max_tokens=tokens))
    counts = engine.counts
    return {
        "acceptance_length": round(counts.acceptance_length, 4),
        "accepted_at": [round(n / counts.drafts, 4) for n in counts.accepted_at],
        "steps": counts.drafts,
        "tokens": counts.generated_tokens,
    }
