"""How long does it take to read a config file and resolve it, after imports?

The file is the EAGLE-3 example with a dynamic table, for a Llama-3 target and a head, both as config.json folders that
are read again in every round. Target: under 5 ms. The same run times the two parts and, for scale, PyYAML's own parser
of the same text.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import yaml
from common import machine, write

from graphspec.api import resolve_document
from graphspec.formats.read import read_document

TARGET_MS = 5.0

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
    "torch_dtype": "bfloat16",
}
HEAD = {
    **MODEL,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
}
CONFIG = """\
# Llama 3 8B with an EAGLE-3 head whose depth follows the batch size.
model:        {{source: "{target}", dtype: bfloat16, max_model_len: 32768}}
parallel:     {{tensor_parallel_size: 2}}
scheduler:    {{max_num_seqs: 128, max_num_batched_tokens: 8192}}
kv_cache:     {{block_size: 16, num_blocks: 4096, enable_prefix_caching: true}}
compilation:  {{cudagraph_mode: FULL_AND_PIECEWISE}}
speculative:
  method: eagle3
  model: "{draft}"
  num_speculative_tokens: 4
  num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 32, 3], [33, 128, 2]]
device:       {{target: cuda}}
"""


def timed(action, rounds: int) -> list[float]:
    """Milliseconds of each round."""
    samples = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        samples.append((time.perf_counter() - began) * 1000)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind, config in (("target", MODEL), ("draft", HEAD)):
            (folder / kind).mkdir()
            (folder / kind / "config.json").write_text(json.dumps(config))
        file = folder / "eagle3.yaml"
        file.write_text(CONFIG.format(target=folder / "target", draft=folder / "draft"))
        text = file.read_text()
        document = read_document(str(file))
        spec = resolve_document(document).require()
        assert spec.speculative is not None
        assert spec.schedule.depths == (4, 3, 2)
        actions = {
            "read_and_resolve": lambda: resolve_document(read_document(str(file))),
            "read": lambda: read_document(str(file)),
            "resolve": lambda: resolve_document(document),
            "pyyaml_safe_load": lambda: yaml.safe_load(text),
        }
        for action in actions.values():
            timed(action, 5)
        taken: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(asked.rounds):
            for name, action in actions.items():
                taken[name] += timed(action, 1)
    medians = {name: statistics.median(samples) for name, samples in taken.items()}
    for name, value in medians.items():
        print(f"{name}: {value:.2f} ms")
    print(f"target: read_and_resolve under {TARGET_MS} ms, one thread, {asked.rounds} rounds")
    write("resolve", {"machine": machine(), "target_ms": TARGET_MS, "medians_ms": medians})


if __name__ == "__main__":
    main()
